"""Reads from an answer's headers when the backend accepts the next call."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
# Headers with a window's remaining budget and its reset: OpenAI's and Anthropic's names, which others have adopted.
_WINDOWS: Final = [
    (b"x-ratelimit-remaining-requests", b"x-ratelimit-reset-requests"),
    (b"x-ratelimit-remaining-tokens", b"x-ratelimit-reset-tokens"),
    (b"anthropic-ratelimit-requests-remaining", b"anthropic-ratelimit-requests-reset"),
    (b"anthropic-ratelimit-tokens-remaining", b"anthropic-ratelimit-tokens-reset"),
]
Fields = Mapping[bytes, bytes]


def is_refusal(status: int, fields: Fields) -> bool:
    """Return True if an answer means that the engine has no room at the moment, rather than that something is wrong."""
    return status in (429, 529) or (status == 503 and (b"retry-after" in fields or b"retry-after-ms" in fields))


def come_back_s(fields: Fields, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> float | None:
    """Return how many seconds later a refused call may retry; None if the headers do not say."""
    milliseconds = _number(fields.get(b"retry-after-ms", b""))
    if milliseconds is not None:
        return milliseconds / 1000
    value = fields.get(b"retry-after", b"")
    seconds = _number(value)
    if seconds is not None or not value:
        return seconds if seconds is not None else spent_s(fields, clock)
    try:
        until = parsedate_to_datetime(value.decode("latin-1"))
    except (ValueError, TypeError):
        return spent_s(fields, clock)
    return max((until.replace(tzinfo=until.tzinfo or UTC) - clock()).total_seconds(), 0.0)


def spent_s(fields: Fields, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> float | None:
    """Return the seconds until an exhausted rate limit resets; None if the headers show none."""
    waits = [
        _reset_s(fields.get(reset, b""), clock) for remaining, reset in _WINDOWS if fields.get(remaining, b"").strip() == b"0"
    ]
    known = [wait for wait in waits if wait is not None]
    return max(known) if known else None


def _reset_s(value: bytes, clock: Callable[[], datetime]) -> float | None:
    """Parse a duration as OpenAI writes it (`6m0s`, `120ms`), plain seconds, or a timestamp as Anthropic writes it."""
    seconds = _number(value)
    if seconds is not None:
        return seconds
    text = value.decode("latin-1").strip()
    parts = _PART.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    try:
        until = datetime.fromisoformat(text)
    except ValueError:
        return None
    return max((until.replace(tzinfo=until.tzinfo or UTC) - clock()).total_seconds(), 0.0)


def _number(value: bytes) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if 0 <= number < math.inf else None
