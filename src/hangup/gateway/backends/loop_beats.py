"""Knows when the event loop last looked at its sockets, so that what it then reads is not taken for news."""

from __future__ import annotations

import time


class LoopBeats:
    """The loop calls `beat` about ten times a second. Between two beats it looks at all sockets at least once."""

    def __init__(self) -> None:
        self._last: float | None = None  # without beats, the loop counts as never late
        self._before_last = 0.0

    def beat(self) -> None:
        now = time.monotonic()
        self._before_last, self._last = now if self._last is None else self._last, now

    def stop(self) -> None:
        self._last = None

    def looked_at(self) -> float:
        """Return a time (monotonic) at or after which the loop looked at its sockets, before it read what it is handling now.

        The last beat does not count: after a standstill, the loop may beat before it looks.
        """
        return time.monotonic() if self._last is None else self._before_last


BEATS = LoopBeats()  # those of this process's event loop
