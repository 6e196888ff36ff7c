"""The metrics of calls: their labels and bounds, an engine's refusals, exemplars, and the process's own figures."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from admin.test_otlp import PARENT, TRACE, collector
from support.processes import Gateway, StandIn, gateway_and_engine
from support.raw import ask
from support.waiting import wait_until

CHAT, EMBED = "/v1/chat/completions", "/v1/embeddings"
OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with gateway_and_engine() as (started, _):
        yield started


def samples(gateway: Gateway, name: str, accept: str = "") -> list[tuple[dict[str, str], float]]:
    """Return the labels and values of a metric."""
    lines = [line for line in page(gateway, accept)[1].splitlines() if re.match(rf"{name}[{{ ]", line)]
    return [(dict(re.findall(r'(\w+)="([^"]*)"', line)), float(line.partition(" # ")[0].rpartition(" ")[2])) for line in lines]


def page(gateway: Gateway, accept: str = "") -> tuple[str, str]:
    request = urllib.request.Request(f"{gateway.admin_url}/metrics", headers={"accept": accept} if accept else {})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.headers["content-type"], answer.read().decode()


def parsed(text: str) -> Iterator[Any]:
    """Read a page as strictly as OpenMetrics' own parser does."""
    return iter(text_string_to_metric_families(text))  # type: ignore[no-untyped-call]


def call(gateway: Gateway, id: str, path: str = CHAT, **fields: Any) -> int:
    """Make a call, and return its status once it has been counted."""
    body = {"messages": [], "max_tokens": 3} | fields
    status = ask(gateway.address, path, body, {"X-Request-Id": id}).status
    gateway.call_log(id)
    return status


def test_a_call_has_its_tenant_model_backend_and_status(gateway: Gateway) -> None:
    assert call(gateway, "one", model="big") == 200
    backend = gateway.call_log("one")["backend"]
    found = [labels for labels, _ in samples(gateway, "hangup_calls_total") if labels["model"] == "big"]
    assert found == [
        {
            "route": "openai.chat",
            "tenant": "default",
            "model": "big",
            "backend": backend,
            "outcome": "completed",
            "cause": "completed",
            "status": "2xx",
        }
    ]
    for name in ("first_token", "gap", "queue", "call"):
        counts = samples(gateway, f"hangup_{name}_seconds_count")
        assert ({"model": "big", "backend": backend}, 1.0) in counts, name
    named = {
        "gen_ai_operation_name": "chat",
        "gen_ai_provider_name": "openai",
        "gen_ai_request_model": "big",
        "backend": backend,
    }
    for name in ("time_to_first_token", "time_per_output_token", "request_duration"):
        assert (named, 1.0) in samples(gateway, f"gen_ai_server_{name}_seconds_count"), name


@pytest.mark.parametrize("status", [400, 401, 404, 429])
def test_an_engine_that_refuses_everything_is_seen(status: int) -> None:
    with gateway_and_engine(fail_status=status) as (gateway, _):
        assert call(gateway, "bad", model="m", stream=True) == status
        line = gateway.call_log("bad")
        assert (line["outcome"], line["cause"], line["status"]) == ("engine_refused", "engine_refused", status)
        ((labels, count),) = [
            (labels, count) for labels, count in samples(gateway, "hangup_calls_total") if labels["route"] == "openai.chat"
        ]
        assert (labels["outcome"], labels["status"], labels["model"], count) == ("engine_refused", "4xx", "other", 1.0)


def test_a_call_that_is_not_parsed_names_its_model_too(gateway: Gateway) -> None:
    body = {"model": "embedder", "input": "text"}
    ask(gateway.address, EMBED, body, {"X-Request-Id": "embeds"})
    assert gateway.call_log("embeds")["model"] == "embedder"
    large = {"model": "large", "input": "x" * 300_000}
    ask(gateway.address, EMBED, large, {"X-Request-Id": "embeds-much"})
    assert gateway.call_log("embeds-much")["model"] == "large"


def test_labels_are_bounded(engine: StandIn) -> None:
    """metric_label_sets_max and metric_histograms_max"""
    with Gateway(engine.url, metric_label_sets_max=8, metric_histograms_max=2) as gateway:
        for n in range(7):
            assert call(gateway, f"c{n}", model=f"model-{n}") == 200
        models = {labels["model"]: count for labels, count in samples(gateway, "hangup_calls_total") if labels["model"]}
        assert models == {"model-0": 1, "model-1": 1, "model-2": 1, "model-3": 1, "other": 3}
        timed = {labels["model"]: count for labels, count in samples(gateway, "hangup_first_token_seconds_count")}
        assert timed == {"model-0": 1, "model-1": 1, "other": 5}
        shown = samples(gateway, "gen_ai_server_request_duration_seconds_count")
        assert [count for _, count in shown] == [1, 1, 5]


def test_exemplars_name_a_trace_in_openmetrics_alone(engine: StandIn) -> None:
    with collector() as got, Gateway(engine.url, otlp_endpoint=got.url) as gateway:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "traced"}
        assert ask(gateway.address, CHAT, {"model": "m", "messages": [], "max_tokens": 3}, headers).status == 200
        gateway.call_log("traced")
        kind, text = page(gateway, OPENMETRICS)
        assert kind.startswith("application/openmetrics-text")
        families = {family.name: family for family in parsed(text)}
        for name in ("hangup_first_token_seconds", "hangup_call_seconds", "gen_ai_server_request_duration_seconds"):
            (exemplar,) = [sample.exemplar for sample in families[name].samples if sample.exemplar]
            assert exemplar.labels == {"trace_id": TRACE} and exemplar.value > 0 and float(exemplar.timestamp) > 1.7e9
        kind, text = page(gateway)
        assert kind.startswith("text/plain") and TRACE not in text


def test_the_process_itself(gateway: Gateway) -> None:
    shown = gateway.metrics()
    assert shown["process_resident_memory_bytes"] > 1e6 and shown["process_open_fds"] > 5
    before = shown["process_cpu_seconds_total"]
    wait_until(lambda: gateway.metrics()["process_cpu_seconds_total"] > before)  # each scrape takes some
