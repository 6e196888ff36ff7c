"""Calls whose client is a WebSocket: each chunk is a message, and the connection stays open for the next call.

A close arrives as a message behind those that the client sent before it. So while a call runs, `HeldMessages` reads the
client's messages and keeps them for the application, which gets them in their order from its own `receive`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from hangup.core import reasons
from hangup.core.call import Tell
from hangup.library.formats import ChunkFormat
from hangup.library.stream import Headers, StreamCall, StreamClient
from hangup.library.tether import Tether

GONE, TIMED_OUT = 1006, 1013  # codes of RFC 6455: closed without a goodbye; try again later
HELD_MESSAGES_MAX = 64  # further ones wait in the server until the application reads; then only the socket shows a close


class HeldMessages:
    """The messages of one WebSocket. Application and watch take turns in reading, so nothing is lost between them."""

    def __init__(self, receive: Callable[..., Awaitable[Any]], is_close: Callable[[Any], bool]) -> None:
        self.original = receive
        self._is_close = is_close
        self._held: deque[Any] = deque()
        self._waiters: list[asyncio.Future[None]] = []
        self._is_reading = False
        self._closed = False

    async def receive(self, timeout: float | None = None) -> Any:  # noqa: ASYNC109 - as aiohttp's has it
        """Return the next message, in place of the framework's own `receive`."""
        async with asyncio.timeout(timeout):
            while not self._held:
                if not self._is_reading:
                    return await self._read()
                await self._change()
        message = self._held.popleft()
        self._wake()
        return message

    async def until_closed(self) -> dict[str, str]:
        """Read and keep messages until the client closes the WebSocket."""
        while not self._closed:
            if self._is_reading or len(self._held) >= HELD_MESSAGES_MAX:
                await self._change()
            else:
                self._held.append(await self._read())
                self._wake()
        return {"type": "http.disconnect"}

    async def _read(self) -> Any:
        self._is_reading = True
        try:
            message = await self.original()
            self._closed = self._closed or self._is_close(message)
            return message
        finally:
            self._is_reading = False
            self._wake()

    async def _change(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()


class MessageCall(StreamCall):
    """A call whose chunks are messages: text as text, bytes as bytes, everything else as JSON."""

    def _encoded(self, format: ChunkFormat, chunk: Any) -> bytes | str:
        return _as_text(format.message(chunk), chunk) if self._encode is None else self._encode(chunk)

    def _wire(self, data: bytes | str) -> Any:
        return data

    async def _finish_answer(self, tether: Tether, client: StreamClient) -> None:
        with contextlib.suppress(ConnectionError):  # it has left meanwhile
            await self._tell(tether, client)

    async def _tell(self, tether: Tether, client: StreamClient) -> None:
        if tether.tell is Tell.FINISH and tether.call.reason is reasons.OUTPUT_TOKENS:
            await self._send_cut(tether, client)
        elif tether.tell in (Tell.STATUS, Tell.ERROR_EVENT):
            await client.write(json.dumps(self._error_body(tether)))

    async def _send_cut(self, tether: Tether, client: StreamClient) -> None:
        if self._on_cap is not None:
            await client.write(self._on_cap())
            return
        events = self._cut_events(tether)
        for body in [self._error_body(tether)] if events is None else events:
            await client.write(json.dumps(body))


def _as_text(data: bytes | str, chunk: Any) -> bytes | str:
    return data.decode() if isinstance(data, bytes) and not isinstance(chunk, (bytes, bytearray, memoryview)) else data


class Sender(Protocol):
    async def __call__(self, data: bytes | str) -> None: ...


class WebSocketClient:
    """The client's side of a call: a WebSocket has no head, and its end is not the end of the connection."""

    def __init__(self, send: Sender) -> None:
        self._send = send

    async def start(self, status: int, headers: Headers) -> None:
        pass

    async def write(self, data: Any) -> None:
        try:
            await self._send(data)
        except Exception as error:  # every framework has its own error for a client that has left
            raise ConnectionResetError(f"the client has left: {type(error).__name__}: {error}") from error

    async def finish(self) -> None:
        pass

    async def break_off(self) -> None:
        pass

    async def abandon(self) -> None:
        pass

    def answers(self, error: Exception) -> bool:
        return False
