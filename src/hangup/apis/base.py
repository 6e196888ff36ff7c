"""What the gateway needs to know of an API, and the pieces that the APIs share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from hangup.config import Limits
from hangup.core import reasons
from hangup.errors import Refusal
from hangup.wire import jsonbody
from hangup.wire.sse import SSE, Format

Json = dict[str, Any]


@dataclass(slots=True)
class Usage:
    """Token counts as the engine tells them."""

    tokens_in: int | None
    tokens_out: int | None


@dataclass(slots=True)
class Ask:
    """A generation call as it goes to the engine."""

    model: str
    stream: bool  # as the client wants it
    body: bytes
    path: str
    choices: int = 1
    output_tokens_max: int = 0  # per choice
    assembler: Assembler | None = None
    # The same call as the client put it, with caps only: for an engine that refuses to stream it.
    plain_body: bytes = b""


class Assembler:
    """Builds the one JSON answer out of a stream's events."""

    finished = False  # a terminal event was seen

    def add(self, event: Json) -> None:
        raise NotImplementedError

    def result(self, capped: bool) -> Json:
        """The answer; `capped` if the gateway ended it at the token cap."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Caps:
    """Where an API keeps its cap on output tokens."""

    names: tuple[str, ...]  # the first one is set when the client gives none
    table: str = ""  # the sub-object that they are in
    negative_is_endless: bool = False


class Api:
    """One API. Subclasses with `generates` count tokens and may assemble answers."""

    name = ""
    generates = False
    format: Format = SSE
    caps: Caps
    # Byte strings of which exactly one stands in each event that carries a token; which of them depends on how the
    # engine writes its JSON, so the first one found in the stream is used. None found: every event counts.
    needles: tuple[bytes, ...] = ()
    # The closing event of a stream cut by the token cap needs the whole stream.
    needs_history = False

    # Errors

    def error(self, status: int, code: str, message: str) -> Json:
        return {"error": {"message": message, "type": openai_type(status), "param": None, "code": code}}

    def error_event(self, status: int, code: str, message: str) -> bytes:
        return self.format.encode(orjson.dumps(self.error(status, code, message)))

    # Requests

    def read(self, path: str, body: bytes, value: Json, limits: Limits, assemble: bool) -> Ask:
        """Checks the request, sets the caps and decides how to ask the engine."""
        raise NotImplementedError

    # Answers

    def weigh(self, event: Json) -> int:
        """How many tokens one event carries, as far as it shows."""
        return 1

    def usage(self, event: Json) -> Usage | None:
        """Exact counts, where an event tells them."""
        return None

    def is_last(self, event: Json) -> bool:
        """Whether a stream may properly end after this event."""
        raise NotImplementedError

    def closing(self, ask: Ask, first: Json, last: Json, history: list[Json], tokens: int) -> bytes:
        """The events that end a stream which the gateway stops at its token cap."""
        raise NotImplementedError


def openai_type(status: int) -> str:
    return {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}.get(
        status, "invalid_request_error" if status < 500 else "server_error"
    )


# Checks on request fields. A wrong type is refused here, in the API's own shape, before any engine sees it.


def expect(value: Json, kinds: dict[str, tuple[type, ...]]) -> None:
    """Fields that are given must have one of their types; null counts as not given."""
    for name, allowed in kinds.items():
        given = value.get(name)
        if given is not None and type(given) not in allowed:
            words = " or ".join(_TYPE_NAMES[kind] for kind in allowed)
            raise Refusal(reasons.BAD_FIELD, f"'{name}' must be {words}.")


_TYPE_NAMES = {str: "a string", list: "an array", dict: "an object", bool: "true or false", int: "an integer"}


def whole_number(table: Json, name: str) -> int | None:
    """An integer field; numbers too large for 64 bits arrive as floats and are integers all the same."""
    given = table.get(name)
    if given is None:
        return None
    if type(given) is int or (type(given) is float and given.is_integer()):
        return int(given)
    raise Refusal(reasons.BAD_FIELD, f"'{name}' must be an integer.")


def count_choices(table: Json, names: tuple[str, ...], prompts: int, limits: Limits) -> int:
    """How many answers are asked for in all."""
    each = 1
    for name in names:
        given = whole_number(table, name)
        if given is not None:
            if given < 1:
                raise Refusal(reasons.BAD_FIELD, f"'{name}' must be at least 1.")
            each = max(each, given)
    if each * prompts > limits.choices_max:
        raise Refusal(reasons.BAD_FIELD, f"{each * prompts} answers were asked for; at most {limits.choices_max} are allowed.")
    return each * prompts


def apply_caps(caps: Caps, value: Json, limits: Limits) -> tuple[Json, int]:
    """The fields to change so that the token cap holds, and the cap that is then in force."""
    table = value.get(caps.table) if caps.table else value
    if table is None:
        table = {}
    if type(table) is not dict:
        raise Refusal(reasons.BAD_FIELD, f"'{caps.table}' must be an object.")
    changes: Json = {}
    in_force: list[int] = []
    for name in caps.names:
        asked = whole_number(table, name)
        if asked is None:
            continue
        if asked < 0 and not caps.negative_is_endless:
            raise Refusal(reasons.BAD_FIELD, f"'{name}' must not be negative.")
        allowed = limits.output_tokens_max if asked < 0 else min(asked, limits.output_tokens_max)
        if allowed != asked:
            changes[name] = allowed
        in_force.append(allowed)
    if not in_force:
        changes[caps.names[0]] = min(limits.output_tokens_default, limits.output_tokens_max)
        in_force.append(changes[caps.names[0]])
    if caps.table and changes:
        changes = {caps.table: {**table, **changes}}
    return changes, min(in_force)


@dataclass(slots=True)
class Draft:
    """A request on its way to becoming an `Ask`: the caps are set, then perhaps the wish to stream."""

    path: str
    body: bytes
    value: Json
    changes: Json = field(default_factory=dict)

    def ask(self, *, model: str, stream: bool, choices: int, cap: int, assembler: Assembler | None, to_stream: Json) -> Ask:
        plain = jsonbody.with_fields(self.body, self.value, self.changes)
        ask = Ask(model=model, stream=stream, body=plain, path=self.path, choices=choices, output_tokens_max=cap)
        if assembler is not None:
            ask.assembler, ask.plain_body = assembler, plain
            ask.body = jsonbody.with_fields(self.body, self.value, {**self.changes, **to_stream})
        return ask


# Assembling


TEXT_KEYS = frozenset(["content", "reasoning_content", "reasoning", "refusal", "thinking", "text", "arguments", "name", "data"])


def merge(into: Json, delta: Json, text_keys: frozenset[str] = TEXT_KEYS) -> None:
    """Adds a delta to what came before: texts and lists grow, objects merge, other values are replaced."""
    for key, new in delta.items():
        old = into.get(key)
        if new is None:
            into.setdefault(key, None)
        elif type(old) is str and type(new) is str and key in text_keys:
            into[key] = old + new
        elif type(old) is list and type(new) is list:
            old.extend(new)
        elif type(old) is dict and type(new) is dict:
            merge(old, new, text_keys)
        else:
            into[key] = new
