"""Watches the event loop from a separate thread, and logs the loop's stack while it is blocked.

One slow callback delays every client. Only the stack at that time shows which callback it is.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable

_LOOKS = 4  # checks per `stall_s`
_FRAMES_MAX = 30


class LoopWatch:
    """Detects stalls: the loop calls `beat` often, and `run` checks in the thread."""

    def __init__(self, log_event: Callable[..., None], stall_s: float) -> None:
        self.stalls = 0
        self.longest_s = 0.0
        self.stall_s = stall_s
        self._log_event = log_event
        self._loop_thread = threading.get_ident()
        self._closing = threading.Event()
        self._beat_at = time.monotonic()

    def beat(self) -> None:
        self._beat_at = time.monotonic()

    def close(self) -> None:
        self._closing.set()

    def run(self) -> None:
        stalled_at = 0.0  # time of the last beat before the stall
        wall, cpu = time.monotonic(), time.process_time()
        while not self._closing.wait(self.stall_s / _LOOKS):
            beat, now, used = self._beat_at, time.monotonic(), time.process_time()
            slept, worked = now - wall, used - cpu
            wall, cpu = now, used
            if stalled_at and beat != stalled_at:
                self.longest_s = max(self.longest_s, beat - stalled_at)
                self._log_event("loop_resumed", after_s=round(beat - stalled_at, 3))
                stalled_at = 0.0
            if slept > self.stall_s and worked < slept / 2:
                continue  # the whole process stood still, this thread included: the loop could not run yet
            if not stalled_at and now - beat > self.stall_s:
                stalled_at = beat
                self.stalls += 1
                self.longest_s = max(self.longest_s, now - beat)
                self._log_event("loop_stalled", after_s=round(now - beat, 3), where=self._stack())

    def _stack(self) -> list[str]:
        """Return the loop's stack, innermost frame last: positions in the code only, no values."""
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 (documented, and there is no other way)
        frames = traceback.extract_stack(frame)[-_FRAMES_MAX:] if frame is not None else []
        return [f"{each.filename}:{each.lineno} {each.name}" for each in frames]
