"""The clients of the benchmarks: bare sockets on uvloop, light enough not to disturb the measurement."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, cast


def request(path: str, body: dict[str, Any], id: str = "", *, close: bool = False) -> bytes:
    data = json.dumps(body, separators=(",", ":")).encode()
    extra = (f"X-Request-Id: {id}\r\n" if id else "") + ("Connection: close\r\n" if close else "")
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{extra}"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


MESSAGES = [{"role": "user", "content": "hello there, how are you today?"}]
CHAT = {"model": "bench-model", "messages": MESSAGES}
STREAM = {**CHAT, "stream": True}


class Stream(asyncio.Protocol):
    """Opens one stream and counts its chunks in a counter shared by all."""

    transport: asyncio.Transport

    def __init__(self, counter: list[int], data: bytes) -> None:
        self.counter = counter
        self.data = data
        self.sent_at = 0.0
        self.first_byte_at = 0.0
        self.first = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.sent_at = time.monotonic()
        self.transport.write(self.data)

    def data_received(self, data: bytes) -> None:
        if not self.first_byte_at:
            self.first_byte_at = time.monotonic()
            if data.startswith(b"HTTP/1.1 200"):
                self.first.set_result(None)
            else:  # a stream that was refused must not count as one that costs nothing
                self.first.set_exception(RuntimeError(f"the target answered {data[:300]!r}"))
        self.counter[0] += data.count(b'"delta"')

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.first.done():
            self.first.set_exception(ConnectionError("closed before the first byte"))


class Requester(asyncio.Protocol):
    """Sends one request after the other on one connection."""

    transport: asyncio.Transport

    def __init__(self, counter: list[int], data: bytes) -> None:
        self.counter = counter
        self.data = data
        self.buffer = b""
        self.sent_at = 0.0
        self.times: list[float] = []  # from a request to its whole answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.sent_at = time.monotonic()
        self.transport.write(self.data)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self.buffer[:end].lower()
        at = head.find(b"content-length:")
        if at >= 0:
            if len(self.buffer) < end + 4 + int(head[at + 15 :].split(b"\r\n", 1)[0]):
                return
        elif not self.buffer.endswith(b"0\r\n\r\n"):
            return
        if not head.startswith(b"http/1.1 200"):
            raise RuntimeError(f"the target answered {self.buffer[:300]!r}")
        self.buffer = b""
        self.counter[0] += 1
        now = time.monotonic()
        self.times.append(now - self.sent_at)
        self.sent_at = now
        self.transport.write(self.data)


async def open_streams(port: int, count: int, counter: list[int], body: dict[str, Any], prefix: str = "") -> list[Stream]:
    """Open streams in batches, each with its first byte received; their ids are the prefix and a number."""
    loop = asyncio.get_running_loop()

    async def open_one(index: int) -> Stream:
        data = request("/v1/chat/completions", body, f"{prefix}{index}" if prefix else "")
        _, stream = await loop.create_connection(lambda: Stream(counter, data), "127.0.0.1", port)
        await asyncio.wait_for(asyncio.shield(stream.first), 60)
        return stream

    streams: list[Stream] = []
    for start in range(0, count, 100):
        streams += await asyncio.gather(*map(open_one, range(start, min(start + 100, count))))
    return streams


async def open_requesters(port: int, count: int, counter: list[int], data: bytes) -> list[Requester]:
    loop = asyncio.get_running_loop()
    connections = [loop.create_connection(lambda: Requester(counter, data), "127.0.0.1", port) for _ in range(count)]
    return [protocol for _, protocol in await asyncio.gather(*connections)]


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
