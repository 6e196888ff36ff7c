"""Identifies this process as a worker, and detects other workers that are dead.

A worker owns its claims while it lives. A worker on this host is dead when its process is gone. A worker that hangs, or one on
another host, counts as dead when its heartbeat has not moved for a while by our monotonic clock, so a change of the system
clock does no harm.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from hangup.gateway.store.jobs import Worker


def this_host() -> str:
    """Return a name for this machine since its boot; a container counts as a machine, because it has its own process ids."""
    names = [socket.gethostname()]
    with contextlib.suppress(OSError):
        names.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        names.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    return "/".join(names)


def this_process() -> str:
    return _process_name(os.getpid()) or str(os.getpid())


def _process_name(pid: int) -> str | None:
    """Return a name for the process that no later process with the same pid has; None if there is no such process."""
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
    """Measures how long the heartbeats of other workers have stood still.

    Time in which we did not check (suspended, or waiting for the store) says nothing about others, which may have been stopped
    for the same reason. So each check adds at most the time between two punctual checks.
    """

    def __init__(self, silent_max_s: float, check_s: float) -> None:
        self._silent_max_s = silent_max_s
        self._check_max_s = 1.2 * check_s
        self._checked_at: float | None = None
        self._seen: dict[int, tuple[int, float]] = {}  # beats, and seconds of silence

    def find_dead(self, workers: list[Worker], own: int, now: float) -> list[int]:
        elapsed_s = min(now - self._checked_at, self._check_max_s) if self._checked_at is not None else 0.0
        self._checked_at = now
        others = [worker for worker in workers if worker.id != own]
        seen = self._seen
        self._seen = {}
        dead = []
        for worker in others:
            beats, silent_s = seen.get(worker.id, (None, 0.0))
            silent_s = silent_s + elapsed_s if beats == worker.beats else 0.0
            self._seen[worker.id] = (worker.beats, silent_s)
            if silent_s >= self._silent_max_s or _is_dead_on_this_host(worker):
                dead.append(worker.id)
        return dead


def _is_dead_on_this_host(worker: Worker) -> bool:
    if worker.host != this_host():
        return False
    pid = worker.process.partition("-")[0]
    return pid.isdigit() and _process_name(int(pid)) != worker.process
