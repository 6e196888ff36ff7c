"""Many jobs wait in the store: what a gateway does at its start and in each tick does not grow with them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hangup.core.jobs import Kind
from hangup.gateway.jobs import registry as module
from hangup.gateway.store.jobs import JobStore
from support.job_registry import CALL, FakeGateway, items, open_registry
from support.waiting import soon


def test_a_start_and_a_tick_take_some_at_a_time(store_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that starts reads some of them, runs work of every tenant, and reads the rest meanwhile."""
    monkeypatch.setattr(module, "_LOADED_MAX", 10)
    monkeypatch.setattr(module, "_COMPARED_MAX", 7)
    read, compared = list[int](), list[int]()

    def counted(counts: list[int], found: Any) -> Any:
        counts.append(len(found))
        return found

    async def run() -> None:
        async with open_registry(JobStore(store_path), FakeGateway(room=0)) as one:
            one.runner.stop()
            for n in range(45):
                await one.submit(f"job_{n}", Kind.CALL, "ann" if n < 40 else "bob", CALL, items(1), lease_s=1000 + n)
            store, host = JobStore(store_path), FakeGateway()
            active, still_active = store.jobs.active, store.jobs.still_active
            monkeypatch.setattr(store.jobs, "active", lambda *page: counted(read, active(*page)))
            monkeypatch.setattr(store.jobs, "still_active", lambda keys: counted(compared, still_active(keys)))
            async with open_registry(store, host, ticks=False) as two:
                await soon(lambda: sum(read) == 45 and len(two.active_jobs()) == 45)
                assert max(read) == 10
                await soon(lambda: {item.tenant for item in host.items} == {"ann", "bob"})
                compared.clear()
                two._to_compare.clear()
                for _ in range(7):
                    await two._heartbeat(0.0)
                assert max(compared) == 7 and sum(compared) == 45, "each is compared in its turn"
                looked_at = list(two._due.take(asyncio.get_running_loop().time() + 1001.5, 0.5))
                assert {"job_0", "job_1"} <= {due.job.id for due in looked_at} and len(looked_at) < 10, "what may be due"

    asyncio.run(run())
