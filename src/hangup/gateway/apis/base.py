"""The base class of APIs, and the helpers that they share."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

import orjson

from hangup.config import CallLimits
from hangup.config.schema import APIS
from hangup.core import reasons
from hangup.declared import Declared
from hangup.errors import Refusal
from hangup.gateway.http import jsonbody
from hangup.gateway.http.sse import SSE, Format

Json = dict[str, Any]


class Usage(NamedTuple):
    """Token counts as the engine reports them: it can send anything in their place, so `usage_of` checks them."""

    tokens_in: Any
    tokens_out: Any


class Assembler:
    """Builds one JSON answer from a stream's events."""

    finished = False  # a terminal event was seen
    texts_in_pieces: bool | None = None  # whether events have text deltas, if APIs' engines differ in that. None: unknown

    def add(self, event: Json) -> None:
        """Add an event; it may be modified."""
        raise NotImplementedError

    def result(self, capped: bool) -> Json:
        """Return the answer; `capped` if the gateway ended it at the token cap."""
        raise NotImplementedError


class Caps(NamedTuple):
    """The fields in which an API has its maximum of output tokens."""

    names: tuple[str, ...]
    table: str = ""  # the sub-object with these fields
    endless: int | None = None  # the value for "unlimited"; other negative values then have the engine's own meaning
    # Fields of the same table that engines refuse if they exceed the maximum.
    minima: tuple[str, ...] = ()
    least: int = 1  # some engines refuse a smaller maximum


class Cap(NamedTuple):
    """The maximum of a call's output tokens. The gateway counts them itself, whatever maximum the engine gets."""

    tokens: int  # per choice
    named: bool  # the client set a maximum
    lowered: Json  # replaces a client's maximum that is too high

    @property
    def planned(self) -> int:
        """The number of tokens to plan for: a call without a maximum of its own rarely uses all that it may."""
        return self.tokens if self.named else min(self.tokens, _PLANNED_UNNAMED)


_PLANNED_UNNAMED: Final = 4096


@dataclass(slots=True)
class Ask:
    """A generation call: what the client wants, and how the engine is asked for it."""

    path: str
    model: str
    stream: bool  # the client wants a stream
    choices: int
    cap: Cap
    spare_tokens: int = 0  # tokens allowed beyond the cap, for echoed prompts or an engine that stops a little late
    assembler: Assembler | None = None  # set if the engine streams and the client gets a whole answer
    to_stream: Json = field(default_factory=dict)  # fields that make the engine stream

    def body(self, body: bytes, value: Json, more: Json) -> bytes:
        """Return the client's body as the engine gets it, with the fields `more` that this kind of engine needs."""
        lowered = self.cap.lowered
        changes = {**lowered, **self.to_stream, **more} if self.to_stream or more else lowered
        return jsonbody.with_fields(body, value, changes)

    @property
    def tokens_max(self) -> int:
        """The number of tokens, of all choices together, at which the call is ended."""
        return self.cap.tokens * self.choices + self.spare_tokens

    def ends_late(self, tokens: int) -> None:
        """Allow for an engine that got a maximum and is known to exceed it by so many tokens."""
        self.spare_tokens = max(self.spare_tokens, tokens * self.choices)

    @property
    def streams(self) -> bool:
        """True if the engine streams, whatever the client gets."""
        return self.stream or self.assembler is not None

    def ask_plainly(self, path: str) -> None:
        """Ask as the client did, because the engine cannot stream this."""
        self.path, self.assembler, self.to_stream = path, None, {}


class Cut(NamedTuple):
    """A stream that is ended at the cap."""

    ask: Ask
    last: Json  # the last event that was parsed before
    beyond_cap: Json  # the event beyond the cap
    history: list[Json]  # all events that were sent, if the API needs them
    tokens: int
    ended: set[int]  # choices that had ended by themselves


class Failure(NamedTuple):
    """An error inside a stream, as it would have been answered without one."""

    status: int
    body: Json


class EventFacts(NamedTuple):
    """What a relay must know of an event."""

    tokens: int  # that it carries, as far as can be seen
    last: bool  # a stream may properly end after it
    moved: bool  # it shows progress, even without a token
    all_text: bool  # the text behind `text_mark` is all that it adds to an answer
    ended: Sequence[int] = ()  # if last: the choices whose answers end with it,
    abandoned_reason: str | None = None  # and the engine's reason if it abandoned the answer
    failure: Failure | None = None


def marks(*fields: str) -> tuple[bytes, ...]:
    """Return how the beginning of a text is encoded in each of these fields."""
    return tuple(f'"{field}":{space}"'.encode() for field in fields for space in ("", " "))


