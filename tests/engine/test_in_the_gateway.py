"""`hangup serve` without an upstream: the embedded engine, reached inside the process."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from functools import partial

import openai
import pytest

from hangup.config import BackendSettings, LimitSettings
from hangup.engine.options import EngineOptions
from hangup.engine.serving.server import Serving, embed
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.connection import EngineConnection
from hangup.gateway.http.head import ResponseHead
from support.processes import Gateway
from support.raw import Client
from support.waiting import soon


class Asker:
    """Receives an answer's bytes; each arrival sets `came`."""

    def __init__(self) -> None:
        self.data = b""
        self.came = asyncio.Event()
        self.lost = False

    def engine_answered(self, connection: EngineConnection, head: ResponseHead, rest: bytes) -> Callable[[bytes], None]:
        assert head.status == 200
        self.feed(rest)
        return self.feed

    def feed(self, data: bytes) -> None:
        self.data += data
        self.came.set()

    def engine_leaving(self) -> None: ...

    def engine_lost(self, connection: EngineConnection, error: Exception | None) -> None:
        self.lost = True

    def engine_garbled(self, connection: EngineConnection, error: Exception) -> None:
        raise AssertionError(error)

    def fault(self, error: Exception) -> None:
        raise error


async def ask(engine: Serving, path: str = "/v1/completions", **fields: object) -> tuple[Asker, EngineConnection]:
    settings = BackendSettings(url="http://embedded", name="embedded")
    backend = Backend(settings, LimitSettings(), asyncio.get_running_loop(), dial=engine.dial)
    connection = await backend.pool.connect()
    asker = Asker()
    given = {"prompt": "ROMEO:", "max_tokens": 400, **fields} if path == "/v1/completions" else fields
    body = json.dumps({"stream": True, "ignore_eos": True, **given}).encode()
    connection.ask(asker, *backend.own_request("POST", path, body))
    await asyncio.wait_for(asker.came.wait(), 60)
    return asker, connection


def has_released(engine: Serving, calls: int) -> bool:
    counters = engine.server.runner.counters()
    return counters["cancelled_running"] + counters["cancelled_waiting"] == calls


def test_a_cut_is_a_cancel_before_it_returns() -> None:
    async def run() -> None:
        engine = embed(EngineOptions(slots=2))
        try:
            for number in range(1, 51):
                _, connection = await ask(engine)
                assert len(engine.server._calls) == 1
                connection.abort()
                assert not engine.server._calls, "the engine knows already"
                await soon(partial(has_released, engine, number))
        finally:
            await engine.close()

    asyncio.run(run())


def test_a_reader_that_pauses_is_heard_and_nothing_is_lost() -> None:
    async def run() -> None:
        engine = embed(EngineOptions(slots=1))
        try:
            asker, connection = await ask(engine)
            connection.transport.pause_reading()
            await asyncio.sleep(0)
            size = len(asker.data)
            before = engine.server.runner.counters()["tokens"]
            await soon(lambda: engine.server.runner.counters()["tokens"] > before)
            assert len(asker.data) == size
            connection.transport.resume_reading()
            async with asyncio.timeout(60):
                while b"[DONE]" not in asker.data:
                    asker.came.clear()
                    await asker.came.wait()
            connection.abort()
        finally:
            await engine.close()

    asyncio.run(run())


PAUSED: dict[str, dict[str, object]] = {
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 900},
    "/v1/responses": {"input": "hi", "max_output_tokens": 900},
}


@pytest.mark.parametrize("path", PAUSED)
def test_nothing_more_is_computed_for_a_reader_that_pauses(path: str) -> None:
    async def run() -> None:
        engine = embed(EngineOptions(slots=1))
        counters = engine.server.runner.counters
        try:
            asker, connection = await ask(engine, path, **PAUSED[path])
            connection.transport.pause_reading()
            [call] = next(iter(engine.server._calls.values()))
            await soon(lambda: call._tickets[0].sequence.paused)
            before = counters()["tokens"]
            await asyncio.sleep(0.2)
            assert counters()["running"] == 1 and counters()["tokens"] <= before + 1 < 900, "but for the forward on its way"
            connection.transport.resume_reading()
            async with asyncio.timeout(120):
                while (b"message_stop" if path == "/v1/messages" else b"event: response.incomplete") not in asker.data:
                    asker.came.clear()
                    await asker.came.wait()
            assert counters()["tokens"] == 900
            connection.abort()
        finally:
            await engine.close()

    asyncio.run(run())


def test_serve_without_an_upstream() -> None:
    with Gateway() as gateway:
        client = openai.OpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0)
        with client:
            [model] = client.models.list().data
            stream = client.chat.completions.create(
                model=model.id, messages=[{"role": "user", "content": "ROMEO:"}], stream=True, max_tokens=8, seed=1
            )
            streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
            whole = client.chat.completions.create(
                model=model.id, messages=[{"role": "user", "content": "ROMEO:"}], max_tokens=8, seed=1
            )
            assert streamed and whole.choices[0].message.content == streamed
        with Client(gateway.address) as leaves:
            body = {"prompt": "ROMEO:", "stream": True, "ignore_eos": True, "max_tokens": 1000}
            leaves.post("/v1/completions", body, {"x-request-id": "left"})
            leaves.read_until(b'"text"')
            leaves.fin()
            assert gateway.call_log("left")["outcome"] == "client_gone"
        gateway.signal(signal.SIGTERM)
        assert gateway.wait() == 0
