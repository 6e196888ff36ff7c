"""Keeps the loops of many backends, which begin together, from waking in the same turn of the event loop, and from waking it
one by one: a turn for each of a thousand backends costs more than what they do."""

from __future__ import annotations

import random
import time
from typing import Final

_SHORTER: Final = 0.2  # a pause is shorter by up to this share
_TOGETHER_S: Final = 0.05  # those that would wake within this time wake together


def spread(pause_s: float) -> float:
    """Return a pause that is a little shorter, by chance, and ends together with others. Short ones are only shortened."""
    shorter_s = pause_s * (1.0 - _SHORTER * random.random())  # noqa: S311 (nobody gains by guessing it)
    if shorter_s < 2 * _TOGETHER_S:
        return shorter_s
    return shorter_s - (time.monotonic() + shorter_s) % _TOGETHER_S