class Api(metaclass=Declared):
    """One API. APIs with `generates` count tokens and may assemble answers."""

    name = ""
    paths: Mapping[str, tuple[str, ...]] = {}  # the paths of this API, with their methods; not inherited
    family = ""  # the part of the name before the dot; empty if it is not a known API
    generates = False
    about_jobs = False  # answered by the gateway itself, or by the provider that has the jobs
    engine_may_have = False  # if about jobs: an object that is not ours may be the engine's
    kept_by_engine = False  # the engine may store the answer for later requests
    sized = False  # no generation: the duration depends on the size of the request
    question = False  # costs an engine next to nothing: bypasses the queue, and takes no slot
    media = False  # the body may be a file: `media_bytes_max` and `upload_s` apply
    format: Format = SSE

    def __init_subclass__(cls) -> None:
        family = cls.name.partition(".")[0]
        cls.family = family if family in APIS else ""

    # Errors

    def error(self, status: int, code: str, message: str) -> Json:
        return {"error": {"message": message, "type": _openai_type(status), "param": None, "code": code}}

    def error_event(self, status: int, code: str, message: str) -> bytes:
        return self.format.encode(orjson.dumps(self.error(status, code, message)))

    # Requests

    caps: Caps
    fields: Mapping[str, tuple[type, ...]] = {}  # types of the fields that the gateway reads

    def read(self, path: str, value: Json, limits: CallLimits, assemble: bool) -> Ask:
        """Check the request, set the caps and decide how to ask the engine."""
        expect(value, self.fields)
        cap = read_cap(self.caps, value, limits, self.least_maximum(value))
        stream = self.wants_stream(path, value)
        model = value.get("model")  # in an API without this field it may be anything, and names no model
        ask = Ask(path, model if type(model) is str else "", stream, self.count_choices(value, limits), cap)
        if assemble and not stream:
            self.set_assembly(ask, value)
        return ask

    def least_maximum(self, value: Json) -> int:
        """Return the maximum below which engines refuse this request, because of its other fields."""
        return self.caps.least

    def wants_stream(self, path: str, value: Json) -> bool:
        return bool(value.get("stream"))

    def count_choices(self, value: Json, limits: CallLimits) -> int:
        """Return how many answers the request asks for in all; raise if they exceed the limit."""
        return 1

    def set_assembly(self, ask: Ask, value: Json) -> None:
        """Make the engine stream an answer that will be assembled, if it can."""

    # Answers

    # Bytes that precede the text in an event with a token. If a mark ends in a quote, another quote right behind it means that
    # the text is empty. The variants depend on the field and on how the engine writes its JSON.
    text_marks: tuple[bytes, ...] = ()
    # Bytes in every event but the last of an answer; () if an event with text is never the last.
    open_marks: tuple[bytes, ...] = ()
    # Bytes that precede the text in events that differ in nothing but their text.
    text_mark = b""
    # Bytes in every event that reports token counts.
    usage_mark = b'"completion_tokens"'
    # True if the closing event at the token cap must contain the whole stream.
    needs_history = False
    # True if the stream ends with its last event; otherwise it ends with the event [DONE].
    ends_with_last = True

    def look(self, event: Json) -> EventFacts:
        """Return what the methods below say about an event. It may raise the exceptions of a look at something that is missing
        or of another type."""
        tokens, last = self.weigh(event), self.is_last(event)
        return EventFacts(
            tokens,
            last,
            self.shows_progress(event),
            bool(tokens) and self.is_all_text(event),
            self.ended(event) if last else (),
            self.abandoned_reason(event) if last else None,
            self.failure(event),
        )

    def weigh(self, event: Json) -> int:
        """Return how many tokens an event carries, as far as can be seen."""
        return 1

    def is_all_text(self, event: Json) -> bool:
        """Return True if the text behind `text_mark` is all that an event adds to an answer."""
        return False

    def usage(self, event: Json) -> Usage | None:
        """Return exact counts, if an event or a whole answer reports them."""
        return None

    def shows_progress(self, event: Json) -> bool:
        """Return True if an event without a token shows progress of the answer; pings, roles and the like do not."""
        return False

    def is_last(self, event: Json) -> bool:
        """Return True if a stream may properly end after this event."""
        raise NotImplementedError

    def ended(self, event: Json) -> list[int]:
        """Return the indexes of the choices whose answers end with this event."""
        return [event.get("index") or 0] if self.is_last(event) else []

    def abandoned_reason(self, event: Json) -> str | None:
        """Return the engine's reason if it abandoned the answer, although the stream ends as if it were complete."""
        return None

    def failure(self, event: Json) -> Failure | None:
        """Return the error by which an engine reports a failure after its 200."""
        error = event.get("error")
        if not error:  # some engines have an empty one in every event
            return None
        status = error.get("code") if type(error) is dict else None
        return Failure(status if type(status) is int and 400 <= status < 600 else 502, event)

    def closing(self, cut: Cut) -> bytes:
        """Build the events that end a stream at its token cap."""
        raise NotImplementedError


