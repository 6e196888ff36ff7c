"""The job store and the processes that run its jobs, in virtual time: real registries, runners, result writers and SQLite.

Several processes share a file. Each may be stopped or killed before or after any of its operations on the file, and each
operation may fail. The world records what was acknowledged; in the end every acknowledged item has ended once, with its own
answer, and was billed once.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from hangup.config import LimitSettings
from hangup.core import reasons
from hangup.core.account import Account, Entry
from hangup.core.call import Call
from hangup.core.jobs import Cause, ItemState, JobStatus, Kind
from hangup.core.reaper import PendingStop, StopState
from hangup.core.reasons import Reason
from hangup.errors import Refusal
from hangup.gateway.apis.routes import Router
from hangup.gateway.jobs import batches, registry, result_writer, runner, workers
from hangup.gateway.jobs.api import JobApi
from hangup.gateway.jobs.http_messages import JobHttpRequest
from hangup.gateway.jobs.item_client import ItemClient
from hangup.gateway.jobs.registry import JobRegistry
from hangup.gateway.store.jobs import NewItem
from hangup.gateway.store.worker_thread import StoreFailed
from hangup.tasks import LongTasks
from support.faulty_store import Faults, SimStore
from support.virtual import Died, Loop, Process, this_process

PATH = "/v1/chat/completions"
TENANT = "ann"
LIMITS = LimitSettings(job_failures_max=1000, job_worker_silence_s=6, job_cancel_wait_s=2)
_STARTS_AGAIN_S = 1.0


class SimItemCall:
    """A call that waits, runs for a while, and ends in one of the ways in which calls end."""

    answer_bytes_max = 1 << 20

    def __init__(self, host: SimGateway, item: ItemClient, id: str) -> None:
        self.call = Call(id, host.world.loop.time(), "job")
        self.item = item
        self._host = host
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        host = self._host
        self.call.sent_at = host.world.loop.time()
        self._timer = host.world.loop.call_later(host.world.chance.choice([0.0, 0.01, 0.5, 3.0]), self._finish)
        self.item.call_started()

    def _finish(self) -> None:
        fate = self._host.world.chance.random()
        if fate < 0.8:
            self.item.begin(b"", chunked=False)
            self.item.send(json.dumps({"echo": json.loads(self.item.claim.body)}).encode())
            self.call.status = 200
            self.end(reasons.COMPLETED)
        else:
            self.end(reasons.PREEMPTED if fate < 0.9 else reasons.ENGINE_DIED)

    def end(self, reason: Reason, detail: str = "") -> None:
        if self.call.reason is not None:
            return
        self.call.reason = reason
        if self._timer is not None:
            self._timer.cancel()
        claim, host = self.item.claim, self._host
        host.ended(self)
        stop = None
        if self.call.sent_at is not None and reason is not reasons.COMPLETED and host.world.chance.random() < 0.5:
            stop = PendingStop(self.call.id, host.world.loop.time())
            host.world.loop.call_later(host.world.chance.choice([0.0, 0.3, 5.0]), host.gone, stop)
        account = Account(calls=1)
        self.item.call_ended(
            self.call, stop, Entry(TENANT, f"{claim.job_id}.{claim.n}", "engine", reason.outcome.value, account)
        )

    def on_due(self) -> None: ...


class SimGateway:
    """A gateway with two slots and a queue."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.limits = LIMITS
        self._running: list[SimItemCall] = []
        self._waiting: list[SimItemCall] = []
        self._confirmed: dict[PendingStop, Callable[[], None]] = {}

    def run_item(self, item: ItemClient, id: str, headers: dict[str, str]) -> None:
        flow = SimItemCall(self, item, id)
        item.flow = flow
        self._waiting.append(flow)
        self._next()

    def _next(self) -> None:
        while self._waiting and len(self._running) < 2:
            flow = self._waiting.pop(0)
            self._running.append(flow)
            flow.start()

    def ended(self, flow: SimItemCall) -> None:
        for line in (self._running, self._waiting):
            if flow in line:
                line.remove(flow)
        self.world.loop.call_soon(self._next)

    def gone(self, stop: PendingStop) -> None:
        stop.released = self.world.chance.choice([StopState.VERIFIED, StopState.UNVERIFIED])
        self._confirmed.pop(stop, lambda: None)()

    def when_confirmed(self, stop: PendingStop, callback: Callable[[], None]) -> None:
        self._confirmed[stop] = callback

    def end_all(self) -> None:
        for flow in [*self._waiting, *self._running]:
            flow.end(reasons.DRAINED)

    def jobs_waiting(self, tenant: str) -> int:
        return len(self._waiting)

    def limits_of_tenant(self, tenant: str) -> LimitSettings:
        return self.limits

    def record_cost(self, entry: Entry) -> None:
        if entry.cause == "completed":
            self.world.billed[entry.model] += 1

    def log_event(self, event: str, **fields: object) -> None:
        self.world.events[event] += 1

    def fault(self, error: Exception) -> None:
        self.world.wrong.append(f"a fault: {error!r}")

    @property
    def empty(self) -> bool:
        return not self._running and not self._waiting


