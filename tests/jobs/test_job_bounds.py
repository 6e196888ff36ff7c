"""What jobs may hold: results that wait for the store, events, results being read, and parts of abandoned uploads."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from hangup.config import LimitSettings
from hangup.core import reasons
from hangup.core.account import Entry
from hangup.core.jobs import ItemState, Kind
from hangup.gateway.apis.routes import Router
from hangup.gateway.http.sse import Splitter
from hangup.gateway.jobs import batches, input_lines, responses
from hangup.gateway.jobs.event_log import EventLog
from hangup.gateway.jobs.input_lines import InputLines
from hangup.gateway.jobs.item_client import LARGE_BYTES, ItemClient
from hangup.gateway.jobs.upload import Upload
from hangup.gateway.kinds.local import LocalRequest
from hangup.gateway.store.jobs import JobStore, NewItem
from hangup.gateway.store.jobs import table as job_table
from support.job_registry import FakeGateway, answered, open_registry
from support.waiting import soon

PATH = "/v1/chat/completions"
BATCH: dict[str, Any] = {"endpoint": PATH, "input_file_id": "f", "completion_window": "24h", "headers": {}}
RESPONSE: dict[str, Any] = {"path": "/v1/responses", "stream": False, "request": {"model": "m"}, "headers": {}}


def counted(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[int]:
    """Yield the sizes of the answers that this module parses."""
    sizes: list[int] = []
    real = batches.parsed_body

    def parsed_body(item: ItemClient) -> Any:
        sizes.append(len(item.body))
        return real(item)

    monkeypatch.setattr(module, "parsed_body", parsed_body)
    return sizes


def items(count: int) -> list[NewItem]:
    return [NewItem(f"c{n}", PATH, b"{}") for n in range(count)]


class Slow:
    """A store whose writes of results wait until the test lets them continue."""

    def __init__(self, store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_write = threading.Event()
        finish = store.jobs.finish

        def slow(*arguments: Any) -> Any:
            assert self.may_write.wait(60)
            return finish(*arguments)

        monkeypatch.setattr(store.jobs, "finish", slow)


def test_no_item_starts_while_too_many_results_wait_for_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """job_results_held_bytes_max"""

    async def main() -> None:
        store = JobStore("")
        slow = Slow(store, monkeypatch)
        host = FakeGateway(room=2, limits=LimitSettings(job_results_held_bytes_max=10_000))
        async with open_registry(store, host) as registry:
            await registry.submit("batch_b", Kind.BATCH, "ann", BATCH, items(6), window_s=3600)
            await soon(lambda: len(host.items) == 2)
            writer = registry.runner.writer
            host.room = 3  # of which one is answered: so that another could start
            answered(host.items[0], orjson.dumps("x" * 20_000))
            assert writer.full
            for _ in range(50):
                await asyncio.sleep(0)
            assert len(host.items) == 2, "none starts before the result is written"
            slow.may_write.set()
            await soon(lambda: len(host.items) == 3, "the next item")
            assert not writer.full
            host.room = 100
            registry.runner.wake("ann")
            done = 1
            while done < 6:
                await soon(lambda at=done: len(host.items) > at, "the next item")
                answered(host.items[done])
                done += 1
            await soon(lambda: writer.ended_by_state[ItemState.SUCCEEDED] == 6)
            assert writer.held_bytes == 0

    asyncio.run(main())


def test_items_start_again_after_results_that_came_during_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is exceeded only while another result is being written, and no longer once that is done."""

    async def main() -> None:
        store = JobStore("")
        host = FakeGateway(room=2, limits=LimitSettings(job_results_held_bytes_max=15_000))
        async with open_registry(store, host, ticks=False) as registry:
            await registry.submit("batch_b", Kind.BATCH, "ann", BATCH, items(3), window_s=3600)
            await soon(lambda: len(host.items) == 2)
            writer, slow = registry.runner.writer, Slow(store, monkeypatch)
            answered(host.items[0], orjson.dumps("x" * 10_000))
            await soon(lambda: writer._writing and not writer._outcomes, "the write of the first result")
            answered(host.items[1], orjson.dumps("x" * 10_000))
            host.room = 3
            for _ in range(50):
                await asyncio.sleep(0)
            assert writer.full
            assert len(host.items) == 2, "the third item has to wait"
            slow.may_write.set()
            await soon(lambda: len(host.items) == 3, "the third item")

    asyncio.run(main())


