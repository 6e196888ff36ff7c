"""A bug of ours, put in at every step of a call's way: it costs that call, and nothing is left of it.

The gateway runs in this process, so that any of its functions can be made to fail; sockets are real ones.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from hangup.app import reply
from hangup.app.assembly import AssembleRelay
from hangup.app.exchange import Exchange
from hangup.app.gateway import Gateway
from hangup.app.log import Log
from hangup.app.relay import PassRelay, StreamRelay
from hangup.config import BackendSettings, Limits, Settings
from hangup.core import reasons
from hangup.core.admission import Admission
from hangup.core.call import Call
from hangup.core.ledger import Ledger
from hangup.edge.connection import ClientConnection
from hangup.engines.backend import Backend
from hangup.engines.connection import EngineConnection
from hangup.engines.pool import Pool
from support.raw_engine import DONE, HEAD, LAST, chunk, event

WHOLE = b'{"messages":[{"role":"user","content":"x"}],"max_tokens":9}'
STREAM = b'{"messages":[{"role":"user","content":"x"}],"max_tokens":9,"stream":true}'
EMBED = b'{"input":"x"}'


class Engine:
    """Answers everything, on real sockets."""

    async def start(self) -> str:
        self._handlers: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        self._server.close()
        for task in self._handlers:
            task.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task: Any = asyncio.current_task()
        self._handlers.add(task)
        try:
            while True:
                await self._answer(reader, writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length or 0))
        if b" /v1/chat" not in head:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
            return
        writer.write(HEAD + chunk(event("a")))
        await writer.drain()
        await asyncio.sleep(0.01)
        writer.write(chunk(event("b")) + chunk(event("", '"stop"')) + chunk(DONE) + LAST)


class House:
    """A gateway with one engine, on real sockets, in this loop."""

    async def __aenter__(self) -> House:
        loop = asyncio.get_running_loop()
        self.engine = Engine()
        url = await self.engine.start()
        limits = Limits(health_interval_s=600, first_token_s=5, total_s=5, linger_s=0.2)
        settings = Settings(backend=(BackendSettings(url=url, engine="openai"),), limits=limits, slots=1, jobs="none")
        self.gateway = Gateway(settings, loop, Log("none", 100))
        self.listener = await loop.create_server(lambda: ClientConnection(self.gateway, loop), "127.0.0.1", 0)
        self.backend = next(iter(self.gateway.backends.values()))
        assert b"200" in await self.post("/v1/embeddings", EMBED)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.listener.close()
        self.gateway.end_all(reasons.DRAINED)
        await self.gateway.close()
        await self.engine.close()

    async def post(self, path: str, body: bytes) -> bytes:
        """Everything that comes until the gateway closes."""
        port = self.listener.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        try:
            return await asyncio.wait_for(reader.read(), 10)
        except ConnectionError:
            return b""
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def at_rest(self) -> None:
        """Nothing is left of any call."""
        async with asyncio.timeout(10):
            while self.gateway.calls or self.backend.seat.in_flight or self.gateway.connections or self._busy():  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    def _busy(self) -> int:
        return len(self.backend.pool.open) - len(self.backend.pool._idle)


STEPS: list[tuple[Any, str, str, bytes]] = [
    (Gateway, "_admit", "/v1/chat/completions", STREAM),
    (Gateway, "_begin", "/v1/chat/completions", STREAM),
    (Gateway, "_ticket", "/v1/chat/completions", STREAM),
    (Gateway, "engine_key", "/v1/chat/completions", STREAM),
    (Gateway, "first_token", "/v1/chat/completions", STREAM),
    (Gateway, "backend_succeeded", "/v1/chat/completions", STREAM),
    (Gateway, "_write_down", "/v1/chat/completions", STREAM),
    (Gateway, "_settle", "/v1/chat/completions", STREAM),
    (Exchange, "body_arrived", "/v1/chat/completions", STREAM),
    (Exchange, "_read_request", "/v1/chat/completions", STREAM),
    (Exchange, "find_place", "/v1/chat/completions", STREAM),
    (Exchange, "placed", "/v1/chat/completions", STREAM),
    (Exchange, "connected", "/v1/chat/completions", STREAM),
    (Exchange, "_request", "/v1/chat/completions", STREAM),
    (Exchange, "engine_answered", "/v1/chat/completions", STREAM),
    (Exchange, "_choose_relay", "/v1/embeddings", EMBED),
    (Exchange, "answer_whole", "/v1/chat/completions", WHOLE),
    (Exchange, "_stop_engine", "/v1/chat/completions", STREAM),
    (Exchange, "_tell_client", "/v1/chat/completions", STREAM),
    (Exchange, "first_token", "/v1/chat/completions", STREAM),
    (Backend, "request", "/v1/chat/completions", STREAM),
    (Backend, "unpin", "/v1/chat/completions", STREAM),
    (Pool, "idle_connection", "/v1/chat/completions", STREAM),
    (Pool, "connect", "/v1/chat/completions", STREAM),
    (Pool, "put_back", "/v1/chat/completions", STREAM),
    (EngineConnection, "_read_head", "/v1/chat/completions", STREAM),
    (EngineConnection, "ask", "/v1/chat/completions", STREAM),
    (EngineConnection, "release", "/v1/chat/completions", STREAM),
    (StreamRelay, "feed", "/v1/chat/completions", STREAM),
    (StreamRelay, "take", "/v1/chat/completions", STREAM),
    (StreamRelay, "finished", "/v1/chat/completions", STREAM),
    (AssembleRelay, "take", "/v1/chat/completions", WHOLE),
    (AssembleRelay, "finished", "/v1/chat/completions", WHOLE),
    (AssembleRelay, "settle", "/v1/chat/completions", WHOLE),
    (PassRelay, "take", "/v1/embeddings", EMBED),
    (reply, "begin", "/v1/embeddings", EMBED),
    (reply, "error", "/nowhere", b"x"),
    (Call, "received", "/v1/chat/completions", STREAM),
    (Call, "sent", "/v1/chat/completions", STREAM),
    (Call, "answered", "/v1/chat/completions", STREAM),
    (Ledger, "record", "/v1/chat/completions", STREAM),
    (Log, "call", "/v1/chat/completions", STREAM),
    (Admission, "arrive", "/v1/chat/completions", STREAM),
    (ClientConnection, "_take_head", "/v1/chat/completions", STREAM),
    (ClientConnection, "_expect_body", "/v1/chat/completions", STREAM),
    (ClientConnection, "_body_complete", "/v1/chat/completions", STREAM),
    (ClientConnection, "finish", "/v1/chat/completions", STREAM),
    (ClientConnection, "begin", "/v1/chat/completions", STREAM),
    (ClientConnection, "send", "/v1/chat/completions", STREAM),
]


@pytest.mark.parametrize(("where", "step", "path", "body"), STEPS, ids=[f"{w.__name__}.{s}" for w, s, _, _ in STEPS])
def test_costs_one_call(where: Any, step: str, path: str, body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with House() as house:
            await house.at_rest()
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
            failures = _fail_once(monkeypatch, where, step)
            if where is Pool and step == "connect":
                house.backend.pool.close_idle()
                house.backend.pool._closed = False
            await house.post(path, body)
            assert failures == [step], "the step was not taken"
            await house.at_rest()
            for each, asked in (("/v1/embeddings", EMBED), ("/v1/chat/completions", STREAM), ("/v1/chat/completions", WHOLE)):
                assert (await house.post(each, asked)).startswith(b"HTTP/1.1 200")
            await house.at_rest()

    uvloop.run(run())


def _fail_once(monkeypatch: pytest.MonkeyPatch, where: Any, step: str) -> list[str]:
    """The next call of this function raises, and the ones after it do not."""
    real: Callable[..., Any] = getattr(where, step)
    failures: list[str] = []

    def failing(*arguments: Any, **named: Any) -> Any:
        if failures:
            return real(*arguments, **named)
        failures.append(step)
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(where, step, failing)
    return failures
