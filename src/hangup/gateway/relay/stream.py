r"""Passes an engine's events to a client that asked for a stream, and counts their tokens.

This is the hottest code of the gateway: it runs once per read from an engine, which is once per token. So there are two
paths.

The fast path (`feed`) examines the bytes of a read with a few searches and writes them on unchanged, with the chunk framing.
The slow path (`Relay.feed` → `take`) decodes the chunks, splits the payload into events, examines each, and frames what it
sends anew.

The fast path uses what the slow path has learned. The slow path parses the first event with a token, and `_learn` keeps the
bytes around its text, because the same code in the engine writes the events that follow:

    5e\r\n data: {"id":"c","choices":[{"index":0,"delta":{"content":"He"},"finish_reason":null}]}\n\n \r\n
            └───────────────────── _before ───────────────────────────┘  └──────── _token_end ─────────────┘
                                                └──── _needle ────────┘     └──── _open ───────┘

`_needle` precedes a text, `_empty` marks an empty text, and `_open` is in every event that does not end its answer.

State:

    decoder   the position in the chunk framing; `between_chunks` if no chunk is open
    _carry    the beginning of an incomplete event; the client already has these bytes, but they are not counted yet
    tokens_out of the call: every token in events that ended before `_carry`
    _fast_end how a read must end to take the fast path; `_NEVER` closes it

Invariants between any two reads:

1. Every payload byte that arrived was sent, in order, or the call has ended. Nothing is held back: `_carry` is a copy.
2. The fast path is open (`_fast_end` is not `_NEVER`) only if no chunk and no event is open, the client understands chunks
   (HTTP/1.1), and the stream need not be kept (`_history`). A read of whole chunks that ends with an event changes none of
   this, so the fast path needs no state of its own.
3. The fast path counts a read only if it is certain: one event that begins with `_before`, has a text, ends with `_token_end`
   and is too short for two (`_frame`); or whole chunks with as many texts as events (`_count_chunks`). Any other read takes
   the slow path. A wrong guess costs time, never a token.
4. A read that would exceed the cap (`_tokens_max`) takes the slow path, which cuts between two events and closes the answer
   as the engine should have (`_close_at_cap`).
5. The last event of an answer never takes the fast path: it lacks `_open`, or has no text. So only parsed events set `_done`,
   `_usage` and `_failed`.
"""

from __future__ import annotations

from time import monotonic
from typing import Final

from hangup.core import reasons
from hangup.core.call import ENDED
from hangup.errors import EventTooLarge
from hangup.gateway.apis.base import Api, Ask, Cut, EventFacts, Json, Usage
from hangup.gateway.http.body import KNOWN_SIZES, BodyDecoder, Chunked, is_whole_chunks
from hangup.gateway.relay.base import WELL, Relay, RelaySink, Verdict
from hangup.gateway.relay.events import (
    failure_text,
    is_last,
    look,
    note_usage,
    parse,
    usage_of,
    weigh,
)
from hangup.gateway.trace_attributes import note_answer

_NEVER: Final = b"\0never\0"  # no read ends with this
_QUOTE: Final = ord('"')


