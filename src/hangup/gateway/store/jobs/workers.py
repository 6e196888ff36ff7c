"""The table of workers: the processes that claim items.

A dead worker must not keep its claims: another worker requeues them. A worker that returns late must not overwrite what others
have done since: its results carry an old fence, and the store refuses them.
"""

from __future__ import annotations

from typing import NamedTuple

from hangup.gateway.store.worker_thread import Connection


class Worker(NamedTuple):
    """A process that claims items."""

    id: int
    host: str
    process: str  # identifies a process of that host; no later process has the same name
    beats: int  # incremented while the worker is alive


class WorkerTable:
    """The table `worker`."""

    def __init__(self, db: Connection) -> None:
        self._db = db

    def register(self, host: str, process: str) -> int:
        rows = self._db.execute("INSERT INTO worker (host, process) VALUES (?, ?) RETURNING id", (host, process)).fetchall()
        return int(rows[0][0])

    def record_heartbeat(self, id: int) -> bool:
        """Record a heartbeat; return False if another worker has declared this one dead."""
        return bool(self._db.execute("UPDATE worker SET beats = beats + 1 WHERE id = ?", (id,)).rowcount)

    def all(self) -> list[Worker]:
        return [Worker(*row) for row in self._db.execute("SELECT id, host, process, beats FROM worker")]

    def remove(self, id: int) -> None:
        self._db.execute("DELETE FROM worker WHERE id = ?", (id,))
        self._db.execute("DELETE FROM follower WHERE worker = ?", (id,))
