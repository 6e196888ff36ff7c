"""Damage that SQLite does not notice, because the damaged page still reads as one."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from hangup.gateway.store.jobs import JobStore
from hangup.gateway.store.worker_thread import StoreDamaged

_STRICT, _LAX = "seen REAL NOT NULL", "seen REAL"


def _redefine(path: Path, old: str, new: str) -> None:
    db = sqlite3.connect(path)
    db.execute("PRAGMA writable_schema = ON")
    db.execute("UPDATE sqlite_schema SET sql = replace(sql, ?, ?) WHERE name = 'clock'", (old, new))
    db.commit()
    db.close()


def lose_the_clock(path: Path) -> None:
    """Put a NULL where the schema permits none, as a damaged page does."""
    _redefine(path, _STRICT, _LAX)
    db = sqlite3.connect(path)
    db.execute("UPDATE clock SET seen = NULL")
    db.commit()
    db.close()
    _redefine(path, _LAX, _STRICT)


@pytest.mark.parametrize(
    "work",
    [
        lambda store: store.clock.latest(),
        lambda store: store.clock.record(1.0),
        lambda store: store.clock.probe(),
    ],
    ids=["read", "write", "probe"],
)
def test_a_null_where_none_can_be_is_damage(tmp_path: Path, work: Callable[[JobStore], object]) -> None:
    path = tmp_path / "jobs.sqlite"
    JobStore(str(path)).close()
    lose_the_clock(path)

    async def run() -> None:
        store = JobStore(str(path))
        try:
            with pytest.raises(StoreDamaged):
                await store.do(lambda: work(store))
        finally:
            await asyncio.to_thread(store.close)

    asyncio.run(run())
