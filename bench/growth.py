"""How the cost of a call grows: with the number of backends, tenants and models, and with the number of calls served.

A whole gateway in this process without sockets, as in `call_cost`. Calls of a case draw their tenant and model at random, from
a seed. Function calls per call are the same on every machine; CPU times are the best of many rounds, taken in turn.

A single backend gets thousands of calls a second here, and learns from one in a millisecond; each of a thousand learns from all
of its calls, as every backend does at the rates of real engines. So for backends there are two rows: as it is, and with the
same work for all.

usage: python -m bench.growth [--calls 1000000]     with --calls only the memory over so many calls
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import call_cost
from bench.call_cost import CHAT, _Transport, functions_called
from hangup.config import BackendSettings, ReportLimits, Settings, TenantSettings
from hangup.core.admission import limiter
from hangup.core.reasons import Outcome
from hangup.gateway.backends.connection import EngineConnection
from hangup.gateway.client.connection import ClientConnection
from hangup.gateway.gateway import Gateway
from hangup.gateway.log import Log
from hangup.gateway.store.ledger import LedgerStore

SIZES = (1, 10, 100, 1000)
ANSWER = call_cost.KINDS["whole"][1]
EMBEDDING = call_cost.KINDS["passed through"][1]
DRAWN = 4096  # requests of a case, drawn in advance
SAMPLES = 80  # calls to each backend before the measurement: after 64, it has learned what it can


@dataclass(frozen=True)
class Size:
    """What a gateway has, and what its clients ask for."""

    backends: int = 1
    tenants: int = 0
    models: int = 1
    model_at_half: bool = False  # each model is at half of the backends

    def settings(self) -> Settings:
        names = [f"model-{n}" for n in range(self.models)]
        backends = tuple(
            BackendSettings(
                url=f"http://127.0.0.1:{n + 1}",
                name=f"engine-{n}",
                health_path="",
                models=tuple(names[n % 2 :: 2]) if self.model_at_half else (),
            )
            for n in range(self.backends)
        )
        tenants = tuple(
            TenantSettings(name=f"tenant-{n}", key_sha256=[hashlib.sha256(_key(n).encode()).hexdigest()])
            for n in range(self.tenants)
        )
        return Settings(backend=backends, tenant=tenants)

    def requests(self) -> list[bytes]:
        draw = random.Random(1)
        return [self._request(draw.randrange(self.tenants or 1), draw.randrange(self.models)) for _ in range(DRAWN)]

    def _request(self, tenant: int, model: int) -> bytes:
        # `plain`: the engine of `growth_on_sockets` answers such a call as a whole.
        data = call_cost.request("/v1/chat/completions", {**CHAT, "model": f"model-{model}", "plain": True})
        key = f"authorization: Bearer {_key(tenant)}\r\n" if self.tenants else ""
        return data.replace(b"user-agent:", key.encode() + b"user-agent:", 1)


def _key(tenant: int) -> str:
    return f"sk-bench-{tenant:06}"


LEARNING = "backends, learning from each call"
CASES = {
    "backends": [Size(backends=n) for n in SIZES],
    LEARNING: [Size(backends=n) for n in SIZES],
    "tenants": [Size(tenants=n) for n in SIZES],
    "models": [Size(models=n) for n in SIZES],
    "backends, each model at half of them": [Size(backends=n, models=2, model_at_half=True) for n in (2, *SIZES[1:])],
    "all three": [Size(backends=max(n, 2), tenants=n, models=max(n, 2), model_at_half=True) for n in SIZES],
}


class _ToEngine(_Transport):
    """Notes which engine gets a request."""

    __slots__ = ("_asked", "_engine")

    def __init__(self, engine: EngineConnection, asked: list[EngineConnection]) -> None:
        super().__init__()
        self._engine = engine
        self._asked = asked

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._asked.append(self._engine)


class Many:
    """A gateway of some size, between one client and its engines; whichever engine gets a request answers it."""

    def __init__(self, size: Size) -> None:
        loop = asyncio.get_running_loop()
        self.log = Log(os.devnull, 10_000)
        self.store = LedgerStore("", flush_s=60.0, days=1, accounts_max=ReportLimits().ledger_accounts_max)
        self.gateway = Gateway(size.settings(), loop, self.log, store=self.store)
        self._asked: list[EngineConnection] = []
        for backend in self.gateway.backends.by_name.values():
            engine = EngineConnection(backend.pool, 65536)  # the only connection in its pool
            engine.connection_made(_ToEngine(engine, self._asked))
            backend.pool.put_back(engine)
        self.client = ClientConnection(self.gateway.intake, loop)
        self.client.connection_made(_Transport())
        self._requests = _forever(size.requests())

    def make(self, calls: int) -> None:
        for _ in range(calls):
            self.serve(next(self._requests))

    def serve(self, request: bytes, answer: list[bytes] = ANSWER) -> None:
        self.client.data_received(request)
        engine = self._asked[-1]
        self._asked.clear()
        for read in answer:
            engine.data_received(read)

    def check(self) -> None:
        """Raise unless the last calls were served whole."""
        assert all(call.outcome is Outcome.COMPLETED and call.status == 200 for call in self.gateway.registry.ended)

    async def close(self) -> None:
        self.check()
        await self.gateway.close()
        self.store.close()
        self.log.close()


def _forever(requests: list[bytes]) -> Iterator[bytes]:
    while True:
        yield from requests


async def run(rounds: int = 40) -> dict[str, Any]:
    """Print and return, per case and size, the CPU time and the function calls of a call."""
    rows = {}
    for name, sizes in CASES.items():
        with _learning_from_each() if name == LEARNING else nullcontext():
            rows[name] = await _grow(name, sizes, rounds)
    return rows


@contextmanager
def _learning_from_each() -> Iterator[None]:
    pause_s, limiter._LEARN_S = limiter._LEARN_S, 0.0
    try:
        yield
    finally:
        limiter._LEARN_S = pause_s


async def _grow(name: str, sizes: list[Size], rounds: int, calls: int = 250) -> dict[str, Any]:
    made = [Many(size) for size in sizes]
    for many, size in zip(made, sizes, strict=True):
        many.make(max(DRAWN, SAMPLES * size.backends))
    best = [float("inf")] * len(made)
    for _ in range(rounds):
        for at, many in enumerate(made):
            start = time.thread_time()
            many.make(calls)
            best[at] = min(best[at], (time.thread_time() - start) / calls * 1e6)
    counted = [count(many, DRAWN) for many in made]
    for many in made:
        await many.close()
    us, functions = ("  ".join(f"{value:6.0f}" for value in values) for values in (best, counted))
    print(f"  {name:<38} {us} us   {best[-1] / best[0]:5.2f} x   {functions} function calls", flush=True)
    return {"us": best, "functions": counted, "grows": best[-1] / best[0]}


def count(many: Many, calls: int) -> float:
    """Return the function calls per call."""
    return functions_called(lambda: many.make(calls)) / calls


# Memory over many calls

_HEAD = (
    b"POST %b HTTP/1.1\r\nhost: 127.0.0.1:8080\r\nauthorization: Bearer sk-bench-%b\r\n%buser-agent: %b\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
)
_CHAT_AS_BYTES = (b"/v1/chat/completions", json.dumps({**CHAT, "model": "%b"}).encode())
_EMBEDDINGS_AS_BYTES = (b"/v1/embeddings", b'{"model": "%b", "input": "hello there"}')


async def memory(calls: int, looks: int = 10) -> list[dict[str, float]]:
    """Serve many calls with ever new names, and return the memory of this process after each tenth.

    One in ten is a chat, the others are embeddings. One in three has an id that never comes again, one in ten such a model's
    name, one in seven such a user-agent.
    """
    many = Many(Size(tenants=100))
    await many.gateway.backends.stop_watching()  # nobody would answer its questions
    rows = []
    try:
        for look in range(looks + 1):
            start, cpu = time.monotonic(), time.thread_time()
            for at in range(calls // looks if look else 20_000):  # the first tables fill before the first look
                many.serve(_unlike_any(look, at), ANSWER if at % 10 == 5 else EMBEDDING)
                if at % 200 == 0:
                    await asyncio.sleep(0)
            gc.collect()
            row = {"calls": look * (calls // looks), "rss_mb": rss_kb() / 1024, "objects": len(gc.get_objects())}
            row |= {"wall_s": time.monotonic() - start, "us": (time.thread_time() - cpu) / max(calls // looks, 1) * 1e6}
            rows.append(row)
            print("  {calls:>9.0f} calls: {rss_mb:7.1f} MB, {objects:8.0f} objects, {us:6.1f} us".format(**row), flush=True)
    finally:
        await many.close()
    return rows


def _unlike_any(look: int, at: int) -> bytes:
    number = b"%d-%d" % (look, at)
    model = b"model-%b" % number if at % 10 == 0 else b"model-%d" % (at % 7)
    path, body = _CHAT_AS_BYTES if at % 10 == 5 else _EMBEDDINGS_AS_BYTES
    body %= model
    own_id = b"x-request-id: id-%b\r\n" % number if at % 3 == 0 else b""
    agent = b"agent-%b" % number if at % 7 == 0 else b"bench"
    return _HEAD % (path, b"%06d" % (at % 100), own_id, agent, len(body), body)


def rss_kb() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=0)
    given = parser.parse_args()
    asyncio.run(memory(given.calls) if given.calls else run())
