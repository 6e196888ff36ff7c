"""Knows when the event loop last looked at its sockets, for how long it stood still, and for how long it was kept from its
work: what it reads after a standstill is not news, that nothing happened meanwhile says nothing about others, and what comes
late while the loop itself is late says nothing about engines."""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Final

BEAT_S: Final = 0.1  # between two beats
STOOD_STILL_S: Final = 0.5  # without a beat, or after the time of a timeout: this process did not run
_ASK_S: Final = 0.005  # the kernel is asked at most once in this time
_REMEMBERED: Final = 600  # beats, a minute's worth: for longer than that, nobody asks
_SCHEDSTAT: Final = "/proc/thread-self/schedstat"  # Linux: nanoseconds on the CPU, and nanoseconds of waiting for one


def cpu_wait_s() -> float:
    """Return how long this thread has been ready to run and had to wait for a CPU; 0 where the kernel does not tell."""
    try:
        file = os.open(_SCHEDSTAT, os.O_RDONLY)
    except OSError:
        return 0.0
    try:
        return int(os.read(file, 100).split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
    finally:
        os.close(file)


class LoopBeats:
    """The loop calls `beat` every `BEAT_S`. Between two beats it looks at all sockets at least once."""

    def __init__(self, waited_for_cpu_s: Callable[[], float] = cpu_wait_s) -> None:
        self._waited_for_cpu_s = waited_for_cpu_s
        self._last: float | None = None  # without beats, the loop counts as never late
        self._before_last = 0.0
        self._stood_still_s = 0.0  # in all
        self._cpu_wait_s = 0.0  # how long this thread had waited for a CPU by the last beat
        self._asked: tuple[float, float] = (-1.0, 0.0)  # when the kernel was last asked between two beats, and that time then
        self._delayed_s = 0.0  # how long the loop was kept from its work, in all, by the last beat
        self._beats: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED)  # each with the delay in all by then

    def beat(self) -> None:
        now = time.monotonic()
        self._stood_still_s += self._gap_s(now)
        waited_s = self._waited_for_cpu_s()
        self._delayed_s += self._delay_s(now, waited_s)
        self._cpu_wait_s = waited_s
        self._beats.append((now, self._delayed_s))
        self._before_last, self._last = now if self._last is None else self._last, now

    def stop(self) -> None:
        self._last = None
        self._beats.clear()

    def looked_at(self) -> float:
        """Return a time (monotonic) at or after which the loop looked at its sockets, before it read what it is handling now.

        The last beat does not count: after a standstill, the loop may beat before it looks.
        """
        return time.monotonic() if self._last is None else self._before_last

    def stood_still_s(self) -> float:
        """Return for how long the loop has stood still so far, in all, including a standstill that just ended."""
        return self._stood_still_s + self._gap_s(time.monotonic())

    def delayed_s(self, since: float) -> float:
        """Return for how long the loop was kept from its work since then, at most: it waited for a CPU, or a turn was long."""
        if self._last is None:
            return 0.0
        now = time.monotonic()
        if now - self._asked[0] > _ASK_S:
            self._asked = (now, self._waited_for_cpu_s())
        before = bisect_right(self._beats, (since, 0.0)) - 1
        known_s = self._delayed_s - (self._beats[before][1] if before >= 0 else self._beats[0][1])
        return known_s + self._delay_s(now, self._asked[1])

    def _delay_s(self, now: float, waited_s: float) -> float:
        """Return the delay since the last beat."""
        if self._last is None:
            return 0.0
        return max(waited_s - self._cpu_wait_s, now - self._last - BEAT_S, 0.0)

    def _gap_s(self, now: float) -> float:
        gap_s = 0.0 if self._last is None else now - self._last
        return gap_s if gap_s > STOOD_STILL_S else 0.0


BEATS = LoopBeats()  # those of this process's event loop
