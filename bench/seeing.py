"""The cost of observability: CPU per chunk on and off, the first page of ten thousand calls, a scrape, and the ledger."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import resource
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from bench import load, suites, targets
from bench.load import percentile
from bench.targets import Target
from support.receiver import receiver

_PAGES = ("sort=age", "sort=-tokens", "sort=idle&tenant=default", "sort=rate&offset=500")


async def run(rounds: int) -> dict[str, Any]:
    return {"cpu": await cpu(rounds), "many": await many(), "books": await books()}


async def cpu(rounds: int) -> dict[str, Any]:
    """Compare off (no viewer, ledger in memory, engines not polled) with on (ledger file, counters every second, dashboard,
    scraper, traces).
    """
    request = load.request("/v1/embeddings", {"model": "bench-model", "input": "hello there"})
    with (
        tempfile.TemporaryDirectory() as folder,
        targets.engine() as engine,
        receiver() as (collector, _),
        contextlib.ExitStack() as stack,
    ):
        gateway = partial(targets.hangup, engine.port, "--slots", "1000")
        seen = partial(gateway, "--counters-interval-s", "1", "--ledger")
        off = stack.enter_context(gateway("--counters-interval-s", "3600"))
        on = stack.enter_context(seen(f"{folder}/on.db"))
        traced = stack.enter_context(seen(f"{folder}/traced.db", "--otlp-endpoint", collector))
        stack.enter_context(_dashboard(on))
        stack.enter_context(_dashboard(traced))
        chunks = await _paired(off, traced, rounds, lambda port, counter: load.open_streams(port, 400, counter, load.STREAM))

        def ask(port: int, counter: list[int]) -> Awaitable[Any]:
            return load.open_requesters(port, 64, counter, request)

        requests, with_traces = await _paired(off, on, rounds, ask), await _paired(off, traced, rounds, ask)
    return {
        "chunk, traced": _ratio("chunk, on with traces", chunks),
        "request": _ratio("small request", requests),
        "request, traced": _ratio("small request, on with traces", with_traces),
    }


async def _paired(
    off: Target, on: Target, rounds: int, begin: Callable[[int, list[int]], Awaitable[Any]]
) -> list[tuple[float, float]]:
    """Measure CPU per unit, off and on at the same time, so that a slow moment affects both. The first pair warms up."""
    pairs = []
    for at in range(2 * rounds + 1):
        found: dict[int, float] = {}
        for target in (off, on) if at % 2 else (on, off):
            counter = [0]
            clients = await begin(target.port, counter)
            await asyncio.sleep(0.3)
            cost = suites.Cost("")
            await suites.window(target, counter, 1.5, cost)
            found[target.port] = cost.us
            for client in clients:
                client.transport.abort()
            await asyncio.sleep(0.2)
        pairs.append((found[off.port], found[on.port]))
    return pairs[1:]


def _ratio(unit: str, pairs: list[tuple[float, float]]) -> dict[str, float]:
    low, middle, high = statistics.quantiles([on / off for off, on in pairs], n=4)
    off, on = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(f"  off {off:.2f} us CPU per {unit}, on {on:.2f} (medians of {len(pairs)} windows each)")
    print(f"  on / off, pair by pair: median {middle:.3f}, half of them between {low:.3f} and {high:.3f}")
    return {"off": off, "on": on, "ratio": middle, "ratio_low": low, "ratio_high": high}


@contextlib.contextmanager
def _dashboard(target: Target) -> Any:
    """Request what one open dashboard and one Prometheus request."""
    finished = threading.Event()

    def watch() -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{target.admin_port}/api/events", timeout=30) as events:
            while not finished.is_set():
                events.readline()
                events.readline()
                suites._get(target.admin_port, "/api/calls?limit=50")

    def scrape() -> None:
        while not finished.wait(5):
            suites._get(target.admin_port, "/metrics")

    threads = [threading.Thread(target=work, daemon=True) for work in (watch, scrape)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        finished.set()
        for thread in threads:
            thread.join(10)


async def many(count: int = 10_000) -> dict[str, Any]:
    """Open thousands of live calls; measure the first page, other pages, a scrape, and the loop's lag meanwhile."""
    count = min(count, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 100) // 2)
    with targets.engine(rate=0.02) as engine, targets.hangup(engine.port, "--gap-s", "600", "--slots", "20000") as target:
        counter = [0]
        opened = await load.open_streams(target.port, count, counter, load.STREAM)
        await asyncio.sleep(1)
        before = await asyncio.to_thread(_lags, target)
        rows = {}
        for name, path in {"first page": "/api/calls", "overview": "/api/overview", "scrape": "/metrics"}.items():
            rows[name] = await asyncio.to_thread(_times, target, path)
        for query in _PAGES:
            rows[query] = await asyncio.to_thread(_times, target, f"/api/calls?{query}")
        after = await asyncio.to_thread(_lags, target)
        for stream in opened:
            stream.transport.abort()
    late = [bound for bound in after if after[bound] > before[bound]]
    for name, values in rows.items():
        print(f"  {name:<26} p50 {percentile(values, 0.5) * 1e3:6.2f} ms   worst {max(values) * 1e3:6.2f} ms")
    print(f"  {count} live calls; the loop's timers were never later than {late[-1] if late else 0} s")
    return {"calls": count, "ms": {k: [percentile(v, 0.5) * 1e3, max(v) * 1e3] for k, v in rows.items()}, "late": late[-1:]}


