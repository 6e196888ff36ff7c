"""Messages, responses and embeddings of our own engine, with the official SDKs: directly, and through `hangup serve` alone."""

from __future__ import annotations

import base64
import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import numpy as np
import openai
import pytest

from support.processes import EngineProcess, Gateway, get_json
from support.raw import Client, ask, events
from support.waiting import wait_until

MODEL = "hangup-shakespeare"
HELLO: Any = [{"role": "user", "content": "What say you?"}]
ENDLESS: dict[str, Any] = {"ignore_eos": True, "seed": 7}
LONG: dict[str, dict[str, Any]] = {
    "/v1/messages": {"model": MODEL, "messages": HELLO, "max_tokens": 1000, "ignore_eos": True},
    "/v1/responses": {"model": MODEL, "input": "What say you?", "max_output_tokens": 1000, "ignore_eos": True},
}
DELTA = {"/v1/messages": b"text_delta", "/v1/responses": b"output_text.delta"}
MANY = {"model": MODEL, "input": ["thou art a villain " * 100] * 400}


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineProcess]:
    with EngineProcess(slots=2, spec="mtp") as process:
        yield process


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with Gateway(slots=2) as process:
        yield process


@pytest.fixture(scope="module", params=["engine", "gateway"])
def url(request: pytest.FixtureRequest) -> str:
    found: EngineProcess | Gateway = request.getfixturevalue(request.param)
    return found.url


@pytest.fixture
def gpt(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=60) as sdk:
        yield sdk


@pytest.fixture
def claude(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="any", max_retries=0, timeout=60) as sdk:
        yield sdk


class TestMessages:
    def test_streamed_and_whole_are_the_same(self, claude: anthropic.Anthropic) -> None:
        fields: Any = {"model": MODEL, "max_tokens": 40, "messages": HELLO, "extra_body": ENDLESS}
        whole = claude.messages.create(**fields)
        assert whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 40 and whole.usage.input_tokens > 5
        with claude.messages.stream(**fields) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_message()
        assert final.content[0].to_dict()["text"] == whole.content[0].to_dict()["text"]
        assert final.usage.output_tokens == 40 and final.stop_reason == "max_tokens"
        assert final.usage.input_tokens == whole.usage.input_tokens
        assert kinds[:2] == ["message_start", "content_block_start"] and kinds[-3:][0] == "content_block_stop"
        assert kinds[-2:] == ["message_delta", "message_stop"]

    def test_the_system_prompt_and_blocks_of_text_count(self, claude: anthropic.Anthropic) -> None:
        fields: Any = {"model": MODEL, "max_tokens": 4}
        plain = claude.messages.create(**fields, messages=HELLO).usage.input_tokens
        blocks: Any = [{"role": "user", "content": [{"type": "text", "text": "What say "}, {"type": "text", "text": "you?"}]}]
        assert claude.messages.create(**fields, messages=blocks).usage.input_tokens == plain
        systems: Any = ("Speak plainly.", [{"type": "text", "text": "Speak plainly."}])
        for system in systems:
            assert claude.messages.create(**fields, messages=HELLO, system=system).usage.input_tokens > plain
        assert claude.messages.count_tokens(model=MODEL, messages=HELLO).input_tokens == plain

    def test_a_stop_sequence_is_named(self, claude: anthropic.Anthropic) -> None:
        fields: Any = {
            "model": MODEL,
            "max_tokens": 400,
            "messages": HELLO,
            "stop_sequences": ["e", "zzzz"],
            "extra_body": ENDLESS,
        }
        whole = claude.messages.create(**fields)
        assert (whole.stop_reason, whole.stop_sequence) == ("stop_sequence", "e") and "e" not in str(
            whole.content[0].to_dict()["text"]
        )
        with claude.messages.stream(**fields) as stream:
            assert stream.get_final_message().stop_sequence == "e"

    def test_errors_are_anthropics(self, claude: anthropic.Anthropic) -> None:
        with pytest.raises(anthropic.BadRequestError, match="tools") as refused:
            claude.messages.create(
                model=MODEL, max_tokens=5, messages=HELLO, tools=[{"name": "f", "input_schema": {"type": "object"}}]
            )
        body: Any = refused.value.body
        assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error"


