"""Large answers of job items are not parsed, which would delay every call, and are limited in size."""

from __future__ import annotations

import asyncio
import types
from typing import Any

import orjson
import pytest

from hangup.core import reasons
from hangup.core.jobs import Kind
from hangup.gateway.jobs import batches
from hangup.gateway.jobs.item_client import LARGE_BYTES
from hangup.gateway.store.jobs import JobStore, NewItem
from support.job_registry import FakeGateway, FakeItemCall, answered, open_registry
from support.waiting import soon

PATH = "/v1/embeddings"
SHAPES: dict[Kind, dict[str, Any]] = {
    Kind.BATCH: {"endpoint": PATH, "input_file_id": "f", "completion_window": "24h", "headers": {}},
    Kind.CALL: {"path": PATH, "model": "m", "stream": False, "headers": {}},
    Kind.MESSAGES: {},
}
LARGE = orjson.dumps({"data": [n / 7 for n in range(LARGE_BYTES // 10)], "text": 'a "quoted" \\ text, ä'})

INDENTED = orjson.dumps(orjson.loads(LARGE), option=orjson.OPT_INDENT_2)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Yield the sizes of what is parsed where results are made."""
    sizes: list[int] = []

    def loads(data: bytes) -> Any:
        sizes.append(len(data))
        return orjson.loads(data)

    monkeypatch.setattr(batches, "orjson", types.SimpleNamespace(**{**vars(orjson), "loads": loads}))
    return sizes


def stored_result(kind: Kind, body: bytes, status: int = 200) -> Any:
    """Return what the store has of an item with this answer."""

    async def run() -> Any:
        host, store = FakeGateway(), JobStore("")
        async with open_registry(store, host) as registry:
            job = await registry.submit("batch_b", kind, "ann", SHAPES[kind], [NewItem("c", PATH, b"{}")], window_s=60)
            await soon(lambda: bool(host.items))
            answered(host.items[0], body, status)
            await soon(lambda: registry.active_job(job) is None)
            (row,) = await store.do(lambda: store.jobs.results(job.key, 0, 1))
            assert row.body is not None and b"\n" not in row.body[:-1], "it is one line"
            return orjson.loads(row.body)

    return asyncio.run(run())


def answer_in(kind: Kind, row: Any) -> Any:
    return {Kind.BATCH: lambda: row["response"], Kind.CALL: lambda: row, Kind.MESSAGES: lambda: row["result"]}[kind]()


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("body", [LARGE, INDENTED], ids=["flat", "indented"])
def test_one_is_kept_as_it_came_and_not_parsed(kind: Kind, body: bytes, parsed: list[int]) -> None:
    shown = answer_in(kind, stored_result(kind, body))
    assert shown["message" if kind is Kind.MESSAGES else "body"] == orjson.loads(LARGE)
    assert parsed == []


def test_a_small_one_is_read(parsed: list[int]) -> None:
    assert stored_result(Kind.BATCH, b'{"id":\n"x"}')["response"]["body"] == {"id": "x"}
    assert parsed == [11]


@pytest.mark.parametrize("broken", [LARGE[:-1], LARGE + b"}", b"\xff" + LARGE, LARGE.replace(b":", b";", 1), b"x" * 100_000])
def test_what_is_no_json_is_told_as_text(broken: bytes, parsed: list[int]) -> None:
    assert stored_result(Kind.BATCH, broken)["response"]["body"] == broken.decode("utf-8", "replace")
    assert parsed == []


@pytest.mark.parametrize("kind", SHAPES)
def test_one_beyond_answer_bytes_max_ends_the_call(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeItemCall, "answer_bytes_max", len(LARGE) - 1)
    row = stored_result(kind, LARGE)
    shown = answer_in(kind, row)
    if kind is Kind.MESSAGES:
        assert shown["type"] == "errored"
    else:
        assert shown["status" if kind is Kind.CALL else "status_code"] == reasons.ANSWER_BYTES.status
    assert "answer_bytes_max" in str(shown)
