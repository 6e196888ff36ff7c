"""Decides what can be done about orphans (work in an engine that none of our calls caused) once an operator says that nobody
waits for them."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Means(StrEnum):
    """What can be done about orphans, from the gentlest means to none."""

    ABORT = "abort"  # the engine names its calls, so those that are not ours can be aborted
    RESTART = "restart"  # the backend gets no new calls, and is restarted when ours have finished
    QUARANTINE = "quarantine"  # the orphans leave no room, so the backend gets no calls until they are gone
    NOTHING = "nothing"  # there are none, or the engine can neither abort them by name nor be restarted


class Orphans(NamedTuple):
    """The number of orphans in an engine, and what can be done about them."""

    calls: int
    means: Means

    @classmethod
    def of(cls, calls: int, *, named: bool, restart: bool, closes: bool) -> Orphans:
        """Choose the gentlest means that is possible."""
        if not calls:
            return cls(0, Means.NOTHING)
        ways = ((named, Means.ABORT), (restart, Means.RESTART), (closes, Means.QUARANTINE))
        return cls(calls, next((means for possible, means in ways if possible), Means.NOTHING))
