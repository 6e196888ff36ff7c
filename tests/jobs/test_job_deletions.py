"""Jobs and files that are deleted or pruned while somebody reads or checks them, and the space that pruning frees."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from hangup.core.jobs import Cause, JobStatus, Kind
from hangup.errors import Refusal
from hangup.gateway.jobs.batches import Batches
from hangup.gateway.jobs.files import Gone, parts
from hangup.gateway.store.database import Database
from hangup.gateway.store.jobs import JobStore, NewItem
from support.job_registry import BATCH, FakeGateway, answered, items, open_registry
from support.jobs import client, line, start_batch, upload, wait_batch
from support.processes import Gateway, StandIn
from support.waiting import soon


class TestReading:
    def test_results_that_are_pruned_while_they_are_read(self, store_path: str) -> None:
        async def run() -> None:
            host, store = FakeGateway(), JobStore(store_path)
            async with open_registry(store, host) as registry:
                batches = registry.shapes[Kind.BATCH]
                assert isinstance(batches, Batches)
                job = await registry.submit("batch_b", Kind.BATCH, "ann", BATCH, items(300), window_s=60)
                await soon(lambda: len(host.items) == 300)
                for item in host.items:
                    answered(item)
                await soon(lambda: registry.active_job(job) is None)
                file = await store.do(lambda: store.files.find("file-b-output", "ann"))
                assert file is not None
                lines = batches.result_lines(file, "ann")
                assert await anext(lines)
                await registry.prune(-1)
                with pytest.raises(Gone):
                    await anext(lines)

        asyncio.run(run())

    def test_a_file_that_is_deleted_while_it_is_read(self, store_path: str) -> None:
        async def run() -> None:
            host, store = FakeGateway(), JobStore(store_path)
            async with open_registry(store, host) as registry:

                def write() -> Any:
                    key = store.files.begin("file-a", "ann", 0.0)
                    for n in range(3):
                        store.files.add_part(key, n, b"x" * 1000)
                    return store.files.mark_ready(key, "batch", "f", None)

                file = await store.do(write)
                assert [len(part) async for part in parts(registry, file)] == [1000] * 3
                reading = parts(registry, file)
                assert await anext(reading)
                await store.do(lambda: store.files.delete(file.key))
                with pytest.raises(Refusal, match="deleted while it was read"):
                    await anext(reading)

        asyncio.run(run())

    def test_a_download_does_not_end_cleanly(self, tmp_path: Path) -> None:
        """Over a real socket, the client sees that the file was cut off."""
        with StandIn() as engine, Gateway(engine.url, jobs=tmp_path / "jobs.sqlite") as gateway:
            sdk = client(gateway.url)
            id = upload(sdk, ["x" * 1000] * 20_000)
            with httpx.stream("GET", f"{gateway.url}/v1/files/{id}/content", timeout=60) as answer:
                pieces = answer.iter_raw(1000)
                next(pieces)
                sdk.files.delete(id)
                with pytest.raises(httpx.HTTPError):
                    list(pieces)


class TestPrune:
    def test_a_large_job_goes_in_portions(self, store_path: str) -> None:
        """Nobody waits for the whole deletion, and none of its bytes stay."""
        store = JobStore(store_path)
        jobs = store.jobs
        for n in range(3):
            job = jobs.submit(f"j{n}", Kind.BATCH, "ann", 0.0, {}, [NewItem(f"c{k}", "/", b"x" * 100) for k in range(2500)])
            jobs.cancel(job.key, Cause.CANCELLED, 1.0)
        rounds, count, more = 0, 0, True
        file = store._database.db if isinstance(store._database, Database) else None  # a server does not count changes
        while more:
            before = file.total_changes if file else 0
            pruned, more = jobs.prune(10.0)
            assert file is None or file.total_changes - before <= 4000
            count, rounds = count + pruned, rounds + 1
        assert count == 3 and rounds >= 7
        for table in ("job", "item", "ask", "answer", "file"):
            assert file is None or file.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
        assert jobs.used("ann").bytes == 0
        store.close()

    def test_the_file_shrinks(self, tmp_path: Path) -> None:
        async def run() -> None:
            path = tmp_path / "jobs.sqlite"
            store = JobStore(str(path))
            async with open_registry(store, FakeGateway()) as registry:
                registry.runner.stop()
                big = [NewItem(f"c{k}", "/", b"x" * 100_000) for k in range(300)]
                job = await registry.submit("batch_b", Kind.BATCH, "ann", BATCH, big, window_s=60)
                await registry.cancel(job, Cause.CANCELLED)
                assert path.stat().st_size > 25_000_000
                await registry.prune(-1)
            assert path.stat().st_size < 5_000_000, "closed, so all of it is in the file"

        asyncio.run(run())


class TestLines:
    def test_one_that_is_nested_too_deeply_is_told_by_its_number(self, tmp_path: Path) -> None:
        with StandIn() as engine, Gateway(engine.url, jobs=tmp_path / "jobs.sqlite") as gateway:
            sdk = client(gateway.url)
            deep: Any = "x"
            for _ in range(300):
                deep = [deep]
            batch = wait_batch(sdk, start_batch(sdk, [line("a"), line("b", metadata=deep)]))
            assert batch.status == "failed" and batch.errors.data[0].line == 2
            assert "levels deep" in batch.errors.data[0].message

    def test_an_input_that_is_deleted_while_it_is_checked(self, store_path: str, tmp_path: Path) -> None:
        """Either all of it runs, or nothing, and the job says why."""

        async def run() -> None:
            host, store = FakeGateway(), JobStore(store_path)
            async with open_registry(store, host) as registry:
                text = b"".join(line(f"r{n}").encode().ljust(1023) + b"\n" for n in range(600))

                def write() -> Any:
                    key = store.files.begin("file-a", "ann", 0.0)
                    for n in range(3):
                        store.files.add_part(key, n, text[n * 204_800 : (n + 1) * 204_800])
                    return store.files.mark_ready(key, "batch", "f", None)

                file = await store.do(write)
                real = store.files.part

                def part(key: int, n: int) -> bytes | None:
                    if n == 2:
                        store.files.delete(file.key)
                    return real(key, n)

                store.files.part = part  # type: ignore[method-assign]
                about = BATCH | {"input_file_id": "file-a"}
                job = await registry.submit("batch_b", Kind.BATCH, "ann", about, None, window_s=60)
                assert registry.check_lines is not None
                await registry.check_lines(job)
                ended = await store.do(lambda: store.jobs.get(job.key))
                assert ended.status is JobStatus.FAILED and "deleted" in ended.about["problems"][0]["message"]

        asyncio.run(run())
