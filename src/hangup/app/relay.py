"""The pump: what an engine sends goes to the client in the same turn of the loop; events are only counted.

There are three, chosen by what the answer is: `PassRelay` for bytes that mean nothing to us, `StreamRelay` for a
stream of events, `AssembleRelay` for a stream that becomes one JSON answer. `StreamRelay.feed` is the hottest code
of the gateway: it looks into a chunk by byte search only, and writes it on as it came.
"""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import Any, Protocol

import orjson

from hangup.apis.base import Api, Ask, Assembler, Json, Usage
from hangup.core import reasons
from hangup.core.call import Call
from hangup.core.reasons import Reason
from hangup.edge.client import Client
from hangup.errors import WireError
from hangup.wire.body import Chunked, Decoder, UntilClose, is_whole_chunks
from hangup.wire.sse import Splitter

_NEVER = b"\0never\0"  # what no read ends with
_TAIL_READS = 4  # reads kept to find the last events in: finish reason, usage, [DONE]
_JSON_KEPT_BYTES_MAX = 256 * 1024  # of a plain answer, kept to read its usage from


class Joint(Protocol):
    """What a relay sits in: the exchange between a client and an engine."""

    call: Call
    client: Client
    event_bytes_max: int

    def end(self, reason: Reason, detail: str = "") -> None: ...

    def first_token(self) -> None:
        """The wait for the first token is over."""

    def answer_whole(self, status: int, answer: Json) -> None: ...

    def fault(self, error: Exception) -> None: ...


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
        except WireError as error:
            over = "size cap" in str(error)
            self.joint.end(reasons.EVENT_BYTES if over else reasons.ENGINE_GARBLED, str(error))
            return
        except Exception as error:
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
        self.engine_finished()
        return True

    def finished(self) -> None:
        self.call.client_has_all = True
        self.joint.end(self._final)

    def at_event_boundary(self) -> bool:
        """Whether an error event can follow what the client has."""
        return False

    def connection_reusable(self) -> bool:
        return self.keep_alive and not self.decoder.rest

    def settle(self) -> None:
        """The call ends: last look at what the engine told about its tokens."""


class PassRelay(Relay):
    """Any answer, as it is. Of a JSON answer the usage is read at the end, where the API has one."""

    __slots__ = ("_api", "_kept")

    def __init__(self, joint: Joint, decoder: Decoder, final: Reason, api: Api | None) -> None:
        super().__init__(joint, decoder, final)
        self._api = api
        self._kept = bytearray()

    def take(self, payload: bytes) -> None:
        self.call.progressed(0, monotonic())
        if self._api is not None and len(self._kept) <= _JSON_KEPT_BYTES_MAX:
            self._kept += payload
        self.joint.client.send(payload)

    def settle(self) -> None:
        if self._api is not None and self.call.engine_finished and len(self._kept) <= _JSON_KEPT_BYTES_MAX:
            answer = parse(bytes(self._kept))
            usage = usage_of(self._api, answer) if answer is not None else None
            if usage is not None:
                note_usage(self.call, usage)


