"""Work in an engine that no call of ours has caused: what can be done when an operator says that nobody waits for it."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Means(StrEnum):
    """From the gentlest to none."""

    ABORT = "abort"  # the engine names its calls, and is told to stop those that are not ours
    RESTART = "restart"  # no new calls go there, and it is restarted when ours have finished
    QUARANTINE = "quarantine"  # there is room for nothing else, so it gets no calls until they are gone
    NOTHING = "nothing"  # none are known, or the engine can neither be told which are meant nor be restarted


class Orphans(NamedTuple):
    calls: int
    means: Means

    @classmethod
    def of(cls, calls: int, *, named: bool, restart: bool, closes: bool) -> Orphans:
        if not calls:
            return cls(0, Means.NOTHING)
        ways = ((named, Means.ABORT), (restart, Means.RESTART), (closes, Means.QUARANTINE))
        return cls(calls, next((means for possible, means in ways if possible), Means.NOTHING))
