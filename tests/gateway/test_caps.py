"""Hard caps: lowered in the request if the client asks for more, and enforced by the gateway itself, whatever the engine
does."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from support.processes import Gateway, StandIn, elapsed, gateway_and_engine
from support.raw import Client, ask, events
from support.raw_engine import HEAD, chunk, event, raw_engine
from support.waiting import wait_until

MESSAGES = [{"role": "user", "content": "x"}]

# path, body, where the cap is
FIELDS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "chat": ("/v1/chat/completions", {"messages": MESSAGES}, ("max_tokens",)),
    "chat new": ("/v1/chat/completions", {"messages": MESSAGES}, ("max_completion_tokens",)),
    "completions": ("/v1/completions", {"prompt": "x"}, ("max_tokens",)),
    "responses": ("/v1/responses", {"input": "x"}, ("max_output_tokens",)),
    "messages": ("/v1/messages", {"messages": MESSAGES}, ("max_tokens",)),
    "llama.cpp": ("/completion", {"prompt": "x"}, ("n_predict",)),
    "tgi": ("/generate", {"inputs": "x"}, ("parameters", "max_new_tokens")),
    "tgi stream": ("/generate_stream", {"inputs": "x"}, ("parameters", "max_new_tokens")),
    "ollama chat": ("/api/chat", {"messages": MESSAGES}, ("options", "num_predict")),
    "ollama generate": ("/api/generate", {"prompt": "x"}, ("options", "num_predict")),
    "sglang": ("/generate", {"text": "x"}, ("sampling_params", "max_new_tokens")),
}


@pytest.fixture(scope="module")
def gateway(engine: StandIn) -> Iterator[Gateway]:
    with Gateway(engine.url, output_tokens_default=6, output_tokens_max=9) as process:
        yield process


def put(body: dict[str, Any], where: tuple[str, ...], value: Any) -> dict[str, Any]:
    if len(where) == 1:
        return {**body, where[0]: value}
    return {**body, where[0]: {"temperature": 0.5, where[1]: value}}


def sent(engine: StandIn, where: tuple[str, ...]) -> Any:
    value = json.loads(engine.seen()[-1]["body"])
    for key in where:
        value = value[key]
    return value


@pytest.mark.parametrize("name", FIELDS)
class TestOutputTokens:
    def test_nothing_is_added_when_the_client_gives_none(self, gateway: Gateway, engine: StandIn, name: str) -> None:
        path, body, where = FIELDS[name]
        for given in (body, put(body, where, None)):
            got = ask(gateway.address, path, given)
            assert got.status == 200
            seen = json.loads(engine.seen()[-1]["body"])
            assert {key: value for key, value in seen.items() if key not in ("stream", "stream_options")} == given
            row = gateway.call_log(got.headers["x-request-id"])
            assert (row["outcome"], row["cause"]) == ("cap", "output_tokens_max"), "it goes on past the default, and is ended"

    def test_lowered_when_it_asks_for_more(self, gateway: Gateway, engine: StandIn, name: str) -> None:
        path, body, where = FIELDS[name]
        assert ask(gateway.address, path, put(body, where, 1000)).status == 200
        assert sent(engine, where) == (1000 if name == "responses" else 9), "OpenAI refuses less than 16 there"
        if len(where) == 2:
            assert sent(engine, (where[0], "temperature")) == 0.5

    def test_left_alone_when_it_asks_for_less(self, gateway: Gateway, engine: StandIn, name: str) -> None:
        path, body, where = FIELDS[name]
        assert ask(gateway.address, path, put(body, where, 3)).status == 200
        assert sent(engine, where) == 3

    def test_endless(self, gateway: Gateway, engine: StandIn, name: str) -> None:
        """-1 means "no end" to llama.cpp and Ollama, and is an error elsewhere."""
        path, body, where = FIELDS[name]
        status = ask(gateway.address, path, put(body, where, -1)).status
        if name.startswith(("llama", "ollama")):
            assert (status, sent(engine, where)) == (200, 9)
        else:
            assert status == 400


def test_a_body_that_needs_no_change_is_passed_byte_for_byte(gateway: Gateway, engine: StandIn) -> None:
    body = b'{ "stream":true,  "max_tokens" : 2, "messages":[], "temperature":1e-3, "big":123456789012345678901234567890}'
    ask(gateway.address, "/v1/chat/completions", body)
    assert engine.seen()[-1]["body"].encode() == body


def test_a_cap_leaves_a_streaming_body_byte_for_byte(gateway: Gateway, engine: StandIn) -> None:
    body = b'{ "stream":true, "messages":[], "temperature":1e-3, "big":123456789012345678901234567890}'
    ask(gateway.address, "/v1/chat/completions", body)
    assert engine.seen()[-1]["body"].encode() == body


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1000, "min_tokens": 10}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 1000, "min_tokens": 10}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 1000, "thinking": {"type": "enabled", "budget_tokens": 9}}),
        ("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 1000, "min_new_tokens": 10}}),
        ("/api/chat", {"messages": MESSAGES, "options": {"num_predict": -2}}),
        ("/completion", {"prompt": "x", "n_predict": -2}),
    ],
)
def test_left_alone_where_the_engine_would_refuse_less_or_make_more(
    gateway: Gateway, engine: StandIn, path: str, body: dict[str, Any]
) -> None:
    """A minimum or a thinking budget above the cap; and -2, which means "until the context is full"."""
    ask(gateway.address, path, {**body, "stream": True})
    assert json.loads(engine.seen()[-1]["body"]) == {**body, "stream": True}


class TestShortContext:
    """An engine that refuses what does not fit its context must serve every call without a maximum, as it does directly."""

    @pytest.mark.parametrize("stream", [True, False])
    def test_chat(self, stream: bool) -> None:
        def script(sock: Any, request: bytes) -> None:
            body = json.loads(request.partition(b"\r\n\r\n")[2])
            if body.get("max_tokens", 0) + 10 > 4096 or "max_tokens" in body:
                sock.sendall(b"HTTP/1.1 400 X\r\ncontent-length: 2\r\n\r\n{}")
            else:
                sock.sendall(HEAD + chunk(event("a")) + chunk(event("", '"stop"')) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

        with raw_engine(script) as engine, Gateway(engine.url) as gateway:
            assert ask(gateway.address, "/v1/chat/completions", {"messages": MESSAGES, "stream": stream}).status == 200
            assert len(engine.requests) == 1


@pytest.fixture(scope="module")
def llamacpp() -> Iterator[tuple[Gateway, StandIn]]:
    with StandIn(like="llamacpp") as engine:
        config = f'[limits]\noutput_tokens_default = 6\n[[backend]]\nurl = "{engine.url}"\nengine = "llamacpp"\n'
        with Gateway(config=config) as gateway:
            yield gateway, engine


class TestAddedWhereHarmless:
    """llama-server generates to the end of its context and accepts any maximum, so hangup sends it the cap."""

    @pytest.mark.parametrize(
        ("path", "body", "field"),
        [
            ("/v1/chat/completions", {"messages": MESSAGES}, "max_tokens"),
            ("/v1/completions", {"prompt": "x"}, "max_tokens"),
            ("/completion", {"prompt": "x"}, "n_predict"),
            ("/v1/responses", {"input": "x"}, None),
        ],
    )
    def test_llamacpp(self, llamacpp: tuple[Gateway, StandIn], path: str, body: dict[str, Any], field: str | None) -> None:
        gateway, engine = llamacpp
        for given in (body, {**body, field: None}) if field else (body,):
            assert ask(gateway.address, path, given).status == 200
            seen = json.loads(engine.seen()[-1]["body"])
            assert not {"max_tokens", "n_predict", "max_output_tokens"} & (seen.keys() - {field})
            assert field is None or seen[field] == 6
        if field:
            assert ask(gateway.address, path, {**body, field: 3}).status == 200
            assert sent(engine, (field,)) == 3


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("tokens", "outcome"), [(1, "completed"), (4, "completed"), (50, "cap")])
def test_llamacpp_ends_a_little_late(tokens: int, outcome: str, stream: bool) -> None:
    """For a maximum of 0 it generates one token, and it completes a started character: as its documentation says."""
    row = b'data: {"index":0,"content":"x","tokens":[],"stop":false}\n\n'
    data = (
        HEAD + chunk(row) * tokens + chunk(b'data: {"index":0,"content":"","stop":true,"stop_type":"limit"}\n\n') + b"0\r\n\r\n"
    )
    with raw_engine(lambda sock, request: sock.sendall(data)) as engine, Gateway(engine.url) as gateway:
        got = ask(gateway.address, "/completion", {"prompt": "x", "n_predict": 0, "stream": stream})
        assert gateway.call_log(got.headers["x-request-id"])["outcome"] == outcome
        assert b"x" in got.body


def test_an_echoed_prompt_is_no_output() -> None:
    """`max_tokens: 0` with `echo` requests the probabilities of the prompt, which is a valid call."""
    first = b'data: {"id":"c","object":"text_completion","choices":[{"index":0,"text":"the prompt","finish_reason":null}]}\n\n'
    last = b'data: {"id":"c","object":"text_completion","choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\n'
    data = HEAD + chunk(first) + chunk(last) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
    with raw_engine(lambda sock, request: sock.sendall(data)) as engine, Gateway(engine.url) as gateway:
        for stream in (True, False):
            got = ask(gateway.address, "/v1/completions", {"prompt": "x", "max_tokens": 0, "echo": True, "stream": stream})
            assert b"the prompt" in got.body
            assert gateway.call_log(got.headers["x-request-id"])["outcome"] == "completed"


@pytest.fixture(scope="module")
def runaway() -> Iterator[tuple[Gateway, StandIn]]:
    """Start an engine that ignores max_tokens."""
    with gateway_and_engine({"output_tokens_default": 5}, ignore_cap=True, answer_tokens=5000, token_s=0.002) as both:
        yield both


class TestRunaway:
    """The engine exceeds the cap: the gateway ends the answer as the engine should have, and stops the engine."""

    def stream(self, runaway: tuple[Gateway, StandIn], path: str, body: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
        gateway, engine = runaway
        before = engine.stats()["aborted"]
        with Client(gateway.address) as client:
            client.post(path, body)
            answer = client.read_answer()
        assert answer.status == 200
        assert answer.complete, "an answer that ends at its cap is complete"
        engine.wait_stopped(before + 1)
        row = gateway.call_log(answer.headers["x-request-id"])
        assert (row["outcome"], row["cause"]) == ("cap", "output_tokens_max")
        return answer.body, row

    def test_chat(self, runaway: tuple[Gateway, StandIn]) -> None:
        body, row = self.stream(runaway, "/v1/chat/completions", {"messages": MESSAGES, "stream": True})
        rows = events(body)
        assert body.endswith(b"data: [DONE]\n\n")
        assert sum(1 for r in rows if r["choices"][0]["delta"].get("content")) == 5 == row["tokens_out"]
        assert rows[-1]["choices"][0]["finish_reason"] == "length"
        assert {r["id"] for r in rows} == {rows[0]["id"]}

    def test_chat_choices(self, runaway: tuple[Gateway, StandIn]) -> None:
        body, _ = self.stream(runaway, "/v1/chat/completions", {"messages": MESSAGES, "stream": True, "n": 2})
        finished = {r["choices"][0]["index"]: r["choices"][0]["finish_reason"] for r in events(body)}
        assert finished == {0: "length", 1: "length"}

    def test_completions(self, runaway: tuple[Gateway, StandIn]) -> None:
        body, _ = self.stream(runaway, "/v1/completions", {"prompt": "x", "stream": True})
        assert events(body)[-1]["choices"][0]["finish_reason"] == "length"
        assert sum(1 for r in events(body) if r["choices"][0]["text"]) == 5

    def test_responses(self, runaway: tuple[Gateway, StandIn]) -> None:
        body, _ = self.stream(runaway, "/v1/responses", {"input": "x", "stream": True})
        last = events(body)[-1]
        deltas = [e["delta"] for e in events(body) if e["type"] == "response.output_text.delta"]
        assert last["type"] == "response.incomplete"
        assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
        assert last["response"]["output"][0]["content"][0]["text"] == "".join(deltas)
        assert len(deltas) == 5

    def test_messages(self, runaway: tuple[Gateway, StandIn]) -> None:
        body, _ = self.stream(runaway, "/v1/messages", {"messages": MESSAGES, "stream": True})
        kinds = [e["type"] for e in events(body)]
        assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
        assert events(body)[-2]["delta"]["stop_reason"] == "max_tokens"
        assert kinds.count("content_block_delta") == 5

    def test_llama_cpp(self, runaway: tuple[Gateway, StandIn]) -> None:
        body, _ = self.stream(runaway, "/completion", {"prompt": "x", "stream": True})
        assert (events(body)[-1]["stop"], events(body)[-1]["stop_type"]) == (True, "limit")
        assert sum(1 for e in events(body) if e["content"]) == 5

    def test_tgi(self, runaway: tuple[Gateway, StandIn]) -> None:
        body, _ = self.stream(runaway, "/generate_stream", {"inputs": "x"})
        assert events(body)[-1]["details"]["finish_reason"] == "length"

    def test_ollama(self, runaway: tuple[Gateway, StandIn]) -> None:
        body, _ = self.stream(runaway, "/api/chat", {"messages": MESSAGES})
        rows = [json.loads(line) for line in body.splitlines()]
        assert (rows[-1]["done"], rows[-1]["done_reason"]) == (True, "length")
        assert sum(1 for r in rows if r["message"]["content"]) == 5

    def test_sglang(self, runaway: tuple[Gateway, StandIn]) -> None:
        body, _ = self.stream(runaway, "/generate", {"text": "x", "stream": True})
        assert events(body)[-1]["meta_info"]["finish_reason"]["type"] == "length"

    @pytest.mark.parametrize("name", [n for n in FIELDS if "tgi" not in n])
    def test_assembled(self, runaway: tuple[Gateway, StandIn], name: str) -> None:
        path, body, _ = FIELDS[name]
        answer = json.loads(self.stream(runaway, path, {**body, "stream": False})[0])
        found = json.dumps(answer)
        assert any(f'"{word}"' in found for word in ("length", "max_tokens", "limit", "max_output_tokens"))

    def test_fast_engine_never_gets_far(self, runaway: tuple[Gateway, StandIn]) -> None:
        """The cap bounds the cost of a runaway engine, not the engine's own idea of an end."""
        _, engine = runaway
        before = engine.stats()["tokens"]
        self.stream(runaway, "/v1/chat/completions", {"messages": MESSAGES, "stream": True, "max_tokens": 50})
        assert engine.stats()["tokens"] - before < 5000, "but for what it computes until it hears of that"


