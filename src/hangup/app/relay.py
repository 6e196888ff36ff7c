"""The pump: what an engine sends goes to the client in the same turn of the loop; events are only counted.

There are three, chosen by what the answer is: `PassRelay` for bytes that mean nothing to us, `StreamRelay` for a
stream of events, and `AssembleRelay` (assembly.py) for a stream that becomes one JSON answer. `StreamRelay.feed`
is the hottest code of the gateway: it looks into a chunk by byte search only, and writes it on as it came.
"""

from __future__ import annotations

from time import monotonic
from typing import NamedTuple, Protocol

import orjson

from hangup.apis.base import Api, Ask, Cut, Json, Usage
from hangup.app.events import (
    ended,
    error_told,
    failure_of,
    failure_told,
    given_up,
    is_last,
    moves,
    note_usage,
    parse,
    usage_of,
    weigh,
)
from hangup.core import reasons
from hangup.core.call import Call
from hangup.core.reasons import Reason
from hangup.edge.client import Client
from hangup.errors import WireError
from hangup.wire.body import KNOWN_SIZES, Chunked, Decoder, UntilClose, is_whole_chunks

_NEVER = b"\0never\0"  # what no read ends with
_QUOTE = ord('"')
_ERROR_KEPT_BYTES_MAX = 64 * 1024  # of an error that is told in an event
_JSON_KEPT_BYTES_MAX = 256 * 1024  # of a plain answer, kept to read its usage from


class Joint(Protocol):
    """What a relay sits in: the exchange between a client and an engine."""

    call: Call
    client: Client
    event_bytes_max: int
    answer_bytes_max: int

    def end(self, reason: Reason, detail: str = "") -> None: ...

    def first_token(self) -> None:
        """The wait for the first token is over."""

    def answer_whole(self, status: int, answer: Json) -> None: ...

    def fault(self, error: Exception) -> None: ...


class Verdict(NamedTuple):
    reason: Reason
    detail: str = ""


_WELL = Verdict(reasons.COMPLETED)


class Relay:
    """Takes the engine's body; `feed` gets its raw bytes."""

    __slots__ = ("_final", "call", "decoder", "joint", "keep_alive")

    def __init__(self, joint: Joint, decoder: Decoder, final: Reason) -> None:
        self.joint = joint
        self.call = joint.call
        self.decoder = decoder
        self.keep_alive = True  # what the engine said about its connection
        self._final = final  # how the call ends if the answer comes whole

    def feed(self, data: bytes) -> None:
        try:
            payload = self.decoder.feed(data)
            if payload:
                self.take(payload)
            if self.decoder.done and not self.call.ended:
                self.engine_finished()
        except Exception as error:
            self._stumble(error)

    def _stumble(self, error: Exception) -> None:
        if isinstance(error, WireError):
            over = "size cap" in str(error)
            self.joint.end(reasons.EVENT_BYTES if over else reasons.ENGINE_GARBLED, str(error))
        else:
            self.joint.fault(error)

    def take(self, payload: bytes) -> None:
        raise NotImplementedError

    def engine_finished(self) -> None:
        self.call.engine_finished = True
        self.finished()

    def engine_closed(self) -> bool:
        """The connection ended; True if that is how this answer ends."""
        if not isinstance(self.decoder, UntilClose):
            return False
        try:
            self.engine_finished()
        except Exception as error:
            self._stumble(error)
        return True

    def finished(self) -> None:
        self.call.client_has_all = True
        self.joint.end(self._final)

    def at_event_boundary(self) -> bool:
        """Whether an error event can follow what the client has."""
        return False

    def can_move(self) -> bool:
        """Whether another engine may answer in this one's stead, since nothing of the answer has come to the client."""
        return False

    def verdict(self) -> Verdict | None:
        """How the answer has ended for a client that leaves now, though the engine has still to end its own framing."""
        return None

    def connection_reusable(self) -> bool:
        return self.keep_alive and self.decoder.done and not self.decoder.rest

    def settle(self) -> None:
        """The call ends: last look at what the engine told about its tokens."""


