"""The base class of relays, which decode an engine's body and end the call when it is complete or broken."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from hangup.config import CallLimits
from hangup.core import reasons
from hangup.core.call import ENDED, Call
from hangup.core.reasons import Reason
from hangup.errors import EventTooLarge, WireError
from hangup.gateway.apis.base import Json
from hangup.gateway.client.client import ResponseSink
from hangup.gateway.http.body import BodyDecoder, UntilClose
from hangup.gateway.http.head import ResponseHead


class RelaySink(Protocol):
    """The call that a relay works for."""

    @property
    def call(self) -> Call: ...

    @property
    def client(self) -> ResponseSink: ...

    @property
    def limits(self) -> CallLimits: ...

    def end(self, reason: Reason, detail: str = "") -> None: ...

    def first_token(self) -> None:
        """Note that the first token has arrived."""

    def answer_whole(self, status: int, answer: Json, head: ResponseHead) -> None:
        """Send the client one JSON value, with the headers of the engine's `head`."""

    def fault(self, error: Exception) -> None: ...


class Verdict(NamedTuple):
    """How an answer has ended."""

    reason: Reason
    detail: str = ""


WELL: Final = Verdict(reasons.COMPLETED)


class Relay:
    """Receives an engine's body: `feed` gets the raw bytes, `take` the decoded ones."""

    __slots__ = ("_final", "call", "decoder", "keep_alive", "sink")

    def __init__(self, sink: RelaySink, decoder: BodyDecoder, final: Reason) -> None:
        self.sink = sink
        self.call = sink.call
        self.decoder = decoder
        self.keep_alive = True  # True if the engine keeps its connection open
        self._final = final  # how the call ends if the answer is complete

    def feed(self, data: bytes) -> None:
        try:
            payload = self.decoder.feed(data)
            if payload:
                self.take(payload)
            if self.decoder.done and self.call.phase is not ENDED:
                self.engine_finished()
        except Exception as error:
            self._end_with_error(error)

    def _end_with_error(self, error: Exception) -> None:
        if isinstance(error, EventTooLarge):
            self.sink.end(reasons.EVENT_BYTES)
        elif isinstance(error, WireError):
            self.sink.end(reasons.ENGINE_INVALID_ANSWER, f"The engine's answer is invalid: {error}.")
        else:
            self.sink.fault(error)

    def take(self, payload: bytes) -> None:
        raise NotImplementedError

    def engine_finished(self) -> None:
        self.call.engine_finished = True
        self.finished()

    def engine_closed(self) -> bool:
        """Handle the end of the connection; return whether it is the regular end of this answer."""
        if not isinstance(self.decoder, UntilClose):
            return False
        try:
            self.engine_finished()
        except Exception as error:
            self._end_with_error(error)
        return True

    def finished(self) -> None:
        self.call.client_has_all = True
        self.sink.end(self._final)

    def at_event_boundary(self) -> bool:
        """Return whether an error event may follow the bytes that the client has."""
        return False

    def can_move(self) -> bool:
        """Return whether another engine may still answer instead, because the client has nothing of this answer."""
        return False

    def verdict(self) -> Verdict | None:
        """Return how the answer ended if it is complete but for the engine's framing, for a client that hangs up now."""
        return None

    def connection_reusable(self) -> bool:
        return self.keep_alive and self.decoder.done and not self.decoder.rest

    def settle(self) -> None:
        """Take over the engine's own token counts, at the end of the call."""
