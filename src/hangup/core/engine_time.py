"""Splits an engine's time among its calls: a second in which it worked for n calls counts as 1/n s for each.

So the shares of all calls add up to the time in which the engine had any call at all, and a price per hour can be charged to
those who caused it. A running sum of 1/n over time makes a call's share one subtraction. Calls of other gateway processes
count in n as well, as far as they are known.
"""

from __future__ import annotations


class EngineTime:
    """The time of one engine."""

    __slots__ = ("_at", "_others", "_per_call_s", "busy_s", "call_s", "count", "used_s")

    def __init__(self) -> None:
        self.count = 0
        self.busy_s = 0.0  # in which this process had a call there
        self.used_s = 0.0  # the shares of its calls; with those of other processes, the time in which anybody had one
        self.call_s = 0.0  # call-seconds: the durations of all calls, added up
        self._others = 0  # calls of other processes
        self._per_call_s = 0.0  # the share of a call that has been there from the start
        self._at = 0.0

    def enter(self, now: float) -> float:
        """Note that a call begins; return a mark for `leave`."""
        self.pass_until(now)
        self.count += 1
        return self._per_call_s

    def leave(self, mark: float, now: float) -> float:
        """Note that a call is over; return its share in seconds."""
        assert self.count > 0
        self.pass_until(now)
        self.count -= 1
        return self._per_call_s - mark

    def pass_until(self, now: float) -> None:
        passed = now - self._at
        if passed > 0:
            self._at = now
            if self.count:
                self.busy_s += passed
                self.call_s += passed * self.count
                share = passed / (self.count + self._others)
                self._per_call_s += share
                self.used_s += share * self.count

    def note_others(self, calls: int, now: float) -> None:
        """Note how many calls other processes have there from now on."""
        self.pass_until(now)
        self._others = calls
