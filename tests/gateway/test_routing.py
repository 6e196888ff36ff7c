"""A call goes only to a backend that has its model and speaks its API."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from support import jobs
from support.processes import Gateway, StandIn, get_json
from support.raw import Answer, Client, ask
from support.raw_engine import answer, raw_engine
from support.waiting import wait_until

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
CHAT, MESSAGES, EMBED = "/v1/chat/completions", "/v1/messages", "/v1/embeddings"


def chat(gateway: Gateway, model: str | None, path: str = CHAT, **fields: Any) -> Answer:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, **fields}
    return ask(gateway.address, path, body if model is None else {"model": model, **body})


def models_of(gateway: Gateway) -> dict[str, list[str] | None]:
    return {row["name"]: row["models"] for row in get_json(f"{gateway.admin_url}/api/backends")["backends"]}


def wait_models(gateway: Gateway, *expected: list[str]) -> None:
    wait_until(lambda: list(models_of(gateway).values()) == list(expected), what=f"models {expected}")


def models_asked_of(engine: StandIn, path: str = "") -> Counter[str]:
    """Return the models that calls to an engine named."""
    rows = [row for row in engine.seen() if row["method"] == "POST" and row["path"].startswith(path)]
    return Counter(json.loads(row["body"]).get("model", "") for row in rows)


def get(gateway: Gateway, path: str, headers: dict[str, str] | None = None) -> Answer:
    with Client(gateway.address) as client:
        lines = [f"GET {path} HTTP/1.1", "Host: test", *(f"{name}: {text}" for name, text in (headers or {}).items())]
        client.send("\r\n".join(lines).encode() + b"\r\n\r\n")
        return client.read_answer()


@contextlib.contextmanager
def two(first: str = "alpha", second: str = "beta", like: str = "vllm", config: str = "") -> Iterator[Any]:
    with StandIn(like=like, models=first, token_s=0.001) as a, StandIn(like=like, models=second, token_s=0.001) as b:
        backends = f'[[backend]]\nname = "a"\nurl = "{a.url}"\n[[backend]]\nname = "b"\nurl = "{b.url}"\n'
        with Gateway(config=config + backends, models_interval_s=0.1, health_interval_s=0.1) as gateway:
            wait_models(gateway, first.split(","), second.split(","))
            yield gateway, a, b


def test_two_models_on_two_backends() -> None:
    with two() as (gateway, a, b):
        for _ in range(10):
            assert chat(gateway, "alpha").status == chat(gateway, "beta", stream=True).status == 200
            assert ask(gateway.address, EMBED, {"model": "beta", "input": "x"}).status == 200
            assert chat(gateway, "alpha", MESSAGES).status == 200
        assert models_asked_of(a) == {"alpha": 20} and models_asked_of(b) == {"beta": 20}
        assert chat(gateway, None).status == 200, "a call that names no model goes anywhere"


def test_an_unknown_model_is_refused_in_the_apis_shape_and_reaches_no_engine() -> None:
    with two("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-8B") as (gateway, a, b):
        reply = chat(gateway, "qwen3-8b")
        assert reply.status == 404 and reply.headers["x-hangup-reason"] == "model_not_found"
        error = reply.json()["error"]
        assert error["code"] == "model_not_found" and error["type"] == "not_found_error"
        assert "'qwen3-8b' does not exist. Did you mean Qwen/Qwen3-8B?" in error["message"]
        reply = chat(gateway, "llama-3.1-8b", MESSAGES)
        assert reply.status == 404 and reply.json()["type"] == "error" and reply.json()["error"]["type"] == "not_found_error"
        assert "Did you mean meta-llama/Llama-3.1-8B" in reply.json()["error"]["message"]
        assert ask(gateway.address, EMBED, {"model": "nothing", "input": "x"}).status == 404
        assert not models_asked_of(a) and not models_asked_of(b)


def test_a_model_that_was_just_loaded_is_found() -> None:
    """hangup queries the backends again before it refuses a model, once for all calls that wait."""
    with (
        StandIn(like="vllm", models="alpha", token_s=0.001) as engine,
        Gateway(engine.url, models_interval_s=3600, health_interval_s=3600) as gateway,
    ):
        wait_models(gateway, ["alpha"])
        assert chat(gateway, "my-lora").status == 404
        engine.behave(models="alpha,my-lora")
        answers: list[int] = []

        def call() -> None:
            wait_until(lambda: chat(gateway, "my-lora").status == 200, what="the new adapter")
            answers.append(200)

        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert answers == [200] * 8
        assert models_of(gateway) == {f"127.0.0.1:{engine.port}": ["alpha", "my-lora"]}


def test_a_name_is_refused_without_waiting_for_a_backend_that_is_down() -> None:
    limits = "[limits]\nfailures_max = 1\nhealth_timeout_s = 10.0\nhealth_interval_s = 0.1\nmodels_interval_s = 0.1\n"
    with contextlib.ExitStack() as stack:
        well, stuck = (stack.enter_context(StandIn(like="vllm", models=name)) for name in ("alpha", "beta"))
        config = f'{limits}[[backend]]\nurl = "{well.url}"\n[[backend]]\nurl = "{stuck.url}"\n'
        with Gateway(config=config) as gateway:
            wait_models(gateway, ["alpha"], ["beta"])
            stuck.signal(signal.SIGSTOP)
            try:
                wait_until(lambda: get_json(f"{gateway.admin_url}/api/backends")["backends"][1]["state"] == "down")
                before = time.monotonic()
                assert chat(gateway, "gamma").status == 404
                assert time.monotonic() - before < 9.0, "it was asked, though it does not answer"
            finally:
                stuck.signal(signal.SIGCONT)


def test_models_are_followed_as_they_change() -> None:
    with two() as (gateway, a, b):
        a.behave(models="alpha,adapter")
        wait_models(gateway, ["alpha", "adapter"], ["beta"])
        assert chat(gateway, "adapter").status == 200
        a.behave(models="alpha")
        b.behave(models="beta,adapter")
        wait_models(gateway, ["alpha"], ["beta", "adapter"])
        assert chat(gateway, "adapter").status == 200
        assert models_asked_of(a)["adapter"] == models_asked_of(b)["adapter"] == 1


def test_an_engine_that_takes_any_name_is_sent_any_name() -> None:
    with StandIn(token_s=0.001) as engine, Gateway(engine.url) as gateway:
        wait_models(gateway, ["standin"])
        assert chat(gateway, "gpt-4").status == 200
    with (
        StandIn(like="vllm", models="alpha", token_s=0.001) as strict,
        StandIn(like="llamacpp", token_s=0.001) as lenient,
        Gateway(strict.url, lenient.url) as gateway,
    ):
        wait_models(gateway, ["alpha"], ["standin"])
        for _ in range(5):
            assert chat(gateway, "gpt-4").status == chat(gateway, "alpha").status == 200
        assert models_asked_of(strict) == {"alpha": 5} and models_asked_of(lenient) == {"gpt-4": 5}


def refusing_engine(status: bytes = b"404 X", body: bytes = b'{"error":{"message":"The model does not exist."}}') -> Any:
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return raw_engine(answer(head % (status, len(body)) + body))


def test_a_backend_that_answers_404_does_not_get_the_calls() -> None:
    """Nothing is known about either backend; one refuses at once, which makes it look the idlest."""
    with (
        refusing_engine() as refuses,
        StandIn(like="openai", token_s=0.02, answer_tokens=20) as serves,
        Gateway(refuses.url, serves.url, slots=64) as gateway,
    ):
        statuses: list[int] = []
        threads = [
            threading.Thread(target=lambda: statuses.append(chat(gateway, "alpha", max_tokens=20).status)) for _ in range(40)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert Counter(statuses) == {200: 40}
        sent = len(refuses.requests)
        assert all(chat(gateway, "alpha").status == 200 for _ in range(20))
        assert len(refuses.requests) == sent, "it is remembered for a while"
        assert get_json(f"{gateway.admin_url}/api/backends")["backends"][0]["failures"] == 0
        assert serves.wait_idle()["running"] == 0


def test_what_all_refuse_is_told_as_an_engine_told_it() -> None:
    with refusing_engine() as one, refusing_engine() as other, Gateway(one.url, other.url) as gateway:
        for _ in range(3):
            reply = chat(gateway, "alpha")
            assert (reply.status, reply.body) == (404, b'{"error":{"message":"The model does not exist."}}')
        assert len(one.requests) == len(other.requests) == 3


def test_redirects_do_not_take_a_backend_down() -> None:
    head = b"HTTP/1.1 307 X\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n"
    with raw_engine(answer(head)) as engine, Gateway(engine.url) as gateway:
        wait_until(lambda: gateway.ready() == 200)
        for _ in range(5):
            assert chat(gateway, "m").status == 502
        assert gateway.ready() == 200


def test_a_full_backend_blocks_no_call_for_another_model() -> None:
    config = "slots = 1\n[limits]\nqueue_s = 30\n"
    with two(config=config) as (gateway, a, _):
        a.behave(token_s=0.05)
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(Client(gateway.address)) for _ in range(5)]
            for client in clients:
                client.chat(model="alpha", stream=True, max_tokens=2000, ignore_eos=True)
            wait_until(lambda: get_json(f"{gateway.admin_url}/api/overview")["waiting"] == 4)
            assert [chat(gateway, "beta").status for _ in range(10)] == [200] * 10
            assert get_json(f"{gateway.admin_url}/api/overview")["waiting"] == 4


def test_items_of_a_batch_go_where_their_model_is() -> None:
    with two() as (gateway, a, b):
        sdk = jobs.client(gateway.url)
        lines = [jobs.line(f"{at}", model=("alpha", "beta", "gamma")[at % 3]) for at in range(12)]
        batch = jobs.wait_batch(sdk, jobs.start_batch(sdk, lines), "completed")
        counts = batch.request_counts
        assert (counts.completed, counts.failed) == (8, 4), "nobody has gamma"
        assert models_asked_of(a) == {"alpha": 4} and models_asked_of(b) == {"beta": 4}
        failed = jobs.results(sdk, batch.error_file_id)
        assert {row["response"]["body"]["error"]["code"] for row in failed} == {"model_not_found"}


class TestListing:
    def test_the_union(self) -> None:
        config = '[[alias]]\nname = "fast"\nmodel = "beta"\n'
        with two("alpha,shared", "beta,shared", config=config) as (gateway, _, _):
            listing = get(gateway, "/v1/models").json()
            assert listing["object"] == "list"
            assert [row["id"] for row in listing["data"]] == ["alpha", "beta", "fast", "shared"]
            assert {row["object"] for row in listing["data"]} == {"model"}
            one = get(gateway, "/v1/models/fast").json()
            assert (one["id"], one["root"], one["owned_by"]) == ("fast", "beta", "vllm")
            reply = get(gateway, "/v1/models/betta")
            assert reply.status == 404 and "Did you mean beta" in reply.json()["error"]["message"]
            anthropic = get(gateway, "/v1/models", {"anthropic-version": "2023-06-01"}).json()
            assert [row["id"] for row in anthropic["data"]] == ["alpha", "beta", "fast", "shared"]
            assert anthropic["data"][0]["type"] == "model" and anthropic["has_more"] is False
            assert (anthropic["first_id"], anthropic["last_id"]) == ("alpha", "shared")
            reply = get(gateway, "/v1/models/nothing-like-it", {"anthropic-version": "2023-06-01"})
            assert reply.status == 404 and reply.json()["type"] == "error"

    def test_head_has_no_body(self) -> None:
        with two() as (gateway, _, _), Client(gateway.address) as client:
            client.send(b"HEAD /v1/models HTTP/1.1\r\nHost: a\r\n\r\nGET /v1/models/beta HTTP/1.1\r\nHost: a\r\n\r\n")
            status, headers = client.read_head()
            assert (status, int(headers["content-length"]) > 0) == (200, True)
            assert client.read_answer().json()["id"] == "beta"

    def test_names_with_slashes(self) -> None:
        with two("org/alpha", "beta") as (gateway, _, _):
            assert get(gateway, "/v1/models/org/alpha").json()["id"] == "org/alpha"
            assert get(gateway, "/v1/models/org%2Falpha").json()["id"] == "org/alpha"

    def test_one_backend_answers_for_itself(self) -> None:
        body = b'{"object":"list" , "data":[ {"id":"x","object":"model","made_up":1.50} ]}'
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        with raw_engine(answer(head + body)) as engine, Gateway(engine.url) as gateway:
            assert get(gateway, "/v1/models").body == body

    def test_it_waits_behind_no_call(self) -> None:
        with StandIn(slots=1, token_s=0.05) as engine, Gateway(engine.url, slots=1) as gateway, Client(gateway.address) as busy:
            busy.chat(model="m", stream=True, max_tokens=2000, ignore_eos=True)
            wait_until(lambda: engine.stats()["running"] == 1)
            assert get(gateway, "/v1/models").json()["data"][0]["id"] == "standin"
            assert engine.stats()["running"] == 1

    def test_backends_without_lists_are_asked(self) -> None:
        body = b'{"models":[]}'
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
        with (
            raw_engine(answer(head + body)) as one,
            raw_engine(answer(head + body)) as other,
            Gateway(one.url, other.url) as gateway,
        ):
            assert get(gateway, "/v1/models").body == body


class TestAliases:
    CONFIG = '[[alias]]\nname = "gpt-4"\nmodel = "beta"\n'

    def test_the_engine_is_asked_for_the_model_itself(self) -> None:
        with two(config=self.CONFIG) as (gateway, a, b):
            reply = chat(gateway, "gpt-4")
            assert reply.status == 200 and reply.json()["model"] == "beta", "answers are the engine's own"
            assert chat(gateway, "gpt-4", stream=True).status == 200
            assert ask(gateway.address, EMBED, {"model": "gpt-4", "input": ["a", "b"]}).status == 200
            assert chat(gateway, "gpt-4", MESSAGES).status == 200
            assert models_asked_of(b) == {"beta": 4} and not models_asked_of(a)

            def chats() -> list[str]:
                return [row["model"] for row in gateway.log() if row["event"] == "call_ended" and row["route"] == "openai.chat"]

            wait_until(lambda: len(chats()) == 2, what="the log")
            assert chats() == ["beta", "beta"]

    def test_in_a_query(self) -> None:
        refused = b"HTTP/1.1 403 X\r\ncontent-length: 0\r\n\r\n"
        with raw_engine(answer(refused)) as one, raw_engine(answer(refused)) as other:
            config = f'[[backend]]\nurl = "{one.url}"\nmodels = ["x"]\n[[backend]]\nurl = "{other.url}"\nmodels = ["a/b"]\n'
            with Gateway(config='[[alias]]\nname = "live"\nmodel = "a/b"\n' + config) as gateway:
                reply = get(
                    gateway,
                    "/v1/realtime?x=1&model=live&y=2",
                    {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": KEY},
                )
                assert reply.status == 403
            assert not one.requests and other.requests[0].startswith(b"GET /v1/realtime?x=1&model=a%2Fb&y=2 HTTP/1.1\r\n")

    def test_one_backend(self) -> None:
        with (
            StandIn(like="vllm", models="beta", token_s=0.001) as engine,
            Gateway(config=f'{self.CONFIG}[[backend]]\nurl = "{engine.url}"\n') as gateway,
        ):
            wait_models(gateway, ["beta"])
            assert chat(gateway, "gpt-4").status == chat(gateway, "beta").status == 200
            assert [row["id"] for row in get(gateway, "/v1/models").json()["data"]] == ["beta", "gpt-4"]
            engine.behave(models="beta,gamma")
            assert models_asked_of(engine) == {"beta": 2}


class TestConfigured:
    def test_models(self) -> None:
        """Neither backend has a fixed list of models."""
        with StandIn(token_s=0.001) as a, StandIn(token_s=0.001) as b:
            config = (
                f'[[backend]]\nurl = "{a.url}"\nmodels = ["gpt-*"]\n[[backend]]\nurl = "{b.url}"\nmodels = ["claude-x", "o3"]\n'
            )
            with Gateway(config=config) as gateway:
                for _ in range(5):
                    assert chat(gateway, "gpt-5").status == chat(gateway, "o3").status == 200
                assert models_asked_of(a) == {"gpt-5": 5} and models_asked_of(b) == {"o3": 5}
                reply = chat(gateway, "o3-mini")
                assert reply.status == 404 and "does not exist. Available: claude-x, o3." in reply.json()["error"]["message"]
                assert [row["id"] for row in get(gateway, "/v1/models").json()["data"]] == ["claude-x", "o3"]

    def test_apis(self) -> None:
        with StandIn(token_s=0.001) as a, StandIn(token_s=0.001) as b:
            config = f'[[backend]]\nurl = "{a.url}"\napis = ["openai"]\n[[backend]]\nurl = "{b.url}"\napis = ["anthropic"]\n'
            with Gateway(config=config) as gateway:
                for _ in range(5):
                    assert chat(gateway, "m").status == chat(gateway, "m", MESSAGES).status == 200
                assert models_asked_of(a, CHAT) == models_asked_of(b, MESSAGES) == {"m": 5}
                assert not models_asked_of(a, MESSAGES) and not models_asked_of(b, CHAT)
                reply = ask(gateway.address, "/api/chat", {"model": "m", "messages": []})
                assert reply.status == 404 and "No backend speaks the ollama API" in reply.body.decode()

    def test_reload(self) -> None:
        with two() as (gateway, a, _):
            assert gateway.config_path is not None
            text = gateway.config_path.read_text()
            gateway.config_path.write_text('[[alias]]\nname = "new"\nmodel = "alpha"\n' + text)
            gateway.signal(signal.SIGHUP)
            gateway.find_line("configuration reloaded")
            assert chat(gateway, "new").status == 200 and models_asked_of(a) == {"alpha": 1}


def forms(*fields: tuple[str, bytes]) -> tuple[bytes, str]:
    parts = [
        b'--xx\r\ncontent-disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name.encode(), text) for name, text in fields
    ]
    return b"".join(parts) + b"--xx--\r\n", "multipart/form-data; boundary=xx"


def ok_engine() -> Any:
    return raw_engine(answer(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"))


@pytest.mark.parametrize("first", [True, False])
def test_uploads_are_routed_by_their_model(first: bool) -> None:
    """Audio comes as a form, in which the client may put the model anywhere."""
    fields = [("file", b"RIFF" + bytes(200_000)), ("model", b"whisper-x")]
    body, kind = forms(*(fields[::-1] if first else fields))
    config = (
        '[[route]]\npath = "/v1/audio/transcriptions"\nmethods = ["POST"]\n[[alias]]\nname = "whisper-x"\nmodel = "whisper-1"\n'
    )
    with ok_engine() as chats, ok_engine() as hears:
        config += f'[[backend]]\nurl = "{chats.url}"\nmodels = ["gpt"]\n'
        config += f'[[backend]]\nurl = "{hears.url}"\nmodels = ["whisper-1"]\n'
        with Gateway(config=config) as gateway:
            for _ in range(4):
                with Client(gateway.address) as client:
                    head = f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: t\r\nContent-Type: {kind}\r\n"
                    client.send(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                    assert client.read_answer().status == 200
            assert not chats.requests and len(hears.requests) == 4
            assert b"\r\n\r\nwhisper-1\r\n" in hears.requests[0] and b"whisper-x" not in hears.requests[0]
