"""An engine's events, looked at under guard: one of a shape that its API does not have must not break the stream."""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from hangup.core.call import Call
from hangup.gateway.apis.base import Api, Failure, Json, Usage


def parse(data: bytes | None) -> Json | None:
    """An event's object; None for anything else."""
    if not data:
        return None
    try:
        value: Any = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return value if type(value) is dict else None


_TOKENS_MAX = 1 << 40
_FAILURE_CHARS_MAX = 500  # of an engine's own words, in the log
ODD = (KeyError, TypeError, AttributeError, IndexError, ValueError)


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
    return Usage(_plausible(usage.tokens_in), _plausible(usage.tokens_out)) if usage is not None else None


def _plausible(tokens: object) -> int | None:
    """An engine can say anything; what no call can have is as good as nothing said."""
    return tokens if type(tokens) is int and 0 <= tokens <= _TOKENS_MAX else None


def note_usage(call: Call, usage: Usage) -> None:
    """Takes over the counts that the engine tells."""
    if type(usage.tokens_in) is int:
        call.tokens_in = usage.tokens_in
    if type(usage.tokens_out) is int:
        call.tokens_out = usage.tokens_out
        call.tokens_exact = True


def shows_progress(api: Api, event: Json) -> bool:
    try:
        return api.shows_progress(event)
    except ODD:
        return False


def is_all_text(api: Api, event: Json) -> bool:
    try:
        return api.is_all_text(event)
    except ODD:
        return False


def ended(api: Api, event: Json) -> list[int]:
    try:
        return api.ended(event)
    except ODD:
        return []


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
    """The failure in the engine's own words, for the log."""
    error = error_in(failure.body)
    words = f"{error.code}: {error.message}" if error.code and error.message else error.code or error.message
    return f"The engine reported an error: {words[:_FAILURE_CHARS_MAX]}" if words else "The engine reported an error."


class EngineErrorText(NamedTuple):
    """What an engine's error says; "" where it does not."""

    code: str
    message: str


def error_text(body: bytes) -> EngineErrorText:
    """Out of an error in any of the shapes that engines give it."""
    value = parse(body)
    return EngineErrorText("", body.decode("utf-8", "replace").strip()) if value is None else error_in(value)


def error_in(value: Json) -> EngineErrorText:
    error = value.get("error") or value
    if type(error) is not dict:
        return EngineErrorText("", str(error))
    message = error.get("message") or error.get("detail") or ""
    code = error.get("code") if type(error.get("code")) is str else error.get("type")
    return EngineErrorText(str(code or ""), message if type(message) is str else orjson.dumps(message).decode())