class StreamRelay(Relay):
    """Passes a stream of events to a client that asked for one."""

    __slots__ = (
        "_abandoned_reason",
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

    def __init__(self, sink: RelaySink, decoder: BodyDecoder, api: Api, ask: Ask) -> None:
        super().__init__(sink, decoder, reasons.COMPLETED)
        self._api = api
        self._ask = ask
        self._write = sink.client.write
        self._end = api.format.end
        self._history: list[bytes] | None = [] if api.needs_history else None
        self._history_bytes = 0
        self._carry = b""  # the beginning of an incomplete event
        self._tokens_max = ask.tokens_max
        # Marks of an event with a token, learned from a parsed one: what precedes its text, what marks an empty text, and what
        # shows that the event is not the last.
        self._needle = self._empty = self._open = self._open_field = b""
        self._each = b""  # is in each event, to count events
        self._before = _NEVER  # the beginning of the last parsed event with a token, up to its text
        self._frame = 0  # number of bytes that such events share; 0: events must be counted
        self._token_end = _NEVER  # how a chunk ends if its last event has a token
        self._fast_end = _NEVER  # the same while the fast path is open
        self._passed = False  # True once the client has any of the body
        # From parsed events
        self._last: Json = {}
        self._moved = False
        self._usage: Usage | None = None
        self._ended: set[int] = set()  # choices
        self._done = False  # True if the answer is complete,
        self._closed = False  # and nothing follows it
        self._failed: Verdict | None = None  # the error that the engine reported
        self._abandoned_reason: str | None = None

    def feed(self, data: bytes) -> None:
        # Most reads are whole chunks that end in an event with a token: pass them on unchanged.
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
        """Return the tokens in a read of whole chunks, if each event has one; 0 sends the read to the slow path."""
        if not is_whole_chunks(data):
            return 0
        events = data.count(self._each)
        texts = data.count(self._needle) - data.count(self._empty)
        if self._ask.choices > 1:  # an event may have several texts, and an event that ends a choice must be parsed
            return texts if texts >= events == data.count(self._open_field) else 0
        return events if texts >= events else 0

    def _aligned(self) -> bool:
        """Return whether no chunk and no event is open, and the client can take the engine's chunks unchanged."""
        between = isinstance(self.decoder, Chunked) and self.decoder.between_chunks and not self._carry
        return between and self._history is None and self.sink.client.http11

    def take(self, payload: bytes) -> None:
        text = self._carry + payload
        if self._end == b"\n\n" and not self._needle and b"\r\n\r\n" in text:
            self._end = b"\r\n\r\n"
        cut = text.rfind(self._end) + len(self._end)
        if cut < len(self._end):
            cut = 0
        whole, carry = text[:cut], text[cut:]
        if len(carry) > self.sink.limits.event_bytes_max:
            raise EventTooLarge
        awaited = self.call.first_token_at is None
        if whole and not self._take_events(whole):
            return
        self._carry = carry
        self._passed = True
        self.sink.client.send(payload)
        if awaited and self.call.first_token_at is not None and self.call.phase is not ENDED:
            self.sink.first_token()  # after the bytes: the client waits for these, and nobody for what follows from them

    def _take_events(self, whole: bytes) -> bool:
        """Count complete events; return False if one of them ended the call."""
        call, sent, at, total = self.call, len(self._carry), 0, self.call.tokens_out
        self._moved = False
        for event in whole.split(self._end):
            if event:
                last = self._last
                after = self._look_at(event, total)
                if after > self._tokens_max and self._exceeds_cap(event):
                    beyond_cap = parse(self._api.format.data(event)) or {}
                    if at >= sent:
                        self._close_at_cap(whole[:at], total, last, beyond_cap)
                    else:  # the client already has the beginning of this event
                        self._close_at_cap(whole[: at + len(event) + len(self._end)], after, beyond_cap, beyond_cap)
                    return False
                if self._abandoned_reason is not None:
                    call.tokens_out = after
                    self._give_up(whole[:at])
                    return False
                total = after
            at += len(event) + len(self._end)
        self._remember(whole)
        self._progress(total)
        return True

    def _progress(self, total: int) -> None:
        """Note progress, which only tokens and other visible work are: it restarts the engine's timers."""
        call = self.call
        if total > call.tokens_out:
            if call.first_token_at is None:
                call.progressed(total, monotonic())
            else:
                call.tokens_out = total
                call.progress_at = monotonic()
        elif self._moved:
            call.progress_at = monotonic()

    def _look_at(self, event: bytes, total: int) -> int:
        """Return the tokens so far, including this event; parse it only if it does not look like an event with a token."""
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
        if self.call.trace_attributes is not None:
            note_answer(self.call, value)
        facts = look(api, value)
        self._moved = self._moved or facts.moved
        if facts.tokens:
            self._learn(event)
        total += facts.tokens
        usage = usage_of(api, value)
        if usage is not None:
            self._usage = usage
            if type(usage.tokens_in) is int:
                self.call.tokens_in = usage.tokens_in
        if facts.failure is not None:
            self._failed = Verdict(reasons.ENGINE_ERROR, failure_text(facts.failure))
        elif facts.last:
            self._note_end(facts)
        elif usage is not None and type(usage.tokens_out) is int:
            total = max(total, usage.tokens_out)
        return total

    def _note_end(self, facts: EventFacts) -> None:
        self._ended.update(facts.ended)
        # An event without choices, such as the usage, is about all of them.
        self._done = self._done or not facts.ended or len(self._ended) >= self._ask.choices
        self._closed = self._closed or self._api.ends_with_last
        self._abandoned_reason = facts.abandoned_reason

    def _exceeds_cap(self, event: bytes) -> bool:
        """Return whether an event adds to the answer, and does not just end it."""
        value = parse(self._api.format.data(event))
        return value is not None and weigh(self._api, value) > 0 and not is_last(self._api, value)

    def _learn(self, event: bytes) -> None:
        """Learn the marks of events with a token, so that later ones need no parsing."""
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
        if self._ask.choices == 1:  # else an event may have the texts of several choices
            self._frame = len(self._before) + len(self._token_end)

    def _remember(self, whole: bytes) -> None:
        if self._history is not None:
            self._history_bytes += len(whole)
            if self._history_bytes <= self.sink.limits.event_bytes_max:
                self._history.append(whole)

    def _close_at_cap(self, passed: bytes, tokens: int, last: Json, beyond_cap: Json) -> None:
        """End the answer at the cap, in the way the engine should have."""
        self.call.tokens_out = tokens
        history = self._events(b"".join(self._history) + passed) if self._history is not None else []
        closing = self._api.closing(Cut(self._ask, last, beyond_cap, history, tokens, self._ended))
        self.sink.client.send(passed[len(self._carry) :] + closing)
        self.sink.end(reasons.OUTPUT_TOKENS)

    def _give_up(self, passed: bytes) -> None:
        """End the call because the engine cancelled the answer, which must not look like a regular end."""
        unsent = passed[len(self._carry) :]
        if unsent:
            self.sink.client.send(unsent)
        if len(passed) >= len(self._carry):
            self._carry = b""  # the client has nothing of the cancelling event
        self.sink.end(reasons.ENGINE_CANCELLED, f"The engine cancelled the answer: {self._abandoned_reason}.")

    def _events(self, text: bytes) -> list[Json]:
        parsed = (parse(self._api.format.data(event)) for event in text.split(self._end))
        return [value for value in parsed if value is not None]

    def finished(self) -> None:
        """End the call. A stream without a last event is truncated, even if its framing is complete."""
        if self._carry:
            self._look_at(self._carry, self.call.tokens_out)  # some engines omit the last line end
        if self._abandoned_reason is not None:
            self._give_up(b"")
        elif self._failed is not None:
            self._send_failure()
        else:
            self.sink.end(reasons.COMPLETED if self._done else reasons.ENGINE_TRUNCATED)

    def _send_failure(self) -> None:
        assert self._failed is not None
        self.call.client_has_all = True  # it has the engine's own error event
        self.sink.end(*self._failed)

    def verdict(self) -> Verdict | None:
        if self._carry:
            return None
        return self._failed or (WELL if self._closed else None)

    def engine_closed(self) -> bool:
        if self._failed is None:
            return super().engine_closed()
        self._send_failure()  # the client already has the error, so the closed connection adds nothing
        return True

    def at_event_boundary(self) -> bool:
        return not self._carry

    def can_move(self) -> bool:
        return not self._passed

    def settle(self) -> None:
        if self._usage is not None:
            note_usage(self.call, self._usage)


def _end_of_text(event: bytes, start: int) -> int:
    """Return the position of the quote that ends a text; a later quote would do as well."""
    end = event.find(b'"', start)
    while end > 0 and event[end - 1 : end] == b"\\":
        end = event.find(b'"', end + 1)
    return max(end, start)