class TestTime:
    def test_first_token(self) -> None:
        with gateway_and_engine({"first_token_s": 0.5}, prefill_s=30.0) as (gateway, engine):
            start = time.monotonic()
            answer = ask(gateway.address, "/v1/chat/completions", {"messages": MESSAGES}, {"X-Request-Id": "f"})
            assert (answer.status, answer.headers["x-hangup-reason"]) == (504, "first_token_s")
            assert elapsed(start) > 0.4
            engine.wait_stopped()
            assert gateway.call_log("f")["outcome"] == "cap"

    def test_gap(self) -> None:
        with gateway_and_engine({"gap_s": 0.5}, stall_after=3) as (gateway, engine), Client(gateway.address) as client:
            client.chat({"X-Request-Id": "g"}, stream=True)
            answer = client.read_answer()
            assert not answer.complete
            assert events(answer.body)[-1]["error"]["code"] == "gap_s"
            engine.wait_stopped()
            assert gateway.call_log("g")["outcome"] == "cap"

    def test_comments_are_no_tokens(self) -> None:
        """An engine that only sends pings counts as silent."""

        def script(sock: Any, request: bytes) -> None:
            sock.sendall(HEAD + chunk(event("a")))
            for _ in range(100):
                sock.sendall(chunk(b": ping\n\n"))
                time.sleep(0.05)

        with raw_engine(script) as engine, Gateway(engine.url, gap_s=0.6) as gateway, Client(gateway.address) as client:
            client.chat(stream=True)
            answer = client.read_answer()
            assert events(answer.body)[-1]["error"]["code"] == "gap_s"

    @pytest.mark.parametrize("stream", [True, False])
    def test_total(self, stream: bool) -> None:
        with gateway_and_engine({"total_s": 0.8}) as (gateway, engine), Client(gateway.address) as client:
            client.chat({"X-Request-Id": "t"}, stream=stream, ignore_eos=True)
            answer = client.read_answer()
            if stream:
                assert events(answer.body)[-1]["error"]["code"] == "total_s"
                assert not answer.complete
            else:
                assert (answer.status, answer.headers["x-hangup-reason"]) == (504, "total_s")
            engine.wait_stopped()

    @contextlib.contextmanager
    def taken(self, queue_s: float) -> Iterator[tuple[Gateway, StandIn, Client]]:
        """Yield a gateway whose only place is taken and whose queue has room for one, and the client that waits there."""
        with StandIn() as engine:
            config = f'[limits]\nqueue_s = {queue_s}\nqueue_depth_max = 1\n[[backend]]\nurl = "{engine.url}"\nslots = 1\n'
            with Gateway(config=config) as gateway, Client(gateway.address) as first, Client(gateway.address) as second:
                first.chat(stream=True, ignore_eos=True)
                first.read_until(b'"content":" ')
                second.chat()
                yield gateway, engine, second
                assert engine.stats()["requests"] == 1

    def test_queue_full(self) -> None:
        with self.taken(queue_s=600) as (gateway, _, _):
            wait_until(lambda: gateway.metrics()["hangup_queue_depth"] == 1)
            full = ask(gateway.address, "/v1/chat/completions", {"messages": []})
            assert (full.status, full.headers["x-hangup-reason"]) == (503, "queue_full")
            assert 1 <= int(full.headers["retry-after"]) <= 30

    def test_queue(self) -> None:
        with self.taken(queue_s=0.5) as (_, _, second):
            late = second.read_answer()
            assert (late.status, late.headers["x-hangup-reason"]) == (503, "queue_s")

    def test_waiting_call_is_served_when_its_turn_comes(self) -> None:
        with StandIn(token_s=0.002) as engine:
            config = f'[[backend]]\nurl = "{engine.url}"\nslots = 1\n'
            with Gateway(config=config) as gateway:
                clients = [Client(gateway.address) for _ in range(5)]
                for client in clients:
                    client.chat(max_tokens=5)
                assert [client.read_answer().status for client in clients] == [200] * 5
                assert engine.stats()["running_peak"] == 1
                for client in clients:
                    client.fin()


