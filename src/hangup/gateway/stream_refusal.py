"""An engine refuses a call that we asked it to stream, though its client did not: was that the reason?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hangup.errors import WireError
from hangup.gateway.backends.connection import EngineConnection, body_decoder
from hangup.gateway.http.body import UntilClose
from hangup.gateway.http.head import ResponseHead

# How an engine says that it cannot do what it was asked.
STATUSES = frozenset([400, 422, 501])
_NOT_IMPLEMENTED = 501  # whatever that is, it may be the stream
_KEPT_BYTES_MAX = 64 * 1024


class RefusedCall(Protocol):
    """The call that an engine refused to stream."""

    def ask_plainly(self) -> None:
        """Asks again, as the client put it."""

    def relay_answer(self, head: ResponseHead, rest: bytes) -> Callable[[bytes], None]:
        """Passes the refusal on; returns where the rest of it goes."""

    def engine_garbled(self, connection: EngineConnection, error: WireError) -> None: ...


class StreamRefusal:
    """Reads the engine's answer whole. If it speaks of streams, the call is asked again as the client put it; any other
    refusal is the client's own, and is passed on: asking twice would be refused twice.
    """

    __slots__ = ("_body", "_connection", "_decoder", "_flow", "_head", "_next", "_raw")

    def __init__(self, flow: RefusedCall, connection: EngineConnection, head: ResponseHead) -> None:
        self._flow = flow
        self._connection = connection
        self._head = head
        self._decoder = body_decoder(head)
        self._raw = b""
        self._body = b""
        self._next: Callable[[bytes], None] | None = None  # where the rest goes, once it is decided

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
        """Takes the end of the connection, which may be how the refusal ends; returns whether the call is asked again."""
        if isinstance(self._decoder, UntilClose):
            self._decide()
        return self._next is _ignore

    def _decide(self) -> None:
        """All of it is here, or as much as is looked at."""
        about_streams = not self._body or b"stream" in self._body.lower()
        if about_streams or self._head.status == _NOT_IMPLEMENTED:
            self._next = _ignore
            self._flow.ask_plainly()
        else:
            self._next = self._flow.relay_answer(self._head, self._raw)


def _ignore(data: bytes) -> None:
    """What comes behind a refusal that is not passed on."""
