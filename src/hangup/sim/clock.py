"""Virtual time: runs events in order, and ties in order of creation, so that a seed gives the same result bit for bit."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Protocol

Handler = Callable[[Any, int], None]
Event = tuple[float, int, Handler, Any, int]


class HasTurn(Protocol):
    """An object whose scheduled timeouts become void when its `turn` changes."""

    turn: int


class VirtualClock:
    __slots__ = ("_due", "_scheduled", "_second", "_timeouts", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[Event] = []
        self._scheduled = 0
        self._timeouts: defaultdict[int, list[Event]] = defaultdict(list)  # by the second in which they are due
        self._second = 0  # timeouts up to this second have been moved to `_due`

    def at(self, time: float, handler: Handler, subject: Any, version: int = 0) -> None:
        """Schedule `handler(subject, version)`. Events cannot be cancelled; a handler ignores an outdated version."""
        self._scheduled += 1
        heapq.heappush(self._due, (time, self._scheduled, handler, subject, version))

    def timeout(self, time: float, handler: Handler, subject: HasTurn) -> None:
        """Schedule like `at`, for events that rarely fire: void if the subject's turn has changed by then.

        They are stored by second, and enter the heap only if they are still valid when their second begins.
        """
        second = int(time)
        if second <= self._second:
            self.at(time, handler, subject, subject.turn)
        else:
            self._scheduled += 1
            self._timeouts[second].append((time, self._scheduled, handler, subject, subject.turn))

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
