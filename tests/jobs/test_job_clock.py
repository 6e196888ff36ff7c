"""No job is lost when clocks are set or workers fall silent."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hangup.config import LimitSettings
from hangup.core.account import Entry
from hangup.core.clocks import SteadyClock
from hangup.core.jobs import Cause, JobStatus, Kind
from hangup.core.reaper import PendingStop
from hangup.gateway.jobs.item_client import ItemClient
from hangup.gateway.jobs.registry import JobRegistry
from hangup.gateway.jobs.workers import MissingWorkers, this_host, this_process
from hangup.gateway.store.jobs import JobStore, NewItem, Worker
from support.job_registry import tick


class Idle:
    """A gateway that has no room for jobs, so that they wait."""

    limits = LimitSettings()

    def __init__(self) -> None:
        self.events: list[str] = []

    def run_item(self, item: ItemClient, id: str, headers: dict[str, str]) -> None:
        raise AssertionError("there was no room")

    def jobs_waiting(self, tenant: str) -> int:
        return 1000

    def limits_of_tenant(self, tenant: str) -> LimitSettings:
        return self.limits

    def record_cost(self, entry: Entry) -> None: ...

    def when_confirmed(self, stop: PendingStop, callback: Callable[[], None]) -> None: ...

    def log_event(self, event: str, **fields: object) -> None:
        self.events.append(event)

    def fault(self, error: Exception) -> None:
        raise error


@pytest.mark.parametrize("jump_s", [-400_000.0, 400_000.0])
def test_a_clock_that_is_set_ends_no_lease_and_no_window(
    store_path: str, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    async def run() -> None:
        loop, host, store = asyncio.get_running_loop(), Idle(), JobStore(store_path)
        registry = JobRegistry(store, host, loop, keep_days=1)
        await registry.open()
        item = [NewItem("a", "/v1/chat/completions", b"{}")]
        leased = await registry.submit("job_a", Kind.CALL, "ann", {"path": "/v1/chat/completions"}, item, lease_s=60)
        batch = await registry.submit("batch_b", Kind.BATCH, "ann", {}, item, window_s=120)
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + jump_s)
        for later_s in (0, 59):
            await tick(registry, loop.time() + later_s)
            jobs = await store.do(lambda: [store.jobs.get(job.key) for job in (leased, batch)])
            assert [job.status for job in jobs] == [JobStatus.RUNNING, JobStatus.RUNNING]
        await tick(registry, loop.time() + 61)
        assert (await store.do(lambda: store.jobs.get(leased.key))).status is JobStatus.CANCELLED
        await tick(registry, loop.time() + 121)
        assert (await store.do(lambda: store.jobs.get(batch.key))).status is JobStatus.EXPIRED
        assert "job_worker_gone" not in host.events, "nor a worker"
        await registry.close()

    asyncio.run(run())


class TestAbsences:
    def test_a_process_of_this_machine_is_gone_when_it_is(self) -> None:
        missing = MissingWorkers(15.0, 2.0)
        here, alive = this_host(), this_process()
        assert missing.find_dead([Worker(1, here, alive, 0)], 2, now=0) == []
        pid, _, started = alive.partition("-")
        before = Worker(1, here, f"{pid}-{int(started) + 1}", 0)
        assert missing.find_dead([before], 2, now=0) == [1], "its number is another process's by now"
        with subprocess.Popen(["true"]) as child:
            child.wait(60)
        assert missing.find_dead([Worker(1, here, f"{child.pid}-1", 0)], 2, now=0) == [1]

    def test_we_are_never_gone(self) -> None:
        assert MissingWorkers(15.0, 2.0).find_dead([Worker(3, "elsewhere", "1-1", 0)], 3, now=1e9) == []


class TestSteadyClock:
    def test_it_follows_the_clock(self) -> None:
        clock = SteadyClock(0.0, of_day=1e6, now=0.0)
        assert clock.at(1e6, 0.0) == 1e6
        assert clock.at(1e6 + 60, 60.0) == 1e6 + 60
        assert clock.at(1e6 + 30, 61.0) == 1e6 + 30, "also back"

    def test_a_clock_that_is_set_ahead_for_a_while_moves_it_little(self) -> None:
        clock = SteadyClock(0.0, of_day=1e6, now=0.0)
        month = 31 * 86_400
        assert clock.at(1e6 + month, 40.0) == 1e6 + 40 * 24
        assert clock.at(1e6 + 3600, 3600.0) == 1e6 + 3600, "set right again"

    def test_after_a_long_night_it_comes_to_the_day(self) -> None:
        clock = SteadyClock(1e6, of_day=1e6 + 86_400, now=0.0)
        assert clock.at(1e6 + 86_400, 0.0) == 1e6
        assert clock.at(1e6 + 90_000, 3600.0) == 1e6 + 86_400
        assert clock.at(1e6 + 90_200, 3800.0) == 1e6 + 90_200


def test_a_clock_that_is_set_ahead_deletes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither during a run nor at a start with such a clock: jobs, uploads and windows stay as they were."""
    path = str(tmp_path / "jobs.sqlite")
    real, ahead = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: real() + ahead)

    async def run(*, first: bool) -> None:
        nonlocal ahead
        loop, store = asyncio.get_running_loop(), JobStore(path)
        ahead = 0.0 if first else 31 * 86_400.0
        registry = JobRegistry(store, Idle(), loop, keep_days=30)
        await registry.open()
        item = [NewItem("a", "/v1/chat/completions", b"{}")]
        if first:
            done = await registry.submit("job_a", Kind.CALL, "ann", {}, item, lease_s=60)
            await registry.cancel(done, Cause.CANCELLED)
            await registry.submit("batch_b", Kind.BATCH, "ann", {}, item, window_s=86_400)
            key = await store.do(lambda: store.files.begin("file-a", "ann", time.time()))
            await store.do(lambda: store.files.mark_ready(key, "batch", "f", time.time() + 86_400))
            ahead = 31 * 86_400.0
        await tick(registry, loop.time() + 1200)
        await registry._tasks.wait()
        assert await registry.prune(30 * 86_400.0) == 0, "an operator's prune goes by the same clock"
        statuses = await store.do(lambda: [store.jobs.find(id) for id in ("job_a", "batch_b")])
        assert [job.status if job else None for job in statuses] == [JobStatus.CANCELLED, JobStatus.RUNNING]
        assert await store.do(lambda: store.files.find("file-a", "ann")) is not None
        await registry.close()

    asyncio.run(run(first=True))
    asyncio.run(run(first=False))