def _times(target: Target, path: str) -> list[float]:
    times = []
    for _ in range(40):
        start = time.perf_counter()
        suites._get(target.admin_port, path)
        times.append(time.perf_counter() - start)
    return times


def _lags(target: Target) -> dict[float, float]:
    """Return the entries per bucket of the lag histogram."""
    lines = suites._get(target.admin_port, "/metrics").decode().splitlines()
    rows = [line for line in lines if line.startswith("hangup_loop_lag_seconds_bucket")]
    totals = {float(row.split('le="')[1].split('"')[0]): float(row.rpartition(" ")[2]) for row in rows}
    bounds = sorted(totals)
    return {bound: totals[bound] - (totals[bounds[at - 1]] if at else 0) for at, bound in enumerate(bounds)}


async def books(seconds: float = 20.0) -> dict[str, Any]:
    """Compare the ledger with the stand-in's counters while clients finish, disconnect, reach caps and are killed."""
    draw = random.Random(7)
    flags = ["--slots", "16", "--token-s", "0.003", "--answer-tokens", "60", "--ignore-cap"]
    port = targets.free_port()
    command = [sys.executable, "-m", "hangup", "standin", "--port", str(port), *flags]
    with targets.started(command) as process:
        targets.wait_for_port(port, process)
        with targets.hangup(port, "--slots", "16", "--counters-interval-s", "0.5") as target:
            await asyncio.sleep(2)
            until = time.monotonic() + seconds
            await asyncio.gather(*(_visitor(target, draw, until, f"v{at}-") for at in range(24)))
            await asyncio.sleep(2)
            report = json.loads(await asyncio.to_thread(suites._get, target.admin_port, "/api/report?by=cause"))
            computed = json.loads(await asyncio.to_thread(suites._get, port, "/standin/stats"))["tokens"]
    causes = {row["cause"]: (row["calls"], row["tokens_delivered"], row["tokens_wasted"]) for row in report["rows"]}
    booked = report["total"]["tokens_delivered"] + report["total"]["tokens_wasted"]
    print(f"  calls, delivered, wasted by cause: {causes}")
    print(f"  the engine computed {computed}, the ledger has {booked}: difference {computed - booked}")
    return {"computed": computed, "booked": booked, "causes": causes}


async def _visitor(target: Target, draw: random.Random, until: float, prefix: str) -> None:
    number = 0
    while time.monotonic() < until:
        number += 1
        body = {**load.STREAM, "stream": draw.random() < 0.7, "max_tokens": draw.choice([5, 40, 200])}
        id = f"{prefix}{number}"
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
        writer.write(load.request("/v1/chat/completions", body, id))
        fate = draw.random()
        try:
            if fate < 0.3:
                await asyncio.sleep(draw.uniform(0.0, 0.15))  # and disconnect
            elif fate < 0.4:
                await asyncio.sleep(draw.uniform(0.0, 0.1))
                await asyncio.to_thread(_kill, target, id)
            else:
                await asyncio.wait_for(_answered(reader), 10)
        finally:
            writer.close()


async def _answered(reader: asyncio.StreamReader) -> None:
    data = b""
    while not (data.endswith(b"0\r\n\r\n") or (b"content-length" in data.lower() and data.endswith(b"}"))):
        part = await reader.read(65536)
        if not part:
            return
        data = (data + part)[-4096:]


def _kill(target: Target, id: str) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{target.admin_port}/api/calls/{id}", method="DELETE", headers={"x-hangup": "1"}
    )
    with contextlib.suppress(OSError):
        urllib.request.urlopen(request, timeout=5).close()