@dataclass
class Promise:
    id: str
    items: int
    may_be_cancelled: bool
    ended: JobStatus | None = None  # the status that a client was told


class Life:
    """A process with its `JobRegistry`, from its start to its end."""

    def __init__(self, world: World, number: int) -> None:
        world.lives += 1
        self.world, self.number = world, number
        self.process = Process(world.loop, f"{number}-{world.lives}")
        self.host = SimGateway(world)
        self.registry: JobRegistry | None = None
        self.api: JobApi | None = None
        self.store: SimStore | None = None
        self.process.start(self._open())

    async def _open(self) -> None:
        """Open the store as the gateway does: if it fails, try again."""
        while self.registry is None:
            store = self.store = SimStore(str(self.world.path), self.world, self.process)
            registry = JobRegistry(store, self.host, self.world.loop, keep_days=1)
            job_api = JobApi(registry, Router)
            try:
                await registry.open()
            except StoreFailed:
                store.close()
                await asyncio.sleep(_STARTS_AGAIN_S)
            else:
                self.registry, self.api = registry, job_api

    def opened(self) -> JobRegistry:
        if self.registry is None:
            raise Died
        return self.registry

    async def drain(self) -> None:
        """Stop as a gateway does: running calls may finish for a while, then everything is closed."""
        registry = self.opened()
        registry.stop()
        for _ in range(40):
            if self.host.empty:
                break
            await asyncio.sleep(0.05)
        self.host.end_all()
        await registry.close()

    # What clients do

    async def call(self, n: int, lease_s: float) -> Promise:
        about = {"path": PATH, "model": "m", "stream": False, "headers": {}}
        item = NewItem("", PATH, json.dumps({"job": n, "item": 0}).encode())
        job = await self.opened().submit(f"job_{n}", Kind.CALL, TENANT, about, [item], lease_s=lease_s)
        return Promise(job.id, 1, lease_s < 100)

    async def batch(self, n: int, items: int) -> Promise:
        """Upload a file, have its lines checked and create the batch, as `/v1/batches` does."""
        store, job_api = self.opened().store, self.api
        assert job_api is not None
        rows = [
            {
                "custom_id": f"c{k}",
                "method": "POST",
                "url": PATH,
                "body": {"model": "m", "messages": [{"role": "user", "content": "x"}], "job": n, "item": k},
            }
            for k in range(items)
        ]

        def upload() -> None:
            key = store.files.begin(f"file-{n}", TENANT, 0.0)
            text = "\n".join(map(json.dumps, rows)).encode()
            store.files.add_part(key, 0, text[:100])
            store.files.add_part(key, 1, text[100:])
            store.files.mark_ready(key, "batch", "f", None)

        await store.do(upload)
        body = {"endpoint": PATH, "input_file_id": f"file-{n}", "completion_window": "24h"}
        request = JobHttpRequest("POST", "/v1/batches", {}, {}, TENANT, LIMITS, "", json.dumps(body).encode())
        return Promise(json.loads((await job_api.answer(request)).body)["id"], items, False)

    async def cancel(self, id: str) -> None:
        registry = self.opened()
        await registry.cancel(await registry.find(id, TENANT, None), Cause.CANCELLED, 2.0)

    async def look(self, id: str) -> JobStatus:
        return (await self.opened().find(id, TENANT, None)).status

    def unfinished(self) -> list[str]:
        """Return what is still held when there is nothing to do."""
        registry = self.registry
        if registry is None:
            return [f"{self.process.name} has not opened its store"]
        runner, result_writer = registry.runner, registry.runner.writer
        held = {
            "jobs": len(registry.active_jobs()),
            "calls": not self.host.empty,
            "items": len(runner._all_items()),
            "pauses": len(runner._retry_timers),
            "sent": sum(line.sent for line in runner._tenants.values()),
            "in hand": sum(len(line) for line in runner._tenants.values()),
            "results": len(result_writer._outcomes)
            + len(result_writer._given_back)
            + len(result_writer._cancels)
            + len(result_writer._cancel_waiters),
            "failing": result_writer.failing,
        }
        return [f"{self.process.name} is left with {name}: {count}" for name, count in held.items() if count]