def test_a_clock_that_is_set_back_at_the_submission_ends_no_window(store_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker that takes the job when the clock is right again gives it its full time. Found by `make chaos`, seed 11."""

    async def run() -> None:
        loop, store, real = asyncio.get_running_loop(), JobStore(store_path), time.time
        registry = JobRegistry(store, Idle(), loop, keep_days=30)
        await registry.open()
        monkeypatch.setattr(time, "time", lambda: real() - 400 * 86_400)
        item = [NewItem("a", "/v1/chat/completions", b"{}")]
        batch = await registry.submit("batch_b", Kind.BATCH, "ann", {}, item, window_s=86_400)
        monkeypatch.setattr(time, "time", real)
        registry._active.clear()
        registry._last_change = None
        await registry._refresh()
        await tick(registry, loop.time())
        assert (await store.do(lambda: store.jobs.get(batch.key))).status is JobStatus.RUNNING
        await registry.close()

    asyncio.run(run())


def test_nor_does_one_that_is_set_back_when_the_process_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The store knows the latest time. Found by `make chaos`, seed 1014: another gateway's clock was right."""
    path, real, item = str(tmp_path / "jobs.sqlite"), time.time, [NewItem("a", "/v1/chat/completions", b"{}")]

    async def run(*, back: bool) -> JobStatus:
        monkeypatch.setattr(time, "time", lambda: real() - 400 * 86_400 if back else real())
        loop, store = asyncio.get_running_loop(), JobStore(path)
        registry = JobRegistry(store, Idle(), loop, keep_days=30)
        await registry.open()
        await registry._heartbeat(loop.time())
        if back:
            await registry.submit("batch_b", Kind.BATCH, "ann", {}, item, window_s=86_400)
        await tick(registry, loop.time())
        job = await store.do(lambda: store.jobs.find("batch_b"))
        await registry.close()
        return job.status if job is not None else JobStatus.FAILED

    assert asyncio.run(run(back=False)) is JobStatus.FAILED, "there is none yet"
    assert asyncio.run(run(back=True)) is JobStatus.RUNNING
    assert asyncio.run(run(back=False)) is JobStatus.RUNNING
