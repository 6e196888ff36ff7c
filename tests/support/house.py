"""A gateway with one engine in this process, on real sockets, so that a test can make any of its functions fail."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from hangup.config import BackendSettings, LimitSettings, Settings
from hangup.core import reasons
from hangup.gateway.client.connection import ClientConnection
from hangup.gateway.gateway import Gateway
from hangup.gateway.log import Log
from support.raw_engine import DONE, HEAD, LAST, chunk, event
from support.waiting import PATIENCE_S, soon

WHOLE = b'{"messages":[{"role":"user","content":"x"}],"max_tokens":9}'
STREAM = b'{"messages":[{"role":"user","content":"x"}],"max_tokens":9,"stream":true}'
EMBED = b'{"input":"x"}'


class Engine:
    """An engine on a real socket that answers everything."""

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
        body = await reader.readexactly(int(length or 0))
        if b" /v1/chat" not in head:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
            return
        writer.write(HEAD + chunk(event("a")))
        await writer.drain()
        await asyncio.sleep(60 if b"slow" in body else 0.01)
        writer.write(chunk(event("b")) + chunk(event("", '"stop"')) + chunk(DONE) + LAST)


class House:
    """A gateway with one engine, on real sockets, in this event loop."""

    async def __aenter__(self) -> House:
        loop = asyncio.get_running_loop()
        self.engine = Engine()
        url = await self.engine.start()
        limits = LimitSettings(health_interval_s=600, first_token_s=30, total_s=30, linger_s=0.2)
        settings = Settings(backend=(BackendSettings(url=url, engine="openai"),), limits=limits, slots=1, jobs="none")
        self.gateway = Gateway(settings, loop, Log("none", 100))
        self.listener = await loop.create_server(lambda: ClientConnection(self.gateway.intake, loop), "127.0.0.1", 0)
        self.backend = next(iter(self.gateway.backends.by_name.values()))
        assert b"200" in await self.post("/v1/embeddings", EMBED)
        await soon(lambda: self.backend.facts_known, "an engine that was asked what it can do")
        self.backend.slots.resize(4)  # as if calls could be pinned to its slots: none may stay taken
        return self

    async def __aexit__(self, *_: object) -> None:
        self.listener.close()
        self.gateway.end_all(reasons.DRAINED)
        await self.gateway.close()
        await self.engine.close()

    async def post(self, path: str, body: bytes) -> bytes:
        """Send a request and return everything until the gateway closes the connection."""
        port = self.listener.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        try:
            return await asyncio.wait_for(reader.read(), PATIENCE_S)
        except ConnectionError:
            return b""
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def at_rest(self) -> None:
        """Wait until nothing is left of any call."""
        await soon(lambda: not self._is_busy(), "a gateway at rest")

    def _is_busy(self) -> bool:
        gateway, pool = self.gateway, self.backend.pool
        live = gateway.registry.live or gateway.intake.open_connections or self.backend.load.in_flight
        pins = self.backend.pinned or self.backend.slots.taken
        return bool(live or pins or len(pool.open) - len(pool._idle))