class World:
    """Several processes on one file, and load drawn from a seed."""

    def __init__(self, folder: Path, seed: int, faults: Faults, processes: int = 2, *, seen_dead: bool = True) -> None:
        self.path = folder / "jobs.sqlite"
        self.loop = Loop()
        self.chance = random.Random(f"world {seed}")
        self.faults = faults
        self.set_by = 0.0  # how far the wall clock is off
        self.lives = 0
        self.billed: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.promises: dict[str, Promise] = {}
        self.kills = 0
        self._ended: dict[tuple[int, int], tuple[int, bytes | None]] = {}
        self._dead: set[str] = set()
        self._seen_dead = seen_dead  # else other processes notice a death only by missing heartbeats
        self._numbers = iter(range(1, 1 << 30))
        self._processes = processes
        self._asking = 0  # clients that wait for an answer
        self.living: list[Life] = []

    # Faults of processes

    def kill(self, process: Process) -> None:
        """Kill with -9: the connection and its open transaction are lost."""
        if process.alive:
            self.kills += 1
            self._end(process)

    async def drain(self, life: Life) -> None:
        """Send SIGTERM, and start a new process in its place."""
        with suppress(Died):
            await life.process.do(life.drain())
            if life.process.alive:
                self._end(life.process)

    def _end(self, process: Process) -> None:
        process.kill()
        self._dead.add(process.name)
        life = next(life for life in self.living if life.process is process)
        if life.store is not None:
            life.store._database.db.close()  # a second time, if it was drained
        self.living.remove(life)
        outside = contextvars.Context()  # the process that ends may itself be the caller
        self.loop.call_later(self.chance.choice([0.0, 1.0, 9.0]), self._start, life.number, context=outside)

    def _start(self, number: int) -> None:
        self.living.append(Life(self, number))

    def look(self, db: sqlite3.Connection) -> None:
        """Check after each transaction that ended items stay as they are."""
        query = "SELECT item.job, item.n, state, body FROM item LEFT JOIN answer USING (job, n) WHERE state > 1"
        rows = {(job, n): (state, body) for job, n, state, body in db.execute(query)}
        for at, before in self._ended.items():
            if rows.get(at) != before:
                self.wrong.append(f"item {at} had ended as {before} and is now {rows.get(at)}")
        self._ended = rows

    # Time

    @contextmanager
    def patched(self) -> Iterator[None]:
        time = SimpleNamespace(time=lambda: 1.7e9 + self.loop.time() + self.set_by)
        name = lambda: process.name if (process := this_process()) is not None else "nobody"  # noqa: E731
        with (
            mock.patch.object(registry, "time", time),
            mock.patch.object(result_writer, "time", time),
            mock.patch.object(runner, "time", time),
            mock.patch.object(batches, "time", time),
            mock.patch.object(runner, "random", self.chance),
            mock.patch.object(
                result_writer, "TASKS", LongTasks(lambda name, error: self.wrong.append(f"{name} failed: {error!r}"))
            ),
            mock.patch.object(workers, "this_process", name),
            mock.patch.object(
                workers, "_is_dead_on_this_host", lambda worker: self._seen_dead and worker.process in self._dead
            ),
        ):
            yield

    def run(self, story: Callable[[World], Any], rest_s: float = 400.0) -> list[str]:
        """Run the story with faults, then stop the faults; everything must become idle."""
        self.loop.set_exception_handler(lambda _, about: self.wrong.append(f"in a callback: {about}"))
        with self.patched():
            try:
                for number in range(self._processes):
                    self._start(number)
                self.loop.run_until_complete(story(self))
                self.faults.rate = 0.0
                self.loop.run_until_complete(self._rests(rest_s))
                self.loop.run_until_complete(self._close())
                self._check()
            finally:
                wrong, self.wrong = self.wrong, []
                self.loop.end()
        return wrong

    async def _rests(self, timeout_s: float) -> None:
        until = self.loop.time() + timeout_s
        while self.loop.time() < until:
            await asyncio.sleep(0.5)
            if len(self.living) == self._processes and not self._asking and not any(life.unfinished() for life in self.living):
                break
        self.wrong += [problem for life in self.living for problem in life.unfinished()]
        self.wrong += [f"{self._asking} clients still wait"] if self._asking else []

    async def _close(self) -> None:
        for life in list(self.living):
            with suppress(Died):
                await life.process.do(life.opened().close())

    # Clients

    async def submit(self, life: Life, items: int, lease_s: float = 3600.0) -> Promise | None:
        """Submit a job and record it if it is acknowledged; `items` 0 is a call, else a batch."""
        n = next(self._numbers)
        self._asking += 1
        try:
            promise: Promise = await life.process.do(life.batch(n, items) if items else life.call(n, lease_s))
        except (Died, Refusal, StoreFailed):
            return None
        finally:
            self._asking -= 1
        self.promises[promise.id] = promise
        return promise

    async def cancel(self, life: Life, promise: Promise) -> None:
        promise.may_be_cancelled = True
        await self._ask(promise, life.process.do(life.cancel(promise.id)))

    async def look_at(self, life: Life, promise: Promise) -> None:
        """Check that every process knows an acknowledged job, and that an ended job stays ended."""
        status = await self._ask(promise, life.process.do(life.look(promise.id)))
        if status is not None and promise.ended is not None and status is not promise.ended:
            self.wrong.append(f"{promise.id} had ended as {promise.ended}, and is {status}")
        promise.ended = status if status is not None and status.ended else promise.ended

    async def _ask(self, promise: Promise, work: Coroutine[Any, Any, Any]) -> Any:
        self._asking += 1
        try:
            return await work
        except (Died, StoreFailed):
            return None
        except Refusal as refusal:
            self.wrong.append(f"{promise.id}: {refusal}")
            return None
        finally:
            self._asking -= 1

    # Checks at the end

    def _check(self) -> None:
        db = sqlite3.connect(self.path)
        try:
            for promise in self.promises.values():
                self._check_promise(db, promise)
            for (orphan,) in db.execute("SELECT count(*) FROM item WHERE state < 2"):
                if orphan:
                    self.wrong.append(f"{orphan} items have not ended")
        finally:
            db.close()
        self.wrong += [f"{item} was billed {count} times" for item, count in self.billed.items() if count > 1]

    def _check_promise(self, db: sqlite3.Connection, promise: Promise) -> None:
        found = db.execute("SELECT key, status FROM job WHERE id = ?", (promise.id,)).fetchone()
        if found is None:
            self.wrong.append(f"{promise.id} was acknowledged and is lost")
            return
        key, status = found
        query = "SELECT item.n, state, custom_id, answer.body, ask.body FROM item LEFT JOIN answer USING (job, n)"
        rows = db.execute(query + " JOIN ask USING (job, n) WHERE item.job = ? ORDER BY item.n", (key,)).fetchall()
        allowed = ("completed", "cancelled") if promise.may_be_cancelled else ("completed",)
        if status not in allowed or (len(rows) != promise.items and status == "completed"):
            self.wrong.append(f"{promise.id} is {status} with {len(rows)} of {promise.items} items")
        for n, state, custom_id, answer, input_body in rows:
            self._check_item(promise, n, ItemState(state), custom_id, answer, input_body)

    def _check_item(
        self, promise: Promise, n: int, state: ItemState, custom_id: str, answer: bytes | None, input_body: bytes
    ) -> None:
        name = f"{promise.id}.{n}"
        if state is not ItemState.SUCCEEDED:
            if not (promise.may_be_cancelled and state is ItemState.CANCELLED):
                self.wrong.append(f"{name} ended as {state.name}")
            return
        row = json.loads(answer or b"{}")
        body = row.get("body") or (row.get("response") or {}).get("body")
        if body != {"echo": json.loads(input_body)} or row.get("custom_id", custom_id) != custom_id:
            self.wrong.append(f"{name} has the answer {row}")
        if not self.billed[name] and not self.kills and not any(text.startswith("applied") for text in self.faults.happened):
            self.wrong.append(f"{name} was not billed")
