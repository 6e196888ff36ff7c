"""What the gateway needs to know of an API, and the pieces that the APIs share."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from hangup.config import CallLimits
from hangup.config.schema import APIS
from hangup.core import reasons
from hangup.errors import Refusal
from hangup.gateway.http import jsonbody
from hangup.gateway.http.sse import SSE, Format

Json = dict[str, Any]


class Usage(NamedTuple):
    """Token counts as the engine tells them."""

    tokens_in: int | None
    tokens_out: int | None


class Assembler:
    """Builds the one JSON answer out of a stream's events."""

    finished = False  # a terminal event was seen
    texts_in_pieces: bool | None = None  # as the engine says of its streams, where APIs differ in that; None: it does not

    def add(self, event: Json) -> None:
        """Takes an event over; it may be changed."""
        raise NotImplementedError

    def result(self, capped: bool) -> Json:
        """The answer; `capped` if the gateway ended it at the token cap."""
        raise NotImplementedError


class Caps(NamedTuple):
    """Where an API keeps its maximum of output tokens."""

    names: tuple[str, ...]
    table: str = ""  # the sub-object that they are in
    endless: int | None = None  # the number that means "no end"; other negative ones are then the engine's own words
    # Fields of the same table that engines refuse to see above the maximum.
    minima: tuple[str, ...] = ()
    least: int = 1  # a smaller maximum is refused by some engines


class Cap(NamedTuple):
    """The most output tokens that a call may have. It is counted on the way, whatever the engine is told."""

    tokens: int  # per choice
    named: bool  # the client gave a maximum of its own
    lowered: Json  # what the engine is told instead of the client's own maximum, where that is higher

    @property
    def planned(self) -> int:
        """What an answer may be expected to take: where the client named no maximum, hardly all that is allowed."""
        return self.tokens if self.named else min(self.tokens, _PLANNED_UNNAMED)


_PLANNED_UNNAMED = 4096


@dataclass(slots=True)
class Ask:
    """A generation call: what the client wants and how the engine is asked for it."""

    path: str
    model: str
    stream: bool  # as the client wants it
    choices: int
    cap: Cap
    spare: int = 0  # what may come beyond the cap from an engine that keeps it: prompts that are repeated, an end a little late
    assembler: Assembler | None = None  # there is one if the engine streams what the client gets as a whole
    to_stream: Json = field(default_factory=dict)  # fields set so that the engine streams

    def body(self, body: bytes, value: Json, more: Json) -> bytes:
        """The client's body as the engine gets it; `more` is what this kind of engine must be told."""
        lowered = self.cap.lowered
        changes = {**lowered, **self.to_stream, **more} if self.to_stream or more else lowered
        return jsonbody.with_fields(body, value, changes)

    @property
    def tokens_max(self) -> int:
        """Where the answers, all together, are ended."""
        return self.cap.tokens * self.choices + self.spare

    def ends_late(self, tokens: int) -> None:
        """The engine was told its maximum, and is known to go beyond it by so many tokens."""
        self.spare = max(self.spare, tokens * self.choices)

    @property
    def streams(self) -> bool:
        """Whether the engine is asked to stream, whatever the client gets."""
        return self.stream or self.assembler is not None

    def ask_plainly(self, path: str) -> None:
        """The engine would not stream this: ask as the client did."""
        self.path, self.assembler, self.to_stream = path, None, {}


class Cut(NamedTuple):
    """A stream that is ended at the cap."""

    ask: Ask
    last: Json  # the last event that was looked at before
    over: Json  # the event that is beyond
    history: list[Json]  # all that was sent, where the API needs it
    tokens: int
    ended: set[int]  # choices that had ended by themselves


class Failure(NamedTuple):
    """An error in the midst of a stream, as it would have been answered in its place."""

    status: int
    body: Json


def marks(*fields: str) -> tuple[bytes, ...]:
    """How the beginning of a text in each of these fields is written."""
    return tuple(f'"{field}":{space}"'.encode() for field in fields for space in ("", " "))