class StreamRelay(Relay):
    """A stream of events to a client that asked for one."""

    __slots__ = (
        "_api",
        "_ask",
        "_carry",
        "_end",
        "_fast_end",
        "_first",
        "_history",
        "_history_bytes",
        "_needle",
        "_tail",
        "_token_end",
        "_tokens_max",
        "_write",
    )

    def __init__(self, joint: Joint, decoder: Decoder, api: Api, ask: Ask) -> None:
        super().__init__(joint, decoder, reasons.COMPLETED)
        self._api = api
        self._ask = ask
        self._write = joint.client.write
        self._end = api.format.end
        self._needle = b""
        self._first: Json = {}
        self._history: list[bytes] | None = [] if api.needs_history else None
        self._history_bytes = 0
        self._tail: deque[bytes] = deque(maxlen=_TAIL_READS)
        self._carry = b""  # the beginning of an event whose end has not come
        # Events that carry no token may be counted as one where several answers start at different times.
        self._tokens_max = ask.tokens_max + (ask.choices if ask.choices > 1 else 0)
        self._token_end = _NEVER  # how a chunk ends that ends in an event with a token, once one was seen
        self._fast_end = _NEVER  # the same, while the fast way is open

    def feed(self, data: bytes) -> None:
        # Most reads are whole chunks that end in an event with a token: those go on as they are.
        if data.endswith(self._fast_end) and is_whole_chunks(data):
            call = self.call
            tokens = call.tokens_out + data.count(self._needle)
            if tokens <= self._tokens_max:
                call.tokens_out = tokens
                call.progress_at = monotonic()
                self._write(data)
                return
        super().feed(data)
        self._fast_end = self._token_end if self._aligned() else _NEVER

    def _aligned(self) -> bool:
        """No chunk and no event is open, and the engine's chunks suit the client as they are."""
        between = isinstance(self.decoder, Chunked) and self.decoder.between_chunks and not self._carry
        return between and self._history is None and self.joint.client.http11

    def take(self, payload: bytes) -> None:
        text = self._carry + payload
        if not self._needle and b"\r\n\r\n" in text:
            self._end = b"\r\n\r\n"
        cut = text.rfind(self._end) + len(self._end)
        if cut < len(self._end):
            cut = 0
        whole, carry = text[:cut], text[cut:]
        if len(carry) > self.joint.event_bytes_max:
            raise WireError("event over the size cap")
        tokens = self._count(whole) if whole else 0
        if self.call.tokens_out + tokens > self._tokens_max and self._overran(whole):
            return
        self._carry = carry
        if whole:
            self._tail.append(whole)
            self._remember(whole)
        if tokens or (whole and not whole.startswith(b":")):
            self._progress(tokens)
        self.joint.client.send(payload)

    def _progress(self, tokens: int) -> None:
        call, now = self.call, monotonic()
        if tokens and call.first_token_at is None:
            call.progressed(tokens, now)
            self.joint.first_token()
        else:
            call.tokens_out += tokens
            call.progress_at = now

    def _count(self, whole: bytes) -> int:
        """Tokens in whole events. The first one that has a token shows by which bytes the others are known; the rest,
        beginnings and endings for the most part, are parsed.
        """
        tokens = 0
        for event in whole.split(self._end):
            if self._needle and self._needle in event:
                tokens += 1
                continue
            value = parse(self._api.format.data(event))
            if value is None:
                continue
            self._first = self._first or value
            usage = usage_of(self._api, value)
            if usage is not None and type(usage.tokens_in) is int:
                self.call.tokens_in = usage.tokens_in
            weight = weigh(self._api, value)
            if weight and not self._needle:
                self._learn(event)
            tokens += weight
        return tokens

    def _learn(self, event: bytes) -> None:
        """What events with a token have in common, so that further ones need no parsing."""
        any_event = b"data:" if self._api.format.data_prefix else b"{"
        self._needle = next((n for n in self._api.needles if n in event), any_event)
        if self._needle is not any_event:
            self._token_end = event[event.rindex(self._needle) :] + self._end + b"\r\n"

    def _remember(self, whole: bytes) -> None:
        if self._history is not None:
            self._history_bytes += len(whole)
            if self._history_bytes <= self.joint.event_bytes_max:
                self._history.append(whole)

    def _overran(self, whole: bytes) -> bool:
        """The engine goes on past the cap: pass on what is allowed, then end the answer as the engine should have."""
        left = self._tokens_max - self.call.tokens_out
        passed: list[bytes] = []
        last: Json = self._first
        for event in whole.split(self._end)[:-1]:
            value = parse(self._api.format.data(event)) or {}
            weight = weigh(self._api, value) if not is_last(self._api, value) else 0
            if value and weight > left:
                self._close_at_cap(passed, last)
                return True
            left -= weight
            passed.append(event + self._end)
            last = value or last
        return False  # only a closing event was taken for a token

    def _close_at_cap(self, passed: list[bytes], last: Json) -> None:
        call = self.call
        whole = b"".join(passed)
        events = self._events(whole)
        call.tokens_out += sum(weigh(self._api, event) for event in events)
        history = self._events(b"".join(self._history)) + events if self._history is not None else []
        if not passed and self._tail:
            last = (self._events(self._tail[-1]) or [last])[-1]
        closing = self._api.closing(self._ask, last, history, call.tokens_out)
        self.joint.client.send(whole + closing)
        self.joint.end(reasons.OUTPUT_TOKENS)

    def _events(self, text: bytes) -> list[Json]:
        parsed = (parse(self._api.format.data(event)) for event in text.split(self._end))
        return [value for value in parsed if value is not None]

    def finished(self) -> None:
        if self._ended_properly():
            self.joint.end(reasons.COMPLETED)
        else:
            self.joint.end(reasons.ENGINE_TRUNCATED)

    def _ended_properly(self) -> bool:
        """A stream that merely stops is no answer, however clean its framing."""
        tail = b"".join(self._tail) + self._carry
        return b"[DONE]" in tail or any(is_last(self._api, e) or "error" in e for e in self._events(tail))

    def at_event_boundary(self) -> bool:
        return not self._carry

    def settle(self) -> None:
        for event in self._events(b"".join(self._tail)):
            usage = usage_of(self._api, event)
            if usage is not None:
                note_usage(self.call, usage)


