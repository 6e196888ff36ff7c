"""The job store's public face: its tables, and `do` to run work on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hangup.gateway.store.database import WAL_BYTES_MAX, Database
from hangup.gateway.store.jobs.clock import ClockTable
from hangup.gateway.store.jobs.files import FileTable
from hangup.gateway.store.jobs.schema import MIGRATIONS
from hangup.gateway.store.jobs.table import JobTable
from hangup.gateway.store.jobs.workers import WorkerTable

R = TypeVar("R")
_PAGES_PER_CALL = 1000  # freed per call of `shrink`


class JobStore:
    """All tables of one job store file. Use the tables only inside functions passed to `do`."""

    def __init__(self, path: str, wal_bytes_max: int = WAL_BYTES_MAX) -> None:
        self._database = Database(path, MIGRATIONS, wal_bytes_max)
        self.jobs = JobTable(self._database.db)
        self.files = FileTable(self._database.db)
        self.workers = WorkerTable(self._database.db)
        self.clock = ClockTable(self._database.db)

    def shrink(self) -> bool:
        """Return some free pages to the disk; return False when there are no more.

        A file created by an early version has no incremental vacuum: it keeps free pages and reuses them.
        """
        db = self._database.db
        (before,) = db.execute("PRAGMA freelist_count").fetchone()
        db.execute(f"PRAGMA incremental_vacuum({_PAGES_PER_CALL})").fetchall()
        (after,) = db.execute("PRAGMA freelist_count").fetchone()
        return bool(0 < after < before)

    async def do(self, work: Callable[[], R]) -> R:
        return await self._database.do(work)

    def close(self) -> None:
        self._database.close()