class Api:
    """One API. Those with `generates` count tokens and may assemble answers."""

    name = ""
    family = ""  # which API it is part of: the name before the dot; none if that is not known
    generates = False
    about_jobs = False  # answered by the gateway itself, or by the provider that has the jobs
    engine_may_have = False  # of those about jobs: what is not ours may be the engine's
    kept_by_engine = False  # the engine may keep the answer, and be asked for it later
    sized = False  # not generated: how long its answer takes depends on what is sent
    question = False  # costs an engine next to nothing: goes past the queue, and takes no place
    media = False  # the body may be a file: `media_bytes_max` and `upload_s` hold
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
    fields: Mapping[str, tuple[type, ...]] = {}  # types of the fields that matter to us

    def read(self, path: str, value: Json, limits: CallLimits, assemble: bool) -> Ask:
        """Checks the request, sets the caps and decides how to ask the engine."""
        expect(value, self.fields)
        cap = read_cap(self.caps, value, limits, self.least_maximum(value))
        stream = self.wants_stream(path, value)
        model = value.get("model")  # not every API knows the field: then it may be anything, and names nothing
        ask = Ask(path, model if type(model) is str else "", stream, self.count_choices(value, limits), cap)
        if assemble and not stream:
            self.set_assembly(ask, value)
        return ask

    def least_maximum(self, value: Json) -> int:
        """The maximum below which engines refuse this request, because of what else it asks for."""
        return self.caps.least

    def wants_stream(self, path: str, value: Json) -> bool:
        return bool(value.get("stream"))

    def count_choices(self, value: Json, limits: CallLimits) -> int:
        """How many answers are asked for in all; more than allowed is refused."""
        return 1

    def set_assembly(self, ask: Ask, value: Json) -> None:
        """Lets the engine stream what will be assembled, where that can be done."""

    # Answers

    # What stands before the text in an event that carries a token; where it ends in a quote, another one right behind it means
    # that there is none. Which of them it is depends on the field and on how the engine writes its JSON.
    text_marks: tuple[bytes, ...] = ()
    # What stands in every event that is not the last of an answer; () where an event with a text never is.
    open_marks: tuple[bytes, ...] = ()
    # What stands before the text in an event whose text is all that changes from one to the next.
    text_mark = b""
    # What stands in every event that tells how many tokens there were.
    usage_mark = b'"completion_tokens"'
    # The closing event of a stream cut by the token cap needs the whole stream.
    needs_history = False
    # The stream is over with its last event; else with the event [DONE].
    ends_with_last = True

    def weigh(self, event: Json) -> int:
        """How many tokens one event carries, as far as it shows."""
        return 1

    def is_all_text(self, event: Json) -> bool:
        """Whether the text behind `text_mark` is all that an event adds to an answer."""
        return False

    def usage(self, event: Json) -> Usage | None:
        """Exact counts, where an event or a whole answer tells them."""
        return None

    def moves(self, event: Json) -> bool:
        """Whether an event without a token shows that the engine goes on with the answer; pings, roles and the like do not."""
        return False

    def is_last(self, event: Json) -> bool:
        """Whether a stream may properly end after this event."""
        raise NotImplementedError

    def ended(self, event: Json) -> list[int]:
        """The choices, by their index, whose answers end with this event."""
        return [event.get("index") or 0] if self.is_last(event) else []

    def given_up(self, event: Json) -> str | None:
        """What an engine says that has given the answer up, though the stream ends as if it were complete."""
        return None

    def failure(self, event: Json) -> Failure | None:
        """The error in which an engine says that it failed after its 200."""
        error = event.get("error")
        if not error:  # some write it into every event
            return None
        status = error.get("code") if type(error) is dict else None
        return Failure(status if type(status) is int and 400 <= status < 600 else 502, event)

    def closing(self, cut: Cut) -> bytes:
        """The events that end a stream which the gateway stops at its token cap."""
        raise NotImplementedError


def _openai_type(status: int) -> str:
    return {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}.get(
        status, "invalid_request_error" if status < 500 else "server_error"
    )


# Checks on request fields. A wrong type is refused here, in the API's own shape, before any engine sees it.

_TYPE_NAMES = {str: "a string", list: "an array", dict: "an object", bool: "true or false", int: "an integer"}


def expect(value: Json, kinds: Mapping[str, tuple[type, ...]]) -> None:
    """Fields that are given must have one of their types; null counts as not given."""
    for name, given in value.items():
        allowed = kinds.get(name)
        if allowed is not None and given is not None and type(given) not in allowed:
            words = " or ".join(_TYPE_NAMES[kind] for kind in allowed)
            raise Refusal(reasons.BAD_FIELD, f"'{name}' must be {words}.")


def whole_number(table: Json, name: str) -> int | None:
    """An integer field; numbers too large for 64 bits arrive as floats and are integers all the same."""
    given = table.get(name)
    if given is None:
        return None
    if type(given) is int or (type(given) is float and given.is_integer()):
        return int(given)
    raise Refusal(reasons.BAD_FIELD, f"'{name}' must be an integer.")


def count_answers(table: Json, names: tuple[str, ...], prompts: int, limits: CallLimits) -> int:
    """The answers asked for: the largest of the named fields, for each prompt."""
    each = 1
    for name in names:
        given = whole_number(table, name) if name in table else None
        if given is not None:
            if given < 1:
                raise Refusal(reasons.BAD_FIELD, f"'{name}' must be at least 1.")
            each = max(each, given)
    if each * prompts > limits.choices_max:
        raise Refusal(reasons.BAD_FIELD, f"{each * prompts} answers were asked for; at most {limits.choices_max} are allowed.")
    return each * prompts


def count_prompts(prompt: object) -> int:
    """A prompt is a text, a list of token ids, or a list of either."""
    return len(prompt) if type(prompt) is list and prompt and type(prompt[0]) is not int else 1


def read_cap(caps: Caps, value: Json, limits: CallLimits, least: int) -> Cap:
    """What the call may have at most. The client's own maximum is lowered where it is above that, never raised, and left
    alone where an engine would refuse the lower one.
    """
    table = value
    if caps.table:
        table = value.get(caps.table) or {}
        if type(table) is not dict:
            raise Refusal(reasons.BAD_FIELD, f"'{caps.table}' must be an object.")
    most = limits.output_tokens_max
    given = {name: asked for name in caps.names if name in table and (asked := whole_number(table, name)) is not None}
    if not given:
        return Cap(min(limits.output_tokens_default, most), False, {})
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

# Of a delta, what is said once, though some engines repeat it; all other texts grow.
_SAID_ONCE = frozenset(["role", "id", "type", "name", "object", "model", "status", "format", "tool_call_id"])


def merge(into: Json, delta: Json) -> None:
    """Adds a delta to what came before: texts and lists grow, objects merge, other values are replaced."""
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
    """Adds what stands beside the delta: logprobs and token ids grow, as does the field `text`; the rest is replaced."""
    for key, new in choice.items():
        old = into.get(key)
        if type(old) is type(new) and (type(old) in (list, dict) or key == text):
            merge(into, {key: new})
        elif new is not None or key not in into:
            into[key] = new


def join_base64(old: str, new: str) -> str:
    """Pieces of base64 that were padded one by one are no base64 when they are put together."""
    if not old.endswith("="):
        return old + new
    try:
        return b64encode(b64decode(old) + b64decode(new)).decode()
    except ValueError:
        return old + new