class TestDeadlines:
    """The client's own deadline: the shortest wins, and the engine gets the remaining time."""

    @pytest.mark.parametrize(
        "headers",
        [
            {"X-Request-Timeout": "1"},
            {"x-stainless-read-timeout": "1"},
            {"X-Request-Timeout": "30", "x-stainless-read-timeout": "1"},
            {"X-Request-Timeout": "1", "x-stainless-read-timeout": "600"},
        ],
    )
    @pytest.mark.parametrize("stream", [True, False])
    def test_before_the_first_token(self, headers: dict[str, str], stream: bool) -> None:
        with gateway_and_engine(prefill_s=30.0) as (gateway, engine), Client(gateway.address) as client:
            start = time.monotonic()
            client.chat({**headers, "X-Request-Id": "d"}, stream=stream)
            answer = client.read_answer()
            assert elapsed(start) > 0.9
            if stream:  # the engine's head was passed on at once, so the status was fixed
                assert events(answer.body)[-1]["error"]["code"] == "client_deadline"
            else:
                assert (answer.status, answer.headers["x-hangup-reason"]) == (504, "client_deadline")
                assert answer.headers["x-should-retry"] == "false"
            engine.wait_stopped()
            assert gateway.call_log("d")["outcome"] == "deadline"
            passed = float(engine.seen()[-1]["headers"]["x-request-timeout"])
            assert 0 < passed <= 1

    def test_read_timeout_of_a_stream_is_for_each_gap(self) -> None:
        """A stream may take longer than the client's read timeout as long as tokens arrive."""
        with gateway_and_engine(token_s=0.05) as (gateway, _), Client(gateway.address) as client:
            client.chat({"x-stainless-read-timeout": "2"}, stream=True, max_tokens=60)
            start = time.monotonic()
            answer = client.read_answer()
            assert elapsed(start) > 2
            assert b"[DONE]" in answer.body

    def test_read_timeout_of_a_stalled_stream(self) -> None:
        with gateway_and_engine(stall_after=3) as (gateway, engine), Client(gateway.address) as client:
            client.chat({"x-stainless-read-timeout": "0.5"}, stream=True)
            assert events(client.read_answer().body)[-1]["error"]["code"] == "client_deadline"
            engine.wait_stopped()

    def test_deadline_in_the_queue(self) -> None:
        with StandIn() as engine:
            config = f'[[backend]]\nurl = "{engine.url}"\nslots = 1\n'
            with Gateway(config=config) as gateway, Client(gateway.address) as first, Client(gateway.address) as second:
                first.chat(stream=True, ignore_eos=True)
                first.read_until(b'"content":" ')
                second.chat({"X-Request-Timeout": "0.4"})
                answer = second.read_answer()
                assert (answer.status, answer.headers["x-hangup-reason"]) == (504, "client_deadline")
                assert engine.stats()["requests"] == 1

    @pytest.mark.parametrize("value", ["soon", "-1", "1e9", "0x10", "", "nan", "inf"])
    def test_nonsense(self, gateway: Gateway, value: str) -> None:
        answer = ask(gateway.address, "/v1/chat/completions", {"messages": []}, {"X-Request-Timeout": value})
        assert (answer.status, answer.headers["x-hangup-reason"]) == (400, "bad_deadline")

    def test_nonsense_of_an_sdk_is_ignored(self, gateway: Gateway, engine: StandIn) -> None:
        answer = ask(gateway.address, "/v1/chat/completions", {"messages": []}, {"x-stainless-read-timeout": "None"})
        assert answer.status == 200
        assert "x-request-timeout" not in engine.seen()[-1]["headers"]


