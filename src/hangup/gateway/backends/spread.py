"""Keeps the loops of many backends, which begin together, from waking in the same turn of the event loop."""

from __future__ import annotations

import random
from typing import Final

_SHORTER: Final = 0.2  # a pause is shorter by up to this share


def spread(pause_s: float) -> float:
    """Return a pause that is a little shorter, by chance."""
    return pause_s * (1.0 - _SHORTER * random.random())  # noqa: S311 (nobody gains by guessing it)