class AssembleRelay(Relay):
    """A stream that the client gets as one JSON answer.

    Most events differ from the one before only in their text. Such a run is joined as bytes and parsed once.
    """

    __slots__ = ("_after", "_api", "_assembler", "_before", "_done", "_run", "_splitter", "_tokens_max", "_told")

    def __init__(self, joint: Joint, decoder: Decoder, api: Api, ask: Ask, assembler: Assembler) -> None:
        super().__init__(joint, decoder, reasons.COMPLETED)
        self._api = api
        self._assembler = assembler
        self._splitter = Splitter(api.format, joint.event_bytes_max)
        self._tokens_max = ask.tokens_max
        self._done = False
        self._before = _NEVER  # what stands before and behind the text in an event of the run
        self._after = b""
        self._run: list[bytes] = []  # texts, still in JSON's escapes
        self._told = 0  # output tokens, as the engine says; taken over at the end

    def take(self, payload: bytes) -> None:
        call = self.call
        for event in self._splitter.feed(payload):
            if event.startswith(self._before) and event.endswith(self._after):
                text = event[len(self._before) : -len(self._after)]
                if b'"' not in text and call.tokens_out < self._tokens_max:
                    self._run.append(text)
                    call.tokens_out += 1
                    continue
            if not self._take_event(event):
                return
        call.progress_at = monotonic()

    def _take_event(self, event: bytes) -> bool:
        """Parses an event; False when the answer has ended with it."""
        data = self._api.format.data(event)
        if data is None:
            return True
        if self._run:
            self._end_run()
        if data == b"[DONE]":
            self._done = True
            return True
        api, call = self._api, self.call
        value = parse(data)
        if value is None:
            if data == b"null":  # llama.cpp begins some streams with it
                return True
            raise WireError("an event that is not JSON")
        if value.get("error") is not None:
            self._fail(value)
            return False
        if api.usage_mark in data:
            self._note(usage_of(api, value))
        tokens = weigh(api, value)
        if tokens:
            if max(call.tokens_out + tokens, self._told) > self._tokens_max and not is_last(api, value):
                self._answer(reasons.OUTPUT_TOKENS)
                return False
            if call.first_token_at is None:
                call.progressed(tokens, monotonic())
                self.joint.first_token()
            else:
                call.tokens_out += tokens
            self._learn(event)
        self._add(value)
        return True

    def _learn(self, event: bytes) -> None:
        """Takes the event as the pattern of those to come."""
        mark = self._api.text_mark
        at = event.find(mark) if mark else -1
        if at >= 0:
            start = at + len(mark)
            end = event.find(b'"', start)
            if event[end - 1 : end] != b"\\":
                self._before, self._after = event[:start], event[end:]

    def _end_run(self) -> None:
        event = self._before + b"".join(self._run) + self._after
        self._run.clear()
        value = parse(self._api.format.data(event))
        if value is None:
            raise WireError("an event that is not JSON")
        self._add(value)

    def _add(self, value: Json) -> None:
        try:
            self._assembler.add(value)
        except _ODD as error:
            raise WireError(f"an event of a shape that is not known: {error!r}") from None

    def _fail(self, event: Json) -> None:
        """An engine that had to say 200 before it failed says so in an event."""
        error = event["error"]
        status = error.get("code") if type(error) is dict else None
        status = status if type(status) is int and 400 <= status < 600 else 502
        self.joint.answer_whole(502 if status == 500 else status, event)
        self.call.engine_finished = False  # what follows is not wanted
        self.joint.end(reasons.ENGINE_ERROR)

    def _note(self, usage: Usage | None) -> None:
        if usage is not None:
            if type(usage.tokens_in) is int:
                self.call.tokens_in = usage.tokens_in
            if type(usage.tokens_out) is int:
                self._told = usage.tokens_out

    def settle(self) -> None:
        if self._told:
            self.call.tokens_out, self.call.tokens_exact = self._told, True

    def finished(self) -> None:
        if self._done or self._assembler.finished:
            self._answer(reasons.COMPLETED)
        else:
            self.joint.end(reasons.ENGINE_TRUNCATED)

    def _answer(self, reason: Reason) -> None:
        if self._run:
            self._end_run()
        self.joint.answer_whole(200, self._assembler.result(capped=reason is reasons.OUTPUT_TOKENS))
        self.joint.end(reason)


def parse(data: bytes | None) -> Json | None:
    """An event's object; None for anything else."""
    if not data:
        return None
    try:
        value: Any = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return value if type(value) is dict else None


# An engine may send events of a shape that its API does not have. Counting them must not break the stream.
_ODD = (KeyError, TypeError, AttributeError, IndexError, ValueError)


def weigh(api: Api, event: Json) -> int:
    try:
        return api.weigh(event)
    except _ODD:
        return 1


def is_last(api: Api, event: Json) -> bool:
    try:
        return api.is_last(event)
    except _ODD:
        return False


def usage_of(api: Api, event: Json) -> Usage | None:
    try:
        return api.usage(event)
    except _ODD:
        return None


def note_usage(call: Call, usage: Usage) -> None:
    """Takes over the counts that the engine tells."""
    if type(usage.tokens_in) is int:
        call.tokens_in = usage.tokens_in
    if type(usage.tokens_out) is int:
        call.tokens_out = usage.tokens_out
        call.tokens_exact = True