def _openai_type(status: int) -> str:
    return {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}.get(
        status, "invalid_request_error" if status < 500 else "server_error"
    )


# Checks of request fields. A wrong type is refused here, in the API's own error format, before any engine sees it.

_TYPE_NAMES: Final = {str: "a string", list: "an array", dict: "an object", bool: "true or false", int: "an integer"}


def expect(value: Json, kinds: Mapping[str, tuple[type, ...]]) -> None:
    """Raise if a field is not of one of its types; null counts as absent."""
    for name, given in value.items():
        allowed = kinds.get(name)
        if allowed is not None and given is not None and type(given) not in allowed:
            words = " or ".join(_TYPE_NAMES[kind] for kind in allowed)
            raise Refusal(reasons.BAD_FIELD, f"'{name}' must be {words}.")


def whole_number(table: Json, name: str) -> int | None:
    """Return an integer field; numbers too large for 64 bits arrive as floats and are integers all the same."""
    given = table.get(name)
    if given is None:
        return None
    if type(given) is int or (type(given) is float and given.is_integer()):
        return int(given)
    raise Refusal(reasons.BAD_FIELD, f"'{name}' must be an integer.")


def count_answers(table: Json, names: tuple[str, ...], prompts: int, limits: CallLimits) -> int:
    """Return the number of answers: the largest of the named fields, for each prompt."""
    each = 1
    for name in names:
        given = whole_number(table, name) if name in table else None
        if given is not None:
            if given < 1:
                raise Refusal(reasons.BAD_FIELD, f"'{name}' must be at least 1.")
            each = max(each, given)
    if each * prompts > limits.choices_max:
        raise Refusal(reasons.BAD_FIELD, f"The call asks for {each * prompts} answers; choices_max is {limits.choices_max}.")
    return each * prompts


def count_prompts(prompt: object) -> int:
    """Return the number of prompts: a text or a list of token ids is one, a list of either has several."""
    return len(prompt) if type(prompt) is list and prompt and type(prompt[0]) is not int else 1


@lru_cache(64)
def _unnamed_cap(default: int, most: int) -> Cap:
    return Cap(min(default, most), False, {})


def read_cap(caps: Caps, value: Json, limits: CallLimits, least: int) -> Cap:
    """Return the call's cap. A client's maximum above it is lowered, unless engines would refuse the lower one; none is ever
    raised."""
    table = value
    if caps.table:
        table = value.get(caps.table) or {}
        if type(table) is not dict:
            raise Refusal(reasons.BAD_FIELD, f"'{caps.table}' must be an object.")
    most = limits.output_tokens_max
    given: dict[str, int] = {}
    for name in caps.names:
        asked = whole_number(table, name) if name in table else None
        if asked is not None:
            given[name] = asked
    if not given:
        return _unnamed_cap(limits.output_tokens_default, most)
    for name, asked in given.items():
        if asked < 0 and caps.endless is None:
            raise Refusal(reasons.BAD_FIELD, f"'{name}' must not be negative.")
    least = max([least, *(n for name in caps.minima if type(n := table.get(name)) is int)])
    lowered: Json = (
        {name: most for name, asked in given.items() if asked > most or asked == caps.endless} if most >= least else {}
    )
    if caps.table and lowered:
        lowered = {caps.table: {**table, **lowered}}
    return Cap(min([most, *(asked for asked in given.values() if asked >= 0)]), True, lowered)


# Assembling

# Fields of a delta that do not grow, although some engines repeat them; all other texts do.
_SAID_ONCE: Final = frozenset(["role", "id", "type", "name", "object", "model", "status", "format", "tool_call_id"])


def merge(into: Json, delta: Json) -> None:
    """Add a delta: texts and lists grow, objects merge, other values are replaced."""
    for key, new in delta.items():
        old = into.get(key)
        if old is None or new is None:
            if new is not None or key not in into:
                into[key] = new
        elif type(old) is str and type(new) is str:
            into[key] = (old or new) if key in _SAID_ONCE else join_base64(old, new) if key == "data" else old + new
        elif type(old) is list and type(new) is list:
            old.extend(new)
        elif type(old) is dict and type(new) is dict:
            merge(old, new)
        else:
            into[key] = new


def merge_choice(into: Json, choice: Json, text: str = "") -> None:
    """Add the fields beside the delta: logprobs and token ids grow, as does the field `text`; the rest is replaced."""
    for key, new in choice.items():
        old = into.get(key)
        if type(old) is type(new) and (type(old) in (list, dict) or key == text):
            merge(into, {key: new})
        elif new is not None or key not in into:
            into[key] = new


def join_base64(old: str, new: str) -> str:
    """Join base64 texts: pieces that were padded one by one are not valid base64 when simply concatenated."""
    if not old.endswith("="):
        return old + new
    try:
        return b64encode(b64decode(old) + b64decode(new)).decode()
    except ValueError:
        return old + new
