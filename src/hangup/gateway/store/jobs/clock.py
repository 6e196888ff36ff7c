"""Persists the latest wall-clock time that the store has seen; retention uses it, because the system clock may be changed."""

from __future__ import annotations

from hangup.gateway.store.worker_thread import Connection, StoreDamaged


class ClockTable:
    """The table `clock`, which has one row."""

    def __init__(self, db: Connection) -> None:
        self._db = db

    def latest(self) -> float:
        row = self._db.execute("SELECT seen FROM clock").fetchone()
        if row is None or not isinstance(row[0], float):
            raise StoreDamaged("the store cannot be used: the table clock is damaged")
        return row[0]

    def record(self, time: float) -> None:
        self._db.execute("UPDATE clock SET seen = CASE WHEN seen < ?1 THEN ?1 ELSE seen END", (time,))

    def probe(self) -> None:
        """Write without changing anything, to test whether the file is writable."""
        self._db.execute("UPDATE clock SET seen = seen")
