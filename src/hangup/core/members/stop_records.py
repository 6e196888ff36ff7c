"""The hub's record of all members' ended calls that engines have not confirmed to have stopped, and of the ladders' steps.

One member, the leader, judges the engines for all. Members hand their ended calls to the hub, which passes them on to the
leader. What the leader found goes back to the member that had the call:

    member ── ended calls ──▶ hub ──▶ leader ── found, with its term ──▶ hub ──▶ member

The leader records each step of the ladder here before it takes it. So the next leader gets all that is open, goes on where the
last one was, and does nothing again. What a leader of an older term finds or wants to do does not count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

ZOMBIE = "zombie"  # of the states of a stop, the only one with which it stays open


class EndedCall(NamedTuple):
    """A call that ended while an engine worked on it."""

    key: str  # the engine's name for it
    backend: str
    id: str
    age_s: float  # since its end
    silent: bool  # it had no first token
    tokens: int
    choices: int
    reading_s: float | None
    abort_sent: bool
    tenant: str
    model: str
    cause: str
    member: str = ""  # whose call it was; the hub notes it
    zombie: bool = False  # it was found to run on
    aborts: int = 0  # further ones

    def row(self) -> tuple[object, ...]:
        return tuple(self)


class StopFinding(NamedTuple):
    """What the leader found out about an ended call."""

    call: EndedCall
    state: str  # a `StopState`
    tokens_now: int | None = None

    def row(self) -> tuple[object, ...]:
        return self.call.row(), self.state, self.tokens_now


LadderRecord = dict[str, Any]  # how far the ladder went on a backend, as the leader wrote it; only leaders read it


@dataclass(frozen=True, slots=True)
class _Open:
    call: EndedCall
    ended_at: float  # by the hub's clock


@dataclass(frozen=True, slots=True)
class RecordChanges:
    """What a copy of the records must be told."""

    whole: bool  # this is all that there is; what else the copy has is outdated
    calls: list[EndedCall]  # opened or changed
    closed: list[tuple[str, str]]  # by backend and key
    steps: dict[str, LadderRecord]


class StopRecords:
    """The ended calls that are open, and the last step on each backend."""

    def __init__(self, *, copied: bool = False) -> None:
        """`copied`: a store keeps a copy, for the case that this process dies; see `take_changes`."""
        self._open: dict[tuple[str, str], _Open] = {}  # by backend and key
        self.steps: dict[str, LadderRecord] = {}
        self._copied, self._copy_whole = copied, False
        self._changed: dict[tuple[str, str], None] = {}  # since the last copy,
        self._steps_changed: set[str] = set()  # and the backends

    def __len__(self) -> int:
        return len(self._open)

    def is_open(self, backend: str, key: str) -> bool:
        return (backend, key) in self._open

    def add(self, member: str, calls: Iterable[EndedCall], now: float) -> list[EndedCall]:
        """Note ended calls of a member; return those that the leader must be news of."""
        new = []
        for call in calls:
            place = call.backend, call.key
            if place not in self._open:
                new.append(call._replace(member=member))
                self._open[place] = _Open(new[-1], now - call.age_s)
                self._note_change(place)
        return new

    def restore(self, calls: Iterable[EndedCall], steps: dict[str, LadderRecord], now: float) -> None:
        """Take over the copy of an earlier hub."""
        for call in calls:
            self._open[call.backend, call.key] = _Open(call, now - call.age_s)
        self.steps |= steps

    def open_calls(self, now: float) -> list[EndedCall]:
        """Return all that is open, oldest first: what a new leader must know."""
        rows = sorted(self._open.values(), key=lambda row: row.ended_at)
        return [row.call._replace(age_s=now - row.ended_at) for row in rows]

    def found(self, leader: str, rows: Iterable[StopFinding], now: float) -> dict[str, list[StopFinding]]:
        """Note what the leader found out; return what to tell whom. Its own calls have no member's name."""
        news: dict[str, list[StopFinding]] = {}
        for row in rows:
            place, member = (row.call.backend, row.call.key), row.call.member or leader
            if row.state != ZOMBIE:
                self._open.pop(place, None)
            else:  # open, or believed gone before
                self._open[place] = _Open(row.call._replace(member=member), now - row.call.age_s)
            self._note_change(place)
            if member != leader:
                news.setdefault(member, []).append(row)
        return news

    def take(self, backend: str, step: LadderRecord) -> None:
        """Note a step that the leader is about to take."""
        self.steps[backend] = step
        if self._copied:
            self._steps_changed.add(backend)

    def forget_steps(self, backend: str) -> None:
        """Forget the steps on a backend, because a reload, or DNS, has replaced or removed it."""
        if self.steps.pop(backend, None) is not None:
            self._copy_whole = self._copied

    # The copy

    def take_changes(self, now: float) -> RecordChanges | None:
        """Return what has changed since the last copy; None if nothing has."""
        whole, self._copy_whole = self._copy_whole, False
        changed, self._changed = (self._open if whole else self._changed), {}
        steps, self._steps_changed = (self.steps.keys() if whole else self._steps_changed), set()
        if not (whole or changed or steps):
            return None
        opened = [self._open[place] for place in changed if place in self._open]
        return RecordChanges(
            whole,
            [row.call._replace(age_s=round(now - row.ended_at, 3)) for row in opened],
            [place for place in changed if place not in self._open],
            {backend: self.steps[backend] for backend in steps if backend in self.steps},
        )

    def copy_lost(self) -> None:
        """Copy everything next time: the store may lack the latest changes."""
        self._copy_whole = True

    def _note_change(self, place: tuple[str, str]) -> None:
        if self._copied:
            self._changed[place] = None
