"""`hangup engine` as a process, on sockets: both APIs, hang-ups in every phase, the queue, cancel by id."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from hangup.engine.serving import metrics
from support.processes import EngineProcess, Process, get_json
from support.raw import Client, ask, events

LONG = {"prompt": "ROMEO:", "max_tokens": 1000, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module", params=["off", "mtp"])
def engine(request: pytest.FixtureRequest) -> Iterator[EngineProcess]:
    with EngineProcess(slots=2, waiting_max=2, spec=request.param) as process:
        yield process


def stream(engine: EngineProcess, id: str, **fields: Any) -> Client:
    client = Client(engine.address)
    client.post("/v1/completions", {**LONG, **fields}, {"X-Request-Id": id})
    return client


def test_the_sdk_gets_chat_and_completions(engine: EngineProcess) -> None:
    sdk = openai.OpenAI(base_url=f"{engine.url}/v1", api_key="none")
    messages: Any = [{"role": "user", "content": "What say you?"}]
    whole = sdk.chat.completions.create(
        model="any",
        messages=messages,
        max_tokens=40,
        seed=1,
        n=2,
        logprobs=True,
        top_logprobs=2,
        extra_body={"ignore_eos": True},
    )
    assert [choice.finish_reason for choice in whole.choices] == ["length", "length"]
    assert whole.usage is not None and whole.usage.completion_tokens == 80
    assert whole.choices[0].message.content != whole.choices[1].message.content
    assert whole.choices[0].logprobs is not None and len(whole.choices[0].logprobs.content or []) == 40
    chunks = list(
        sdk.chat.completions.create(
            model="any",
            messages=messages,
            max_tokens=40,
            seed=1,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 40
    texts = sdk.completions.create(model="any", prompt=["ROMEO:", "JULIET:"], max_tokens=5, temperature=0)
    assert [choice.index for choice in texts.choices] == [0, 1] and texts.usage is not None
    assert [model.id for model in sdk.models.list()] == ["hangup-shakespeare"]


@pytest.mark.parametrize("leave", ["fin", "reset", "half_close"])
def test_a_client_that_leaves_in_its_stream_frees_its_slot(engine: EngineProcess, leave: str) -> None:
    before = engine.wait_for(running=0)
    client = stream(engine, f"leaver-{leave}")
    client.read_until(b"data: ")
    getattr(client, leave)()
    after = engine.wait_for(running=0)
    client.sock.close()
    assert after["cancels"] == before["cancels"] + 1
    assert after["cancelled_running"] == before["cancelled_running"] + 1


def test_a_client_that_leaves_a_whole_answer_frees_its_slot(engine: EngineProcess) -> None:
    before = engine.wait_for(running=0)
    client = stream(engine, "whole", stream=False)
    engine.wait_for(running=1)
    client.fin()
    after = engine.wait_for(running=0)
    assert after["cancelled_running"] == before["cancelled_running"] + 1


def test_the_waiting_list_is_bounded_and_those_who_leave_it_cost_nothing(engine: EngineProcess) -> None:
    before = engine.wait_for(running=0, waiting=0)
    clients = [stream(engine, f"crowd-{index}") for index in range(4)]
    engine.wait_for(running=2, waiting=2)
    refused = ask(engine.address, "/v1/completions", LONG)
    assert refused.status == 503 and refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["code"] == "queue_full"
    for client in clients[2:]:
        client.reset()
    engine.wait_for(waiting=0)
    for client in clients[:2]:
        client.reset()
    after = engine.wait_for(running=0)
    assert after["started"] == before["started"] + 2
    assert after["cancelled_waiting"] == before["cancelled_waiting"] + 2
    assert after["blocks_free"] == before["blocks_free"]


def test_a_call_is_cancelled_by_its_id_and_told(engine: EngineProcess) -> None:
    with stream(engine, "named") as client:
        client.read_until(b"data: ")
        assert [row["call"] for row in get_json(f"{engine.url}/slots") if row["is_processing"]] == ["named"]
        assert ask(engine.address, "/v1/cancel/named", b"").json() == {"cancelled": 1}
        rest = client.read_until(b"[DONE]")
        assert b'"finish_reason":"cancelled"' in rest
    assert ask(engine.address, "/v1/cancel/named", b"").status == 404


def test_many_hang_ups_leave_nothing_behind(engine: EngineProcess) -> None:
    """A crowd hangs up at random bytes; the engine's counters show that each hang-up was noticed once."""
    before = engine.wait_for(running=0, waiting=0)
    for index in range(60):
        client = stream(engine, f"many-{index}")
        if index % 3:
            client.read_until(b"data: ")
        client.reset()
    after = engine.wait_for(running=0, waiting=0)
    gone = after["cancelled_running"] + after["cancelled_waiting"] - before["cancelled_running"] - before["cancelled_waiting"]
    assert after["finished"] == before["finished"]
    assert gone == after["submitted"] - before["submitted"] == after["cancels"] - before["cancels"]
    assert after["blocks_free"] == before["blocks_free"]


