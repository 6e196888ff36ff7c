"""The gateway streams a non-streaming call from the engine; the client gets the same JSON as from the engine itself."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.processes import Gateway, StandIn, gateway_and_engine
from support.raw import Client, ask
from support.raw_engine import DONE, HEAD, LAST, answer, chunk, event, raw_engine
from support.waiting import wait_until

MESSAGES = [{"role": "user", "content": "tell me about the client"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}

CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 9}),
    "chat to its end": ("/v1/chat/completions", {"messages": MESSAGES, "model": "m"}),
    "chat one token": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1}),
    "chat choices": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 5, "n": 3}),
    "chat logprobs": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 5, "logprobs": True, "top_logprobs": 2}),
    "chat choices logprobs": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 4, "n": 2, "logprobs": True}),
    "chat tools": ("/v1/chat/completions", {"messages": MESSAGES, "tools": [TOOL]}),
    "chat tools choices": ("/v1/chat/completions", {"messages": MESSAGES, "tools": [TOOL], "n": 2}),
    "chat tools cut": ("/v1/chat/completions", {"messages": MESSAGES, "tools": [TOOL], "max_tokens": 4}),
    "chat reasoning": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 9, "reasoning_effort": "low"}),
    "chat stream false": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 3, "stream": False}),
    "chat stream null": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 3, "stream": None}),
    "completions": ("/v1/completions", {"prompt": "once upon", "max_tokens": 7}),
    "completions choices": ("/v1/completions", {"prompt": "once upon", "max_tokens": 4, "n": 2, "logprobs": 3}),
    "completions prompts": ("/v1/completions", {"prompt": ["once", "upon"], "max_tokens": 4}),
    "completions ids": ("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 4}),
    "responses": ("/v1/responses", {"input": "once upon", "max_output_tokens": 7, "model": "m"}),
    "responses to its end": ("/v1/responses", {"input": "once upon"}),
    "responses tools": ("/v1/responses", {"input": "once", "tools": [{"type": "function", "name": "look"}]}),
    "messages": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 7, "model": "m"}),
    "messages to its end": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 1000}),
    "messages tools": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 1000, "tools": [{"name": "look"}]}),
    "llama.cpp": ("/completion", {"prompt": "once upon", "n_predict": 7}),
    "llama.cpp tokens": ("/completion", {"prompt": "once upon", "n_predict": 7, "return_tokens": True}),
    "llama.cpp to its end": ("/completion", {"prompt": "once upon"}),
    "tgi": ("/generate", {"inputs": "once upon", "parameters": {"max_new_tokens": 7}}),
    "tgi details": ("/generate", {"inputs": "once upon", "parameters": {"max_new_tokens": 7, "details": True}}),
    "ollama chat": ("/api/chat", {"messages": MESSAGES, "stream": False, "options": {"num_predict": 7}}),
    "ollama generate": ("/api/generate", {"prompt": "once upon", "stream": False}),
    "sglang": ("/generate", {"text": "once upon", "sampling_params": {"max_new_tokens": 7}}),
    "sglang to its end": ("/generate", {"text": "once upon"}),
}
TIMES = ("created", "created_at")


def without_times(value: Any) -> Any:
    return {k: v for k, v in value.items() if k not in TIMES}


@pytest.mark.parametrize("name", CALLS)
def test_same_json_as_from_the_engine(gateway: Gateway, engine: StandIn, name: str) -> None:
    path, body = CALLS[name]
    id = {"X-Request-Id": f"same-{name.replace(' ', '-')}"}
    through = ask(gateway.address, path, body, id)
    seen = engine.seen()[-1]
    direct = ask(("127.0.0.1", engine.port), path, body, engine.last_name())
    assert through.status == direct.status == 200
    assert through.headers["content-type"].startswith("application/json")
    if name.startswith("responses"):
        # It repeats the request's maximum, which the gateway fills in or clamps.
        direct_json, through_json = direct.json(), through.json()
        through_json["max_output_tokens"] = direct_json["max_output_tokens"]
        assert without_times(through_json) == without_times(direct_json)
    else:
        assert without_times(through.json()) == without_times(direct.json())
    streamed = seen["path"] == "/generate_stream" or json.loads(seen["body"])["stream"] is True
    assert streamed, "the engine was not asked to stream"


@pytest.mark.parametrize("name", ["chat", "completions", "messages", "responses", "llama.cpp", "sglang"])
def test_counts_are_the_engines(gateway: Gateway, name: str) -> None:
    path, body = CALLS[name]
    id = f"count-{name}"
    ask(gateway.address, path, body, {"X-Request-Id": id})
    row = gateway.call_log(id)
    assert (row["outcome"], row["tokens_out"], row["tokens_exact"]) == ("completed", 9 if name == "chat" else 7, True)
    assert row["tokens_in"] >= 1


def test_off(engine: StandIn) -> None:
    with Gateway(engine.url, assemble="false") as gateway:
        assert ask(gateway.address, *CALLS["chat"]).status == 200
        assert "stream" not in json.loads(engine.seen()[-1]["body"])


def test_an_engine_that_cannot_stream_is_asked_plainly() -> None:
    with gateway_and_engine(refuse_stream=True) as (gateway, engine):
        for name in ("chat", "responses", "messages", "llama.cpp", "ollama chat"):
            path, body = CALLS[name]
            direct = ask(("127.0.0.1", engine.port), path, body, {"X-Request-Id": name.replace(" ", "-")})
            through = ask(gateway.address, path, body, {"X-Request-Id": name.replace(" ", "-")})
            assert through.status == 200
            assert without_times(through.json()).keys() == without_times(direct.json()).keys()
        # Not so for a client that wants a stream: it gets the engine's own refusal.
        with Client(gateway.address) as client:
            client.chat(stream=True)
            refused = client.read_answer()
            assert (refused.status, refused.json()["error"]["message"]) == (400, "streaming is not supported")


def test_asking_plainly_aborts_nothing() -> None:
    """The engine refused the first request, so there is nothing to stop: an abort could only hit the second one."""
    with gateway_and_engine({"slots": 8}, refuse_stream=True, slots=8, token_s=0.005) as (gateway, engine):
        for _ in range(4):
            with ThreadPoolExecutor(8) as clients:
                got = list(clients.map(lambda _: ask(gateway.address, *CALLS["chat"]), range(8)))
            assert [one.status for one in got] == [200] * 8
        stats = engine.wait_idle()
        assert (stats["aborted"], stats["abort_requests"]) == (0, 0)


def test_an_engine_that_ignores_stream() -> None:
    with gateway_and_engine(ignore_stream=True) as (gateway, engine):
        through = ask(gateway.address, *CALLS["chat"], {"X-Request-Id": "whole"})
        direct = ask(("127.0.0.1", engine.port), *CALLS["chat"], engine.last_name())
        assert without_times(through.json()) == without_times(direct.json())
        assert gateway.call_log("whole")["tokens_out"] == 9


def test_a_client_error_of_the_engine_is_passed_on(gateway: Gateway, engine: StandIn) -> None:
    body = {"messages": [], "tools": [5]}
    through = ask(gateway.address, "/v1/chat/completions", body)
    direct = ask(("127.0.0.1", engine.port), "/v1/chat/completions", body)
    assert (through.status, through.body) == (direct.status, direct.body) == (400, direct.body)


class TestOddStreams:
    """Streams in the forms that other engines write."""

    def assembled(self, *events: bytes, end: bytes = LAST) -> Any:
        data = HEAD + b"".join(chunk(e) for e in events) + end
        with raw_engine(answer(data)) as engine, Gateway(engine.url) as gateway:
            return ask(gateway.address, "/v1/chat/completions", {"messages": [], "max_tokens": 50})

    def test_escapes_and_text_runs(self) -> None:
        texts = ["a", '\\"quoted\\"', "b", "\\\\", "c\\n", "\\u00e9", "é", "", "d" * 1000, "\\ud83d\\ude00"]
        got = self.assembled(*(event(text) for text in texts), event("", '"stop"'), DONE)
        expected = 'a"quoted"b\\c\néé' + "d" * 1000 + "😀"
        assert got.json()["choices"][0]["message"]["content"] == expected

    def test_crlf_lines(self) -> None:
        data = b"".join([event("a"), event("b"), event("", '"stop"'), DONE]).replace(b"\n", b"\r\n")
        assert self.assembled(data).json()["choices"][0]["message"]["content"] == "ab"

    def test_comments_and_names_between(self) -> None:
        got = self.assembled(b": ping\n\n", b"event: x\n" + event("a"), b":\n\n", event("b", '"stop"'), DONE)
        assert got.json()["choices"][0]["message"]["content"] == "ab"

    def test_null_events(self) -> None:
        got = self.assembled(b"data: null\n\n", event("a"), event("", '"stop"'), DONE)
        assert got.json()["choices"][0]["message"]["content"] == "a"

    def test_no_done(self) -> None:
        assert self.assembled(event("a"), event("b", '"stop"')).json()["choices"][0]["message"]["content"] == "ab"

    def test_error_inside_the_stream(self) -> None:
        got = self.assembled(event("a"), b'data: {"error":{"message":"out of memory","code":500}}\n\n', DONE)
        assert (got.status, got.json()["error"]["message"]) == (502, "out of memory")

    def test_bad_request_inside_the_stream(self) -> None:
        got = self.assembled(b'data: {"error":{"message":"too long","code":400}}\n\n', DONE)
        assert (got.status, got.json()["error"]["message"]) == (400, "too long")

    def test_no_json(self) -> None:
        got = self.assembled(event("a"), b"data: {oops\n\n", DONE)
        assert (got.status, got.headers["x-hangup-reason"]) == (502, "engine_invalid_answer")

    @pytest.mark.parametrize(
        "odd",
        [
            b'{"choices":5}',
            b'{"choices":[5]}',
            b'{"choices":[{"delta":5}]}',
            b'{"choices":[{"delta":{"tool_calls":[{"index":9999999}]}}]}',
        ],
    )
    def test_a_shape_that_is_not_known(self, odd: bytes) -> None:
        got = self.assembled(event("a"), b"data: " + odd + b"\n\n", DONE)
        assert (got.status, got.headers["x-hangup-reason"]) == (502, "engine_invalid_answer")

    def test_truncated_with_clean_framing(self) -> None:
        got = self.assembled(event("a"), event("b"))
        assert (got.status, got.headers["x-hangup-reason"]) == (502, "engine_truncated")

    def test_events_split_at_every_byte(self) -> None:
        data = b"".join([event("a"), event("é"), event("", '"stop"'), DONE])
        got = self.assembled(*(data[i : i + 1] for i in range(len(data))))
        assert got.json()["choices"][0]["message"]["content"] == "aé"


def test_hang_up_between_tokens_stops_the_engine(gateway: Gateway, engine: StandIn) -> None:
    before = engine.stats()
    with Client(gateway.address) as client:
        client.chat(max_tokens=5000, ignore_eos=True)
        wait_until(lambda: engine.stats()["tokens"] > before["tokens"] + 3)
        client.fin()
        engine.wait_stopped(before["aborted"] + 1)
