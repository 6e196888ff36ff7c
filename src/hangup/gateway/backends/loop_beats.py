"""Knows when the event loop last looked at its sockets, and for how long it stood still: what it reads after a standstill is
not news, and that nothing happened meanwhile says nothing about others."""

from __future__ import annotations

import time

STOOD_STILL_S = 0.5  # without a beat, or after the time of a timeout: this process did not run


class LoopBeats:
    """The loop calls `beat` about ten times a second. Between two beats it looks at all sockets at least once."""

    def __init__(self) -> None:
        self._last: float | None = None  # without beats, the loop counts as never late
        self._before_last = 0.0
        self._stood_still_s = 0.0  # in all

    def beat(self) -> None:
        now = time.monotonic()
        self._stood_still_s += self._gap_s(now)
        self._before_last, self._last = now if self._last is None else self._last, now

    def stop(self) -> None:
        self._last = None

    def looked_at(self) -> float:
        """Return a time (monotonic) at or after which the loop looked at its sockets, before it read what it is handling now.

        The last beat does not count: after a standstill, the loop may beat before it looks.
        """
        return time.monotonic() if self._last is None else self._before_last

    def stood_still_s(self) -> float:
        """Return for how long the loop has stood still so far, in all, including a standstill that just ended."""
        return self._stood_still_s + self._gap_s(time.monotonic())

    def _gap_s(self, now: float) -> float:
        gap_s = 0.0 if self._last is None else now - self._last
        return gap_s if gap_s > STOOD_STILL_S else 0.0


BEATS = LoopBeats()  # those of this process's event loop
