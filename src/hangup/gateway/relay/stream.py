r"""The stream pump: passes an engine's events to a client that asked for a stream, and counts their tokens on the
way.

This is the hottest code of the gateway: it runs once per read from an engine, which is once per token. So there
are two ways.

The fast way (`feed`) looks at the bytes of a read with a few searches and writes it on as it came, chunk
framing and all. The slow way (`Relay.feed` → `take`) decodes the chunks, cuts the payload into events, looks at
each, and frames what it sends anew.

What the fast way may do it has learned on the slow one. The first event with a token is parsed; `_learn` keeps
how it is written around its text, since the events that follow are written by the same code in the engine:

    5e\r\n data: {"id":"c","choices":[{"index":0,"delta":{"content":"He"},"finish_reason":null}]}\n\n \r\n
            └───────────────────── _before ───────────────────────────┘  └──────── _token_end ─────────────┘
                                                └──── _needle ────────┘     └──── _open ───────┘

`_needle` stands before a text, `_empty` before an empty one, and `_open` in every event that does not end its
answer.

Cursors and state:

    decoder   how far the chunk framing is read; `between_chunks` when no chunk is open
    _carry    the beginning of an event whose end has not come; the client has these bytes already, and they are not counted yet
    tokens_out of the call: every token in events that ended before `_carry`
    _fast_end how a read must end for the fast way; `_NEVER` closes it

Invariants, between any two reads:

1. Every payload byte that came was sent, in order, or the call has ended. Nothing is held back: `_carry` is a
   copy.
2. The fast way is open (`_fast_end` is not `_NEVER`) only if no chunk and no event is open, the client
   understands chunks (HTTP/1.1), and the whole stream need not be kept (`_history`). Then a read that consists
   of whole chunks and ends with an event leaves all of this as it was, so the fast way needs no state of its
   own.
3. The fast way counts a read only if it is sure: one event that begins with `_before`, has a text, ends with
   `_token_end` and is too short for two (`_frame`); or whole chunks in which as many texts as events are found
   (`_count_chunks`). Otherwise the read takes the slow way. A wrong guess costs time, never a token.
4. A read that would go past the cap (`_tokens_max`) takes the slow way, which cuts between two events and
   closes the answer as the engine should have (`_close_at_cap`).
5. The last event of an answer never passes on the fast way: it does not hold `_open`, or has no text. So
   `_done`, `_usage` and `_failed` are always set by an event that was parsed.
"""

from __future__ import annotations

from time import monotonic

from hangup.core import reasons
from hangup.errors import EventTooLarge
from hangup.gateway.apis.base import Api, Ask, Cut, Json, Usage
from hangup.gateway.http.body import KNOWN_SIZES, BodyDecoder, Chunked, is_whole_chunks
from hangup.gateway.relay.base import WELL, Relay, RelaySink, Verdict
from hangup.gateway.relay.events import (
    abandoned_reason,
    ended,
    failure_of,
    failure_text,
    is_last,
    note_usage,
    parse,
    shows_progress,
    usage_of,
    weigh,
)

_NEVER = b"\0never\0"  # what no read ends with
_QUOTE = ord('"')


class StreamRelay(Relay):
    """A stream of events to a client that asked for one."""

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
        self._abandoned_reason: str | None = None

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
        if whole and not self._take_events(whole):
            return
        self._carry = carry
        self._passed = True
        self.sink.client.send(payload)

    def _take_events(self, whole: bytes) -> bool:
        """Counts whole events; False when the call has ended with one of them."""
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
                    else:  # the client has its beginning
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
        """Only a token, or work that shows otherwise, ends the wait for the engine."""
        call = self.call
        if total > call.tokens_out:
            if call.first_token_at is None:
                call.progressed(total, monotonic())
                self.sink.first_token()
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
        self._moved = self._moved or shows_progress(api, value)
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
            self._failed = Verdict(reasons.ENGINE_ERROR, failure_text(failure))
        elif is_last(api, value):
            self._note_end(value)
        elif usage is not None and type(usage.tokens_out) is int:
            total = max(total, usage.tokens_out)
        return total

    def _note_end(self, value: Json) -> None:
        ended_choices = ended(self._api, value)
        self._ended.update(ended_choices)
        # An event without choices, the usage, is about all of them.
        self._done = self._done or not ended_choices or len(self._ended) >= self._ask.choices
        self._closed = self._closed or self._api.ends_with_last
        self._abandoned_reason = abandoned_reason(self._api, value)

    def _exceeds_cap(self, event: bytes) -> bool:
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
            if self._history_bytes <= self.sink.limits.event_bytes_max:
                self._history.append(whole)

    def _close_at_cap(self, passed: bytes, tokens: int, last: Json, beyond_cap: Json) -> None:
        """The engine goes on past the cap: the answer is ended as the engine should have."""
        self.call.tokens_out = tokens
        history = self._events(b"".join(self._history) + passed) if self._history is not None else []
        closing = self._api.closing(Cut(self._ask, last, beyond_cap, history, tokens, self._ended))
        self.sink.client.send(passed[len(self._carry) :] + closing)
        self.sink.end(reasons.OUTPUT_TOKENS)

    def _give_up(self, passed: bytes) -> None:
        """The engine has cancelled the answer: that must not look like its end."""
        unsent = passed[len(self._carry) :]
        if unsent:
            self.sink.client.send(unsent)
        if len(passed) >= len(self._carry):
            self._carry = b""  # nothing of the event that said so was sent
        self.sink.end(reasons.ENGINE_CANCELLED, f"The engine cancelled the answer: {self._abandoned_reason}.")

    def _events(self, text: bytes) -> list[Json]:
        parsed = (parse(self._api.format.data(event)) for event in text.split(self._end))
        return [value for value in parsed if value is not None]

    def finished(self) -> None:
        """A stream that merely stops is no answer, however clean its framing."""
        if self._carry:
            self._look_at(self._carry, self.call.tokens_out)  # some engines end without the last line end
        if self._abandoned_reason is not None:
            self._give_up(b"")
        elif self._failed is not None:
            self._send_failure()
        else:
            self.sink.end(reasons.COMPLETED if self._done else reasons.ENGINE_TRUNCATED)

    def _send_failure(self) -> None:
        assert self._failed is not None
        self.call.client_has_all = True  # it was told, in the engine's own words
        self.sink.end(*self._failed)

    def verdict(self) -> Verdict | None:
        if self._carry:
            return None
        return self._failed or (WELL if self._closed else None)

    def engine_closed(self) -> bool:
        if self._failed is None:
            return super().engine_closed()
        self._send_failure()  # the client knows already: that the connection ended, too, is no news
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