class PassRelay(Relay):
    """Any answer, as it is. Of a JSON answer the usage is read at the end, where the API has one."""

    __slots__ = ("_answer", "_api", "_is_json", "_kept", "_last_byte")

    def __init__(self, joint: Joint, decoder: Decoder, final: Reason, api: Api | None, *, is_json: bool = False) -> None:
        super().__init__(joint, decoder, final)
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
        self.joint.client.send(payload)

    def finished(self) -> None:
        if self._is_json and not self._is_whole():
            self.joint.end(reasons.ENGINE_TRUNCATED)
            return
        if self._api is not None and len(self._kept) <= _JSON_KEPT_BYTES_MAX:
            self._answer = parse(bytes(self._kept))
            if self._answer is not None and (verdict := _failure_in(self._api, self._answer)) is not None:
                self.call.client_has_all = True
                self.joint.end(*verdict)
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
    failure, why = failure_of(api, answer), given_up(api, answer)
    if failure is not None:
        return Verdict(reasons.ENGINE_ERROR, failure_told(failure))
    return Verdict(reasons.ENGINE_GAVE_UP, f"The engine cancelled the answer: {why}.") if why is not None else None


class ErrorRelay(Relay):
    """An answer that is no stream, for a client whose stream has begun with a heartbeat: it is told of it in an event."""

    __slots__ = ("_api", "_kept", "_status")

    def __init__(self, joint: Joint, decoder: Decoder, api: Api, status: int) -> None:
        super().__init__(joint, decoder, reasons.ENGINE_ERROR)
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
            told = error_told(bytes(self._kept))
            code, message = told.code or code, told.message or message
        self.joint.client.send(self._api.error_event(self._status if self._status >= 400 else 502, code, message))
        self.call.client_has_all = True
        self.joint.end(self._final, message)

    def at_event_boundary(self) -> bool:
        return True


