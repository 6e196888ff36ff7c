"""Whether anything comes of the live calls in an engine, judged by what reached us: that holds for every kind of engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

READING_MAX_S = 0.05  # a token of a prompt, on a slow machine, where nothing has been learned yet
_LATE = 3.0  # times as long as expected: then it is late


class Waiting(NamedTuple):
    """A live call that an engine has."""

    since: float  # its last token, or when it was sent
    reading_s: float  # how long its first token may take; 0 once it has come


def reading_s(prompt_tokens: float, expected_s: float | None) -> float:
    """How long a prompt may take to be read: from what is usual there, or from what is slow anywhere."""
    return prompt_tokens * READING_MAX_S if expected_s is None else expected_s * _LATE


class Stillness:
    """For how long an engine has had calls of ours and given nothing to any of them, beyond the time that their prompts take.

    It outlasts the calls: that those who waited in vain are gone makes an engine no livelier.
    """

    def __init__(self) -> None:
        self._waited_since = math.inf  # the oldest wait that nothing has come after

    def look(self, waiting: Sequence[Waiting], heard_at: float, now: float) -> float:
        """`heard_at` is when anything last came from the engine, for whichever call. Seconds; below 0 when nobody waits."""
        oldest = min((call.since for call in waiting), default=math.inf)
        if heard_at > self._waited_since:
            self._waited_since = math.inf
        self._waited_since = min(self._waited_since, max(oldest, heard_at))
        if self._waited_since == math.inf:
            return -math.inf
        return now - self._waited_since - max((call.reading_s for call in waiting), default=0.0)

    def reset(self) -> None:
        """The engine is idle, or was started anew."""
        self._waited_since = math.inf
