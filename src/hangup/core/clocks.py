"""Times that a clock which is set, or a thing which fails again and again, cannot hurry."""

from __future__ import annotations

_FASTEST = 24.0  # how much faster than time itself it goes to catch up: a day in an hour


class SteadyClock:
    """The time of day by which things are forgotten. It follows the clock, but never much faster than time passes: a clock that
    is set ahead for an hour costs a day at most, and one that was set right again costs nothing.
    """

    def __init__(self, seen: float, of_day: float, now: float) -> None:
        """`seen` is the time of day up to which it had come in an earlier process; 0 when there was none."""
        self._time = min(seen, of_day) if seen else of_day
        self._seen = seen
        self._now = now

    @property
    def latest(self) -> float:
        """How far it has come, in an earlier process or in this one; also while the clock is set back."""
        return max(self._seen, self._time)

    def at(self, of_day: float, now: float) -> float:
        """`of_day` is what the clock says, `now` the process's own time. Never later than the clock."""
        passed, self._now = max(now - self._now, 0.0), now
        self._time = max(self._time, min(of_day, self._time + passed * _FASTEST))
        return min(self._time, of_day)


class Backoff:
    """How long to wait before what failed is tried again: twice as long each time, until it has worked for a while."""

    def __init__(self, least_s: float, most_s: float) -> None:
        self._least_s, self._most_s = least_s, most_s
        self._pause_s = 0.0
        self._failed_at = 0.0

    def failed(self, now: float) -> float:
        calm = now - self._failed_at > 2 * self._most_s
        self._pause_s = self._least_s if calm or not self._pause_s else min(2 * self._pause_s, self._most_s)
        self._failed_at = now
        return self._pause_s
