"""Assembles an engine's stream into one JSON answer for the client.

Most events differ from the previous one only in their text. The texts of such a run are joined as bytes and parsed once. Most
reads are one chunk with one such event: `feed` takes these without decoding and splitting them. It may do so while no chunk and
no event is open (`_fast_end` is then how such a read ends); a read that does not fit takes the slow path.
"""

from __future__ import annotations

from time import monotonic
from typing import Final

from hangup.core import reasons
from hangup.core.call import ENDED
from hangup.core.reasons import Reason
from hangup.errors import WireError
from hangup.gateway.apis.base import Api, Ask, Assembler, EventFacts, Failure, Json
from hangup.gateway.http.body import KNOWN_SIZES, LAST_CHUNK, BodyDecoder, Chunked
from hangup.gateway.http.head import ResponseHead
from hangup.gateway.http.sse import SSE, Splitter, events_in_chunks
from hangup.gateway.relay.base import Relay, RelaySink
from hangup.gateway.relay.events import (
    ODD,
    failure_text,
    look,
    parse,
    usage_of,
)
from hangup.gateway.trace_attributes import note_answer

_TOGETHER_MAX: Final = 32  # events whose texts are joined at once
_TOGETHER_BYTES_MAX: Final = 64 * 1024  # a longer read is decoded and split
_NEVER: Final = b"\0never\0"  # no event begins with this, and no read ends with it


