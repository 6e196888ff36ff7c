"""Answers `/health` and `/ping`: whether a new call could be served now.

Probes arrive every few seconds for as long as the gateway runs. They are not calls: they are neither logged nor counted.
"""

from __future__ import annotations

from collections.abc import Callable

from hangup.config import TrafficLimits
from hangup.core import reasons
from hangup.core.reasons import Reason
from hangup.gateway.client.connection import ClientConnection
from hangup.gateway.http.answer import encode_head
from hangup.gateway.http.head import Headers
from hangup.gateway.log import Log


class Probe:
    """Takes the place of a call on its connection. Like vLLM's, the answer has no body; `x-hangup-reason` explains a 503."""

    def __init__(
        self, connection: ClientConnection, limits: TrafficLimits, log: Log, why_not_ready: Callable[[], Reason | None]
    ) -> None:
        self._connection = connection
        self._log = log
        self._why_not_ready = why_not_ready
        self.body_bytes_max = limits.body_bytes_max
        self.body_s = limits.body_s

    def body_piece(self, piece: bytes) -> bool:
        return True

    def body_arrived(self, body: bytes) -> None:
        self._answer(self._why_not_ready())

    def refuse(self, reason: Reason, detail: str = "") -> None:
        self._answer(reason)

    def _answer(self, reason: Reason | None) -> None:
        connection = self._connection
        headers: Headers = [(b"content-length", b"0")]
        if reason is not None:
            headers.append((b"x-hangup-reason", reason.code.encode("ascii")))
        if reason is reasons.DRAINING:
            connection.close_after_this()
        if connection.will_close:
            headers.append((b"connection", b"close"))
        elif not connection.http11:
            headers.append((b"connection", b"keep-alive"))
        connection.begin(encode_head(200 if reason is None else reason.status, headers), chunked=False)
        connection.finish()

    def fault(self, error: Exception) -> None:
        self._log.fault(error)
        self._answer(reasons.INTERNAL)

    def on_due(self) -> None: ...

    def stop_engine(self, reason: Reason) -> None: ...

    def client_left(self, reason: Reason) -> None: ...

    def pause_engine(self) -> None: ...

    def resume_engine(self) -> None: ...