@pytest.mark.parametrize(
    ("path", "fields", "hint"),
    [
        ("/v1/completions", {"prompt": "x" * 9000}, "context"),
        ("/v1/completions", {"prompt": [5000]}, "prompt"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ("/v1/completions", {"prompt": "x", "temperature": 9}, "temperature"),
        ("/v1/completions", {"prompt": "x", "n": 99}, "n must"),
        ("/v1/completions", {"prompt": "x", "echo": True}, "echo"),
        ("/v1/completions", {"prompt": "x", "stop": [1]}, "stop"),
        ("/v1/chat/completions", {"messages": []}, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "content"),
    ],
)
def test_what_it_cannot_do_it_says(engine: EngineProcess, path: str, fields: dict[str, Any], hint: str) -> None:
    answer = ask(engine.address, path, fields)
    assert answer.status == 400 and hint in answer.json()["error"]["message"]


def test_an_answer_never_outgrows_the_context(engine: EngineProcess) -> None:
    fields = {**LONG, "max_tokens": 10**6, "stream": True, "stream_options": {"include_usage": True}}
    answer = ask(engine.address, "/v1/completions", fields)
    assert events(answer.body)[-1]["usage"]["total_tokens"] == 1024


def test_it_stops_when_told_with_calls_in_flight() -> None:
    import signal

    with EngineProcess(slots=1) as engine, stream(engine, "last") as client:
        client.read_until(b"data: ")
        engine.signal(signal.SIGTERM)
        assert engine.wait() == 0
        assert client.closed_within()


def test_a_smaller_context_can_be_asked_for() -> None:
    with EngineProcess(slots=1, context_max=64, spec="draft") as engine:
        fields = {**LONG, "stream_options": {"include_usage": True}}
        assert events(ask(engine.address, "/v1/completions", fields).body)[-1]["usage"]["total_tokens"] == 64


def test_options_that_make_no_sense_are_named() -> None:
    with Process("engine", "--spec", "magic", "--slots", "0") as process:
        assert process.wait() == 2
        assert "spec: 'magic'" in process.stderr_lines[0] and "slots" in process.stderr_lines[1]


def test_every_metric_of_the_engine_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "engine.md").read_text()
    shown = {f"hangup_engine_{name}" for name in metrics.GAUGES} | {f"hangup_engine_{name}_total" for name in metrics.COUNTERS}
    assert set(re.findall(r"^\| `(hangup_engine_\w+)`", page, re.M)) == shown


class TestDeadline:
    """The gateway passes the remaining time of a client's deadline on."""

    def test_what_cannot_be_done_in_time_is_not_begun(self, engine: EngineProcess) -> None:
        assert ask(engine.address, "/v1/completions", {**LONG, "stream": False, "max_tokens": 50}).status == 200
        before = engine.counters()
        refused = ask(engine.address, "/v1/completions", LONG, {"X-Request-Timeout": "0.002"})
        assert refused.status == 503 and refused.json()["error"]["code"] == "deadline_near"
        assert engine.counters()["submitted"] == before["submitted"]

    @pytest.mark.parametrize("streams", [True, False])
    def test_what_is_not_done_in_time_is_ended_then(self, engine: EngineProcess, streams: bool) -> None:
        with Client(engine.address) as first, Client(engine.address) as second, Client(engine.address) as waits:
            for client in (first, second):
                client.post("/v1/completions", LONG)
            first.read_until(b"data:")
            second.read_until(b"data:")
            body = {**LONG, "ignore_eos": False, "stream": streams}
            waits.post("/v1/completions", body, {"X-Request-Timeout": "0.15"})
            answer = waits.read_answer()
            assert b"client_deadline" in answer.body
            assert (answer.status, answer.complete) == ((200, False) if streams else (504, True))
        engine.wait_for(running=0, waiting=0)

    def test_one_that_is_done_in_time_hears_nothing_of_it(self, engine: EngineProcess) -> None:
        few = {**LONG, "max_tokens": 3}
        answer = ask(engine.address, "/v1/completions", few, {"X-Request-Timeout": "30"})
        assert answer.complete and b"[DONE]" in answer.body
