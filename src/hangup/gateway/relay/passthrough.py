"""Relays for answers that are passed on unchanged, and for errors that become an event of a stream."""

from __future__ import annotations

from time import monotonic
from typing import Final

from hangup.core import reasons
from hangup.core.reasons import Reason
from hangup.gateway.apis.base import Api, Json
from hangup.gateway.http.body import BodyDecoder, UntilClose
from hangup.gateway.http.jsonbody import Brackets
from hangup.gateway.relay.base import Relay, RelaySink, Verdict
from hangup.gateway.relay.events import abandoned_reason, error_text, failure_of, failure_text, note_usage, parse, usage_of
from hangup.gateway.trace_attributes import note_answer

_ERROR_KEPT_BYTES_MAX: Final = 64 * 1024  # of an error that becomes an event
_JSON_KEPT_BYTES_MAX: Final = 256 * 1024  # of a plain answer, to read its usage


class PassRelay(Relay):
    """Passes any answer on unchanged. At the end it reads the usage from a JSON answer, if the API has one."""

    __slots__ = ("_answer", "_api", "_brackets", "_kept")

    def __init__(self, sink: RelaySink, decoder: BodyDecoder, final: Reason, api: Api | None, *, is_json: bool = False) -> None:
        super().__init__(sink, decoder, final)
        self._api = api
        # If the answer ends with the connection, only its content shows whether it is complete.
        self._brackets = Brackets() if is_json and isinstance(decoder, UntilClose) else None
        self._kept: bytes | bytearray = b""
        self._answer: Json | None = None

    def take(self, payload: bytes) -> None:
        self.call.progressed(0, monotonic())
        if self._api is not None and len(self._kept) <= _JSON_KEPT_BYTES_MAX:
            if not self._kept:
                self._kept = payload  # usually there is no other
            else:
                self._kept = bytearray(self._kept) if type(self._kept) is bytes else self._kept
                self._kept += payload
        if self._brackets is not None:
            self._brackets.feed(payload)
        self.sink.client.send(payload)

    def finished(self) -> None:
        if self._brackets is not None and not self._brackets.closed:
            self.sink.end(reasons.ENGINE_TRUNCATED)
            return
        if self._api is not None and len(self._kept) <= _JSON_KEPT_BYTES_MAX:
            self._answer = parse(self._kept)
            if self._answer is not None and (verdict := _failure_in(self._api, self._answer)) is not None:
                self.call.client_has_all = True
                self.sink.end(*verdict)
                return
        super().finished()

    def settle(self) -> None:
        if self._api is not None and self._answer is not None:
            note_answer(self.call, self._answer)
            usage = usage_of(self._api, self._answer)
            if usage is not None:
                note_usage(self.call, usage)


def _failure_in(api: Api, answer: Json) -> Verdict | None:
    """Return the failure that a complete answer with status 200 reports, if any."""
    failure, why = failure_of(api, answer), abandoned_reason(api, answer)
    if failure is not None:
        return Verdict(reasons.ENGINE_ERROR, failure_text(failure))
    return Verdict(reasons.ENGINE_CANCELLED, f"The engine cancelled the answer: {why}.") if why is not None else None


class ErrorRelay(Relay):
    """Turns an answer that is no stream into an error event, for a client whose stream a heartbeat has begun."""

    __slots__ = ("_api", "_kept", "_status")

    def __init__(self, sink: RelaySink, decoder: BodyDecoder, api: Api, status: int) -> None:
        super().__init__(sink, decoder, reasons.ENGINE_ERROR)
        self._api = api
        self._status = status
        self._kept = bytearray()

    def take(self, payload: bytes) -> None:
        self._kept += payload[: _ERROR_KEPT_BYTES_MAX - len(self._kept)]

    def finished(self) -> None:
        code, message = reasons.ENGINE_ERROR.code, f"The engine answered {self._status}."
        if self._status == 200:
            message = "The engine did not answer with a stream."
        else:
            error = error_text(bytes(self._kept))
            code, message = error.code or code, error.message or message
        self.sink.client.send(self._api.error_event(self._status if self._status >= 400 else 502, code, message))
        self.call.client_has_all = True
        self.sink.end(self._final, message)

    def at_event_boundary(self) -> bool:
        return True