class TestResponses:
    def test_streamed_and_whole_are_the_same(self, gpt: openai.OpenAI) -> None:
        fields: Any = {"model": MODEL, "input": "What say you?", "max_output_tokens": 40, "extra_body": ENDLESS}
        whole = gpt.responses.create(**fields)
        assert whole.status == "incomplete" and whole.incomplete_details and whole.usage and whole.usage.output_tokens == 40
        result = list(gpt.responses.create(**fields, stream=True))
        assert [event.sequence_number for event in result] == list(range(len(result)))
        assert [result[0].type, result[-1].type] == ["response.created", "response.incomplete"]
        assert "".join(event.delta for event in result if event.type == "response.output_text.delta") == whole.output_text
        assert result[-1].response.output_text == whole.output_text and result[-1].response.usage == whole.usage

    def test_one_that_comes_to_its_end_is_completed(self, gpt: openai.OpenAI) -> None:
        with gpt.responses.stream(model=MODEL, input="What say you?") as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            final = stream.get_final_response()
        assert final.status == "completed" and final.output_text == text and final.usage and final.usage.output_tokens > 0

    def test_input_is_a_text_or_messages(self, gpt: openai.OpenAI) -> None:
        fields: Any = {"model": MODEL, "max_output_tokens": 16}
        plain = gpt.responses.create(**fields, input="What say you?")
        parts: Any = [{"role": "user", "content": [{"type": "input_text", "text": "What say you?"}]}]
        inputs: Any = (HELLO, [{"type": "message", **HELLO[0]}], parts)
        same = [gpt.responses.create(**fields, input=given) for given in inputs]
        assert plain.usage and {each.usage and each.usage.input_tokens for each in same} == {plain.usage.input_tokens}
        more = gpt.responses.create(**fields, input="What say you?", instructions="Speak plainly.", metadata={"a": "b"})
        assert more.usage and more.usage.input_tokens > plain.usage.input_tokens
        assert (more.instructions, more.metadata, more.max_output_tokens) == ("Speak plainly.", {"a": "b"}, 16)


class TestEmbeddings:
    def test_texts_tokens_and_both_encodings(self, gpt: openai.OpenAI, url: str) -> None:
        both = gpt.embeddings.create(model=MODEL, input=["ROMEO:", "JULIET: good night, good night!"])
        assert [row.index for row in both.data] == [0, 1] and both.usage.prompt_tokens == both.usage.total_tokens > 2
        for row in both.data:
            assert len(row.embedding) == 128 and math.isclose(np.linalg.norm(row.embedding), 1, abs_tol=1e-4)
        one = gpt.embeddings.create(model=MODEL, input="ROMEO:", encoding_format="float").data[0].embedding
        assert np.allclose(one, both.data[0].embedding, atol=1e-5) and not np.allclose(one, both.data[1].embedding, atol=1e-2)
        raw = gpt.embeddings.with_raw_response.create(model=MODEL, input="ROMEO:", encoding_format="base64").http_response
        written = np.frombuffer(base64.b64decode(raw.json()["data"][0]["embedding"]), "<f4")
        assert np.allclose(one, written, atol=1e-5)
        tokens = gpt.embeddings.create(model=MODEL, input=[82, 79, 77, 69, 79])
        assert tokens.usage.prompt_tokens == 5 and len(tokens.data) == 1
        assert len(gpt.embeddings.create(model=MODEL, input=[[82, 79], [77]]).data) == 2

    def test_more_texts_than_slots_and_waiting_list(self, gpt: openai.OpenAI) -> None:
        texts = [f"Act {number}" for number in range(100)]
        many = gpt.embeddings.create(model=MODEL, input=texts)
        assert [row.index for row in many.data] == list(range(100))
        assert np.allclose(
            many.data[41].embedding, gpt.embeddings.create(model=MODEL, input=texts[41]).data[0].embedding, atol=1e-5
        )

    @pytest.mark.parametrize(
        "fields",
        [
            {"input": ""},
            {"input": []},
            {"input": [5000]},
            {"input": ["x", 1]},
            {"input": "x", "dimensions": 3},
            {"input": "x " * 2000},
        ],
    )
    def test_what_cannot_be_is_refused(self, gpt: openai.OpenAI, fields: dict[str, Any]) -> None:
        with pytest.raises(openai.BadRequestError):
            gpt.embeddings.create(model=MODEL, **fields)

    def test_one_of_many_that_is_too_long_is_refused_with_all(self, gpt: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError, match="context"):
            gpt.embeddings.create(model=MODEL, input=[*["fine"] * 50, "x " * 2000])