def test_a_failure_after_a_write_neither_repeats_it_nor_counts_it_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure of the ledger or the log, for example: the results are on disk by then."""

    async def main() -> None:
        store, host = JobStore(""), FakeGateway()
        async with open_registry(store, host) as registry:
            job = await registry.submit("batch_b", Kind.BATCH, "ann", BATCH, items(3), window_s=3600)
            await soon(lambda: len(host.items) == 3)
            writer, booked = registry.runner.writer, list[str]()

            def record_cost(entry: Entry) -> None:
                booked.append(entry.cause)
                if len(booked) == 2:
                    raise KeyError("a bug")

            monkeypatch.setattr(host, "record_cost", record_cost)
            for item in host.items:
                answered(item, orjson.dumps("x" * 10_000))
            await soon(lambda: registry.active_job(job) is None, "the end of the job")
            await soon(lambda: writer.idle)
            assert (writer.held_bytes, writer.refused) == (0, 0)
            assert booked == ["completed"] * 3, "none as wasted, none twice"
            assert [type(fault) for fault in host.faults] == [KeyError]

    asyncio.run(main())


@pytest.mark.parametrize("step", ["prepare_item", "render_result"])
def test_a_bug_costs_one_item_its_result_and_no_item_its_end(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        store, host = JobStore(""), FakeGateway()
        async with open_registry(store, host) as registry:
            real, failures = getattr(registry, step), list[str]()

            def failing(*arguments: Any) -> Any:
                if not failures:
                    failures.append(step)
                    raise KeyError("a bug")
                return real(*arguments)

            monkeypatch.setattr(registry, step, failing)
            job = await registry.submit("batch_b", Kind.BATCH, "ann", BATCH, items(3), window_s=3600)
            await soon(lambda: len(host.items) == (2 if step == "prepare_item" else 3))
            for item in host.items:
                answered(item)
            await soon(lambda: registry.active_job(job) is None, "the end of the job")
            rows = await store.do(lambda: store.jobs.results(job.key, 0, 9))
            assert sorted(row.state.name for row in rows) == ["ERRORED", "SUCCEEDED", "SUCCEEDED"]
            lines = [orjson.loads(batches._result_line(job, row)) for row in rows]
            assert [line["custom_id"] for line in lines] == ["c0", "c1", "c2"], "a line without its id is lost"

    asyncio.run(main())


def test_an_answer_that_is_too_deep_to_be_written_is_kept_as_text() -> None:
    deep = b'{"a":' * 300 + b"1" + b"}" * 300

    async def main() -> None:
        store, host = JobStore(""), FakeGateway()
        async with open_registry(store, host) as registry:
            job = await registry.submit("batch_b", Kind.BATCH, "ann", BATCH, items(1), window_s=3600)
            await soon(lambda: bool(host.items))
            answered(host.items[0], deep)
            await soon(lambda: registry.active_job(job) is None)
            (row,) = await store.do(lambda: store.jobs.results(job.key, 0, 9))
            line = orjson.loads(row.body or b"")
            assert (line["custom_id"], line["response"]["body"]) == ("c0", deep.decode())
            assert host.faults == []

    asyncio.run(main())


def test_events_are_few_however_small_they_are() -> None:
    """job_events_bytes_max: even an empty event takes room."""
    log = EventLog(100_000)
    for _ in range(100_000):
        log.add("chunk", b"")
    assert len(log.events) < 1000 and log.next_number == 100_000
    log.add("chunk", b"x" * 200_000)
    assert [len(event.data) for event in log.events] == [200_000], "the newest is kept, however large"
    assert log.last_dropped == 99_999


def test_large_results_are_read_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_table, "_READ_BYTES", 1000)

    async def main() -> None:
        store, host = JobStore(""), FakeGateway()
        async with open_registry(store, host) as registry:
            job = await registry.submit("batch_b", Kind.BATCH, "ann", BATCH, items(5), window_s=3600)
            await soon(lambda: len(host.items) == 5)
            for item in host.items:
                answered(item, orjson.dumps("x" * 600))
            await soon(lambda: registry.active_job(job) is None)
            assert [row.n for row in await store.do(lambda: store.jobs.results(job.key, 0, 200))] == [0, 1]
            file = await store.do(lambda: store.files.find("file-b-output", "ann"))
            assert file is not None
            api = registry.shapes[Kind.BATCH]
            assert isinstance(api, batches.Batches)
            pieces = [piece async for piece in api.result_lines(file, "ann")]
            assert len(pieces) == 3
            rows = [orjson.loads(line) for line in b"".join(pieces).splitlines()]
            assert [row["custom_id"] for row in rows] == [f"c{n}" for n in range(5)]

    asyncio.run(main())


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("kind", [Kind.RESPONSE, Kind.MESSAGES])
def test_a_large_error_is_not_parsed(kind: Kind, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = counted(monkeypatch, batches)

    async def main() -> None:
        store, host = JobStore(""), FakeGateway()
        async with open_registry(store, host) as registry:
            body = orjson.dumps({"error": {"message": "m" * (10 * LARGE_BYTES if large else 10)}})
            about = RESPONSE if kind is Kind.RESPONSE else {}
            await registry.submit("resp_r", kind, "ann", about, items(1), lease_s=3600)
            await soon(lambda: bool(host.items))
            item = host.items[0]
            answered(item, body, 400)
            await soon(lambda: registry.runner.writer.ended_by_state[ItemState.ERRORED] == 1)

    asyncio.run(main())
    assert sizes == ([] if large else [len(b'{"error":{"message":"mmmmmmmmmm"}}')])


@pytest.mark.parametrize("values", [100, 3 * responses._PARSED_VALUES_MAX])
def test_a_response_of_very_many_values_is_not_parsed(values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = counted(monkeypatch, responses)

    async def main() -> None:
        store, host = JobStore(""), FakeGateway()
        host_limits = host.limits
        async with open_registry(store, host) as registry:
            job = await registry.submit("resp_r", Kind.RESPONSE, "ann", RESPONSE, items(1), lease_s=3600)
            await soon(lambda: bool(host.items))
            flow: Any = host.items[0].flow
            flow.answer_bytes_max = host_limits.answer_bytes_max
            answered(host.items[0], orjson.dumps({"id": "resp_engine", "output": [1] * values}))
            await soon(lambda: registry.active_job(job) is None)
            (row,) = await store.do(lambda: store.jobs.results(job.key, 0, 1))
            stored = orjson.loads(row.body or b"")
            assert (stored["id"], stored["background"], len(stored["output"])) == ("resp_r", True, values)

    asyncio.run(main())
    assert bool(sizes) == (values == 100)


def test_a_streamed_response_is_put_together_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is parsed again at its end: an answer of many thousand events would delay every call."""
    whole: list[int] = []

    class Counting(Splitter):
        def feed(self, payload: bytes) -> list[bytes]:
            whole.append(len(payload))
            return super().feed(payload)

    monkeypatch.setattr(responses, "Splitter", Counting)

    def event(value: dict[str, Any]) -> bytes:
        return b"data: " + orjson.dumps(value) + b"\n\n"

    async def main() -> None:
        store, host = JobStore(""), FakeGateway()
        async with open_registry(store, host) as registry:
            about = {**RESPONSE, "stream": True}
            job = await registry.submit("resp_r", Kind.RESPONSE, "ann", about, items(1), lease_s=3600)
            await soon(lambda: bool(host.items))
            item = host.items[0]
            final = {"id": "e", "object": "response", "status": "completed", "output": [{"type": "message"}]}
            item.begin(b"", chunked=False)
            item.send(event({"type": "response.created", "response": {"id": "e", "status": "in_progress"}}))
            for _ in range(50):
                item.send(event({"type": "response.output_text.delta", "delta": "x"}))
            item.send(event({"type": "response.completed", "response": final}))
            whole_before = len(whole)
            assert item.flow is not None
            item.flow.call.status = 200
            item.flow.end(reasons.COMPLETED)
            await soon(lambda: registry.active_job(job) is None)
            assert len(whole) == whole_before == 52
            (row,) = await store.do(lambda: store.jobs.results(job.key, 0, 1))
            stored = orjson.loads(row.body or b"")
            assert (stored["id"], stored["status"], stored["output"]) == ("resp_r", "completed", [{"type": "message"}])

    asyncio.run(main())


