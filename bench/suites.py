"""The measurements. Each takes targets and returns rows; CPU time per unit of work is the main figure."""

from __future__ import annotations

import asyncio
import json
import resource
import time
import urllib.request
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from bench import load, targets
from bench.targets import Target


@dataclass
class Cost:
    """CPU time per unit, over several windows taken in turn with the other targets."""

    name: str
    units: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    load_s: float = 0.0  # CPU time of the load generator meanwhile

    @property
    def us(self) -> float:
        return self.cpu_s / self.units * 1e6 if self.units else float("nan")

    @property
    def rate(self) -> float:
        return self.units / self.wall_s


async def streams(measured: list[Target], *, count: int = 400, window_s: float = 2.0, rounds: int = 6) -> list[Cost]:
    """Measure CPU per streamed chunk, in windows in turn, so that a slow minute of the machine affects all alike."""
    costs = {target.name: Cost(target.name) for target in measured}
    for _ in range(rounds):
        for target in measured:
            counter = [0]
            opened = await load.open_streams(target.port, count, counter, load.STREAM)
            await asyncio.sleep(0.3)
            await window(target, counter, window_s, costs[target.name])
            for stream in opened:
                stream.transport.abort()
            await asyncio.sleep(0.3)
    return list(costs.values())


async def requests(
    measured: list[Target], path: str, body: dict[str, Any], *, concurrency: int = 64, window_s: float = 2.0, rounds: int = 4
) -> list[Cost]:
    """Measure CPU per small non-streaming request."""
    data = load.request(path, body)
    costs = {target.name: Cost(target.name) for target in measured}
    for _ in range(rounds):
        for target in measured:
            counter = [0]
            clients = await load.open_requesters(target.port, concurrency, counter, data)
            await asyncio.sleep(0.5)
            await window(target, counter, window_s, costs[target.name])
            for client in clients:
                client.transport.abort()
            await asyncio.sleep(0.2)
    return list(costs.values())


async def one_client(
    measured: list[Target], path: str, body: dict[str, Any], *, window_s: float = 1.0, rounds: int = 4
) -> tuple[list[Cost], dict[str, list[float]]]:
    """Measure CPU per small request, and the time that it takes, for a single client that sends one after the other."""
    data = load.request(path, body)
    costs = {target.name: Cost(target.name) for target in measured}
    times: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for target in measured:
            counter = [0]
            [client] = await load.open_requesters(target.port, 1, counter, data)
            await asyncio.sleep(0.2)
            client.times.clear()
            await window(target, counter, window_s, costs[target.name])
            client.transport.abort()
            times[target.name] += client.times
    return list(costs.values()), times


async def window(target: Target, counter: list[int], seconds: float, cost: Cost) -> None:
    units, cpu, start, own = counter[0], target.cpu_s(), time.monotonic(), time.process_time()
    await asyncio.sleep(seconds)
    cost.load_s += time.process_time() - own
    cost.units += counter[0] - units
    cost.cpu_s += target.cpu_s() - cpu
    cost.wall_s += time.monotonic() - start


async def first_byte(measured: list[Target], *, count: int = 100, rounds: int = 10) -> dict[str, list[float]]:
    """Measure the time to the first byte of a new stream while `count` others run; each target in turn with a direct
    connection.
    """
    times: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for target in measured:
            counter = [0]
            background = await load.open_streams(target.port, count, counter, load.STREAM)
            for _ in range(30):
                (one,) = await load.open_streams(target.port, 1, counter, load.STREAM)
                times[target.name].append(one.first_byte_at - one.sent_at)
                one.transport.abort()
            for stream in background:
                stream.transport.abort()
            await asyncio.sleep(0.1)
    return times


async def hang_up(engine: Target, target: Target, *, count: int = 400, hangups: int = 300) -> list[float]:
    """Measure from a client's close to the close of its connection at the engine, while `count` streams run."""
    counter = [0]
    background = await load.open_streams(target.port, count, counter, load.STREAM)
    hung_up_at: dict[str, float] = {}
    for index in range(hangups):
        id = f"leaver-{target.name}-{index}"
        (one,) = await load.open_streams(target.port, 1, counter, load.STREAM, id)
        hung_up_at[f"{id}0"] = time.monotonic()
        one.transport.abort()
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.5)
    lost = json.loads(await asyncio.to_thread(_get, engine.port, "/stats"))["lost"]
    for stream in background:
        stream.transport.abort()
    await asyncio.sleep(0.5)
    return [lost[id] - at for id, at in hung_up_at.items() if id in lost]


async def idle_streams(count: int = 10_000) -> dict[str, float]:
    """Measure memory per open stream, and the loop's worst lag while they open, idle and close.

    Each stream takes two file descriptors in the gateway; if the machine allows fewer, fewer are opened, and the output says
    so.
    """
    count = min(count, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 100) // 2)
    with targets.engine(rate=0.02) as engine, targets.hangup(engine.port, "--gap-s", "600") as target:
        counter = [0]
        warm = await load.open_streams(target.port, 200, counter, load.STREAM)
        for stream in warm:
            stream.transport.abort()
        await asyncio.sleep(1)
        before = target.rss_kb()
        opened = await load.open_streams(target.port, count, counter, load.STREAM)
        await asyncio.sleep(1)
        kb = (target.rss_kb() - before) / count
        await asyncio.sleep(3)
        lag = await asyncio.to_thread(_worst_lag, target)
        for stream in opened:
            stream.transport.abort()
        await asyncio.sleep(2)
        lag_leaving = await asyncio.to_thread(_worst_lag, target)
        return {"streams": count, "kb_per_stream": kb, "worst_lag_s": lag, "worst_lag_s_when_all_leave_at_once": lag_leaving}


def _get(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return bytes(answer.read())


def _worst_lag(target: Target) -> float:
    """Return the upper bound of the last bucket with an entry in the gateway's own lag histogram."""
    worst, before = 0.0, 0.0
    for line in _get(target.admin_port, "/metrics").decode().splitlines():
        if line.startswith("hangup_loop_lag_seconds_bucket"):
            count = float(line.rpartition(" ")[2])
            if count > before:
                worst = float(line.split('le="')[1].split('"')[0])
            before = count
    return worst
