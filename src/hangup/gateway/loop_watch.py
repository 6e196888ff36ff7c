"""Watches the event loop and the other threads from a separate thread, and logs the stack of the one that is blocked.

One slow callback delays every client, and a disk that hangs blocks what writes to it. Only the stack shows where.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable

from hangup.tasks import TASKS, LongTasks, StuckThread

_LOOKS = 4  # checks per `stall_s`
_FRAMES_MAX = 30


class LoopWatch:
    """Detects stalls: the loop calls `beat` often, threads mark their work, and `run` checks both in the thread."""

    def __init__(self, log_event: Callable[..., None], stall_s: float, threads: LongTasks = TASKS) -> None:
        self.stalls = 0
        self.longest_s = 0.0
        self.stall_s = stall_s
        self._log_event = log_event
        self._loop_thread = threading.get_ident()
        self._closing = threading.Event()
        self._beat_at = time.monotonic()
        self._threads = threads
        self._stuck: set[StuckThread] = set()  # those that are logged

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
                self._log_event("loop_stalled", after_s=round(now - beat, 3), where=_stack(self._loop_thread))
            self._look_at_threads(now)

    def _look_at_threads(self, now: float) -> None:
        stuck = set(self._threads.stuck())
        for each in self._stuck - stuck:
            self._log_event("thread_resumed", task=each.name, after_s=round(now - each.began, 3))
        for each in stuck - self._stuck:
            self._log_event("thread_stuck", task=each.name, after_s=round(now - each.began, 3), where=_stack(each.thread))
        self._stuck = stuck


def _stack(thread: int) -> list[str]:
    """Return a thread's stack, innermost frame last: positions in the code only, no values."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 (documented, and there is no other way)
    frames = traceback.extract_stack(frame)[-_FRAMES_MAX:] if frame is not None else []
    return [f"{each.filename}:{each.lineno} {each.name}" for each in frames]