def test_a_line_of_very_many_values_is_counted_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """json_elements_max, for the lines of a batch: parsing one blocks the interpreter, in whichever thread."""
    parsed: list[int] = []
    fake = SimpleNamespace(**{**vars(orjson), "loads": lambda line: parsed.append(len(line))})
    monkeypatch.setattr(input_lines, "orjson", fake)
    lines = InputLines(PATH, Router(()), LimitSettings(json_elements_max=1000))
    body = {"messages": [1] * 5000}
    line = orjson.dumps({"custom_id": "c", "method": "POST", "url": PATH, "body": body})
    assert lines.feed(line + b"\n") == []
    assert [problem["code"] for problem in lines.problems] == ["invalid_request"] and "values" in lines.problems[0]["message"]
    assert parsed == []


START = b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
START += b'--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n'


def test_an_upload_that_is_left_while_it_is_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client may hang up while the first part is being written: nobody else owns the file that it begins."""

    async def main() -> None:
        store = JobStore(str(tmp_path / "jobs.sqlite"))
        async with open_registry(store, FakeGateway()) as registry:
            held, go_on, begin = threading.Event(), threading.Event(), store.files.begin

            def slow(*arguments: Any) -> int:
                held.set()
                assert go_on.wait(60)
                return begin(*arguments)

            monkeypatch.setattr(store.files, "begin", slow)
            upload = Upload(registry, "ann", b"multipart/form-data; boundary=b", lambda on: None)
            upload.feed(START + b"x" * 1_000_000)
            await asyncio.to_thread(held.wait, 60)
            upload.close()
            await asyncio.sleep(0)
            go_on.set()
            await soon(lambda: len(registry._tasks) == 0, "the end of what the upload began")
            assert (await store.do(lambda: store.jobs.used("ann"))).bytes == 0

    asyncio.run(main())


def test_the_task_of_a_refused_upload_may_never_begin() -> None:
    """Therefore the call closes the upload, not its task."""
    closed: list[str] = []
    request = object.__new__(LocalRequest)
    request._relay = None
    request._job_request = cast(Any, SimpleNamespace(upload=SimpleNamespace(close=lambda: closed.append("closed"))))
    request._drop_references()
    assert closed == ["closed"]
