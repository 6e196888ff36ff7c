"""Ends a process whose shutdown takes too long: a thread that hangs on a disk or a command must not keep it for ever."""

from __future__ import annotations

import os
import threading
import time

from hangup.core.deadline import Deadline
from hangup.gateway.stderr import write_stderr
from hangup.tasks import TASKS

_GRACE_S = 1.0  # after the deadline, by which the shutdown itself should be done


class ExitWatch:
    """Only a command of its own uses it: elsewhere, the process is not ours to end."""

    def __init__(self) -> None:
        self._in_use = False

    def use(self) -> None:
        self._in_use = True

    def begin(self, deadline: Deadline) -> None:
        """End the process a moment after the deadline, unless it ends by itself."""
        if self._in_use:
            TASKS.thread_once("exit", lambda: self._wait(deadline))

    def _wait(self, deadline: Deadline) -> None:
        time.sleep(deadline.left(time.monotonic()) + _GRACE_S)
        names = sorted(thread.name for thread in threading.enumerate() if thread is not threading.current_thread())
        write_stderr(f"hangup: the shutdown did not end within exit_s: exiting without waiting for {', '.join(names)}")
        os._exit(1)


EXIT_WATCH = ExitWatch()
