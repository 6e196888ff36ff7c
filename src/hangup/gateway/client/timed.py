"""The one timer of a client's connection, for its own time limits and those of its call."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from hangup.gateway.client.stall import CATCH_UP_S, LATE_S


class Timed(asyncio.Protocol):
    """Calls `_time_has_come` at the time that was set last, or a little later if much else ends in that instant."""

    __slots__ = ("_due", "_loop", "_timer", "_timer_at")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def set_due(self, due: float) -> None:
        """Set the time of the next check. The timer is reset only if it would fire too late: most calls do not touch it."""
        self._due = due
        if self._timer_at > due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(due, self._on_timer)
            self._timer_at = due

    def _set_due_in(self, seconds: float) -> None:
        self.set_due(self._loop.time() + seconds)

    def _on_timer(self) -> None:
        now = self._loop.time()
        late = now - self._timer_at
        self._timer, self._timer_at = None, math.inf
        if late > LATE_S:
            self._timer_at = now + CATCH_UP_S
            self._timer = self._loop.call_at(self._timer_at, self._on_timer)
        elif self._due > now:
            self.set_due(self._due)
        elif not self._defer(self._check_time):
            self._check_time()

    def _check_time(self) -> None:
        """Act if the time has come; it may have been set anew while this waited."""
        try:
            if self._due > self._loop.time():
                self.set_due(self._due)
            else:
                self._time_has_come()
        except Exception as error:
            self._fault(error)

    def _defer(self, end: Callable[[], None]) -> bool:
        """Return True if `end` is called in a later turn, because many calls end in this one."""
        raise NotImplementedError

    def _time_has_come(self) -> None:
        raise NotImplementedError

    def _fault(self, error: Exception) -> None:
        raise NotImplementedError
