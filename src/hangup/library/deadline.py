"""The deadline of the current call, which all code that runs inside the call can read."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar

_deadline_at: ContextVar[float] = ContextVar("hangup_deadline")


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Limit the calls made inside the block to `seconds`; an earlier deadline of an outer block stays in force."""
    until = time.monotonic() + seconds
    token = _deadline_at.set(min(until, _deadline_at.get(until)))
    try:
        yield
    finally:
        _deadline_at.reset(token)


def remaining_s() -> float | None:
    """Return the seconds left for the current call, or None if no deadline is set."""
    until = _deadline_at.get(None)
    return None if until is None else max(0.0, until - time.monotonic())
