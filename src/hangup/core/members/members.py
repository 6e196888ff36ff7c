"""Who is alive, who leads, and which calls a dead member left in the engines.

A member proves its life by messages, and its death is judged by the hub's own monotonic clock. Time in which the hub did
not look says nothing: it may have been stopped together with the members.

One member leads: the one that has been here for longest and is not silent. Each change of the leader raises the term, and what
a leader was asked to do under an older term does not count. So a leader that wakes up late does nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class _Life:
    """What the hub knows of a member's life."""

    number: int  # members that came later have higher ones
    silent_s: float = 0.0
    spoke: bool = True  # since the last look


class Members:
    """The members that have joined and not left."""

    def __init__(self, silent_max_s: float, look_s: float, *, elects: bool = True) -> None:
        """`elects`: the members choose their leader here; otherwise a store does, and `lead_by` says who it is."""
        self._silent_max_s = silent_max_s
        self._look_max_s = 1.5 * look_s  # a look that comes later than this adds no more: the hub was stopped meanwhile
        self._elects = elects
        self._looked_at: float | None = None
        self._lives: dict[str, _Life] = {}
        self._joined = 0
        self._leader: str | None = None
        self.term = 0

    def join(self, member: str) -> None:
        """Add a member; one that was here before counts as new."""
        self._joined += 1
        self._lives[member] = _Life(self._joined)
        if self._leader == member and self._elects:
            self._leader = None
        self._elect()

    def leave(self, member: str) -> None:
        self._lives.pop(member, None)
        self._elect()

    def note_message(self, member: str) -> None:
        """Note a message of a member."""
        life = self._lives.get(member)
        if life is not None:
            life.spoke = True

    def look(self, now: float) -> None:
        """Judge who is silent. Call this every `look_s`."""
        passed_s = 0.0 if self._looked_at is None else min(now - self._looked_at, self._look_max_s)
        self._looked_at = now
        for life in self._lives.values():
            life.silent_s = 0.0 if life.spoke else life.silent_s + passed_s
            life.spoke = False
        self._elect()

    def silent_s(self, member: str) -> float:
        """Return for how long a member has been silent, by the looks of the hub."""
        life = self._lives.get(member)
        return life.silent_s if life is not None else 0.0

    def is_silent(self, member: str) -> bool:
        return self.silent_s(member) >= self._silent_max_s

    @property
    def names(self) -> list[str]:
        return list(self._lives)

    @property
    def leader(self) -> str | None:
        return self._leader

    def lead_by(self, leader: str, term: int) -> None:
        """Take the leader that a store has, and its term."""
        self._leader, self.term = leader, term

    def _elect(self) -> None:
        """Keep the leader while it is here and not silent; otherwise the oldest one that is not silent leads."""
        if not self._elects:
            return
        if self._leader in self._lives and not self.is_silent(self._leader):
            return
        fit = [name for name in self._lives if not self.is_silent(name)]
        leader = min(fit, key=lambda name: self._lives[name].number, default=None)
        if leader != self._leader:
            self._leader = leader
            self.term += 1


@dataclass(frozen=True, slots=True)
class LeftCall:
    """A call that was in an engine when its member died."""

    id: str
    backend: str
    key: str  # the engine's name for it
    tenant: str = ""
    model: str = ""
    tokens: int = 0  # that had arrived, by the last message
    choices: int = 1

    def row(self) -> tuple[str, str, str, str, str, int, int]:
        """Return the values for a message."""
        return self.id, self.backend, self.key, self.tenant, self.model, self.tokens, self.choices


class LeftCalls:
    """The calls of dead members, until a leader has confirmed that it takes care of them.

    A leader that dies before it confirms changes nothing: the next one gets them again. To stop a call twice does no harm.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[LeftCall, ...]] = {}  # by the dead member
        self._term = -1

    def add(self, member: str, calls: Iterable[LeftCall]) -> None:
        found = tuple(calls)
        if found:
            self._waiting[member] = (*self._waiting.get(member, ()), *found)
            self._term = -1

    def take_for(self, term: int) -> dict[str, tuple[LeftCall, ...]]:
        """Return what the leader of this term must be asked to stop now; nothing if it was asked already."""
        if term == self._term or not self._waiting:
            return {}
        self._term = term
        return dict(self._waiting)

    def confirmed(self, term: int, members: Iterable[str]) -> bool:
        """Note that the leader of this term takes care of these members' calls; return False if it leads no longer."""
        if term != self._term:
            return False
        for member in members:
            self._waiting.pop(member, None)
        return True

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))
