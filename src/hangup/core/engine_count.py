"""Follows an engine's own token count across restarts, and reconciles it with the tokens that we received.

A count that falls means that the engine was restarted; the counts of its earlier runs are kept. Tokens that a run computed
between our last look and its death are in no count. The part of them that we received is found when both sides are idle
(`settle`); nobody can know the rest. Tokens for nobody that were counted since the last settlement are set off against it.
"""

from __future__ import annotations

from typing import NamedTuple


class Settled(NamedTuple):
    """The result of a settlement."""

    nobodys: int  # computed, and never received by us
    uncounted: int  # received by us, from a run whose count died with it


_NOTHING = Settled(0, 0)


class EngineCount:
    """The token count of one engine, over all of its runs."""

    def __init__(self) -> None:
        self._first: int | None = None  # its first report to us
        self._latest = 0  # its last report
        self._before = 0  # counted by its earlier runs
        self._may_have_lost = False  # it was, or may have been, restarted since both sides last agreed
        self._squared = 0  # tokens for nobody minus uncounted ones, explained so far

    @property
    def computed(self) -> int | None:
        """Return the tokens that the engine says it has computed since we know it; None until it has reported."""
        return None if self._first is None else self._before + self._latest - self._first

    def note(self, reported: int) -> bool:
        """Note the engine's current count; return True if it has been restarted."""
        anew = self._first is not None and reported < self._latest
        if self._first is None:
            self._first = reported
        elif anew:
            self._before, self._first = self.computed or 0, 0
            self._may_have_lost = True
        self._latest = reported
        return anew

    def lost_sight(self) -> None:
        """Note that the engine could not be asked: it may restart meanwhile without its count showing that."""
        self._may_have_lost = True

    def ahead(self, seen: int) -> int:
        """Return the tokens that were computed, not received and not explained yet; negative while the engine's count lags."""
        return (self.computed or 0) - seen - self._squared

    def name(self, tokens: int) -> None:
        """Note that this many of those tokens have been explained."""
        self._squared += tokens

    def agree_on(self, seen: int) -> None:
        """Begin here: whatever the difference from the tokens that were received is, it has been explained elsewhere."""
        self._squared = (self.computed or 0) - seen

    def settle(self, seen: int) -> Settled:
        """Reconcile while nothing is at work on either side and `seen` tokens have been received: each difference is explained
        once.

        A count that is behind although the engine was never restarted is wrong, and the difference stays visible.
        """
        rest = (self.computed or 0) - seen - self._squared
        if rest > 0:
            found = Settled(rest, 0)
        elif rest < 0 and self._may_have_lost:
            found = Settled(0, -rest)
        else:
            found = _NOTHING
        self._squared += found.nobodys - found.uncounted
        self._may_have_lost = False
        return found
