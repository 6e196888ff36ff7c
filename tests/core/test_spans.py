"""The spans of a call: names, times, parents and attributes."""

from __future__ import annotations

from itertools import count
from typing import Any

from hangup.core import reasons
from hangup.core.call import Call
from hangup.core.reaper import PendingStop, StopState
from hangup.core.spans import settled, spans


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
        "server.address": "10.0.0.1",
        "server.port": "8000",
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
    assert all((p["traceId"], p["parentSpanId"], p["kind"]) == ("t", "s", 1) for p in parts)
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
    assert whole["status"] == {"code": 2, "message": "fin"} and attributes_of(whole)["error.type"] == "fin"
    assert attributes_of(whole).items() >= {"hangup.slot": "0", "hangup.engine_id": "hu-1", "hangup.backend": "gpu"}.items()
    assert not {"server.address", "server.port"} & attributes_of(whole).keys(), "a name is no address"
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
    assert [span["name"] for span in spans_of(refused)] == ["unknown"] and settled(refused)
    assert not any(name.startswith("gen_ai.") for name in attributes_of(whole))


def test_operations_go_by_the_kind_of_call() -> None:
    names = {}
    for route in ("anthropic.messages", "openai.completions", "llamacpp.completion", "openai.embeddings", "openai.realtime"):
        call = start(route)
        call.end(reasons.COMPLETED, 9.0)
        names[route] = spans_of(call)[0]["name"]
    assert list(names.values()) == ["chat m", "text_completion m", "text_completion m", "embeddings m", "openai.realtime m"]
