"""Clients that make one call each and record its outcome; light enough for a thousand at once in one process."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from bench.load import percentile

PATIENCE_S = 60.0
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "say something about clients that hang up"}]


def body(tokens: int, *, stream: bool = True, **more: Any) -> dict[str, Any]:
    return {"model": "standin", "messages": MESSAGES, "max_tokens": tokens, "ignore_eos": True, "stream": stream, **more}


def encoded(value: dict[str, Any], path: str = CHAT, key: str = "") -> bytes:
    data = json.dumps(value).encode()
    lines = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json", f"content-length: {len(data)}"]
    if key:
        lines.append(f"authorization: Bearer {key}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + data


@dataclass
class Outcome:
    began_s: float  # since the start of the run
    status: int = 0  # 0: no answer at all
    first_s: float = float("nan")  # to the first token of a stream, or to the end of a whole answer
    total_s: float = float("nan")
    whole: bool = False  # the answer was complete

    @property
    def served(self) -> bool:
        return self.status == 200 and self.whole


class Call(asyncio.Protocol):
    """One call on its own connection, as most clients make their first calls."""

    transport: asyncio.Transport

    def __init__(self, data: bytes, stream: bool, began: float) -> None:
        self.data, self.stream = data, stream
        self.sent = time.monotonic()
        self.outcome = Outcome(self.sent - began)
        self.buffer = b""
        self.length = -1
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self.data)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if not self.outcome.status:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            self._head(self.buffer[:end].lower(), end + 4)
        if self.length >= 0:
            if len(self.buffer) >= self.length:
                self._end(self.outcome.status == 200)
            return
        if self.outcome.first_s != self.outcome.first_s and b'"delta"' in self.buffer:
            self.outcome.first_s = time.monotonic() - self.sent
        if b"data: [DONE]" in self.buffer:
            self._end(True)
        self.buffer = self.buffer[-400:]  # an event may arrive in parts

    def _head(self, head: bytes, end: int) -> None:
        self.outcome.status = int(head[9:12])
        at = head.find(b"content-length:")
        if at >= 0:
            self.length = int(head[at + 15 :].split(b"\r\n", 1)[0])
        elif not self.stream or self.outcome.status != 200:
            self.length = 0
        self.buffer = self.buffer[end:]

    def _end(self, whole: bool) -> None:
        self.outcome.whole = whole
        self.outcome.total_s = time.monotonic() - self.sent
        if self.length >= 0:
            self.outcome.first_s = self.outcome.total_s
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def call(port: int, data: bytes, *, began: float, stream: bool = True, patience_s: float = PATIENCE_S) -> Outcome:
    loop = asyncio.get_running_loop()
    call = Call(data, stream, began)
    try:
        async with asyncio.timeout(patience_s):
            await loop.create_connection(lambda: call, "127.0.0.1", port)
            await call.done
    except (OSError, TimeoutError):
        if hasattr(call, "transport"):
            call.transport.abort()
    return call.outcome


async def steady(port: int, data: bytes, *, rate: float, seconds: float) -> list[Outcome]:
    """Make `rate` calls a second, evenly spaced, whether or not earlier ones have been answered."""
    began = time.monotonic()
    tasks = []
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(began + number / rate - time.monotonic(), 0))
        tasks.append(asyncio.create_task(call(port, data, began=began)))
    return list(await asyncio.gather(*tasks))


async def burst(port: int, data: bytes, count: int) -> list[Outcome]:
    began = time.monotonic()
    return list(await asyncio.gather(*(call(port, data, began=began) for _ in range(count))))


async def closed(
    port: int, data: bytes, *, clients: int, seconds: float, stream: bool = True, pause_s: float = 1.0
) -> list[Outcome]:
    """Run clients that call again as soon as they are answered, or after a pause if they were refused."""
    began = time.monotonic()
    outcomes: list[Outcome] = []

    async def client() -> None:
        while time.monotonic() < began + seconds:
            outcome = await call(port, data, began=began, stream=stream)
            outcomes.append(outcome)
            if not outcome.served:
                await asyncio.sleep(pause_s)

    await asyncio.gather(*(client() for _ in range(clients)))
    return outcomes


@dataclass
class Sums:
    calls: int
    served: int
    statuses: dict[int, int]
    first_s: list[float] = field(repr=False)

    @property
    def share(self) -> float:
        return self.served / self.calls if self.calls else float("nan")

    def first(self, share: float) -> float:
        return percentile(self.first_s, share) if self.first_s else float("nan")


def sums(outcomes: Iterable[Outcome]) -> Sums:
    listed = list(outcomes)
    served = [outcome for outcome in listed if outcome.served]
    statuses = Counter(outcome.status for outcome in listed)
    return Sums(len(listed), len(served), dict(statuses), [outcome.first_s for outcome in served])
