"""Reads an engine's events without raising: an event that does not fit its API must not break the stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import orjson

from hangup.core.call import Call
from hangup.gateway.apis.base import Api, EventFacts, Failure, Json, Usage


def parse(data: bytes | bytearray | None) -> Json | None:
    """Return the JSON object in an event's data; None for anything else."""
    if not data:
        return None
    try:
        value: Any = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return value if type(value) is dict else None


_T = TypeVar("_T")
_TOKENS_MAX: Final = 1 << 40
_FAILURE_CHARS_MAX: Final = 500  # of an engine's error message, in the log
ODD = (KeyError, TypeError, AttributeError, IndexError, ValueError)


def look(api: Api, event: Json) -> EventFacts:
    """Return what a relay must know of an event; where the event is odd, as if it had nothing to say."""
    try:
        return api.look(event)
    except ODD:
        tokens, last = weigh(api, event), is_last(api, event)
        return EventFacts(
            tokens,
            last,
            _or_else(api.shows_progress, event, False),
            bool(tokens) and _or_else(api.is_all_text, event, False),
            _or_else(api.ended, event, []) if last else (),
            abandoned_reason(api, event) if last else None,
            failure_of(api, event),
        )


def _or_else(ask: Callable[[Json], _T], event: Json, otherwise: _T) -> _T:
    try:
        return ask(event)
    except ODD:
        return otherwise


def weigh(api: Api, event: Json) -> int:
    try:
        return api.weigh(event)
    except ODD:
        return 1


def is_last(api: Api, event: Json) -> bool:
    try:
        return api.is_last(event)
    except ODD:
        return False


def usage_of(api: Api, event: Json) -> Usage | None:
    try:
        usage = api.usage(event)
    except ODD:
        return None
    if usage is None or (_is_plausible(usage.tokens_in) and _is_plausible(usage.tokens_out)):
        return usage
    tokens_in, tokens_out = usage
    return Usage(tokens_in if _is_plausible(tokens_in) else None, tokens_out if _is_plausible(tokens_out) else None)


def _is_plausible(tokens: object) -> bool:
    """Return whether a count is possible: an engine can send anything."""
    return type(tokens) is int and 0 <= tokens <= _TOKENS_MAX


def note_usage(call: Call, usage: Usage) -> None:
    """Take over the engine's own token counts."""
    if type(usage.tokens_in) is int:
        call.tokens_in = usage.tokens_in
    if type(usage.tokens_out) is int:
        call.tokens_out = usage.tokens_out
        call.tokens_exact = True


def abandoned_reason(api: Api, event: Json) -> str | None:
    try:
        return api.abandoned_reason(event)
    except ODD:
        return None


def failure_of(api: Api, event: Json) -> Failure | None:
    try:
        return api.failure(event)
    except ODD:
        return None


def failure_text(failure: Failure) -> str:
    """Return the engine's own error message, for the log."""
    error = error_in(failure.body)
    words = f"{error.code}: {error.message}" if error.code and error.message else error.code or error.message
    return f"The engine reported an error: {words[:_FAILURE_CHARS_MAX]}" if words else "The engine reported an error."


class EngineErrorText(NamedTuple):
    """The code and message of an engine's error; "" if missing."""

    code: str
    message: str


def error_text(body: bytes) -> EngineErrorText:
    """Read an engine's error answer, in any of the formats that engines use."""
    value = parse(body)
    return EngineErrorText("", body.decode("utf-8", "replace").strip()) if value is None else error_in(value)


def error_in(value: Json) -> EngineErrorText:
    error = value.get("error") or value
    if type(error) is not dict:
        return EngineErrorText("", str(error))
    message = error.get("message") or error.get("detail") or ""
    code = error.get("code") if type(error.get("code")) is str else error.get("type")
    return EngineErrorText(str(code or ""), message if type(message) is str else orjson.dumps(message).decode())
