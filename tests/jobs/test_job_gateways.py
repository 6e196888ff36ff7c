"""Several gateways on one store, and one whose store is faster than its own loop: no item is lost or has a wrong shape."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from hangup.core import reasons
from hangup.core.jobs import Cause, ItemState, JobStatus, Kind
from hangup.gateway.jobs.calls import follow_events
from hangup.gateway.jobs.registry import JobRegistry
from hangup.gateway.jobs.workers import MissingWorkers
from hangup.gateway.store.jobs import Job, JobStore, NewItem, Worker
from hangup.gateway.store.worker_thread import StoreFailed
from support.job_registry import FakeGateway, answered, open_registry, tick
from support.jobs import client, line, results, start_batch, wait_batch
from support.processes import Gateway, StandIn
from support.waiting import soon, wait_until

PATH = "/v1/chat/completions"
CALL = {"path": PATH, "model": "m", "stream": True, "headers": {"anthropic-version": "2023-06-01"}}
BATCH = {"endpoint": PATH, "input_file_id": "f", "completion_window": "24h", "headers": {"openai-project": "p"}}


@contextlib.asynccontextmanager
async def one_takes_the_other_runs(path: str, host: FakeGateway) -> AsyncIterator[tuple[JobRegistry, JobRegistry]]:
    """Return two registries on one store: the first accepts jobs and runs none, the second runs them on `host`."""
    async with open_registry(JobStore(path), FakeGateway()) as one, open_registry(JobStore(path), host) as two:
        one.runner.stop()
        yield one, two


def items(count: int) -> list[NewItem]:
    return [NewItem(f"c{n}", PATH, b"{}") for n in range(count)]


class TestClaimedBeforeItIsKnown:
    def test_in_the_transaction_of_its_submission(self, store_path: str) -> None:
        """Its headers are sent with it, and its events have listeners."""

        async def run() -> None:
            host, store = FakeGateway(), JobStore(store_path)
            async with open_registry(store, host) as registry:
                held, go = threading.Event(), threading.Event()

                def hold() -> None:
                    held.set()
                    go.wait(60)

                holding = asyncio.create_task(store.do(hold))
                await asyncio.to_thread(held.wait, 60)
                submits = [
                    asyncio.create_task(registry.submit(f"job_{n}", Kind.CALL, "ann", CALL, items(1), lease_s=60))
                    for n in range(5)
                ]
                await asyncio.sleep(0)
                registry.runner.wake("ann", urgent=True)  # its claim is in the queue behind them
                await asyncio.sleep(0.05)
                go.set()
                await asyncio.gather(holding, *submits)
                await soon(lambda: len(host.items) == 5)
                assert host.headers == [CALL["headers"]] * 5
                assert all(item.listener is not None for item in host.items)
                for item in host.items:
                    answered(item, b'data: {"x":1}\n\n')

        asyncio.run(run())

    def test_by_another_gateway(self, store_path: str) -> None:
        """That gateway learns the job with the claim: headers, the shape of the result, and the events."""

        async def run() -> None:
            idle = FakeGateway()
            async with one_takes_the_other_runs(store_path, idle) as (one, two):
                batch = await one.submit("batch_b", Kind.BATCH, "ann", BATCH, items(2), window_s=600)
                two.runner.wake("ann")  # long before it looks for what others have done
                await soon(lambda: len(idle.items) == 2)
                assert idle.headers == [BATCH["headers"]] * 2
                for item in idle.items:
                    two._active.pop(batch.key, None)  # as if it were not known here
                    answered(item, b'{"a":\n 1}')
                await soon(lambda: two.runner.writer.ended_by_state[ItemState.SUCCEEDED] == 2)
                rows = await one.store.do(lambda: one.store.jobs.results(batch.key, 0, 10))
                lines = [json.loads(row.body or b"") for row in rows]
                assert [row["custom_id"] for row in lines] == ["c0", "c1"]
                assert all(row["response"]["body"] == {"a": 1} for row in lines)
                assert all((row.body or b"").endswith(b"\n") and (row.body or b"").count(b"\n") == 1 for row in rows)

        asyncio.run(run())

    def test_a_listener_at_one_hears_what_the_other_ran(self, store_path: str) -> None:
        async def run() -> None:
            idle = FakeGateway()
            async with one_takes_the_other_runs(store_path, idle) as (one, two):
                job = await one.submit("job_a", Kind.CALL, "ann", CALL, items(1), lease_s=60)

                async def listen() -> list[str]:
                    return [event.name async for event in follow_events(one, job, -1, 30.0) if event is not None]

                listening = asyncio.create_task(listen())
                two.runner.wake("ann", urgent=True)
                await soon(lambda: len(idle.items) == 1)
                answered(idle.items[0], b'data: {"x":1}\n\ndata: {"x":2}\n\n')
                assert await asyncio.wait_for(listening, 60) == ["attempt", "chunk", "chunk"]

        asyncio.run(run())


class TestFollowedElsewhere:
    def test_events_arrive_while_the_other_still_runs_it(self, store_path: str) -> None:
        async def run() -> None:
            host, got = FakeGateway(), list[tuple[int, str]]()
            async with one_takes_the_other_runs(store_path, host) as (one, two):
                job = await one.submit("job_a", Kind.CALL, "ann", CALL, items(1), lease_s=60)

                async def listen() -> None:
                    async for event in follow_events(one, job, -1, 30.0):
                        if event is not None:
                            got.append((event.number, event.name))

                listening = asyncio.create_task(listen())
                two.runner.wake("ann", urgent=True)
                await soon(lambda: len(host.items) == 1)
                item = host.items[0]
                item.begin(b"", chunked=False)
                for n in range(3):
                    item.send(b'data: {"x":%d}\n\n' % n)
                    await soon(lambda n=n: [name for _, name in got] == ["attempt"] + ["chunk"] * (n + 1))  # type: ignore[misc]
                assert not listening.done()
                assert item.flow is not None
                item.flow.end(reasons.COMPLETED)
                await asyncio.wait_for(listening, 60)
                assert [number for number, _ in got] == sorted({number for number, _ in got}), "each once, in order"
                await soon(lambda: not two._shared_events._shared and not one._shared_events._asked)
                left = await one.store.do(lambda: (one.store.events.after(job.key, -1), one.store.events.followed_by_others(0)))
                assert left == ([], set()), "nothing of it stays in the store"

        asyncio.run(run())

    def test_nothing_is_shared_that_nobody_follows_elsewhere(self, store_path: str) -> None:
        async def run() -> None:
            host = FakeGateway()
            async with one_takes_the_other_runs(store_path, host) as (one, two):
                job = await two.submit("job_a", Kind.CALL, "ann", CALL, items(1), lease_s=60)
                await soon(lambda: len(host.items) == 1)
                two.listen(job)  # where it runs
                host.items[0].begin(b"", chunked=False)
                host.items[0].send(b'data: {"x":1}\n\n')
                two.others = True
                for _ in range(3):
                    await two._shared_events.exchange(0.0)
                    await one._shared_events.exchange(0.0)
                assert await one.store.do(lambda: one.store.events.after(job.key, -1)) == []
                two.stop_listening(job)

        asyncio.run(run())

    def test_a_gateway_that_is_gone_follows_nothing(self, store_path: str) -> None:
        async def run() -> None:
            async with one_takes_the_other_runs(store_path, FakeGateway()) as (one, two):
                await one.store.do(lambda: one.store.events.follow(one.worker, [7]))
                assert await two.store.do(lambda: two.store.events.followed_by_others(two.worker)) == {7}
                await two.store.do(lambda: two._give_back(one.worker))
                assert await two.store.do(lambda: two.store.events.followed_by_others(two.worker)) == set()

        asyncio.run(run())


def test_a_large_answer_is_kept_as_it_came(store_path: str) -> None:
    """It is stored byte by byte, so that nobody waits for a copy; an answer with line ends must be put on one line, though."""

    async def run() -> None:
        host, store = FakeGateway(), JobStore(store_path)
        async with open_registry(store, host) as registry:
            job = await registry.submit("batch_b", Kind.BATCH, "ann", BATCH, items(2), window_s=600)
            await soon(lambda: len(host.items) == 2)
            numbers = b"[" + b"0.10000000000000000000001," * 10_000 + b"1]"
            one, two = host.items
            answered(one, b'{"a":%b}' % numbers)
            answered(two, b'{"a":\n%b}' % numbers)
            await soon(lambda: registry.active_job(job) is None)
            first, second = await store.do(lambda: store.jobs.results(job.key, 0, 10))
            assert numbers in (first.body or b"") and json.loads(first.body or b"")["custom_id"] == "c0"
            assert (second.body or b"").count(b"\n") == 1 and len(
                json.loads(second.body or b"")["response"]["body"]["a"]
            ) == 10_001

    asyncio.run(run())


class TestTakenForDead:
    def test_what_it_had_runs_again_and_nothing_is_cancelled(self, tmp_path: Path) -> None:
        """Another gateway took this living one for dead, and released its claims."""
        count = 150
        with (
            StandIn(slots=16, token_s=0.01, prefill_s=0.01, answer_tokens=10) as engine,
            Gateway(engine.url, jobs=tmp_path / "jobs.sqlite", ledger=tmp_path / "ledger.sqlite", slots=8) as gateway,
        ):
            sdk = client(gateway.url)
            id = start_batch(sdk, [line(f"r{n}", max_tokens=10) for n in range(count)])
            wait_until(lambda: engine.stats()["tokens"] > 50, what="items to run")
            asyncio.run(bury_all(tmp_path / "jobs.sqlite"))
            batch = wait_batch(sdk, id)
            assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", count, 0)
            assert [row["custom_id"] for row in results(sdk, batch.output_file_id)] == [f"r{n}" for n in range(count)]
            wait_until(lambda: any(row["event"] == "job_claims_expired" for row in gateway.log()), what="it to be told")

    def test_it_claims_nothing_until_it_has_a_new_name(self, store_path: str) -> None:
        async def run() -> None:
            host, store = FakeGateway(), JobStore(store_path)
            async with open_registry(store, host, ticks=False) as registry:
                await store.do(lambda: store.workers.remove(registry.worker))
                job = await registry.submit("job_a", Kind.CALL, "ann", CALL, items(1), lease_s=60)
                assert await store.do(lambda: store.jobs.claim(registry.worker, "ann", 1, 1000, 0.0)) == []
                await registry._heartbeat(0.0)
                await soon(lambda: len(host.items) == 1)
                answered(host.items[0])
                await soon(lambda: registry.active_job(job) is None)
                assert (await store.do(lambda: store.jobs.get(job.key))).status is JobStatus.COMPLETED

        asyncio.run(run())

    def test_running_and_waiting_items_are_given_back(self, store_path: str) -> None:
        async def run() -> None:
            host, store = FakeGateway(room=2), JobStore(store_path)
            async with open_registry(store, host, ticks=False) as registry:
                job = await registry.submit("batch_b", Kind.BATCH, "ann", BATCH, items(6), window_s=600)
                await soon(lambda: len(host.items) == 2)
                await store.do(lambda: registry._give_back(registry.worker))
                host.room = 100
                await registry._heartbeat(0.0)
                ended = [item.flow for item in host.items[:2]]
                assert ended == [None, None], "they were stopped"
                await soon(lambda: len(host.items) == 8)
                for item in host.items[2:]:
                    answered(item)
                await soon(lambda: registry.active_job(job) is None)
                done = await store.do(lambda: store.jobs.get(job.key))
                assert done.status is JobStatus.COMPLETED and done.tally.succeeded == 6

        asyncio.run(run())

    def test_items_of_workers_that_are_not_there_run_again(self, store_path: str) -> None:
        """An earlier version left the store in this state."""

        async def run() -> None:
            store = JobStore(store_path)
            job = await store.do(lambda: store.jobs.submit("b", Kind.BATCH, "ann", 0.0, BATCH, items(3)))
            gone = await store.do(lambda: store.workers.register("here", "1-1"))
            await store.do(lambda: store.jobs.claim(gone, "ann", 2, 1 << 20, 0.0))
            await store.do(lambda: store.workers.remove(gone))
            host = FakeGateway()
            async with open_registry(store, host) as registry:
                await soon(lambda: len(host.items) == 3)
                for item in host.items:
                    answered(item)
                await soon(lambda: registry.active_job(job) is None)

        asyncio.run(run())


async def bury_all(path: Path) -> None:
    store = JobStore(str(path))

    def work() -> None:
        for worker in store.workers.all():
            store.jobs.give_back_all(worker.id, time.time())
            store.workers.remove(worker.id)

    await store.do(work)
    await asyncio.to_thread(store.close)


class TestDrain:
    def test_it_lives_to_its_end(self, store_path: str) -> None:
        """While its items finish, others must not take it for dead, and it must learn which jobs they cancel."""

        async def run() -> None:
            host, store = FakeGateway(), JobStore(store_path)
            async with open_registry(store, host) as registry:
                job = await registry.submit("job_a", Kind.CALL, "ann", CALL, items(1), lease_s=60)
                await soon(lambda: len(host.items) == 1)
                registry.stop()
                beats = await store.do(lambda: store.workers.all()[0].beats)
                async with asyncio.timeout(60):
                    while await store.do(lambda: store.workers.all()[0].beats) < beats + 2:  # noqa: ASYNC110 - the store has no event for it
                        await asyncio.sleep(0.1)
                other = JobStore(store_path)
                await other.do(lambda: other.jobs.cancel(job.key, Cause.CANCELLED, 0.0))
                await asyncio.to_thread(other.close)
                await soon(lambda: host.items[0].stopping is reasons.JOB_CANCELLED)

        asyncio.run(run())


class TestTwo:
    def test_a_cancel_at_one_reaches_what_the_other_just_claimed(self, store_path: str) -> None:
        async def run() -> None:
            idle = FakeGateway()
            async with one_takes_the_other_runs(store_path, idle) as (one, two):
                job = await one.submit("job_a", Kind.CALL, "ann", CALL, items(1), lease_s=60)
                two.runner.wake("ann", urgent=True)
                await soon(lambda: len(idle.items) == 1)
                two._active.pop(job.key, None)
                await one.cancel(job, Cause.CANCELLED)
                await soon(lambda: idle.items[0].flow is None)
                await soon(lambda: one.active_job(job) is None)
                assert (await one.find("job_a", "ann", Kind.CALL)).status is JobStatus.CANCELLED

        asyncio.run(run())

    def test_what_others_change_is_read_and_nothing_else(self, store_path: str) -> None:
        """Reading all jobs twice a second would stall the loop each time."""

        async def run() -> None:
            async with one_takes_the_other_runs(store_path, FakeGateway()) as (one, two):
                two.runner.stop()
                for n in range(50):
                    await one.submit(f"job_{n}", Kind.CALL, "ann", CALL, items(1), lease_s=600)
                await two._refresh()
                assert len(two.active_jobs()) == 50
                read: list[int] = []
                real = two.store.jobs.changes

                def changes(since: int | None) -> tuple[int, list[Job]]:
                    last, found = real(since)
                    read.append(len(found))
                    return last, found

                two.store.jobs.changes = changes  # type: ignore[method-assign]
                await one.cancel(await one.find("job_7", "ann", Kind.CALL), Cause.CANCELLED)
                await asyncio.gather(two._refresh(), two._refresh())  # as when a tick and a beat meet
                assert sum(read) == 1 and len(two.active_jobs()) == 49
                job = await one.find("job_8", "ann", Kind.CALL)
                await one.cancel(job, Cause.CANCELLED)
                await one.store.do(lambda: one.store.jobs.delete(job.key))
                await two._heartbeat(0.0)
                assert len(two.active_jobs()) == 48, "and what is gone altogether is noticed"

        asyncio.run(run())

    def test_one_that_has_not_heard_of_a_job_does_not_take_it_for_ended(self, store_path: str) -> None:
        """Readers wait for its events, and polling at any gateway renews its lease."""

        async def run() -> None:
            async with one_takes_the_other_runs(store_path, FakeGateway()) as (one, two):
                two.runner.stop()
                await one.submit("job_a", Kind.CALL, "ann", CALL, items(1), lease_s=60)
                two._active.clear()
                job = await two.find("job_a", "ann", Kind.CALL)
                active = two.active_job(job)
                assert active is not None and job.key in two._interest.take()
                assert two.listen(job) is not None

        asyncio.run(run())

    def test_a_listener_at_one_holds_the_lease_at_the_other(self, store_path: str) -> None:
        async def run() -> None:
            path = store_path
            async with (
                open_registry(JobStore(path), FakeGateway(room=0)) as one,
                open_registry(JobStore(path), FakeGateway(0)) as two,
            ):
                job = await one.submit("job_a", Kind.CALL, "ann", CALL, items(1), lease_s=60)
                two.listen(job)
                await two._refresh()
                two.listen(job)

                async def touched() -> int:
                    found: Job = await one.store.do(lambda: one.store.jobs.get(job.key))
                    return found.touched

                before = await touched()
                await two._heartbeat(0.0)
                await two._heartbeat(0.0)
                assert await touched() >= before + 2, "each beat says that somebody listens"
                two.stop_listening(job)

        asyncio.run(run())

    def test_a_short_lease_waits_for_news_of_the_other(self, store_path: str) -> None:
        """A gateway learns of polls at the other one only with the other's next heartbeat, and a lease may be shorter."""

        async def run() -> None:
            path = store_path
            async with open_registry(JobStore(path), FakeGateway(room=0), ticks=False) as one:
                alone = await one.submit("job_alone", Kind.CALL, "ann", CALL, items(1), lease_s=2)
                begun = asyncio.get_running_loop().time()
                await tick(one, begun + 2.1)
                assert (await one.find("job_alone", "ann", Kind.CALL)).cause is Cause.LEASE
                assert one.active_job(alone) is None
                async with open_registry(JobStore(path), FakeGateway(room=0), ticks=False):
                    await one._heartbeat(begun)
                    await one.submit("job_a", Kind.CALL, "ann", CALL, items(1), lease_s=2)
                    begun = asyncio.get_running_loop().time()
                    await tick(one, begun + 5.5)
                    assert (await one.find("job_a", "ann", Kind.CALL)).status is JobStatus.RUNNING
                    await tick(one, begun + 60)
                    assert (await one.find("job_a", "ann", Kind.CALL)).cause is Cause.LEASE

        asyncio.run(run())

    def test_no_lease_ends_while_renewals_at_the_other_cannot_be_read(self, store_path: str) -> None:
        """The disk may hang here and work there. A window still ends, because nobody can renew it."""

        async def run() -> None:
            path, disk_works = store_path, asyncio.Event()
            async with (
                open_registry(JobStore(path), FakeGateway(room=0), ticks=False) as one,
                open_registry(JobStore(path), FakeGateway(room=0), ticks=False) as two,
            ):
                await one._heartbeat(0.0)
                polled = await one.submit("job_a", Kind.CALL, "ann", CALL, items(1), lease_s=2)
                batch = await one.submit("batch_b", Kind.BATCH, "ann", {}, items(1), window_s=50)
                begun = asyncio.get_running_loop().time()
                real = one.store.do

                async def do(work: Callable[[], Any]) -> Any:
                    await disk_works.wait()
                    return await real(work)

                one.store.do = do  # type: ignore[method-assign]
                reading = asyncio.create_task(one._read_changes(begun + 1))
                await two.find("job_a", "ann", Kind.CALL)
                await two._heartbeat(0.0)
                await one._cancel_due_jobs(begun + 60)
                disk_works.set()
                await reading
                await one._tasks.wait()
                found: list[Job] = await two.store.do(lambda: [two.store.jobs.get(job.key) for job in (polled, batch)])
                assert [job.status for job in found] == [JobStatus.RUNNING, JobStatus.EXPIRED]
                await tick(one, begun + 120)
                assert (await one.find("job_a", "ann", Kind.CALL)).cause is Cause.LEASE, "once it is read that nobody asks"

        asyncio.run(run())

    def test_changes_that_could_not_be_read_are_read_later(self, store_path: str) -> None:
        """This holds even if the other process writes nothing more."""

        async def run() -> None:
            path = store_path
            async with (
                open_registry(JobStore(path), FakeGateway(room=0), ticks=False) as one,
                open_registry(JobStore(path), FakeGateway(room=0), ticks=False) as two,
            ):
                await one._read_changes(0.0)
                await two.submit("job_a", Kind.CALL, "ann", CALL, items(1), lease_s=60)
                real = one.store.jobs.changes

                def changes(since: int | None) -> tuple[int, list[Job]]:
                    raise StoreFailed("busy")

                one.store.jobs.changes = changes  # type: ignore[method-assign]
                with pytest.raises(StoreFailed):
                    await one._read_changes(1.0)
                one.store.jobs.changes = real  # type: ignore[method-assign]
                await one._read_changes(2.0)
                assert [active.job.id for active in one.active_jobs()] == ["job_a"]

        asyncio.run(run())


class TestAbsences:
    def test_another_machine_is_gone_when_its_beat_stands_still(self) -> None:
        missing = MissingWorkers(15.0, 2.0)
        assert missing.find_dead([Worker(1, "elsewhere", "7-1", 10)], 2, now=100) == []
        for now in range(102, 118, 2):
            assert missing.find_dead([Worker(1, "elsewhere", "7-1", 11)], 2, now=now) == [], now
        assert missing.find_dead([Worker(1, "elsewhere", "7-1", 11)], 2, now=118) == [1]

    def test_our_own_blindness_is_nobodys_absence(self) -> None:
        """Both gateways were stopped for an hour, and this one wakes first."""
        missing = MissingWorkers(5.0, 2.0)
        for now in (100, 102, 3700):
            assert missing.find_dead([Worker(1, "elsewhere", "7-1", 10)], 2, now=now) == [], now
        assert missing.find_dead([Worker(1, "elsewhere", "7-1", 11)], 2, now=3702) == []
