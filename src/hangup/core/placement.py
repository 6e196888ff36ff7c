"""Which backend serves a call, and who waits for one.

The least loaded backend that is up is taken; one that is down only when nothing else is left, so that a wrong
verdict costs a failed attempt and never an outage. Calls that find every slot taken wait in line, bounded; one that
leaves is unlinked at once.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Seat:
    """A backend as the placement sees it."""

    name: str
    slots: int = 0  # 0: no limit
    weight: float = 1.0
    failures_max: int = 3
    in_flight: int = 0
    failures: int = 0  # in a row
    up: bool = True
    retired: bool = False  # taken out of the configuration: no new work, what runs may finish
    turn: int = 0  # when it was last chosen, to break ties in turn

    @property
    def free(self) -> bool:
        return not self.slots or self.in_flight < self.slots

    @property
    def load(self) -> float:
        return self.in_flight / self.weight

    def failed(self) -> bool:
        """A call or a check found it broken; True if it has just gone down."""
        self.failures += 1
        if self.up and self.failures >= self.failures_max:
            self.up = False
            return True
        return False

    def succeeded(self) -> bool:
        """A call or a check found it well; True if it has just come up."""
        self.failures = 0
        came_up, self.up = not self.up, True
        return came_up


@dataclass(slots=True)
class Waiting:
    key: Hashable
    tried: frozenset[str]


@dataclass(slots=True)
class Grant:
    key: Hashable
    seat: Seat


@dataclass(slots=True)
class Placement:
    """All backends and the line in front of them."""

    queue_depth_max: int
    seats: list[Seat] = field(default_factory=list)
    line: dict[Hashable, Waiting] = field(default_factory=dict)  # in order of arrival; a dict unlinks in O(1)
    _turn: int = 0

    def choose(self, tried: frozenset[str] = frozenset()) -> Seat | None:
        """The best backend with room for a call that has failed on `tried` already."""
        if len(self.seats) == 1 and not tried:
            only = self.seats[0]
            return only if (not only.slots or only.in_flight < only.slots) and not only.retired else None
        candidates = [s for s in self.seats if not s.retired and s.name not in tried]
        pool = [s for s in candidates if s.up] or candidates
        return min((s for s in pool if s.free), key=lambda s: (s.load, s.turn), default=None)

    def usable(self, tried: frozenset[str] = frozenset()) -> bool:
        """Whether there is any backend that such a call could wait for."""
        return any(not s.retired and s.name not in tried for s in self.seats)

    def take(self, seat: Seat) -> None:
        self._turn += 1
        seat.turn = self._turn
        seat.in_flight += 1

    def wait(self, key: Hashable, tried: frozenset[str] = frozenset()) -> bool:
        """Puts a call in line; False when the line is full."""
        assert key not in self.line
        if len(self.line) >= self.queue_depth_max:
            return False
        self.line[key] = Waiting(key, tried)
        return True

    def leave(self, key: Hashable) -> None:
        """The call no longer waits; harmless if it does not."""
        self.line.pop(key, None)

    def release(self, seat: Seat) -> list[Grant]:
        """A call on `seat` is over; says who may go now."""
        assert seat.in_flight > 0, f"{seat.name} was released more often than taken"
        seat.in_flight -= 1
        return self.grants()

    def grants(self) -> list[Grant]:
        """Lets those in line go, first come first served, as far as there is room."""
        granted: list[Grant] = []
        if not self.line:
            return granted
        for waiting in list(self.line.values()):
            seat = self.choose(waiting.tried)
            if seat is None:
                if not waiting.tried:
                    break  # nobody behind it, who is no less choosy, can go either
                continue
            del self.line[waiting.key]
            self.take(seat)
            granted.append(Grant(waiting.key, seat))
        return granted
