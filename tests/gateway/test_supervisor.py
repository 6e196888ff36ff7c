"""The supervisor alone, without processes: a slot always gets a worker again, and never two."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from hangup.config import BackendSettings, Settings
from hangup.config.load import Configuration
from hangup.gateway.workers.supervisor import Supervisor
from support.waiting import soon


class Started:
    """What a supervisor has started: `start` stands for its `_start`."""

    def __init__(self) -> None:
        configuration = Configuration(Settings(backend=(BackendSettings(url="http://127.0.0.1:9"),)), {})
        self.supervisor = Supervisor(configuration, lambda: configuration, 2)
        self.errors: list[str] = []
        self.supervisor._log = SimpleNamespace(event=lambda event, **fields: self.errors.append(fields.get("error", "")))  # type: ignore[assignment]
        self.workers: list[Any] = []
        self.failures = 0  # how many starts fail
        self.supervisor._start = self.start  # type: ignore[method-assign]

    async def start(self, slot: int, *, replaces: bool = True) -> Any:
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise BlockingIOError(11, "Resource temporarily unavailable")
        worker = self.new(slot)
        if replaces:
            self.supervisor.by_slot[slot] = worker
        return worker

    def new(self, slot: int) -> Any:
        sent: list[str] = []
        worker: Any = SimpleNamespace(
            name=f"{slot}.{len(self.workers)}", slot=slot, ready=False, leaving=False, failure="", sent=sent
        )
        worker.channel = SimpleNamespace(send=lambda kind, **fields: sent.append(kind))
        worker.listen_on = lambda numbers: sent.append("listen")
        self.workers.append(worker)
        self.supervisor._all[worker.name] = worker
        return worker


def test_a_worker_that_the_system_cannot_start_is_started_later() -> None:
    async def run() -> None:
        started = Started()
        started.failures = 2
        async with asyncio.timeout(60):
            await started.supervisor._replace(1)
        assert started.supervisor.by_slot == [None, started.workers[0]] and len(started.workers) == 1
        assert started.errors == ["cannot start a process: [Errno 11] Resource temporarily unavailable"] * 2

    asyncio.run(run())


@pytest.mark.parametrize("again", [False, True], ids=["before its successor starts", "after that"])
def test_a_worker_that_dies_while_it_is_rolled_has_one_successor(again: bool) -> None:
    async def run() -> None:
        started = Started()
        supervisor = started.supervisor
        rolling = asyncio.create_task(supervisor._replace_gently(0))
        async with asyncio.timeout(60):
            await soon(lambda: bool(started.workers))
            (new,) = started.workers
            if again:  # the dead one's successor was started first, and is not needed any more
                await supervisor._replace(0)
            new.ready = True
            supervisor._changed.set()
            assert await rolling
            await supervisor._replace(0)  # the pause before the successor is over
        assert supervisor.by_slot[0] is new
        others = [worker for worker in started.workers if worker is not new]
        assert len(others) == again and all(worker.leaving and worker.sent == ["listen", "drain"] for worker in others)

    asyncio.run(run())
