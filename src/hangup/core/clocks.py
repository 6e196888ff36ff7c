"""`SteadyClock`, which a wall clock set wrong cannot hurry, and `Backoff`, which repeated failures slow down."""

from __future__ import annotations

_FASTEST = 24.0  # catches up at most this many times faster than time passes: a day in an hour


class SteadyClock:
    """The time of day that decides what is old enough to delete. It follows the wall clock, but never much faster than time
    passes: a clock that is set ahead for an hour costs a day at most, and one that is set right again costs nothing."""

    def __init__(self, seen: float, of_day: float, now: float) -> None:
        """Start from `seen`, the time of day that an earlier process had reached; 0 if there was none."""
        self._time = min(seen, of_day) if seen else of_day
        self._seen = seen
        self._now = now

    @property
    def latest(self) -> float:
        """Return the latest time reached, in an earlier process or in this one; also while the wall clock is set back."""
        return max(self._seen, self._time)

    def at(self, of_day: float, now: float) -> float:
        """Return the time, never later than the wall clock. `of_day` is the wall clock's time, `now` the process's monotonic
        time."""
        passed, self._now = max(now - self._now, 0.0), now
        self._time = max(self._time, min(of_day, self._time + passed * _FASTEST))
        return min(self._time, of_day)


class Backoff:
    """The pause before a retry: it doubles with each failure, until there has been none for a while."""

    def __init__(self, least_s: float, most_s: float) -> None:
        self._least_s, self._most_s = least_s, most_s
        self._pause_s = 0.0
        self._failed_at = 0.0

    def failed(self, now: float) -> float:
        """Note a failure and return how long to wait."""
        calm = now - self._failed_at > 2 * self._most_s
        self._pause_s = self._least_s if calm or not self._pause_s else min(2 * self._pause_s, self._most_s)
        self._failed_at = now
        return self._pause_s