class TestHangUps:
    """A hang-up in the middle of each kind of call; the engine's own counters show exactly one cancel."""

    @pytest.mark.parametrize("streams", [True, False])
    @pytest.mark.parametrize("path", LONG)
    def test_of_the_engine(self, engine: EngineProcess, path: str, streams: bool) -> None:
        before = engine.wait_for(running=0)
        with Client(engine.address) as client:
            client.post(path, {**LONG[path], "stream": streams})
            client.read_until(DELTA[path]) if streams else engine.wait_for(running=1)
            client.fin()
            after = engine.wait_for(running=0)
        assert after["cancelled_running"] == before["cancelled_running"] + 1 and after["cancels"] == before["cancels"] + 1
        assert after["tokens"] - before["tokens"] < 1000

    def test_of_embeddings(self, engine: EngineProcess) -> None:
        before = engine.wait_for(running=0)
        with Client(engine.address) as client:
            client.post("/v1/embeddings", MANY)
            wait_until(lambda: engine.counters()["running"] > 0, what="a text in the engine")
            client.fin()
            wait_until(lambda: engine.counters()["cancels"] > before["cancels"], what="the cancel")
            after = engine.wait_for(running=0, waiting=0)
        assert after["submitted"] - before["submitted"] < len(MANY["input"])
        assert after["blocks_free"] == before["blocks_free"]

    @pytest.mark.parametrize("path", [*LONG, "/v1/embeddings"])
    def test_of_the_gateway(self, gateway: Gateway, path: str) -> None:
        id = f"left-{path.rpartition('/')[2]}"
        with Client(gateway.address) as client:
            client.post(path, {**LONG[path], "stream": True} if path in LONG else MANY, {"x-request-id": id})
            if path in LONG:
                client.read_until(DELTA[path])
            else:
                wait_until(lambda: backend(gateway)["in_flight"] > 0, what="the call at the engine")
            client.fin()
            assert gateway.call_log(id)["outcome"] == "client_gone"
        wait_until(lambda: backend(gateway)["in_flight"] == 0 and not backend(gateway)["zombies"], what="the release")
        result = ask(gateway.address, "/v1/completions", {"prompt": "ROMEO:", "n": 2, "max_tokens": 3})
        assert result.status == 200, "both slots are free"


def backend(gateway: Gateway) -> dict[str, Any]:
    [row] = get_json(f"{gateway.admin_url}/api/backends")["backends"]
    return dict(row)


class TestDeadlines:
    @pytest.mark.parametrize("path", LONG)
    def test_what_cannot_be_done_in_time_is_not_begun(self, engine: EngineProcess, path: str) -> None:
        assert ask(engine.address, "/v1/completions", {"prompt": "ROMEO:", "max_tokens": 50, "ignore_eos": True}).status == 200
        before = engine.counters()
        refused = ask(engine.address, path, LONG[path], {"X-Request-Timeout": "0.002"})
        assert refused.status == 503 and engine.counters()["submitted"] == before["submitted"]
        if path == "/v1/messages":
            assert refused.json()["type"] == "error" and refused.json()["error"]["type"] == "overloaded_error"

    @pytest.mark.parametrize("path", LONG)
    def test_what_is_not_done_in_time_is_ended_then(self, engine: EngineProcess, path: str) -> None:
        with Client(engine.address) as first, Client(engine.address) as second:
            for client in (first, second):  # so that there is no slot for what comes then
                client.post(path, {**LONG[path], "stream": True})
                client.read_until(DELTA[path])
            fields = {**LONG[path], "ignore_eos": False, "stream": True}
            answer = ask(engine.address, path, fields, {"X-Request-Timeout": "0.1"})
        result = events(answer.body)[-1]
        assert not answer.complete and result["type"] == "error"
        assert result["error"]["type"] == "timeout_error" if path == "/v1/messages" else result["code"] == "client_deadline"
        engine.wait_for(running=0, waiting=0)

    def test_embeddings_that_are_not_done_in_time_are_ended_then(self, engine: EngineProcess) -> None:
        before = engine.wait_for(running=0)
        answer = ask(engine.address, "/v1/embeddings", MANY, {"X-Request-Timeout": "0.3"})
        assert answer.status == 504 and answer.json()["error"]["code"] == "client_deadline"
        after = engine.wait_for(running=0, waiting=0)
        assert after["submitted"] - before["submitted"] < len(MANY["input"])


class TestCancelById:
    def test_a_response_says_so_and_a_message_is_broken_off(self, engine: EngineProcess) -> None:
        for path, fields in LONG.items():
            with Client(engine.address) as client:
                client.post(path, {**fields, "stream": True}, {"X-Request-Id": "named"})
                head = client.read_until(DELTA[path])
                assert head.startswith(b"HTTP/1.1 200")
                assert ask(engine.address, "/v1/cancel/named", b"").json() == {"cancelled": 1}
                client.read_until(b"event: error" if path == "/v1/messages" else b"event: response.cancelled")
            engine.wait_for(running=0)