class AssembleRelay(Relay):
    __slots__ = (
        "_abandoned_reason",
        "_after",
        "_aligned",
        "_api",
        "_ask",
        "_assembler",
        "_before",
        "_done",
        "_ended",
        "_fast_end",
        "_head",
        "_kept_bytes",
        "_moved",
        "_reported_tokens",
        "_run",
        "_splitter",
        "_together_bytes_max",
        "_tokens_max",
    )

    def __init__(
        self, sink: RelaySink, decoder: BodyDecoder, api: Api, ask: Ask, assembler: Assembler, head: ResponseHead
    ) -> None:
        super().__init__(sink, decoder, reasons.COMPLETED)
        self._api = api
        self._ask = ask
        self._assembler = assembler
        self._head = head  # of the engine's answer
        self._splitter = Splitter(api.format, sink.limits.event_bytes_max)
        self._aligned = isinstance(decoder, Chunked)  # no chunk and no event is open
        self._together_bytes_max = min(sink.limits.event_bytes_max, _TOGETHER_BYTES_MAX) if api.format is SSE else 0
        self._tokens_max = ask.tokens_max
        self._kept_bytes = 0  # of events and texts kept for the answer
        self._done = False  # True once the engine sent [DONE]
        self._ended: set[int] = set()  # choices
        self._abandoned_reason: str | None = None
        self._moved = False
        self._before = _NEVER  # the bytes before and after the text in each event of the run
        self._after = b""
        self._fast_end = _NEVER  # how a read of one chunk with one event of the run ends, while no chunk and no event is open
        self._run: list[bytes] = []  # texts, still escaped as JSON
        self._reported_tokens: int | None = None  # output tokens by the engine's own count; used at the end

    def feed(self, data: bytes) -> None:
        if data.endswith(self._fast_end):
            start = data.find(b"\r\n", 0, 18) + 2
            if data.startswith(self._before, start) and KNOWN_SIZES.get(data[: start - 2]) == len(data) - start - 2:
                text = data[start + len(self._before) : -len(self._fast_end)]
                call = self.call
                if text and b'"' not in text and call.tokens_out < self._tokens_max:
                    self._run.append(text)
                    self._kept_bytes += len(text)
                    call.tokens_out += 1
                    call.progress_at = monotonic()
                    if self._kept_bytes > self.sink.limits.answer_bytes_max:
                        self.sink.end(reasons.ANSWER_BYTES)
                    return
        if self._aligned and len(data) <= self._together_bytes_max and self._take_chunks(data):
            return
        super().feed(data)
        decoder = self.decoder
        self._aligned = isinstance(decoder, Chunked) and decoder.between_chunks and self._splitter.between_events
        self._expect()

    def _expect(self) -> None:
        """Note how a read ends that `feed` may take at once."""
        self._fast_end = self._after + self._api.format.end + b"\r\n" if self._aligned and self._after else _NEVER

    def _take_chunks(self, data: bytes) -> bool:
        """Take a read of whole chunks with one event each; return False if it is not such a read."""
        is_end = data.endswith(LAST_CHUNK)
        events = events_in_chunks(data[: -len(LAST_CHUNK)] if is_end else data)
        if events is None:
            return False
        try:
            self._take_events(events)
            if is_end and self.call.phase is not ENDED:
                self.decoder.feed(LAST_CHUNK)
                self.engine_finished()
        except Exception as error:
            self._end_with_error(error)
        self._expect()
        return True

    def take(self, payload: bytes) -> None:
        self._take_events(self._splitter.feed(payload))

    def _take_events(self, events: list[bytes]) -> None:
        call = self.call
        self._moved = False
        at, count = 0, len(events)
        while at < count:
            event = events[at]
            if event.startswith(self._before) and event.endswith(self._after):
                taken = self._take_texts(events, at)
                if taken:
                    at += taken
                    continue
            if event and not self._take_event(event):
                return
            at += 1
        if self._moved:  # comments, pings, roles and empty texts are no progress
            call.progress_at = monotonic()
        if self._kept_bytes > self.sink.limits.answer_bytes_max:
            self.sink.end(reasons.ANSWER_BYTES)

    def _take_texts(self, events: list[bytes], at: int) -> int:
        """Take the events of the run from this one on; return how many these are."""
        before, after, behind = self._before, self._after, at + 1
        stop = min(len(events), at + _TOGETHER_MAX)
        while behind < stop and events[behind].startswith(before) and events[behind].endswith(after):
            behind += 1
        texts = [event[len(before) : -len(after)] for event in events[at:behind]]
        text = b"".join(texts)
        room = self._tokens_max - self.call.tokens_out
        if b'"' in text or b"" in texts or len(texts) > room:
            odd = next((n for n, each in enumerate(texts) if not each or b'"' in each), len(texts))
            texts = texts[: max(min(odd, room), 0)]
            text = b"".join(texts)
            if not texts:
                return 0
        self._run.append(text)
        self._kept_bytes += len(text)
        self.call.tokens_out += len(texts)
        self._moved = True
        return len(texts)

    def _take_event(self, event: bytes) -> bool:
        """Parse an event; return False if it ended the answer."""
        api, data = self._api, self._api.format.data(event)
        if data is None:
            return True
        if self._run:
            self._end_run()
        if data == b"[DONE]":
            self._done = True
            return True
        value = parse(data)
        if value is None:
            if data == b"null":  # llama.cpp begins some streams with null
                return True
            raise WireError("an event is not valid JSON")
        facts = look(api, value)
        if facts.failure is not None:
            self._fail(facts.failure)
            return False
        return self._take_value(event, value, facts)

    def _take_value(self, event: bytes, value: Json, facts: EventFacts) -> bool:
        call, tokens, last = self.call, facts.tokens, facts.last
        if self._api.usage_mark in event:
            self._note_usage(value)
        total = call.tokens_out + tokens
        if not last and self._reported_tokens is not None:
            total = max(total, self._reported_tokens)
        if tokens and total > self._tokens_max and not last:
            self._answer(reasons.OUTPUT_TOKENS)
            return False
        if tokens and call.first_token_at is None:
            call.progressed(total - call.tokens_out, monotonic())
            self.sink.first_token()
        else:
            call.tokens_out = total
        self._moved = self._moved or tokens > 0 or facts.moved
        if last:
            self._ended.update(facts.ended)
            self._abandoned_reason = self._abandoned_reason or facts.abandoned_reason
        self._kept_bytes += len(event)
        if not (facts.all_text and self._learn(event)):
            self._add(value)
        return True

    def _learn(self, event: bytes) -> bool:
        """Begin a run with the event, whose pattern those that follow may have; return False if it has none."""
        mark = self._api.text_mark
        at = event.find(mark) if mark else -1
        if at >= 0:
            start = at + len(mark)
            end = event.find(b'"', start)
            if end > start and event[end - 1 : end] != b"\\":
                self._before, self._after = event[:start], event[end:]
                self._run.append(event[start:end])
                return True
        return False

    def _end_run(self) -> None:
        event = self._before + b"".join(self._run) + self._after
        self._run.clear()
        value = parse(self._api.format.data(event))
        if value is None:
            raise WireError("an event is not valid JSON")
        self._add(value)

    def _add(self, value: Json) -> None:
        try:
            self._assembler.add(value)
        except ODD as error:
            raise WireError(f"an event has an unknown format: {error!r}") from None

    def _note_usage(self, value: Json) -> None:
        usage = usage_of(self._api, value)
        if usage is not None:
            if type(usage.tokens_in) is int:
                self.call.tokens_in = usage.tokens_in
            if type(usage.tokens_out) is int:
                self._reported_tokens = usage.tokens_out

    def _fail(self, failure: Failure) -> None:
        """Answer with the error from an event: the engine had sent status 200 before it failed."""
        self.sink.answer_whole(502 if failure.status == 500 else failure.status, failure.body, self._head)
        self.call.engine_finished = False  # abort it: nothing else that it sends is needed
        self.sink.end(reasons.ENGINE_ERROR, failure_text(failure))

    def can_move(self) -> bool:
        return self.call.first_token_at is None

    def settle(self) -> None:
        if self._reported_tokens:
            self.call.tokens_out, self.call.tokens_exact = self._reported_tokens, True

    def finished(self) -> None:
        if self._abandoned_reason is not None:
            self.sink.end(reasons.ENGINE_CANCELLED, f"The engine cancelled the answer: {self._abandoned_reason}.")
        elif self._done or (self._assembler.finished and len(self._ended) >= self._ask.choices):
            self._answer(reasons.COMPLETED)
        else:
            self.sink.end(reasons.ENGINE_TRUNCATED)

    def _answer(self, reason: Reason) -> None:
        if self._run:
            self._end_run()
        try:
            answer = self._assembler.result(capped=reason is reasons.OUTPUT_TOKENS)
        except ODD as error:
            raise WireError(f"cannot assemble its events: {error!r}") from None
        note_answer(self.call, answer)
        self.sink.answer_whole(200, answer, self._head)
        self.sink.end(reason)
