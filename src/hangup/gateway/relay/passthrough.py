"""Answers that are passed on as they are, and errors that become an event of a stream."""

from __future__ import annotations

from time import monotonic

import orjson

from hangup.core import reasons
from hangup.core.reasons import Reason
from hangup.gateway.apis.base import Api, Json
from hangup.gateway.http.body import BodyDecoder, UntilClose
from hangup.gateway.relay.base import Relay, RelaySink, Verdict
from hangup.gateway.relay.events import abandoned_reason, error_text, failure_of, failure_text, note_usage, parse, usage_of

_ERROR_KEPT_BYTES_MAX = 64 * 1024  # of an error that is told in an event
_JSON_KEPT_BYTES_MAX = 256 * 1024  # of a plain answer, kept to read its usage from


class PassRelay(Relay):
    """Any answer, as it is. Of a JSON answer the usage is read at the end, where the API has one."""

    __slots__ = ("_answer", "_api", "_is_json", "_kept", "_last_byte")

    def __init__(self, sink: RelaySink, decoder: BodyDecoder, final: Reason, api: Api | None, *, is_json: bool = False) -> None:
        super().__init__(sink, decoder, final)
        self._api = api
        self._is_json = is_json and isinstance(decoder, UntilClose)  # then its end must be looked for
        self._kept = bytearray()
        self._last_byte = b""
        self._answer: Json | None = None

    def take(self, payload: bytes) -> None:
        self.call.progressed(0, monotonic())
        if (self._api is not None or self._is_json) and len(self._kept) <= _JSON_KEPT_BYTES_MAX:
            self._kept += payload
        if self._is_json:
            self._last_byte = payload.rstrip()[-1:] or self._last_byte
        self.sink.client.send(payload)

    def finished(self) -> None:
        if self._is_json and not self._is_whole():
            self.sink.end(reasons.ENGINE_TRUNCATED)
            return
        if self._api is not None and len(self._kept) <= _JSON_KEPT_BYTES_MAX:
            self._answer = parse(bytes(self._kept))
            if self._answer is not None and (verdict := _failure_in(self._api, self._answer)) is not None:
                self.call.client_has_all = True
                self.sink.end(*verdict)
                return
        super().finished()

    def _is_whole(self) -> bool:
        """A connection that was cut looks like one that was closed; what was being sent tells them apart."""
        if len(self._kept) > _JSON_KEPT_BYTES_MAX:
            return self._last_byte in (b"}", b"]")
        try:
            orjson.loads(self._kept)
        except orjson.JSONDecodeError:
            return False
        return True

    def settle(self) -> None:
        if self._api is not None and self._answer is not None:
            usage = usage_of(self._api, self._answer)
            if usage is not None:
                note_usage(self.call, usage)


def _failure_in(api: Api, answer: Json) -> Verdict | None:
    """A whole answer, with 200, that says that it is none."""
    failure, why = failure_of(api, answer), abandoned_reason(api, answer)
    if failure is not None:
        return Verdict(reasons.ENGINE_ERROR, failure_text(failure))
    return Verdict(reasons.ENGINE_CANCELLED, f"The engine cancelled the answer: {why}.") if why is not None else None


class ErrorRelay(Relay):
    """An answer that is no stream, for a client whose stream has begun with a heartbeat: it is told of it in an event."""

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
