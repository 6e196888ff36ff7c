"""One backend: its address, its place in the balance, its connections and its adapter."""

from __future__ import annotations

import asyncio
import os

from hangup.config import BackendSettings, Limits
from hangup.core.placement import Seat
from hangup.engines.adapters import ADAPTERS, AUTO, Adapter
from hangup.engines.pool import Pool
from hangup.wire.head import HOP_BY_HOP, Headers, RequestHead

# Of the client's headers, what is between it and us, or what we set anew.
_NOT_FORWARDED = HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"expect",
    b"accept-encoding",
    b"cookie",
    b"x-request-id",
    b"x-request-timeout",
    b"x-stainless-read-timeout",
}
_KEYS = frozenset([b"authorization", b"x-api-key"])


class Backend:
    def __init__(self, settings: BackendSettings, limits: Limits, loop: asyncio.AbstractEventLoop) -> None:
        self.settings = settings
        self.pool = Pool(settings, limits, loop)
        self.name = settings.name or self.pool.address.authority + self.pool.address.prefix
        self.seat = Seat(self.name, settings.slots, settings.weight, limits.failures_max)
        # Until a backend has told what it is, it is treated as the least capable kind.
        self.adapter: Adapter = ADAPTERS["openai" if settings.engine == AUTO else settings.engine]
        self.recognised = settings.engine != AUTO
        self._key = os.environ.get(settings.api_key_env, "") if settings.api_key_env else ""
        self._host = self.pool.address.authority.encode("ascii")

    def __repr__(self) -> str:
        state = "up" if self.seat.up else "down"
        return f"<backend {self.name} {self.adapter.name} {state} in_flight={self.seat.in_flight}>"

    def request(
        self, head: RequestHead, path: str, body: bytes, *, call_id: str, timeout_s: float | None, forward_key: bool
    ) -> bytes:
        """The request as the engine gets it, whole."""
        lines = [b"%b %b%b HTTP/1.1\r\nhost: %b\r\n" % (head.method.encode(), self._target(path), head.query, self._host)]
        dropped = _NOT_FORWARDED | self.adapter.stripped_headers | _named_by_connection(head.fields)
        if self._key or not forward_key:
            dropped = dropped | _KEYS
        lines += [b"%b: %b\r\n" % pair for pair in head.headers if pair[0] not in dropped]
        lines.append(b"accept-encoding: identity\r\nx-request-id: %b\r\n" % call_id.encode("ascii"))
        if self._key:
            lines.append(b"authorization: Bearer %b\r\n" % self._key.encode())
            if b"anthropic-version" in head.fields:
                lines.append(b"x-api-key: %b\r\n" % self._key.encode())
        if timeout_s is not None:
            lines.append(b"x-request-timeout: %.3f\r\n" % timeout_s)
        if body or head.method == "POST":
            lines.append(b"content-length: %d\r\n" % len(body))
        lines.append(b"\r\n")
        lines.append(body)
        return b"".join(lines)

    def own_request(self, method: str, path: str, body: bytes = b"", headers: Headers | None = None) -> bytes:
        """A request of the gateway itself: a health check, an abort."""
        lines = [b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (method.encode(), self._target(path), self._host)]
        lines += [b"%b: %b\r\n" % pair for pair in headers or []]
        if self._key:
            lines.append(b"authorization: Bearer %b\r\n" % self._key.encode())
        if body:
            lines.append(b"content-type: application/json\r\n")
        lines.append(b"accept-encoding: identity\r\nuser-agent: hangup\r\ncontent-length: %d\r\n\r\n" % len(body))
        return b"".join(lines) + body

    def _target(self, path: str) -> bytes:
        return (self.pool.address.prefix + path).encode("ascii")


def _named_by_connection(fields: dict[bytes, bytes]) -> frozenset[bytes]:
    """Headers that the client itself calls hop-by-hop."""
    connection = fields.get(b"connection")
    if connection is None or connection in (b"keep-alive", b"close"):
        return frozenset()
    return frozenset(name.strip().lower() for name in connection.split(b","))
