"""A store that is full, locked, damaged or pruned: engines still stop, and nothing incomplete looks complete."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import resource
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from hangup.core.clocks import Backoff
from hangup.core.jobs import Cause, ItemState, JobStatus, Kind
from hangup.errors import Refusal
from hangup.gateway.store.database import Database
from hangup.gateway.store.jobs import Claim, JobStore
from hangup.gateway.store.worker_thread import GroupedWork, StoreFailed
from hangup.tasks import TASKS
from support.job_registry import BATCH, CALL, FakeGateway, answered, items, open_registry
from support.jobs import client, line, start_batch, start_job, wait_job
from support.linux import linux_only
from support.processes import Gateway, StandIn
from support.waiting import soon, wait_until


class FailingStore(JobStore):
    """Fails all work, or the work that `broken` selects, on demand."""

    def __init__(self) -> None:
        super().__init__("")
        self.fails = False
        self.broken: Callable[[], Exception] = lambda: StoreFailed("the disk is full")
        self.calls = 0

    async def do(self, work: Callable[[], Any]) -> Any:
        self.calls += 1
        if self.fails:
            raise self.broken()
        return await super().do(work)


def test_a_refused_job_that_is_stored_after_all_does_not_run(store_path: str) -> None:
    """The connection was lost during the commit: the client was told that there is no job, so nobody waits for it."""

    class Uncertain(JobStore):
        loses = True

        async def do(self, work: Callable[[], Any]) -> Any:
            result = await super().do(work)
            if isinstance(work, GroupedWork) and self.loses:
                self.loses = False
                raise StoreFailed("the connection was lost")
            return result

    async def run() -> None:
        store = Uncertain(store_path)
        async with open_registry(store, FakeGateway(room=0)) as registry:
            with pytest.raises(StoreFailed):
                await registry.submit("batch_a", Kind.BATCH, "ann", CALL, None)
            async with asyncio.timeout(60):
                while (await store.do(lambda: store.jobs.used("ann"))).jobs:  # noqa: ASYNC110 - the store has no event for it
                    await asyncio.sleep(0.05)
            job = await store.do(lambda: store.jobs.find("batch_a"))
            assert job is not None and (job.status, job.cause) == (JobStatus.CANCELLED, Cause.CLIENT_GONE)

    asyncio.run(run())


class TestCancel:
    def test_it_reaches_the_engine_and_the_store_when_that_works_again(self) -> None:
        async def run() -> None:
            host, store = FakeGateway(), FailingStore()
            async with open_registry(store, host) as registry:
                job = await registry.submit("job_a", Kind.CALL, "ann", CALL, items(1), lease_s=60)
                await soon(lambda: len(host.items) == 1)
                store.fails = True
                with pytest.raises(StoreFailed, match="is stopped"):
                    await registry.cancel(await registry.find("job_a", "ann", Kind.CALL), Cause.CANCELLED)
                assert host.items[0].flow is None, "at once"
                with pytest.raises(StoreFailed):
                    await registry.find("job_a", "bob", Kind.CALL)
                store.fails = False
                await soon(lambda: registry.active_job(job) is None)
                ended = await store.do(lambda: store.jobs.get(job.key))
                assert (ended.status, ended.cause) == (JobStatus.CANCELLED, Cause.CANCELLED), "with its cause"

        asyncio.run(run())

    def test_a_lease_ends_it_too(self) -> None:
        async def run() -> None:
            host, store = FakeGateway(), FailingStore()
            async with open_registry(store, host) as registry:
                job = await registry.submit("job_a", Kind.CALL, "ann", CALL, items(1), lease_s=1)
                await soon(lambda: len(host.items) == 1)
                store.fails = True
                await soon(lambda: host.items[0].flow is None)
                store.fails = False
                await soon(lambda: registry.active_job(job) is None)
                assert (await store.do(lambda: store.jobs.get(job.key))).cause is Cause.LEASE

        asyncio.run(run())

    def test_an_item_that_is_claimed_meanwhile_is_not_run(self) -> None:
        async def run() -> None:
            host, store = FakeGateway(), FailingStore()
            async with open_registry(store, host) as registry:
                job = await registry.submit("batch_b", Kind.BATCH, "ann", BATCH, items(1), window_s=60)
                registry.runner.writer._cancels[job.key] = Cause.CANCELLED  # decided, and not yet written
                await soon(lambda: registry.active_job(job) is None)
                assert not host.items

        asyncio.run(run())

    def test_with_a_store_that_is_locked(self, tmp_path: Path) -> None:
        """Another process locks the file: hangup stops the engine, and the error gives the reason."""
        path = tmp_path / "jobs.sqlite"
        with (
            StandIn(slots=8, token_s=0.1, answer_tokens=400) as engine,
            Gateway(engine.url, jobs=path, slots=8) as gateway,
            contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other,
        ):
            one, two = (start_job(gateway.url, max_tokens=400, lease_s=600)["id"] for _ in range(2))
            wait_until(lambda: engine.stats()["running"] == 2, what="both to run")
            other.execute("BEGIN IMMEDIATE")
            with concurrent.futures.ThreadPoolExecutor(1) as threads:
                answer = threads.submit(httpx.delete, f"{gateway.url}/v1/jobs/{one}", timeout=60)
                wait_until(lambda: engine.stats()["running"] == 1, what="the first to stop")
                assert not answer.done(), "long before the store has said that it cannot"
                refused = answer.result()
            assert refused.status_code == 503 and "is stopped" in refused.json()["error"]["message"]
            refused = httpx.delete(f"{gateway.admin_url}/api/jobs/{two}", headers={"x-hangup": "1"}, timeout=60)
            assert refused.status_code == 503 and "is stopped" in refused.json()["error"]
            wait_until(lambda: engine.stats()["running"] == 0, what="the second to stop")
            other.execute("ROLLBACK")
            assert wait_job(gateway.url, one)["cause"] == "cancelled"
            assert wait_job(gateway.url, two)["cause"] == "killed"
            assert not [row for row in gateway.log() if row["event"] == "internal_error"]


class TestPauses:
    def test_they_double_until_it_has_worked_for_a_while(self) -> None:
        pauses = Backoff(1.0, 30.0)
        assert [pauses.failed(now) for now in (100, 101, 103, 107, 115, 131, 160)] == [1, 2, 4, 8, 16, 30, 30]
        assert pauses.failed(190) == 30
        assert pauses.failed(251) == 1

    def test_a_store_whose_claims_fail_is_not_asked_without_end(self) -> None:
        """One write that succeeds proves nothing about another that fails, so there must be no hot loop between the two."""

        async def run() -> None:
            host, store = FakeGateway(), FailingStore()
            async with open_registry(store, host) as registry:

                def broken(*_: object) -> list[Any]:
                    raise StoreFailed("a page is damaged")

                real = store.jobs.claim
                store.jobs.claim = broken  # type: ignore[method-assign, assignment]
                await registry.submit("job_a", Kind.CALL, "ann", CALL, items(1), lease_s=60)
                before = store.calls
                await asyncio.sleep(2.5)
                assert store.calls - before < 40, "some ticks and beats, and a few tries"
                assert host.events.count("job_store_failed") <= 3
                store.jobs.claim = real  # type: ignore[method-assign]
                await soon(lambda: len(host.items) == 1)
                answered(host.items[0])

        asyncio.run(run())

    @linux_only
    def test_a_full_disk_makes_no_flood_of_log_lines(self, tmp_path: Path) -> None:
        with (
            StandIn(slots=4, token_s=0.05, answer_tokens=10) as engine,
            Gateway(engine.url, jobs=tmp_path / "jobs.sqlite", slots=2) as gateway,
        ):
            sdk = client(gateway.url)
            start_batch(sdk, [line(f"r{n}", max_tokens=10) for n in range(300)])
            wait_until(lambda: engine.stats()["tokens"] > 5, what="items to run")
            size = max(file.stat().st_size for file in tmp_path.glob("jobs.sqlite*"))
            _, hard = resource.prlimit(gateway.popen.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(gateway.popen.pid, resource.RLIMIT_FSIZE, (size, hard))
            wait_until(lambda: any(row["event"] == "job_store_failed" for row in gateway.log()), what="the failure")
            before = len(gateway.log())
            time.sleep(4)
            assert len(gateway.log()) - before < 40
            resource.prlimit(gateway.popen.pid, resource.RLIMIT_FSIZE, (hard, hard))


def test_a_store_that_is_closed_leaves_nobody_waiting() -> None:
    async def run() -> None:
        store = JobStore("")
        await asyncio.to_thread(store.close)
        with pytest.raises(StoreFailed, match="closed"):
            await asyncio.wait_for(store.do(lambda: None), 60)

    asyncio.run(run())


class TestRollback:
    def test_one_that_fails_keeps_nobody_out(self, tmp_path: Path) -> None:
        """Found by the simulation: the transaction stayed open, and its lock blocked this process and all others."""

        class Disk:
            """Fails a COMMIT and the ROLLBACK that follows."""

            def __init__(self, db: sqlite3.Connection) -> None:
                self._db, self._failing = db, ["COMMIT", "ROLLBACK"]

            def __getattr__(self, name: str) -> Any:
                return getattr(self._db, name)

            def execute(self, statement: str, *values: Any) -> Any:
                if self._failing and statement == self._failing[0]:
                    del self._failing[0]
                    raise sqlite3.OperationalError("disk I/O error")
                return self._db.execute(statement, *values)

        async def run() -> None:
            one, two = (Database(str(tmp_path / "x.sqlite"), ("CREATE TABLE t (x);\n",)) for _ in range(2))
            one.db = Disk(one.db)  # type: ignore[assignment]
            with pytest.raises(StoreFailed):
                await one.do(lambda: one.db.execute("INSERT INTO t VALUES (1)"))
            await one.do(lambda: one.db.execute("INSERT INTO t VALUES (2)"))
            rows = await two.do(lambda: two.db.execute("SELECT x FROM t").fetchall())
            assert rows == [(2,)], "what failed has not happened"
            for database in (one, two):
                await asyncio.to_thread(database.close)

        asyncio.run(run())


class TestLost:
    def test_items_that_were_claimed_and_never_came_run_again(self) -> None:
        """Found by the simulation: the transaction took effect but reported a failure, so nobody would ever run the items."""

        class LosingStore(FailingStore):
            loses = True

            async def do(self, work: Callable[[], Any]) -> Any:
                result = await super().do(work)
                if self.loses and type(result) is list and result and isinstance(result[0], Claim):
                    self.loses = False
                    raise StoreFailed("the disk is full")
                return result

        async def run() -> None:
            host, store = FakeGateway(), LosingStore()
            async with open_registry(store, host) as registry:
                job = await registry.submit("batch_b", Kind.BATCH, "ann", BATCH, items(3), window_s=60)
                await soon(lambda: len(host.items) == 3)
                assert not store.loses and "job_items_requeued" in host.events
                for item in host.items:
                    answered(item)
                await soon(lambda: registry.active_job(job) is None)
                await asyncio.sleep(0)
                assert len(host.items) == 3, "none of them twice"

        asyncio.run(run())


def test_a_result_whose_commit_was_not_answered_is_delivered_and_not_wasted(store_path: str) -> None:
    """The connection was lost during the commit: the second attempt finds the result stored, by the first."""

    class Unanswered(JobStore):
        loses = True

        async def do(self, work: Callable[[], Any]) -> Any:
            result = await super().do(work)
            if self.loses and isinstance(work, partial) and work.args and work.args[1]:  # the outcomes of `ResultWriter`
                self.loses = False
                raise StoreFailed("the connection was lost")
            return result

    async def run() -> None:
        host, store = FakeGateway(), Unanswered(store_path)
        async with open_registry(store, host) as registry:
            jobs = [await registry.submit(f"job_{n}", Kind.CALL, "ann", CALL, items(1), lease_s=60) for n in range(2)]
            await soon(lambda: len(host.items) == 2)
            answered(host.items[0], b'{"id":"first"}')
            answered(host.items[1], b'{"id":"second"}')
            await soon(lambda: len(host.booked) == 2)
            assert not store.loses
            assert [entry.cause for entry in host.booked] == ["completed"] * 2, "billed once each"
            assert registry.runner.writer.refused == 0
            assert registry.runner.writer.ended_by_state == {ItemState.SUCCEEDED: 2}
            stored = await store.do(lambda: [store.jobs.get(job.key).status for job in jobs])
            assert stored == [JobStatus.COMPLETED] * 2

    asyncio.run(run())


class TestDeleted:
    def test_nothing_is_promised_on_a_file_that_nobody_will_find(self, tmp_path: Path) -> None:
        """Running items continue; when the file is back, their results are written and new jobs are accepted."""
        path = tmp_path / "jobs.sqlite"

        async def run() -> None:
            host, store = FakeGateway(), JobStore(str(path))
            async with open_registry(store, host) as registry:
                job = await registry.submit("job_a", Kind.CALL, "ann", CALL, items(1), lease_s=60)
                await soon(lambda: len(host.items) == 1)
                path.rename(tmp_path / "elsewhere")
                with pytest.raises(StoreFailed, match="deleted, moved or replaced"):
                    await registry.submit("job_b", Kind.CALL, "ann", CALL, items(1), lease_s=60)
                path.touch()
                with pytest.raises((StoreFailed, Refusal)):
                    await registry.submit("job_c", Kind.CALL, "ann", CALL, items(1), lease_s=60)
                answered(host.items[0])
                (tmp_path / "elsewhere").rename(path)
                await soon(lambda: registry.active_job(job) is None)
                assert (await store.do(lambda: store.jobs.get(job.key))).status is JobStatus.COMPLETED

        asyncio.run(run())


class TestHanging:
    """A disk that does not answer at all."""

    def test_it_is_told_and_nothing_more_waits_for_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(TASKS, "stall_s", 0.2)

        async def run() -> None:
            host, store, disk_works = FakeGateway(), JobStore(""), threading.Event()
            async with open_registry(store, host) as registry:
                job = await registry.submit("job_a", Kind.CALL, "ann", CALL, items(1), lease_s=60)
                await soon(lambda: len(host.items) == 1)
                hanging = asyncio.create_task(store.do(lambda: disk_works.wait(60)))
                await soon(lambda: any(line.startswith("store (stuck") for line in TASKS.down()))
                with pytest.raises(StoreFailed, match="does not answer"):
                    await registry.submit("job_b", Kind.CALL, "ann", CALL, items(1), lease_s=60)
                await soon(lambda: registry.runner.writer.failing, "the store to count as failing")
                answered(host.items[0])
                disk_works.set()
                await hanging
                await soon(lambda: registry.active_job(job) is None, "the result to be written")
                assert not any(line.startswith("store") for line in TASKS.down())

        asyncio.run(run())

    def test_it_keeps_no_engine_at_work_for_a_job_that_nobody_wants(self) -> None:
        """Leases expire while the disk hangs, whatever this process waits for."""

        async def run() -> None:
            host, store, disk_works = FakeGateway(), JobStore(""), threading.Event()
            async with open_registry(store, host) as registry:
                jobs = [await registry.submit(f"job_{n}", Kind.CALL, "ann", CALL, items(1), lease_s=n) for n in (1, 2)]
                await soon(lambda: len(host.items) == 2)
                hanging = asyncio.create_task(store.do(lambda: disk_works.wait(120)))
                await soon(lambda: all(item.flow is None for item in host.items), "both calls to be stopped")
                assert not hanging.done()
                disk_works.set()
                await hanging
                await soon(lambda: all(registry.active_job(job) is None for job in jobs), "both jobs to end")
                ended = [await store.do(lambda key=job.key: store.jobs.get(key)) for job in jobs]  # type: ignore[misc]
                assert [job.cause for job in ended] == [Cause.LEASE] * 2

        asyncio.run(run())

    def test_it_does_not_keep_the_process_from_ending(self, monkeypatch: pytest.MonkeyPatch) -> None:
        disk_works = threading.Event()

        async def run() -> None:
            host, store = FakeGateway(), JobStore("")
            real = store._database.close

            def close(within_s: float) -> None:  # does not wait as long as it would
                disk_works.set()
                real(60.0)

            monkeypatch.setattr(store._database, "close", close)
            async with open_registry(store, host, close_s=0.5) as registry:
                await registry.submit("job_a", Kind.CALL, "ann", CALL, items(1), lease_s=60)
                await soon(lambda: len(host.items) == 1)
                hanging = asyncio.create_task(store.do(lambda: disk_works.wait(120)))
                answered(host.items[0])
            assert "job_store_failed" in host.events
            await hanging

        asyncio.run(run())


class TestResultWriter:
    def test_one_result_that_cannot_be_written_costs_no_other(self) -> None:
        async def run() -> None:
            host, store = FakeGateway(), FailingStore()
            async with open_registry(store, host) as registry:
                job = await registry.submit("batch_b", Kind.BATCH, "ann", BATCH, items(3), window_s=60)
                await soon(lambda: len(host.items) == 3)
                real = store.jobs.finish

                def finish(claim: Any, *rest: Any) -> Any:
                    if claim.n == 1:
                        raise OverflowError("Python int too large to convert to SQLite INTEGER")
                    return real(claim, *rest)

                store.jobs.finish = finish  # type: ignore[method-assign, assignment]
                for item in host.items:
                    answered(item)
                await soon(lambda: registry.runner.writer.ended_by_state[ItemState.SUCCEEDED] == 2)
                assert any(isinstance(fault, OverflowError) for fault in host.faults), "it is told"
                store.jobs.finish = real  # type: ignore[method-assign]
                again = await registry.submit("job_a", Kind.CALL, "ann", CALL, items(1), lease_s=60)
                await soon(lambda: len(host.items) == 4)
                answered(host.items[3])
                await soon(lambda: registry.active_job(again) is None)
                assert registry.active_job(job) is not None

        asyncio.run(run())

    def test_a_cancel_is_answered_when_the_store_fails_between_single_results(self) -> None:
        """After a failed write, results are written one by one; if the store fails then, everyone who waits gets an error."""

        async def run() -> None:
            host, store = FakeGateway(), FailingStore()
            async with open_registry(store, host) as registry:
                await registry.submit("batch_b", Kind.BATCH, "ann", BATCH, items(1), window_s=60)
                other = await registry.submit("batch_c", Kind.BATCH, "ann", BATCH, items(1), window_s=60)
                await soon(lambda: len(host.items) == 2)
                real = store.jobs.finish

                def finish(*_: Any) -> Any:
                    store.fails = True  # from the next one on
                    raise OverflowError("Python int too large to convert to SQLite INTEGER")

                store.jobs.finish = finish  # type: ignore[method-assign, assignment]
                cancelling = asyncio.create_task(registry.cancel(other, Cause.CANCELLED))
                await asyncio.sleep(0)
                answered(host.items[0])  # in the turn of the cancel, so that they are written together
                with pytest.raises(StoreFailed):
                    await asyncio.wait_for(cancelling, 60)
                store.jobs.finish, store.fails = real, False  # type: ignore[method-assign]
                await soon(lambda: registry.active_job(other) is None)

        asyncio.run(run())

    def test_a_result_is_written_by_a_writer_that_was_restarted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A failure of the writer itself consumes the wake-up for pending results."""

        async def run() -> None:
            host, store = FakeGateway(), FailingStore()
            async with open_registry(store, host, ticks=False) as registry:
                job = await registry.submit("job_a", Kind.CALL, "ann", CALL, items(1), lease_s=60)
                await soon(lambda: len(host.items) == 1)
                real = host.log_event

                def log_event(event: str, **fields: object) -> None:
                    real(event, **fields)
                    if event == "job_store_failed":
                        store.fails = False
                        raise KeyError("a bug")

                monkeypatch.setattr(host, "log_event", log_event)
                store.fails = True
                answered(host.items[0])
                await soon(lambda: registry.active_job(job) is None)

        asyncio.run(run())

    def test_the_tick_survives_whatever_happens_in_it(self) -> None:
        async def run() -> None:
            host, store = FakeGateway(), FailingStore()
            async with open_registry(store, host) as registry:
                store.broken = lambda: AssertionError("not as it should be")
                store.fails = True
                await soon(lambda: len(host.faults) > 1)
                store.fails = False
                job = await registry.submit("job_a", Kind.CALL, "ann", CALL, items(1), lease_s=1)
                await soon(lambda: registry.active_job(job) is None)

        asyncio.run(run())
