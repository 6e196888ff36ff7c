"""Limits connections to the admin port: their number, their idle time and their requests' size. uvicorn itself would wait for a
request for ever."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hangup.config import ClientLimits

_REQUEST_BYTES_MAX = 256 * 1024  # no valid request is nearly as long


class AdminConnection(HttpToolsProtocol):
    limits: ClientLimits  # set by `bounded`

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._requests = self._requests_before = self._request_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        if len(self.connections) > self.limits.admin_connections_max:
            transport.abort()
        else:
            self._look_again()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._request_bytes += len(data)
        if self._request_bytes > _REQUEST_BYTES_MAX:
            self.transport.abort()
        else:
            super().data_received(data)

    def on_headers_complete(self) -> None:
        self._requests += 1
        self._request_bytes = 0
        super().on_headers_complete()

    def _look_again(self) -> None:
        self._timer = self.loop.call_later(self.limits.header_s, self._look)

    def _look(self) -> None:
        """Close a connection that has no request in progress and made none since the last check."""
        self._timer = None
        rests = self.cycle is None or self.cycle.response_complete
        if rests and self._requests == self._requests_before:
            self.transport.close()
            return
        self._requests_before = self._requests
        self._look_again()


def bounded(limits: ClientLimits) -> type[AdminConnection]:
    """Return a connection class with these limits for uvicorn to instantiate."""
    return type("BoundedAdminConnection", (AdminConnection,), {"limits": limits})
