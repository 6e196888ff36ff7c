"""An engine's events, looked at under guard: one of a shape that its API does not have must not break the stream."""

from __future__ import annotations

from typing import Any

import orjson

from hangup.apis.base import Api, Failure, Json, Usage
from hangup.core.call import Call


def parse(data: bytes | None) -> Json | None:
    """An event's object; None for anything else."""
    if not data:
        return None
    try:
        value: Any = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return value if type(value) is dict else None


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
        return api.usage(event)
    except ODD:
        return None


def note_usage(call: Call, usage: Usage) -> None:
    """Takes over the counts that the engine tells."""
    if type(usage.tokens_in) is int:
        call.tokens_in = usage.tokens_in
    if type(usage.tokens_out) is int:
        call.tokens_out = usage.tokens_out
        call.tokens_exact = True


def moves(api: Api, event: Json) -> bool:
    try:
        return api.moves(event)
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


def given_up(api: Api, event: Json) -> str | None:
    try:
        return api.given_up(event)
    except ODD:
        return None


def failure_of(api: Api, event: Json) -> Failure | None:
    try:
        return api.failure(event)
    except ODD:
        return None
