"""`hangup.testing`: what docs/library.md tells an application developer to write works, and fails for an application that
leaks.
"""

from __future__ import annotations

import asyncio
import fcntl
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import openai
import pytest
from fastapi import FastAPI, Request

import hangup
from hangup.testing import CountingEngine, _is_gone, call, serve

MESSAGES: Any = [{"role": "user", "content": "hello"}]
WAYS: list[Any] = ["close", "reset", "half_close"]


def make_app(engine_url: str) -> FastAPI:
    app = FastAPI()
    chat = openai.AsyncOpenAI(base_url=f"{engine_url}/v1", api_key="none", max_retries=0).chat.completions
    messages = anthropic.AsyncAnthropic(base_url=engine_url, api_key="none", max_retries=0).messages

    async def openai_stream(request: Request) -> Any:
        return hangup.stream(request, chat.create(model="m", messages=MESSAGES, stream=True))

    async def anthropic_stream(request: Request) -> Any:
        return hangup.stream(request, messages.create(model="m", messages=MESSAGES, max_tokens=100, stream=True))

    async def whole(request: Request) -> Any:
        return await hangup.run(request, chat.create(model="m", messages=MESSAGES))

    async def leaking() -> Any:
        return await asyncio.shield(asyncio.ensure_future(chat.create(model="m", messages=MESSAGES)))

    for handler in (openai_stream, anthropic_stream, whole, leaking):
        app.post(f"/{handler.__name__}")(_annotated(handler))
    return app


def _annotated(handler: Any) -> Any:
    if "request" in handler.__annotations__:
        handler.__annotations__["request"] = Request
    handler.__annotations__.pop("return")
    return handler


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # the SDKs' clients are left to the collector here
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("path", ["openai_stream", "anthropic_stream"])
def test_a_stream_that_stops(path: str, how: Any) -> None:
    with CountingEngine() as engine, serve(make_app(engine.url)) as url, call(f"{url}/{path}") as client:
        assert "word" in client.wait_for_data("word").decode()
        client.hang_up(how)
        engine.wait_idle()
        assert (engine.started, engine.stopped, engine.finished) == (1, 1, 0) and engine.tokens < 1000


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("path", ["openai_stream", "whole"])
def test_a_client_that_leaves_before_the_first_token(path: str) -> None:
    with CountingEngine(first_token_s=600) as engine, serve(make_app(engine.url)) as url, call(f"{url}/{path}") as client:
        engine.wait_started()
        client.hang_up()
        engine.wait_idle()
        assert engine.tokens == 0


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore:Exception in callback")
def test_an_application_that_leaks_is_told_so() -> None:
    with CountingEngine() as engine, serve(make_app(engine.url)) as url, call(f"{url}/leaking") as client:
        engine.wait_tokens(2)
        client.hang_up()
        with pytest.raises(AssertionError, match="still computes 1 calls"):
            engine.wait_idle(within_s=0.3)


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_an_answer_that_nobody_leaves_is_complete() -> None:
    with CountingEngine(tokens=3, token_s=0) as engine:
        with openai.OpenAI(base_url=f"{engine.url}/v1", api_key="none") as client:
            chunks = list(client.chat.completions.create(model="m", messages=MESSAGES, stream=True))
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "word " * 3
            whole = client.chat.completions.create(model="m", messages=MESSAGES)
            assert whole.choices[0].message.content == "word " * 3
            with pytest.raises(openai.NotFoundError, match="CountingEngine has /v1/chat/completions and /v1/messages"):
                client.embeddings.create(model="m", input="x")
        with anthropic.Anthropic(base_url=engine.url, api_key="none") as other:
            with other.messages.stream(model="m", messages=MESSAGES, max_tokens=9) as stream:
                assert stream.get_final_text() == "word " * 3
            message = other.messages.create(model="m", messages=MESSAGES, max_tokens=9)
            assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 3)
        engine.wait_idle()
        assert (engine.finished, engine.stopped, engine.tokens) == (4, 0, 12)


def test_the_waits_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hangup.testing.PATIENCE_S", 0.05)
    with CountingEngine() as engine:
        with pytest.raises(AssertionError, match="the engine got 0 of 1 calls"):
            engine.wait_started()
        with pytest.raises(AssertionError, match="computed 0 of 2 tokens"):
            engine.wait_tokens(2)
    with pytest.raises(ValueError, match="must begin with http://"):
        call("https://127.0.0.1/")


def test_nothing_is_left() -> None:
    with CountingEngine() as engine, serve(FastAPI()):
        assert engine.running == 0
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("hangup.testing server")]


def test_the_engine_knows_clients_with_high_descriptors(high_descriptor: Callable[[int], int]) -> None:
    """An application with a thousand open files leaves it only descriptors that `select.select` does not know."""
    near, far = socket.socketpair()
    client = socket.socket(fileno=high_descriptor(near.fileno()))
    with near, far, client:
        assert client.fileno() > 1023
        assert not _is_gone(client)
        far.send(b"x")
        assert not _is_gone(client), "it sent something"
        assert client.recv(1) == b"x"
        far.close()
        assert _is_gone(client)
    assert _is_gone(client), "it was closed here"


@pytest.fixture
def high_descriptor() -> Iterator[Callable[[int], int]]:
    """Gives a copy of a descriptor above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < 2048:
        pytest.skip("the process may not have that many descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048) if soft >= 0 else soft, hard))
    yield lambda descriptor: fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 1100)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
