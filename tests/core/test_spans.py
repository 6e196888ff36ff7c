"""The spans of a call: names, times, parents and attributes."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from hangup.core import reasons
from hangup.core.call import Call
from hangup.core.reaper import PendingStop, StopState
from hangup.core.reasons import Reason
from hangup.core.spans import keeps, settled, spans


def spans_of(call: Call) -> list[dict[str, Any]]:
    numbers = count(1)
    return spans(call, lambda moment: int(moment * 10), lambda: f"id{next(numbers)}")


def attributes_of(span: dict[str, Any]) -> dict[str, str]:
    return {row["key"]: next(iter(row["value"].values())) for row in span.get("attributes", [])}


def start(route: str = "openai.chat", backend: str = "10.0.0.1:8000") -> Call:
    call = Call("c", 1.0)
    call.trace_id, call.span_id, call.parent_id = "t", "s", "p"
    call.route, call.model, call.tenant, call.tokens_in = route, "m", "ann", 7
    call.received(2.0)
    call.sent(backend, 3.0)
    call.answered(4.0)
    call.client_answer_began(200)
    return call


def test_a_call_that_completed() -> None:
    call = start()
    call.progressed(5, 6.0)
    call.engine_finished = True
    call.end(reasons.COMPLETED, 9.0)
    whole, *parts = spans_of(call)
    assert (whole["traceId"], whole["spanId"], whole["parentSpanId"], whole["name"]) == ("t", "s", "p", "chat m")
    assert (whole["kind"], whole["status"], whole["startTimeUnixNano"], whole["endTimeUnixNano"]) == (2, {}, "10", "90")
    assert attributes_of(whole) == {
        "http.response.status_code": "200",
        "hangup.call_id": "c",
        "hangup.tenant": "ann",
        "hangup.route": "openai.chat",
        "hangup.backend": "10.0.0.1:8000",
        "hangup.outcome": "completed",
        "hangup.cause": "completed",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": "7",
        "gen_ai.usage.output_tokens": "5",
    }
    assert [(p["name"], p["startTimeUnixNano"], p["endTimeUnixNano"]) for p in parts] == [
        ("queue", "20", "30"),
        ("first token", "30", "60"),
        ("stream", "60", "90"),
        ("release", "90", "90"),
    ]
    assert all((p["traceId"], p["parentSpanId"]) == ("t", "s") for p in parts)
    assert [p["kind"] for p in parts] == [1, 3, 1, 1]
    assert attributes_of(parts[1]) == {"server.address": "10.0.0.1", "server.port": "8000", "hangup.attempts": "1"}
    assert len({p["spanId"] for p in parts}) == 4 and attributes_of(parts[-1]) == {"hangup.release": "finished"}


def test_a_call_that_was_left_and_whose_engine_took_its_time() -> None:
    call = start(backend="gpu")
    call.slot, call.engine_id = 0, "hu-1"
    call.end(reasons.CLIENT_FIN, 9.0)
    stop = PendingStop("c", 9.0)
    call.pending_stops = (stop,)
    assert not settled(call)
    stop.zombie_since = 9.5
    assert not settled(call)
    stop.release(StopState.VERIFIED, 12.0)
    assert settled(call)
    whole, *parts = spans_of(call)
    assert whole["status"] == {} and "error.type" not in attributes_of(whole), "a hang-up is no error of the server"
    assert attributes_of(whole)["hangup.cause"] == "fin"
    assert attributes_of(whole).items() >= {"hangup.slot": "0", "hangup.engine_id": "hu-1", "hangup.backend": "gpu"}.items()
    assert attributes_of(parts[1]) == {"server.address": "gpu", "hangup.attempts": "1"}
    assert [(p["name"], p["startTimeUnixNano"], p["endTimeUnixNano"]) for p in parts] == [
        ("queue", "20", "30"),
        ("first token", "30", "90"),
        ("release", "90", "120"),
    ]
    assert attributes_of(parts[-1]) == {"hangup.release": "verified"}


def test_a_call_that_no_engine_had() -> None:
    waited, refused = Call("w", 1.0), Call("r", 1.0)
    waited.received(2.0)
    waited.end(reasons.QUEUE_FULL, 5.0)
    refused.end(reasons.NOT_FOUND, 2.0)
    whole, queue = spans_of(waited)
    assert (queue["name"], queue["startTimeUnixNano"], queue["endTimeUnixNano"]) == ("queue", "20", "50")
    assert [span["name"] for span in spans_of(refused)] == ["HTTP"] and settled(refused)
    assert not any(name.startswith("gen_ai.") for name in attributes_of(whole))


def test_operations_go_by_the_kind_of_call() -> None:
    names = {}
    for route in ("anthropic.messages", "openai.completions", "llamacpp.completion", "openai.embeddings", "openai.realtime"):
        call = start(route)
        call.end(reasons.COMPLETED, 9.0)
        names[route] = spans_of(call)[0]["name"]
    assert list(names.values()) == ["chat m", "text_completion m", "text_completion m", "embeddings m", "openai.realtime m"]


@pytest.mark.parametrize(
    ("reason", "status", "error"),
    [
        (reasons.COMPLETED, 200, ""),
        (reasons.COMPLETED, 404, ""),  # the engine's own 404: the request was at fault
        (reasons.BAD_FIELD, 400, ""),
        (reasons.CLIENT_RESET, 200, ""),
        (reasons.CLIENT_DEADLINE, 504, ""),
        (reasons.OUTPUT_TOKENS, 200, ""),
        (reasons.TENANT_TOKENS, 429, ""),
        (reasons.QUEUE_FULL, 503, "queue_full"),
        (reasons.ENGINE_DIED, 200, "engine_died"),  # in the midst of a stream
        (reasons.GAP_TIME, 200, "gap_s"),
        (reasons.INTERNAL, 500, "internal_error"),
    ],
)
def test_only_what_the_server_failed_at_is_an_error(reason: Reason, status: int, error: str) -> None:
    call = start()
    call.client_answer_began(status)
    call.end(reason, 9.0)
    whole = spans_of(call)[0]
    assert whole["status"] == ({"code": 2, "message": error} if error else {})
    assert attributes_of(whole).get("error.type", "") == error


def test_an_answer_without_tokens_has_no_first_token() -> None:
    for route in ("openai.embeddings", "rerank"):
        call = start(route)
        call.progressed(0, 6.0)
        call.engine_finished = True
        call.end(reasons.COMPLETED, 9.0)
        whole, *parts = spans_of(call)
        assert [part["name"] for part in parts] == ["queue", "answer", "release"]
        assert (parts[1]["startTimeUnixNano"], parts[1]["endTimeUnixNano"]) == ("30", "90")
        assert "gen_ai.usage.output_tokens" not in attributes_of(whole)


def test_values_of_all_kinds() -> None:
    call = start()
    call.trace_attributes = {"a": [1, "x"], "b": 0.5, "c": True, "d": [], "e": ""}
    call.end(reasons.COMPLETED, 9.0)
    values = {row["key"]: row["value"] for row in spans_of(call)[0]["attributes"]}
    assert values["a"] == {"arrayValue": {"values": [{"intValue": "1"}, {"stringValue": "x"}]}}
    assert (values["b"], values["c"]) == ({"doubleValue": 0.5}, {"boolValue": True}) and not {"d", "e"} & values.keys()


def test_numbers_that_no_collector_takes_are_left_out() -> None:
    """One of them would lose the whole batch of traces: OTLP's integers have 64 bits, and JSON has no infinity."""
    call = start()
    call.tokens_in = 2**64
    good = {"low": -(2**63), "high": 2**63 - 1, "half": 0.5}
    call.trace_attributes = good | {"seed": 2**63, "under": -(2**63) - 1, "inf": float("inf"), "nan": float("nan")}
    call.end(reasons.COMPLETED, 9.0)
    values = {row["key"]: row["value"] for row in spans_of(call)[0]["attributes"]}
    assert (values["low"], values["high"]) == ({"intValue": str(-(2**63))}, {"intValue": str(2**63 - 1)})
    assert values["half"] == {"doubleValue": 0.5}
    assert not {"seed", "under", "inf", "nan", "gen_ai.usage.input_tokens"} & values.keys()


def kept(share: float, reason: Reason = reasons.COMPLETED, first_token_at: float = 2.0, **fields: Any) -> bool:
    call = start()
    call.parent_id, call.trace_id = "", "f" * 32
    call.progressed(1, first_token_at)
    for name, value in fields.items():
        setattr(call, name, value)
    call.end(reason, first_token_at + 1)
    return keeps(call, share, slow_s=10.0)


def test_of_ordinary_calls_a_share_is_kept_and_of_strange_ones_all() -> None:
    """trace_share and trace_slow_s"""
    assert kept(1.0) and not kept(0.0) and not kept(0.99)
    half = [kept(0.5, trace_id=f"{0:016x}{at * 2**58:016x}") for at in range(64)]
    assert half == [True] * 32 + [False] * 32
    assert kept(0.0, reasons.CLIENT_FIN) and kept(0.0, reasons.ENGINE_DIED) and kept(0.0, attempts=2)
    assert kept(0.0, parent_id="p"), "the client samples its trace"
    assert kept(0.0, first_token_at=11.1) and not kept(0.0, first_token_at=10.9)
