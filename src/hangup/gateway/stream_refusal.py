"""Decides whether an engine refused a call because the gateway asked it to stream, which the client had not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from hangup.errors import WireError
from hangup.gateway.backends.connection import EngineConnection, body_decoder
from hangup.gateway.http.body import UntilClose
from hangup.gateway.http.head import ResponseHead

# Statuses with which engines refuse a request that they cannot serve.
STATUSES: Final = frozenset([400, 422, 501])
_NOT_IMPLEMENTED: Final = 501  # may always be about the stream
_KEPT_BYTES_MAX: Final = 64 * 1024


class RefusedCall(Protocol):
    """A call that an engine refused to stream."""

    def ask_plainly(self) -> None:
        """Send the request again, as the client wrote it."""

    def relay_answer(self, head: ResponseHead, rest: bytes) -> Callable[[bytes], None]:
        """Relay the refusal to the client; return the function that takes the rest of it."""

    def engine_garbled(self, connection: EngineConnection, error: WireError) -> None: ...


class StreamRefusal:
    """Reads the engine's whole answer. If it mentions streams, or is empty, the request is sent again as the client wrote
    it. Any other refusal concerns the client's own request and is relayed: a second attempt would be refused as well.
    """

    __slots__ = ("_body", "_connection", "_decoder", "_flow", "_head", "_next", "_raw")

    def __init__(self, flow: RefusedCall, connection: EngineConnection, head: ResponseHead) -> None:
        self._flow = flow
        self._connection = connection
        self._head = head
        self._decoder = body_decoder(head)
        self._raw = b""
        self._body = b""
        self._next: Callable[[bytes], None] | None = None  # takes the rest of the answer, after the decision

    def feed(self, data: bytes) -> None:
        if self._next is not None:
            self._next(data)
            return
        try:
            self._body += self._decoder.feed(data)
        except WireError as error:
            self._flow.engine_garbled(self._connection, error)
            return
        self._raw += data
        if self._decoder.done or len(self._body) > _KEPT_BYTES_MAX:
            self._decide()

    def connection_ended(self) -> bool:
        """Note the end of the connection, which may be how the answer ends; return whether the request is sent again."""
        if isinstance(self._decoder, UntilClose):
            self._decide()
        return self._next is _ignore

    def _decide(self) -> None:
        """Decide, with the whole answer or as much of it as is kept."""
        about_streams = not self._body or b"stream" in self._body.lower()
        if about_streams or self._head.status == _NOT_IMPLEMENTED:
            self._next = _ignore
            self._flow.ask_plainly()
        else:
            self._next = self._flow.relay_answer(self._head, self._raw)


def _ignore(data: bytes) -> None:
    """Discard the rest of a refusal that is not relayed."""
