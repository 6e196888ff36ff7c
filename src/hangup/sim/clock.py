"""Virtual time: events in order, ties in the order they were made, so that a seed gives one result bit for bit."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Protocol

Handler = Callable[[Any, int], None]
Event = tuple[float, int, Handler, Any, int]


class HasTurn(Protocol):
    """Whose plans are void once its turn has changed."""

    turn: int


class VirtualClock:
    __slots__ = ("_due", "_made", "_second", "_timeouts", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[Event] = []
        self._made = 0
        self._timeouts: defaultdict[int, list[Event]] = defaultdict(list)  # by the second in which they fall due
        self._second = 0  # up to which they are among those due

    def at(self, time: float, handler: Handler, subject: Any, version: int = 0) -> None:
        """Calls `handler(subject, version)` then. Who changes their mind lets it pass by its version."""
        self._made += 1
        heapq.heappush(self._due, (time, self._made, handler, subject, version))

    def timeout(self, time: float, handler: Handler, subject: HasTurn) -> None:
        """As `at`, for what mostly never happens: if the subject's turn has changed by then, nothing is done.

        These are kept apart by the second, and never come near the others unless they are still valid when it begins.
        """
        second = int(time)
        if second <= self._second:
            self.at(time, handler, subject, subject.turn)
        else:
            self._made += 1
            self._timeouts[second].append((time, self._made, handler, subject, subject.turn))

    def run(self, until: float) -> None:
        due, pop = self._due, heapq.heappop
        while True:
            while due and due[0][0] < self._second + 1 and due[0][0] <= until:
                self.now, _, handler, subject, version = pop(due)
                handler(subject, version)
            if self._second + 1 > until:
                break
            self._second += 1
            for event in self._timeouts.pop(self._second, ()):
                if event[3].turn == event[4]:
                    heapq.heappush(due, event)
        self.now = until
