"""Streams of the real SDKs against the stand-in engine: when the client disconnects, the engine's connection is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

import hangup
from hangup.library.limits import Limits
from hangup.library.stream import StreamCall
from hangup.library.watch import ClientWatch
from support.processes import StandIn

MESSAGES: Any = [{"role": "user", "content": "hello"}]
TOKEN_S = 0.05


@pytest.fixture(scope="module")
def engine() -> Iterator[StandIn]:
    with StandIn(slots=8, prefill_s=0.05, token_s=TOKEN_S, answer_tokens=100) as process:
        yield process


pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # the clients themselves are left to the collector


class Leaver:
    """A client that leaves once it has a few chunks."""

    def __init__(self, after: int) -> None:
        self.chunks = 0
        self.after = after
        self.disconnected = asyncio.Event()

    async def receive(self) -> dict[str, str]:
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def start(self, status: int, headers: Any) -> None:
        assert status == 200

    async def write(self, data: bytes) -> None:
        self.chunks += 1
        if self.chunks == self.after:
            self.disconnected.set()

    async def finish(self) -> None:
        pass

    async def break_off(self) -> None:
        pass

    async def abandon(self) -> None:
        pass

    def answers(self, error: Exception) -> bool:
        return False


def openai_stream(url: str) -> Any:
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", http_client=hangup.httpx2.AsyncClient())
    return client.chat.completions.create(model="m", messages=MESSAGES, stream=True)


def anthropic_stream(url: str) -> Any:
    client = anthropic.AsyncAnthropic(base_url=url, api_key="none")
    return client.messages.create(model="m", messages=MESSAGES, max_tokens=100, stream=True)


def anthropic_manager(url: str) -> Any:
    client = anthropic.AsyncAnthropic(base_url=url, api_key="none")
    return client.messages.stream(model="m", messages=MESSAGES, max_tokens=100)


def httpx_manager(url: str) -> Any:
    body = {"model": "m", "messages": MESSAGES, "stream": True}
    return hangup.httpx.AsyncClient().stream("POST", f"{url}/v1/chat/completions", json=body)


def httpx_response(url: str) -> Any:
    client = httpx.AsyncClient()
    body = {"model": "m", "messages": MESSAGES, "stream": True}
    return client.send(client.build_request("POST", f"{url}/v1/chat/completions", json=body), stream=True)


def blocking_openai(url: str) -> Any:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    return lambda _: client.chat.completions.create(model="m", messages=MESSAGES, stream=True)


SOURCES = [openai_stream, anthropic_stream, anthropic_manager, httpx_manager, httpx_response, blocking_openai]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
def test_a_client_that_leaves_stops_the_engine(engine: StandIn, source: Any) -> None:
    before = engine.stats()

    async def main() -> hangup.Ended:
        client = Leaver(after=5)
        return await StreamCall(source(engine.url), Limits()).run(ClientWatch(client.receive, None, None), client)

    ended = asyncio.run(main())
    after = engine.wait_idle()
    assert ended.outcome.value == "client_gone" and not ended.zombie
    assert after["aborted"] - before["aborted"] == 1
    assert 1 <= after["tokens"] - before["tokens"] < 100  # some of the five chunks carry no token


def test_an_openai_stream_left_by_break_stops_the_engine(engine: StandIn) -> None:
    before = engine.stats()

    async def main() -> None:
        async for _ in hangup.closing(await openai_stream(engine.url)):
            break
        await asyncio.to_thread(engine.wait_idle)

    asyncio.run(main())
    assert engine.stats()["aborted"] - before["aborted"] == 1
