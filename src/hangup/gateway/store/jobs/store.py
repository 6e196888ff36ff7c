"""The job store's public face: its tables, and `do` to run work on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hangup.gateway.store.database import WAL_BYTES_MAX, Database
from hangup.gateway.store.jobs import postgresql
from hangup.gateway.store.jobs.clock import ClockTable
from hangup.gateway.store.jobs.events import EventTable
from hangup.gateway.store.jobs.files import FileTable
from hangup.gateway.store.jobs.schema import MIGRATIONS
from hangup.gateway.store.jobs.table import JobTable
from hangup.gateway.store.jobs.workers import WorkerTable
from hangup.gateway.store.postgresql import PostgresDatabase, is_postgresql, no_password
from hangup.gateway.store.worker_thread import CLOSE_S

R = TypeVar("R")
_PAGES_PER_CALL = 1000  # freed per call of `shrink`


class JobStore:
    """All tables of one job store. Use the tables only inside functions passed to `do`."""

    _database: Database | PostgresDatabase
    jobs: JobTable
    files: FileTable

    def __init__(self, path: str, wal_bytes_max: int = WAL_BYTES_MAX, password: Callable[[], str] = no_password) -> None:
        """Open the store at `path`: a SQLite file, or the address of a PostgreSQL database."""
        if is_postgresql(path):
            server = self._database = PostgresDatabase(path, "jobs", postgresql.MIGRATIONS, password)
            self.jobs, self.files = postgresql.PostgresJobTable(server.db), postgresql.PostgresFileTable(server.db)
        else:
            file = self._database = Database(path, MIGRATIONS, wal_bytes_max)
            self.jobs, self.files = JobTable(file.db), FileTable(file.db)
        self.workers = WorkerTable(self._database.db)
        self.clock = ClockTable(self._database.db)
        self.events = EventTable(self._database.db)

    def shrink(self) -> bool:
        """Return some free pages of a file to the disk; return False when there are no more. A server does that by itself.

        A file created by an early version has no incremental vacuum: it keeps free pages and reuses them.
        """
        if not isinstance(self._database, Database):
            return False
        db = self._database.db
        (before,) = db.execute("PRAGMA freelist_count").fetchone()
        db.execute(f"PRAGMA incremental_vacuum({_PAGES_PER_CALL})").fetchall()
        (after,) = db.execute("PRAGMA freelist_count").fetchone()
        return bool(0 < after < before)

    async def do(self, work: Callable[[], R]) -> R:
        return await self._database.do(work)

    def close(self, within_s: float = CLOSE_S) -> None:
        self._database.close(within_s)
