"""Virtual time: events in order, ties in the order they were made, so that a seed gives one result bit for bit."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

Handler = Callable[[Any, int], None]


class Clock:
    __slots__ = ("_events", "_made", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Handler, Any, int]] = []
        self._made = 0

    def at(self, time: float, handler: Handler, subject: Any, version: int = 0) -> None:
        """Calls `handler(subject, version)` then; who changes their mind gives the subject a new version and lets
        the old event pass."""
        self._made += 1
        heapq.heappush(self._events, (time, self._made, handler, subject, version))

    def run(self, until: float) -> None:
        events, pop = self._events, heapq.heappop
        while events and events[0][0] <= until:
            self.now, _, handler, subject, version = pop(events)
            handler(subject, version)
        self.now = until
