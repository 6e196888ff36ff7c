"""Which worker we are, and which of the others are gone.

Claims belong to a worker for as long as it lives. One of this machine is gone when its process is; one of another machine, or
one that hangs, when its beat has not moved for a while by our own clock: a clock that is set harms nobody.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from hangup.gateway.store.jobs import Worker


def this_host() -> str:
    """This machine, since it was started; a container counts as one, since it numbers its processes itself."""
    marks = [socket.gethostname()]
    with contextlib.suppress(OSError):
        marks.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        marks.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    return "/".join(marks)


def this_process() -> str:
    return _process(os.getpid()) or str(os.getpid())


def _process(pid: int) -> str | None:
    """A name that no later process of the same number has; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return str(pid)
    state, *rest = stat.rpartition(")")[2].split()
    return None if state in "ZX" else f"{pid}-{rest[18]}"


class MissingWorkers:
    """Others' beats, and for how long we have seen them stand still.

    Time in which we did not look ourselves (stopped, or waiting for the store) says nothing of others: it may have been the
    same for them. So one look adds no more than the time between two looks that are on time.
    """

    def __init__(self, silent_max_s: float, look_s: float) -> None:
        self._silent_max_s = silent_max_s
        self._look_max_s = 1.2 * look_s
        self._looked_at: float | None = None
        self._seen: dict[int, tuple[int, float]] = {}  # beats, and seconds of silence

    def gone(self, workers: list[Worker], own: int, now: float) -> list[int]:
        passed = min(now - self._looked_at, self._look_max_s) if self._looked_at is not None else 0.0
        self._looked_at = now
        others = [worker for worker in workers if worker.id != own]
        seen = self._seen
        self._seen = {}
        gone = []
        for worker in others:
            beats, silent_s = seen.get(worker.id, (None, 0.0))
            silent_s = silent_s + passed if beats == worker.beats else 0.0
            self._seen[worker.id] = (worker.beats, silent_s)
            if silent_s >= self._silent_max_s or _is_dead_here(worker):
                gone.append(worker.id)
        return gone


def _is_dead_here(worker: Worker) -> bool:
    if worker.host != this_host():
        return False
    pid = worker.process.partition("-")[0]
    return pid.isdigit() and _process(int(pid)) != worker.process
