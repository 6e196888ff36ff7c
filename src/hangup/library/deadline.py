"""How long the client of the present call still waits: known to whatever runs inside the call."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar

_until: ContextVar[float] = ContextVar("hangup_deadline")


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Calls made inside end within `seconds`; an outer, earlier deadline stays in force."""
    until = time.monotonic() + seconds
    token = _until.set(min(until, _until.get(until)))
    try:
        yield
    finally:
        _until.reset(token)


def remaining_s() -> float | None:
    """Seconds left for the present call; None if nobody has set a deadline."""
    until = _until.get(None)
    return None if until is None else max(0.0, until - time.monotonic())
