"""`/health` and `/ping`: whether a call that came now could be served, answered here.

A probe comes every few seconds for as long as the gateway lives. It is no call: it has no line in the log and is not counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangup.core import reasons
from hangup.core.reasons import Reason
from hangup.edge.connection import ClientConnection
from hangup.wire.answer import encode_head
from hangup.wire.head import Headers

if TYPE_CHECKING:
    from hangup.app.gateway import Gateway


class Probe:
    """Stands where a call would. Like vLLM's, the answer has no body; `x-hangup-reason` says why it is 503."""

    def __init__(self, gateway: Gateway, connection: ClientConnection) -> None:
        self._gateway = gateway
        self._connection = connection
        self.body_bytes_max = gateway.limits.body_bytes_max
        self.body_s = gateway.limits.body_s

    def body_piece(self, piece: bytes) -> bool:
        return True

    def body_arrived(self, body: bytes) -> None:
        self._answer(self._gateway.why_not_ready())

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
        self._gateway.log.fault(error)
        self._answer(reasons.INTERNAL)

    def on_due(self) -> None: ...

    def client_left(self, reason: Reason) -> None: ...

    def pause_engine(self) -> None: ...

    def resume_engine(self) -> None: ...
