"""Single items: an engine has no room for one, and an operator kills one."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import httpx

from hangup.core import reasons
from hangup.core.jobs import JobStatus, Kind
from hangup.gateway.store.jobs import JobStore
from support.job_registry import CALL, FakeGateway, answered, items, open_registry
from support.jobs import client, line, results, start_batch, wait_batch
from support.processes import Gateway, StandIn
from support.waiting import soon, wait_until


def test_an_engine_that_has_no_room_is_asked_again(store_path: str, tmp_path: Path) -> None:
    """A 429 does not count as a failure of the item; hangup respects `retry-after`."""

    async def run() -> None:
        host, store = FakeGateway(), JobStore(store_path)
        async with open_registry(store, host) as registry:
            job = await registry.submit("job_a", Kind.CALL, "ann", CALL, items(1), lease_s=60)
            await soon(lambda: len(host.items) == 1)
            item, asked_at = host.items[0], time.monotonic()
            item.begin(b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 2\r\n\r\n", chunked=False)
            assert item.flow is not None
            assert item.retry_after_s == 2
            item.flow.call.status = 429
            item.flow.end(reasons.ENGINE_REFUSED)
            await soon(lambda: len(host.items) == 2)
            assert time.monotonic() - asked_at >= 1.9
            assert [entry.cause for entry in host.booked] == ["shed"], "it has completed nothing"
            answered(item)
            await soon(lambda: registry.active_job(job) is None)
            assert (await store.do(lambda: store.jobs.get(job.key))).status is JobStatus.COMPLETED

    asyncio.run(run())


def test_killing_one_item_leaves_the_batch_alone(tmp_path: Path) -> None:
    with (
        StandIn(slots=4, token_s=0.2, answer_tokens=20) as engine,
        Gateway(engine.url, jobs=tmp_path / "jobs.sqlite", slots=2) as gateway,
    ):
        sdk = client(gateway.url)
        id = start_batch(sdk, [line(f"r{n}", max_tokens=20) for n in range(5)])
        wait_until(lambda: engine.stats()["tokens"] > 2, what="items to run")
        killed = httpx.delete(f"{gateway.admin_url}/api/calls/{id}.0", headers={"x-hangup": "1"}, timeout=60)
        assert killed.status_code == 200, killed.text
        engine.behave(token_s=0.01)
        batch = wait_batch(sdk, id)
        assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 4, 1)
        (row,) = [json.loads(text) for text in sdk.files.content(batch.error_file_id or "").text.splitlines()]
        assert row["custom_id"] == "r0" and row["error"]["code"] == "killed"
        assert len(results(sdk, batch.output_file_id)) == 4


def test_single_calls_that_cannot_start_yet_are_not_all_claimed() -> None:
    """Each is urgent, because it need not wait behind a batch; but what a gateway has claimed is in its memory."""

    async def run() -> None:
        host, store = FakeGateway(room=0), JobStore("")
        async with open_registry(store, host, ticks=False) as registry:
            for n in range(60):
                await registry.submit(f"job_{n}", Kind.CALL, "ann", CALL, items(1), lease_s=600)
            claimed = await store.do(lambda: store.jobs.claimed_by(registry.worker))
            assert 0 < len(claimed) <= 16
            host.room = 1000
            registry.runner.wake("ann")
            await soon(lambda: len(host.items) == 60)

    asyncio.run(run())
