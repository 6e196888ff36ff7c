"""The time of day up to which this store has come: what it forgets is judged by it, not by a clock that may be set."""

from __future__ import annotations

import sqlite3


class ClockTable:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def seen(self) -> float:
        return float(self._db.execute("SELECT seen FROM clock").fetchone()[0])

    def note(self, time: float) -> None:
        self._db.execute("UPDATE clock SET seen = max(seen, ?)", (time,))

    def probe(self) -> None:
        """Writes, and changes nothing."""
        self._db.execute("UPDATE clock SET seen = seen")
