"""An engine's own count of its tokens, followed over its restarts and squared with the tokens that came from it.

A count that falls has begun anew with the engine; what its former lives had counted is kept. What a life computed between our
last look and its death is in no count. Of that, the part which came to us is found when both sides rest (`settle`); the part
which did not, nobody can know. Tokens for nobody that were counted since the last rest are set off against it.
"""

from __future__ import annotations

from typing import NamedTuple


class Settled(NamedTuple):
    nobodys: int  # tokens that were computed and never came
    uncounted: int  # tokens that came, from a life whose count died with it


_NOTHING = Settled(0, 0)


class EngineCount:
    def __init__(self) -> None:
        self._first: int | None = None  # what it said when we first saw it
        self._told = 0  # what it said last
        self._before = 0  # counted by its former lives
        self._may_have_lost = False  # it was, or may have been, started anew since both sides last agreed
        self._squared = 0  # tokens for nobody less those uncounted, so far

    @property
    def computed(self) -> int | None:
        """Tokens it says it has computed since we know it; None as long as it has said nothing."""
        return None if self._first is None else self._before + self._told - self._first

    def note(self, told: int) -> bool:
        """What it says now; True if it has begun anew."""
        anew = self._first is not None and told < self._told
        if self._first is None:
            self._first = told
        elif anew:
            self._before, self._first = self.computed or 0, 0
            self._may_have_lost = True
        self._told = told
        return anew

    def lost_sight(self) -> None:
        """It could not be asked: when it can be again, it may have begun anew, even if its count does not show that."""
        self._may_have_lost = True

    def ahead(self, seen: int) -> int:
        """Tokens that were computed, did not come, and have no name yet; less than 0 while it counts late."""
        return (self.computed or 0) - seen - self._squared

    def name(self, tokens: int) -> None:
        """So many of them have got theirs."""
        self._squared += tokens

    def settle(self, seen: int) -> Settled:
        """Nothing is at work on either side, and `seen` tokens have come in all: whatever differs gets its name, once.

        A count that is behind though it never began anew is wrong, and stays so for all to see.
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
