"""Whose the engine's time is: a second in which an engine worked for n calls is split among them, 1/n each.

So the shares of all calls add up to the time in which the engine had any call at all, and a price per hour can be
charged to those who caused it. A running sum of 1/n over time makes a call's share one subtraction.
"""

from __future__ import annotations


class EngineTime:
    __slots__ = ("_at", "_per_call_s", "busy_s", "call_s", "count")

    def __init__(self) -> None:
        self.count = 0
        self.busy_s = 0.0
        self.call_s = 0.0  # of all calls, added up
        self._per_call_s = 0.0  # what a call that was there all along would have got
        self._at = 0.0

    def enter(self, now: float) -> float:
        """A call begins; the mark is for `leave`."""
        self.pass_until(now)
        self.count += 1
        return self._per_call_s

    def leave(self, mark: float, now: float) -> float:
        """A call is over: the seconds that it used."""
        assert self.count > 0
        self.pass_until(now)
        self.count -= 1
        return self._per_call_s - mark

    def pass_until(self, now: float) -> None:
        if self.count and now > self._at:
            self.busy_s += now - self._at
            self.call_s += (now - self._at) * self.count
            self._per_call_s += (now - self._at) / self.count
        self._at = max(now, self._at)
