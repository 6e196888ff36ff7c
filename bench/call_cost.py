"""What one call costs the gateway's own code: no sockets, no kernel, no second process.

The whole gateway runs in this process with its log and its ledger on. A client's connection and an engine's connection are fed
by hand, so a call is two function calls: the request comes in, the answer comes in. That gives two figures:

- function calls per call, Python's own and those into C. The same on every machine: `tests/test_call_cost.py` guards it.
- CPU time per call, the best of many rounds, which other load on the machine disturbs little.

Most calls have heads like those before them. "ids" are calls in whose heads nothing repeats: each request has an id of its own,
as behind most proxies, and so has each answer, as from most hosted APIs. "queued" are calls of many clients at an engine with
few slots, so that most of them wait.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import hangup.core.call
from bench import previous
from hangup.config import BackendSettings, Settings
from hangup.core.reasons import Outcome
from hangup.gateway.backends.connection import EngineConnection
from hangup.gateway.client.connection import ClientConnection
from hangup.gateway.gateway import Gateway
from hangup.gateway.log import Log
from hangup.gateway.store.ledger import LedgerStore

CHAT = {"model": "bench-model", "messages": [{"role": "user", "content": "hello there, how are you today?"}]}
TOKENS = 8
WARM_UP = 300  # calls before a count: tables are filled, limits learned


def request(path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:8080\r\nuser-agent: bench\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


def answer(body: dict[str, Any]) -> list[bytes]:
    data = json.dumps(body).encode()
    return [b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data) + data]


def stream(tokens: int, *, apart: bool) -> list[bytes]:
    """Return an SSE answer: everything in one read, or each chunk in a read of its own."""
    lines = [_delta({"role": "assistant", "content": ""}), *(_delta({"content": f" word{n}"}) for n in range(tokens))]
    lines += [_delta({}, "stop"), b"data: [DONE]\n\n"]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    reads = [b"%x\r\n%b\r\n" % (len(line), line) for line in lines]
    reads = [head + reads[0], *reads[1:-1], reads[-1] + b"0\r\n\r\n"]
    return reads if apart else [b"".join(reads)]


def _delta(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    common = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "bench-model"}
    return b"data: " + json.dumps({**common, "choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"


WHOLE = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1700000000,
    "model": "bench-model",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": " word" * TOKENS}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 12, "completion_tokens": TOKENS, "total_tokens": 12 + TOKENS},
}
EMBEDDING = {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.1] * 16}], "model": "bench-model"}

KINDS: dict[str, tuple[bytes, list[bytes]]] = {
    "passed through": (request("/v1/embeddings", {"model": "bench-model", "input": "hello there"}), answer(EMBEDDING)),
    "whole": (request("/v1/chat/completions", CHAT), answer(WHOLE)),
    "assembled": (request("/v1/chat/completions", CHAT), stream(TOKENS, apart=False)),
    "assembled apart": (request("/v1/chat/completions", CHAT), stream(TOKENS, apart=True)),
    "streamed": (request("/v1/chat/completions", {**CHAT, "stream": True}), stream(TOKENS, apart=True)),
}
WITH_IDS = {"passed, ids": "passed through", "assembled, ids": "assembled"}
QUEUED = {"whole, queued": "whole"}
CLIENTS, SLOTS = 20, 4  # where calls are queued

Exchange = tuple[bytes, list[bytes]]  # a request, and the reads of its answer


def exchanges(kind: str, count: int, first: int) -> list[Exchange]:
    """Return the bytes of so many calls; `first` numbers those with ids."""
    sent, reads = KINDS[{**WITH_IDS, **QUEUED}.get(kind, kind)]
    if kind not in WITH_IDS:
        return [(sent, reads)] * count
    numbers = range(first, first + count)
    return [(_with_id(sent, b"x-request-id", n), [_with_id(reads[0], b"request-id", n), *reads[1:]]) for n in numbers]


def _with_id(message: bytes, name: bytes, number: int) -> bytes:
    return message.replace(b"\r\n", b"\r\n%b: id-%012d\r\n" % (name, number), 1)


class _Transport(asyncio.Transport):
    """Takes what is written, and forgets it."""

    __slots__ = ("written",)

    def __init__(self) -> None:
        super().__init__()
        self.written = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += len(data)

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


class InMemory:
    """A gateway between one client and one engine, both played by the caller; or many clients and an engine with few slots."""

    def __init__(self, clients: int = 1, slots: int = 0) -> None:
        self.loop = asyncio.get_running_loop()
        self.log = Log(os.devnull, 10_000)
        self.store = LedgerStore("", flush_s=60.0, days=1, accounts_max=1000)
        backend = BackendSettings(url="http://127.0.0.1:1", name="engine", slots=slots)
        self.gateway = Gateway(Settings(backend=(backend,)), self.loop, self.log, store=self.store)
        [made] = self.gateway.backends.by_name.values()
        self._engines = [EngineConnection(made.pool, 65536) for _ in range(slots or 1)]  # the only connections in its pool
        for engine in self._engines:
            engine.connection_made(_Transport())
            made.pool.put_back(engine)
        self._clients = [ClientConnection(self.gateway.intake, self.loop) for _ in range(clients)]
        for client in self._clients:
            client.connection_made(_Transport())
        self.client, self._engine = self._clients[0], self._engines[0]
        self.calls = 0

    def make(self, calls: list[Exchange]) -> None:
        """Make these calls one after another, each from its request to its end."""
        self.calls += len(calls)
        for sent, reads in calls:
            self.client.data_received(sent)
            for read in reads:
                self._engine.data_received(read)

    def make_together(self, calls: list[Exchange]) -> None:
        """Make these calls, as many at a time as there are clients."""
        self.calls += len(calls)
        at_a_time = len(self._clients)
        for first in range(0, len(calls), at_a_time):
            for client, (sent, _) in zip(self._clients, calls[first : first + at_a_time], strict=False):
                client.data_received(sent)
            while self.gateway.registry.live:
                for engine in self._engines:
                    for read in calls[first][1]:
                        engine.data_received(read)

    def check(self) -> None:
        """Raise unless all calls so far were served whole."""
        served = [call for call in self.gateway.registry.ended if call.outcome is Outcome.COMPLETED and call.status == 200]
        assert len(served) == min(self.calls, self.gateway.limits.ended_calls_max), self.gateway.registry.ended

    async def close(self) -> None:
        await self.gateway.close()
        self.store.close()
        self.log.close()


@contextmanager
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def functions_called(work: Callable[[], None]) -> int:
    """Count the function calls that `work` makes, Python's own and those into C."""
    count = 0

    def see(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    with _no_collector():
        sys.setprofile(see)
        try:
            work()
        finally:
            sys.setprofile(None)
    return count


def _made_for(kind: str) -> tuple[InMemory, Callable[[list[Exchange]], None]]:
    """Return a gateway for calls of this kind, and what makes them."""
    if kind not in QUEUED:
        made = InMemory()
        return made, made.make
    made = InMemory(CLIENTS, SLOTS)
    return made, made.make_together


async def count(kind: str, calls: int = 200) -> float:
    """Return the function calls per call of this kind, warm."""
    made, make = _made_for(kind)
    try:
        make(exchanges(kind, WARM_UP, 0))
        counted = exchanges(kind, calls, WARM_UP)
        found = functions_called(lambda: make(counted))
        made.check()
        return found / calls
    finally:
        await made.close()


async def cpu_us(kind: str, rounds: int = 40, calls: int = 250) -> float:
    """Return the CPU time per call in microseconds, the best of `rounds`. The event loop gets no turn meanwhile."""
    made, make = _made_for(kind)
    best = float("inf")
    try:
        for at in range(rounds):
            timed = exchanges(kind, calls, at * calls)
            start = time.thread_time()
            make(timed)
            best = min(best, (time.thread_time() - start) / calls)
        made.check()
    finally:
        await made.close()
    return best * 1e6


async def run() -> dict[str, dict[str, float]]:
    """Print the table, each figure beside the one that was kept, and return it."""
    rows = {}
    compiled = not str(hangup.core.call.__file__).endswith(".py")  # its function calls cannot be seen
    for kind in (*KINDS, *WITH_IDS, *QUEUED):
        us = round(await cpu_us(kind), 1)
        rows[kind] = {"us": us} if compiled else {"us": us, "function_calls": round(await count(kind), 1)}
        beside = "".join(
            f"{value:9.1f} {name.replace('_', ' ')} {previous.beside(value, 'calls', kind, name):24}"
            for name, value in rows[kind].items()
        )
        print(f"  {kind:16}{beside}", flush=True)
    return rows


if __name__ == "__main__":
    asyncio.run(run())