class TestJobs:
    """Jobs in front of the embedded engine, which must have the path that their items use."""

    def test_a_background_response(self, gateway: Gateway) -> None:
        with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as sdk:
            response = sdk.responses.create(model=MODEL, input="What say you?", background=True, max_output_tokens=30)
            ended = ("completed", "incomplete", "failed", "cancelled")
            done = wait_until(lambda: (r := sdk.responses.retrieve(response.id)).status in ended and r, what="the response")
            assert done and done.status in ("completed", "incomplete") and done.output_text and done.usage
            long = sdk.responses.create(
                model=MODEL, input="What say you?", background=True, max_output_tokens=1000, extra_body={"ignore_eos": True}
            )
            assert sdk.responses.cancel(long.id).status == "cancelled"

    def test_a_batch_of_messages(self, gateway: Gateway) -> None:
        with anthropic.Anthropic(base_url=gateway.url, api_key="any", max_retries=0) as sdk:
            params: Any = {"model": MODEL, "max_tokens": 8, "messages": HELLO}
            batch = sdk.messages.batches.create(requests=[{"custom_id": f"r{n}", "params": params} for n in range(6)])
            done = wait_until(
                lambda: (b := sdk.messages.batches.retrieve(batch.id)).processing_status == "ended" and b, what="the batch"
            )
            assert done and done.request_counts.succeeded == 6
            for row in sdk.messages.batches.results(batch.id):
                assert row.result.type == "succeeded" and row.result.message.usage.output_tokens > 0


def test_the_readmes_clients_work_as_printed(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "any")
    page = (Path(__file__).parents[2] / "README.md").read_text()
    lines = re.findall(r"^client = ((?:openai|anthropic)\.\w+\(base_url=.*\))$", page, re.M)
    assert len(lines) == 2
    gpt, claude = (
        eval(line.replace("http://127.0.0.1:8080", gateway.url), {"openai": openai, "anthropic": anthropic}) for line in lines
    )
    with gpt, claude:
        assert gpt.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5).choices[0].message.content
        assert gpt.responses.create(model=MODEL, input="hi").output_text
        assert gpt.embeddings.create(model=MODEL, input="hi").data[0].embedding
        assert claude.messages.create(model=MODEL, messages=HELLO, max_tokens=5).content


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_readmes_hang_up_is_logged_as_printed(gateway: Gateway) -> None:
    page = (Path(__file__).parents[2] / "README.md").read_text()
    [command] = re.findall(r"^\$ (curl .* \| head -c 400)$", page, re.M)
    [promise] = re.findall(r"the gateway logs\s+`(\w+)`", page)
    command = command.replace("127.0.0.1:8080", f"{gateway.url[7:]}").replace("curl", "curl -H 'x-request-id: readme'", 1)
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert len(done.stdout) == 400 and done.stdout.startswith("data: "), done.stderr
    assert gateway.call_log("readme")["outcome"] == promise


@pytest.mark.parametrize(
    ("path", "fields", "hint"),
    [
        ("/v1/messages", {"messages": HELLO}, "max_tokens"),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 5, "stop_sequences": [1]}, "stop_sequences"),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 5, "thinking": {"type": "enabled", "budget_tokens": 4}}, "thinking"),
        ("/v1/messages", {"messages": [{"role": "system", "content": "x"}], "max_tokens": 5}, "system"),
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}], "max_tokens": 5}, "content"),
        ("/v1/responses", {"input": ""}, "input"),
        ("/v1/responses", {"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        ("/v1/responses", {"input": "x", "background": True}, "background"),
        ("/v1/responses", {"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ("/v1/responses", {"input": "x", "text": {"format": {"type": "json_object"}}}, "text.format"),
        ("/v1/responses", {"input": [{"type": "function_call_output", "output": "x"}]}, "function_call_output"),
    ],
)
def test_what_it_cannot_do_it_says(engine: EngineProcess, path: str, fields: dict[str, Any], hint: str) -> None:
    answer = ask(engine.address, path, fields)
    assert answer.status == 400 and hint in answer.json()["error"]["message"]


def test_a_path_with_the_wrong_method_has_the_errors_of_its_api(engine: EngineProcess) -> None:
    with Client(engine.address) as client:
        client.send(b"GET /v1/messages HTTP/1.1\r\nhost: engine\r\n\r\n")
        answer = client.read_answer()
    assert answer.status == 405 and answer.json()["type"] == "error"
