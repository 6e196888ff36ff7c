"""Measures how long an engine has sent nothing to our live calls. It needs no report of the engine, so it works for any."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

READING_MAX_S = 0.05  # per prompt token, on a slow machine, before anything has been learned
_LATE = 3.0  # a prompt is late when it takes this many times the expected time


class Waiting(NamedTuple):
    """A live call that waits for an engine."""

    since: float  # when its last token came, or when it was sent
    reading_s: float  # how long its first token may take; 0 once that has come


def reading_s(prompt_tokens: float, expected_s: float | None) -> float:
    """Return how long a prompt may take to be read: three times the expected time, or the time on a slow machine if that is
    unknown."""
    return prompt_tokens * READING_MAX_S if expected_s is None else expected_s * _LATE


class Stillness:
    """Measures how long an engine has had calls of ours and answered none, beyond the time to read their prompts.

    The measurement outlives the calls: an engine is no healthier because the clients that waited in vain have left.
    """

    def __init__(self) -> None:
        self._waited_since = math.inf  # since when a call has waited with nothing received from the engine

    def look(self, waiting: Sequence[Waiting], last_output_at: float, now: float) -> float:
        """Return for how many seconds the engine has been still; negative when nobody waits. `last_output_at` is when the
        engine last sent anything, for any call."""
        oldest = min((call.since for call in waiting), default=math.inf)
        if last_output_at > self._waited_since:
            self._waited_since = math.inf
        self._waited_since = min(self._waited_since, max(oldest, last_output_at))
        if self._waited_since == math.inf:
            return -math.inf
        return now - self._waited_since - max((call.reading_s for call in waiting), default=0.0)

    def reset(self) -> None:
        """Start over: the engine is idle, or was restarted."""
        self._waited_since = math.inf
