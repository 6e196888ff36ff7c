"""The lead among members of which none is above the others: a store keeps it, with a number that rises at each change.

Whoever leads changes its beat all the time. A member that saw the beat stand still for long enough, by its own monotonic clock,
tries to take the lead; the store lets only one of them have it, and refuses what an earlier leader writes later.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lead:
    """Who leads, as the store has it."""

    member: str
    term: int  # higher than those of all leaders before
    beat: int


class LeadWatch:
    """One member's view of the lead. `term` is the highest that it has seen: it obeys no leader of a lower one."""

    def __init__(self, silent_max_s: float, look_s: float) -> None:
        self._silent_max_s = silent_max_s
        self._look_max_s = 1.5 * look_s  # a look that comes later adds no more: this process or the store stood still meanwhile
        self._looked_at: float | None = None
        self._seen: Lead | None = None
        self._silent_s = 0.0
        self.term = 0

    def look(self, now: float, lead: Lead | None) -> bool:
        """Note what the store says; return whether to try to take the lead. Call this every `look_s`."""
        passed_s = 0.0 if self._looked_at is None else min(now - self._looked_at, self._look_max_s)
        self._looked_at = now
        self._silent_s = self._silent_s + passed_s if lead == self._seen else 0.0
        self._seen = lead
        if lead is not None:
            self.term = max(self.term, lead.term)
        return lead is None or lead.term < self.term or self._silent_s >= self._silent_max_s

    def note_term(self, term: int) -> None:
        """Note a term that another member has seen: the store may have lost it."""
        self.term = max(self.term, term)
