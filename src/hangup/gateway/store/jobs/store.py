"""The store of jobs, as those who use it see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hangup.gateway.store.database import Database
from hangup.gateway.store.jobs.clock import ClockTable
from hangup.gateway.store.jobs.files import FileTable
from hangup.gateway.store.jobs.schema import MIGRATIONS
from hangup.gateway.store.jobs.table import JobTable
from hangup.gateway.store.jobs.workers import WorkerTable

R = TypeVar("R")
_PAGES_TOGETHER = 1000  # given back to the disk in one go


class JobStore:
    """The tables may be touched in what is handed to `do`, and nowhere else."""

    def __init__(self, path: str) -> None:
        self._database = Database(path, MIGRATIONS)
        self.jobs = JobTable(self._database.db)
        self.files = FileTable(self._database.db)
        self.workers = WorkerTable(self._database.db)
        self.clock = ClockTable(self._database.db)

    def shrink(self) -> bool:
        """Gives some of the room that was deleted back to the disk; False when that is all.

        The file of an early version keeps it, for itself.
        """
        db = self._database.db
        (before,) = db.execute("PRAGMA freelist_count").fetchone()
        db.execute(f"PRAGMA incremental_vacuum({_PAGES_TOGETHER})").fetchall()
        (after,) = db.execute("PRAGMA freelist_count").fetchone()
        return bool(0 < after < before)

    async def do(self, work: Callable[[], R]) -> R:
        return await self._database.do(work)

    def close(self) -> None:
        self._database.close()
