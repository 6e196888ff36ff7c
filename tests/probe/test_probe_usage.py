"""Usage that an API reports afterwards: ids, records, and what they say about calls whose clients left."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from hangup.probe.connection import ProbeConnection
from hangup.probe.dialects import DIALECTS, Wish
from hangup.probe.usage import (
    RECORD_SOURCES,
    Charged,
    UsageRecord,
    id_in_event,
    id_in_headers,
    judge_usage,
    read_generation,
    read_response,
    source_of,
)
from hangup.probe.verdict import Ruling


def test_ids() -> None:
    assert id_in_headers({"x-generation-id": "gen-1"}) == "gen-1"
    assert id_in_event(b"{}", {"id": "gen-1234567890"}) == "gen-1234567890"
    assert id_in_event(b"{}", {"response": {"id": "resp_1"}, "id": "x"}) == "resp_1"
    vercel = b'{"id":"chatcmpl-1","x":{"gateway":{"generationId":"gen_01ARZ3NDEKTSV4RRFFQ69G5FAV"}}}'
    assert id_in_event(vercel, {"id": "chatcmpl-1"}) == "gen_01ARZ3NDEKTSV4RRFFQ69G5FAV"
    assert id_in_event(b'{"content":"generation"}', {"id": "chatcmpl-1"}) == ""
    assert source_of("chatcmpl-1") is None and source_of("") is None


def test_pages_are_of_one_id() -> None:
    generation, response = RECORD_SOURCES
    assert generation.page("gen-1") == "/v1/generation?id=gen-1"
    assert response.page("resp_1/../x?") == "/v1/responses/resp_1%2F..%2Fx%3F"


@pytest.mark.parametrize(
    ("page", "tokens"),
    [
        ({"data": {"native_tokens_completion": 25, "tokens_completion": 30}}, 25),
        ({"data": {"native_tokens_completion": None, "tokens_completion": 30}}, 30),
        ({"tokens_completion": 7}, 7),
    ],
)
def test_generations(page: object, tokens: int) -> None:
    assert read_generation(page) == UsageRecord(tokens)


@pytest.mark.parametrize("page", [None, [], {}, {"data": 3}, {"data": {"tokens_completion": True}}, {"error": {"code": 404}}])
def test_what_is_no_record(page: object) -> None:
    assert read_generation(page) is None and read_response(page) is None


def test_responses() -> None:
    page = {"object": "response", "status": "in_progress", "usage": None}
    assert read_response(page) == UsageRecord(None, "in_progress") and not UsageRecord(None, "in_progress").is_final
    done = {"object": "response", "status": "cancelled", "usage": {"output_tokens": 9}}
    assert read_response(done) == UsageRecord(9, "cancelled") and UsageRecord(9, "cancelled").is_final


@pytest.mark.parametrize(
    ("records", "ruling"),
    [
        ([UsageRecord(100)], Ruling.NEVER),
        ([UsageRecord(85)], Ruling.NEVER),
        ([UsageRecord(60)], Ruling.LATE),
        ([UsageRecord(28)], Ruling.STOPPED),
        ([UsageRecord(10)], Ruling.STOPPED),
        ([UsageRecord(0)], Ruling.UNTOLD),  # fewer than the client got: cancelled calls are left out
        ([None], Ruling.UNTOLD),
        ([UsageRecord(40, "in_progress")], Ruling.UNTOLD),
        ([UsageRecord(None, "cancelled")], Ruling.STOPPED),
        ([UsageRecord(None, "incomplete")], Ruling.NEVER),
        ([UsageRecord(None, "failed")], Ruling.UNTOLD),
        ([UsageRecord(100), UsageRecord(10)], Ruling.PARTLY),
        ([UsageRecord(60), UsageRecord(10)], Ruling.LATE),
        ([UsageRecord(10), None], Ruling.UNTOLD),
    ],
)
def test_verdicts(records: list[UsageRecord | None], ruling: Ruling) -> None:
    found = judge_usage([Charged(10, 90, record) for record in records], "/v1/generation", within_tokens=20)
    assert found.ruling is ruling, found
    assert found.stopped_s is None, "usage says nothing about when"
    if ruling is not Ruling.UNTOLD and all(record is not None and record.tokens is not None for record in records):
        counted = sum(record.tokens or 0 for record in records if record is not None)
        assert found.tokens == counted - 10 * len(records) and "not what its engine did" in found.evidence


def test_newer_models_want_another_limit() -> None:
    body = DIALECTS["openai"].body(Wish("m", "p", 8, True, extra=False, newer=True))
    assert body["max_completion_tokens"] == 8 and "max_tokens" not in body


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        (None, 15.0),  # not reported: from the events
        (13, 13),  # as reported, with each event or with the last one
        (3, 15.0),  # fewer than came: only the first event reported it
        (1_000_000, 15.0),  # cannot be true
    ],
)
def test_tokens_that_came(usage: int | None, tokens: float) -> None:
    with socket.socket() as sock:
        call = ProbeConnection(DIALECTS["openai"], sock)
        call.events, call.usage = 10, usage
        assert call.tokens(1.5) == tokens


def test_engines_are_asked_to_count_and_strict_apis_are_not() -> None:
    wish = Wish("m", "p", 8, True)
    assert DIALECTS["openai"].body(wish)["stream_options"]["include_usage"] is True
    assert "stream_options" not in DIALECTS["openai"].body(replace(wish, extra=False))
    assert "stream_options" not in DIALECTS["openai"].body(replace(wish, stream=False)), "it is refused without a stream"
