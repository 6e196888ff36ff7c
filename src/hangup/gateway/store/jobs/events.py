"""Events of running jobs on their way from the gateway that runs a job to those whose clients follow it.

An ended job has its events with its result (`answer`); these rows serve only the time before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hangup.gateway.store.worker_thread import Connection

_ROWS_PER_READ = 20  # of one job


class EventRow(NamedTuple):
    """Successive events of a job."""

    job: int
    first: int  # number of the first of them
    data: bytes


class EventTable:
    """Who follows which job, and the events on their way."""

    def __init__(self, db: Connection) -> None:
        self._db = db

    def follow(self, worker: int, keys: Iterable[int]) -> None:
        """Ask whoever runs these jobs to share their events."""
        rows = [(key, worker) for key in keys]
        if rows:
            self._db.executemany("INSERT INTO follower VALUES (?, ?) ON CONFLICT DO NOTHING", rows)

    def unfollow(self, worker: int, keys: Iterable[int]) -> None:
        rows = [(key, worker) for key in keys]
        if rows:
            self._db.executemany("DELETE FROM follower WHERE job = ? AND worker = ?", rows)

    def followed_by_others(self, worker: int) -> set[int]:
        return {key for (key,) in self._db.execute("SELECT DISTINCT job FROM follower WHERE worker <> ?", (worker,))}

    def add(self, rows: Iterable[EventRow]) -> None:
        """Share events; those of a job that was deleted meanwhile are dropped."""
        statement = "INSERT INTO event SELECT ?1, ?2, ?3 WHERE EXISTS (SELECT 1 FROM job WHERE key = ?1) ON CONFLICT DO NOTHING"
        values: list[tuple[object, ...]] = sorted((row.job, row.first, row.data) for row in rows)
        if values:
            self._db.executemany(statement, values)

    def after(self, key: int, first: int) -> list[EventRow]:
        rows = self._db.execute(
            "SELECT job, first, data FROM event WHERE job = ? AND first > ? ORDER BY first LIMIT ?",
            (key, first, _ROWS_PER_READ),
        )
        return [EventRow(*row) for row in rows]

    def remove(self, keys: Iterable[int]) -> None:
        """Delete the shared events of jobs that have ended."""
        rows = [(key,) for key in keys]
        if rows:
            self._db.executemany("DELETE FROM event WHERE job = ?", rows)