class TestOwnLimits:
    """Limits per route and per tenant; the tenant's value wins."""

    CONFIG = """
    [limits]
    output_tokens_max = 100
    [[backend]]
    url = "{url}"
    [[route]]
    path = "/v1/completions"
    limits = {{ output_tokens_max = 8, choices_max = 1 }}
    [[tenant]]
    name = "small"
    key_sha256 = ["{small}"]
    limits = {{ output_tokens_max = 4, body_bytes_max = 2048 }}
    [[tenant]]
    name = "large"
    key_sha256 = ["{large}"]
    """

    def test_all(self, engine: StandIn) -> None:
        from hangup.cli.keys import digest_of

        config = self.CONFIG.format(url=engine.url, small=digest_of("s"), large=digest_of("l"))
        with Gateway(config=config) as gateway:

            def cap(path: str, key: str) -> int:
                body = {"messages": [], "prompt": "x", "max_tokens": 1000}
                answer = ask(gateway.address, path, body, {"Authorization": f"Bearer {key}"})
                assert answer.status == 200
                return int(sent(engine, ("max_tokens",)))

            assert cap("/v1/chat/completions", "l") == 100
            assert cap("/v1/completions", "l") == 8
            assert cap("/v1/chat/completions", "s") == 4
            assert cap("/v1/completions", "s") == 4
            many = ask(gateway.address, "/v1/completions", {"prompt": "x", "n": 2}, {"Authorization": "Bearer l"})
            assert many.status == 400
            big = {"messages": [{"role": "user", "content": "x" * 3000}]}
            assert ask(gateway.address, "/v1/chat/completions", big, {"Authorization": "Bearer s"}).status == 413
            assert ask(gateway.address, "/v1/chat/completions", big, {"Authorization": "Bearer l"}).status == 200


def test_event_bytes() -> None:
    """Case 20: a 100 MB event is cut at the cap, and costs no more memory than that."""

    def script(sock: Any, request: bytes) -> None:
        sock.sendall(HEAD + chunk(event("a")) + b"%x\r\ndata: " % (100 * 1024 * 1024))
        for _ in range(1600):
            sock.sendall(b"x" * 65536)

    with raw_engine(script) as engine, Gateway(engine.url, event_bytes_max=1_000_000) as gateway:
        for stream in (True, False):
            with Client(gateway.address) as client:
                client.chat({"X-Request-Id": f"big-{stream}"}, stream=stream)
                answer = client.read_answer()
                assert len(answer.body) < 3_000_000
                if stream:
                    assert not answer.complete
                else:
                    assert (answer.status, answer.headers["x-hangup-reason"]) == (502, "event_bytes_max")
                assert gateway.call_log(f"big-{stream}")["cause"] == "event_bytes_max"