class StreamRelay(Relay):
    """A stream of events to a client that asked for one."""

    __slots__ = (
        "_api",
        "_ask",
        "_before",
        "_carry",
        "_closed",
        "_done",
        "_each",
        "_empty",
        "_end",
        "_ended",
        "_failed",
        "_fast_end",
        "_frame",
        "_given_up",
        "_history",
        "_history_bytes",
        "_last",
        "_moved",
        "_needle",
        "_open",
        "_open_field",
        "_passed",
        "_token_end",
        "_tokens_max",
        "_usage",
        "_write",
    )

    def __init__(self, joint: Joint, decoder: Decoder, api: Api, ask: Ask) -> None:
        super().__init__(joint, decoder, reasons.COMPLETED)
        self._api = api
        self._ask = ask
        self._write = joint.client.write
        self._end = api.format.end
        self._history: list[bytes] | None = [] if api.needs_history else None
        self._history_bytes = 0
        self._carry = b""  # the beginning of an event whose end has not come
        self._tokens_max = ask.tokens_max
        # How an event with a token is known without parsing it, once one was seen: what stands before its text, and before
        # one that is empty; and what shows that it is not the last.
        self._needle = self._empty = self._open = self._open_field = b""
        self._each = b""  # what stands in each event, so that they can be counted
        self._before = _NEVER  # how the last one that was parsed begins
        self._frame = 0  # the bytes that such events have in common; 0: they must be counted
        self._token_end = _NEVER  # how a chunk ends that ends in an event with a token
        self._fast_end = _NEVER  # the same, while the fast way is open
        self._passed = False  # anything of the body
        # What the events that were parsed have told
        self._last: Json = {}
        self._moved = False
        self._usage: Usage | None = None
        self._ended: set[int] = set()  # choices
        self._done = False  # the answer is complete,
        self._closed = False  # and nothing follows it
        self._failed: Verdict | None = None  # the engine told of an error
        self._given_up: str | None = None

    def feed(self, data: bytes) -> None:
        # Most reads are whole chunks that end in an event with a token: those go on as they are.
        if data.endswith(self._fast_end):
            start, size = data.find(b"\r\n", 0, 18) + 2, len(data)
            if (
                0 < size - start - self._frame < self._frame  # too short for two events
                and data.startswith(self._before, start)
                and data[start + len(self._before)] != _QUOTE  # it has a text
                and KNOWN_SIZES.get(data[: start - 2]) == size - start - 2
            ):
                tokens = 1
            else:
                tokens = self._count_chunks(data)
            call = self.call
            if tokens and call.tokens_out + tokens <= self._tokens_max:
                call.tokens_out += tokens
                call.progress_at = monotonic()
                self._write(data)
                return
        super().feed(data)
        self._fast_end = self._token_end if self._aligned() else _NEVER

    def _count_chunks(self, data: bytes) -> int:
        """The tokens in a read of whole chunks, if each event has one; 0 is no verdict, only the slow way."""
        if not is_whole_chunks(data):
            return 0
        events = data.count(self._each)
        texts = data.count(self._needle) - data.count(self._empty)
        if self._ask.choices > 1:  # one event may have several texts, and none that ends an answer may be missed
            return texts if texts >= events == data.count(self._open_field) else 0
        return events if texts >= events else 0

    def _aligned(self) -> bool:
        """No chunk and no event is open, and the engine's chunks suit the client as they are."""
        between = isinstance(self.decoder, Chunked) and self.decoder.between_chunks and not self._carry
        return between and self._history is None and self.joint.client.http11

    def take(self, payload: bytes) -> None:
        text = self._carry + payload
        if self._end == b"\n\n" and not self._needle and b"\r\n\r\n" in text:
            self._end = b"\r\n\r\n"
        cut = text.rfind(self._end) + len(self._end)
        if cut < len(self._end):
            cut = 0
        whole, carry = text[:cut], text[cut:]
        if len(carry) > self.joint.event_bytes_max:
            raise WireError("event over the size cap")
        if whole and not self._take_events(whole):
            return
        self._carry = carry
        self._passed = True
        self.joint.client.send(payload)

    def _take_events(self, whole: bytes) -> bool:
        """Counts whole events; False when the call has ended with one of them."""
        call, sent, at, total = self.call, len(self._carry), 0, self.call.tokens_out
        self._moved = False
        for event in whole.split(self._end):
            if event:
                last = self._last
                after = self._look_at(event, total)
                if after > self._tokens_max and self._is_over(event):
                    over = parse(self._api.format.data(event)) or {}
                    if at >= sent:
                        self._close_at_cap(whole[:at], total, last, over)
                    else:  # the client has its beginning
                        self._close_at_cap(whole[: at + len(event) + len(self._end)], after, over, over)
                    return False
                if self._given_up is not None:
                    call.tokens_out = after
                    self._give_up(whole[:at])
                    return False
                total = after
            at += len(event) + len(self._end)
        self._remember(whole)
        self._progress(total)
        return True

    def _progress(self, total: int) -> None:
        """Only a token, or work that shows otherwise, ends the wait for the engine."""
        call = self.call
        if total > call.tokens_out:
            if call.first_token_at is None:
                call.progressed(total, monotonic())
                self.joint.first_token()
            else:
                call.tokens_out = total
                call.progress_at = monotonic()
        elif self._moved:
            call.progress_at = monotonic()

    def _look_at(self, event: bytes, total: int) -> int:
        """The tokens so far, with this event. One that looks like those with a token is not parsed."""
        api = self._api
        if self._needle and self._open in event and api.usage_mark not in event:
            found = event.count(self._needle) - event.count(self._empty)
            if found > 0:
                return total + min(found, self._ask.choices)
        data = api.format.data(event)
        value = parse(data)
        if value is None:
            if data == b"[DONE]":
                self._done = self._closed = True
            return total
        self._last = value
        self._moved = self._moved or moves(api, value)
        weight = weigh(api, value)
        if weight:
            self._learn(event)
        total += weight
        usage = usage_of(api, value)
        if usage is not None:
            self._usage = usage
            if type(usage.tokens_in) is int:
                self.call.tokens_in = usage.tokens_in
        failure = failure_of(api, value)
        if failure is not None:
            self._failed = Verdict(reasons.ENGINE_ERROR, failure_told(failure))
        elif is_last(api, value):
            self._note_end(value)
        elif usage is not None and type(usage.tokens_out) is int:
            total = max(total, usage.tokens_out)
        return total

    def _note_end(self, value: Json) -> None:
        over = ended(self._api, value)
        self._ended.update(over)
        # An event without choices, the usage, is about all of them.
        self._done = self._done or not over or len(self._ended) >= self._ask.choices
        self._closed = self._closed or self._api.ends_with_last
        self._given_up = given_up(self._api, value)

    def _is_over(self, event: bytes) -> bool:
        """Whether an event is more of the answer, and not just its end."""
        value = parse(self._api.format.data(event))
        return value is not None and weigh(self._api, value) > 0 and not is_last(self._api, value)

    def _learn(self, event: bytes) -> None:
        """What events with a token have in common, so that further ones need no parsing."""
        api = self._api
        needle = next((mark for mark in api.text_marks if event.count(mark) > event.count(mark + b'"')), b"")
        shown = next((mark for mark in api.open_marks if mark in event), b"")
        if not needle or (api.open_marks and not shown):
            return
        self._needle, self._open = needle, shown
        self._open_field = shown[: shown.find(b":") + 1]
        self._empty = needle + b'"' if needle.endswith(b'"') else _NEVER
        self._each = shown or self._end
        start = event.index(needle) + len(needle)
        at = event.rindex(shown) if shown else _end_of_text(event, start)
        self._token_end = event[at:] + self._end + b"\r\n"
        self._before = event[:start]
        if self._ask.choices == 1:  # else one event may have the texts of several
            self._frame = len(self._before) + len(self._token_end)

    def _remember(self, whole: bytes) -> None:
        if self._history is not None:
            self._history_bytes += len(whole)
            if self._history_bytes <= self.joint.event_bytes_max:
                self._history.append(whole)

    def _close_at_cap(self, passed: bytes, tokens: int, last: Json, over: Json) -> None:
        """The engine goes on past the cap: the answer is ended as the engine should have."""
        self.call.tokens_out = tokens
        history = self._events(b"".join(self._history) + passed) if self._history is not None else []
        closing = self._api.closing(Cut(self._ask, last, over, history, tokens, self._ended))
        self.joint.client.send(passed[len(self._carry) :] + closing)
        self.joint.end(reasons.OUTPUT_TOKENS)

    def _give_up(self, passed: bytes) -> None:
        """The engine has cancelled the answer: that must not look like its end."""
        unsent = passed[len(self._carry) :]
        if unsent:
            self.joint.client.send(unsent)
        if len(passed) >= len(self._carry):
            self._carry = b""  # nothing of the event that said so was sent
        self.joint.end(reasons.ENGINE_GAVE_UP, f"The engine cancelled the answer: {self._given_up}.")

    def _events(self, text: bytes) -> list[Json]:
        parsed = (parse(self._api.format.data(event)) for event in text.split(self._end))
        return [value for value in parsed if value is not None]

    def finished(self) -> None:
        """A stream that merely stops is no answer, however clean its framing."""
        if self._carry:
            self._look_at(self._carry, self.call.tokens_out)  # some engines end without the last line end
        if self._given_up is not None:
            self._give_up(b"")
        elif self._failed is not None:
            self._tell_failure()
        else:
            self.joint.end(reasons.COMPLETED if self._done else reasons.ENGINE_TRUNCATED)

    def _tell_failure(self) -> None:
        assert self._failed is not None
        self.call.client_has_all = True  # it was told, in the engine's own words
        self.joint.end(*self._failed)

    def verdict(self) -> Verdict | None:
        if self._carry:
            return None
        return self._failed or (_WELL if self._closed else None)

    def engine_closed(self) -> bool:
        if self._failed is None:
            return super().engine_closed()
        self._tell_failure()  # the client knows already: that the connection ended, too, is no news
        return True

    def at_event_boundary(self) -> bool:
        return not self._carry

    def can_move(self) -> bool:
        return not self._passed

    def settle(self) -> None:
        if self._usage is not None:
            note_usage(self.call, self._usage)


def _end_of_text(event: bytes, start: int) -> int:
    """Where the quote is that ends a text; any later one will do, too."""
    end = event.find(b'"', start)
    while end > 0 and event[end - 1 : end] == b"\\":
        end = event.find(b'"', end + 1)
    return max(end, start)
