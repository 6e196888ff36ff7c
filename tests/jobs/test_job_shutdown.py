"""The last writes of a process to its job store: none is cancelled halfway, and what is lost is told."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hangup.core.jobs import ItemState, Kind
from hangup.gateway.jobs import registry as module
from hangup.gateway.store import worker_thread
from hangup.gateway.store.jobs import JobStore
from support.job_registry import BATCH, CALL, FakeGateway, answered, items, open_registry
from support.waiting import soon


class TestTheLastWrite:
    """The process ends while results are being written."""

    def test_one_that_takes_long_is_not_cancelled(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It would be on the disk or not, and its cost not in the ledger."""
        disk_works = threading.Event()

        async def run() -> None:
            host, store = FakeGateway(), JobStore(str(tmp_path / "jobs"))
            real_close, real_finish = store._database.close, store.jobs.finish

            def finish(*of: Any) -> Any:
                disk_works.wait(120)
                return real_finish(*of)

            def close(within_s: float) -> None:  # by now the registry has waited for as long as it does
                disk_works.set()
                real_close(60.0)

            monkeypatch.setattr(store._database, "close", close)
            monkeypatch.setattr(store.jobs, "finish", finish)
            async with open_registry(store, host, close_s=0.5) as registry:
                await registry.submit("batch_a", Kind.BATCH, "ann", BATCH, items(2), window_s=60)
                await soon(lambda: len(host.items) == 2)
                answered(host.items[0])
                await soon(lambda: store._database._began is not None and not registry.runner.writer._outcomes)
                answered(host.items[1])  # is not written in time
                lost = self.events_of(host, "job_results_lost")
            assert registry.runner.writer.ended_by_state == {ItemState.SUCCEEDED: 1} and len(host.booked) == 1
            assert lost == [{"results": 1, "in_doubt": 0, "cancels": 0}]

        asyncio.run(run())
        assert self.states(tmp_path / "jobs") == [ItemState.SUCCEEDED, ItemState.CLAIMED]

    def test_one_whose_end_nobody_sees_is_in_doubt(self, monkeypatch: pytest.MonkeyPatch) -> None:
        disk_works = threading.Event()

        async def run() -> None:
            host, store = FakeGateway(), JobStore("")
            monkeypatch.setattr(store.jobs, "finish", lambda *_: disk_works.wait(120) and None)
            async with open_registry(store, host, close_s=0.3) as registry:
                await registry.submit("batch_a", Kind.BATCH, "ann", BATCH, items(3), window_s=60)
                await soon(lambda: len(host.items) == 3)
                answered(host.items[0])
                answered(host.items[1])
                await soon(lambda: store._database._began is not None and not registry.runner.writer._outcomes)
                answered(host.items[2])
                lost = self.events_of(host, "job_results_lost")
            assert lost == [{"results": 1, "in_doubt": 2, "cancels": 0}]
            disk_works.set()
            await asyncio.to_thread(store._database._thread.join, 60)
            with pytest.raises(sqlite3.ProgrammingError, match="closed"):
                store._database.db.execute("SELECT 1")

        asyncio.run(run())

    def test_a_lock_of_another_process_is_waited_for(self, tmp_path: Path) -> None:

        async def run() -> None:
            host, store = FakeGateway(), JobStore(str(tmp_path / "jobs"))
            async with open_registry(store, host) as registry:
                await registry.submit("job_a", Kind.CALL, "ann", CALL, items(1), lease_s=60)
                await soon(lambda: len(host.items) == 1)
                await store.do(lambda: store._database.db.execute("PRAGMA busy_timeout = 10"))
                lost = self.events_of(host, "job_results_lost")
                with contextlib.closing(sqlite3.connect(tmp_path / "jobs", isolation_level=None)) as other:
                    await self.lock(other)
                    answered(host.items[0])
                    closing = asyncio.create_task(registry.close(240.0))
                    await soon(lambda: registry.runner.writer.failing, "the lock to be met")
                    await asyncio.wait([closing], timeout=0.5)
                    assert not closing.done()
                    other.execute("ROLLBACK")
                    await closing
            assert not lost and len(host.booked) == 1

        asyncio.run(run())
        assert self.states(tmp_path / "jobs") == [ItemState.SUCCEEDED]

    def test_a_lock_with_nothing_to_write_is_not_waited_for(self) -> None:
        """As when a gateway starts and finds the store locked: live calls need no jobs."""

        class Locked(JobStore):
            calls = 0

            async def do(self, work: Callable[[], Any]) -> Any:
                self.calls += 1
                if self.calls > 1:  # it can still register
                    raise worker_thread.StoreLocked("database is locked")
                return await super().do(work)

        async def run() -> None:
            host, store = FakeGateway(), Locked("")
            with pytest.raises(worker_thread.StoreLocked):
                await asyncio.wait_for(open_registry(store, host).__aenter__(), 60)
            await asyncio.to_thread(store.close)

        asyncio.run(run())

    def test_a_store_that_fails_at_the_start_leaves_no_task_behind(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The gateway tries again and again, and each attempt would add a set of them."""
        monkeypatch.setattr(module, "_LOADED_MAX", 1)

        async def run() -> None:
            host, store = FakeGateway(room=0), JobStore("")
            async with open_registry(store, host) as registry:
                await registry.submit("batch_a", Kind.BATCH, "ann", BATCH, items(1), window_s=60)
                before = asyncio.all_tasks()

                def fail() -> list[str]:
                    raise worker_thread.StoreFailed("the disk is full")

                monkeypatch.setattr(store.jobs, "tenants", fail)
                with pytest.raises(worker_thread.StoreFailed):
                    await open_registry(store, host).__aenter__()
                await soon(lambda: asyncio.all_tasks() <= before, "its tasks to end")

        asyncio.run(run())

    @staticmethod
    async def lock(db: sqlite3.Connection) -> None:
        while True:
            with contextlib.suppress(sqlite3.OperationalError):  # the registry may just be writing
                db.execute("BEGIN IMMEDIATE")
                return
            await asyncio.sleep(0.01)

    @staticmethod
    def events_of(host: FakeGateway, wanted: str) -> list[dict[str, object]]:
        """Return a list to which the fields of such events are added."""
        found: list[dict[str, object]] = []

        def log_event(event: str, **fields: object) -> None:
            if event == wanted:
                found.append(fields)

        host.log_event = log_event  # type: ignore[method-assign]
        return found

    @staticmethod
    def states(path: Path) -> list[ItemState]:
        with contextlib.closing(sqlite3.connect(path)) as db:
            return [ItemState(state) for (state,) in db.execute("SELECT state FROM item ORDER BY n")]
