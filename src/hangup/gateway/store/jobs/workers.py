"""The processes that claim items. One that is gone must not keep what it claimed, and one that comes back late must not
spoil what others have done since: its items were given back, and its results are refused by their fence.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple


class Worker(NamedTuple):
    id: int
    host: str
    process: str  # names a process of that host, now and ever
    beats: int  # grows while it lives


class WorkerTable:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def enter(self, host: str, process: str) -> int:
        id = self._db.execute("INSERT INTO worker (host, process) VALUES (?, ?)", (host, process)).lastrowid
        assert id is not None
        return id

    def beat(self, id: int) -> bool:
        """Says that it lives; False if it was given up meanwhile."""
        return bool(self._db.execute("UPDATE worker SET beats = beats + 1 WHERE id = ?", (id,)).rowcount)

    def all(self) -> list[Worker]:
        return [Worker(*row) for row in self._db.execute("SELECT id, host, process, beats FROM worker")]

    def leave(self, id: int) -> None:
        self._db.execute("DELETE FROM worker WHERE id = ?", (id,))
