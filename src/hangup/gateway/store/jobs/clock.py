"""Persists the latest wall-clock time that the store has seen; retention uses it, because the system clock may be changed."""

from __future__ import annotations

import sqlite3


class ClockTable:
    """The table `clock`, which has one row."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def latest(self) -> float:
        row = self._db.execute("SELECT seen FROM clock").fetchone()
        if row is None or not isinstance(row[0], float):
            raise sqlite3.DatabaseError("the table clock is damaged")
        return row[0]

    def record(self, time: float) -> None:
        self._db.execute("UPDATE clock SET seen = max(seen, ?)", (time,))

    def probe(self) -> None:
        """Write without changing anything, to test whether the file is writable."""
        self._db.execute("UPDATE clock SET seen = seen")
