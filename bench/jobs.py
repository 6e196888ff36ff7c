"""make bench ARGS=jobs: how fast jobs are accepted, run and resumed, and what they cost live clients."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvloop

from bench import targets
from bench.load import percentile
from support.jobs import CHAT, client, line, start_batch, wait_batch
from support.postgresql import PostgresServer
from support.processes import Gateway, StandIn
from support.waiting import wait_until

LINES = 100_000
RUN = 5_000
PATH, PROMPT = "/v1/completions", "when the client hangs up "
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


async def run() -> dict[str, Any]:
    return await asyncio.to_thread(_run)


async def run_on_postgresql() -> dict[str, Any]:
    return await asyncio.to_thread(_run_on_postgresql)


def _run_on_postgresql() -> dict[str, Any]:
    """Accept and run jobs on a server of this machine, each commit on disk; its share of the CPU is shown, too."""
    server = PostgresServer(durable=True)
    try:
        database = server.new_database()
        return {"taken": _taken(database, server), "taken up again": _again(database), "run": _run_items(server.new_database())}
    finally:
        server.close()


def _run() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "jobs.sqlite"
        results = {"taken": _taken(str(store)), "taken up again": _again(str(store))}
    with tempfile.TemporaryDirectory() as folder:
        results["run"] = _run_items(str(Path(folder) / "jobs.sqlite"))
    results["live"] = _live()
    return results


def cpu_s(gateway: Gateway) -> float:
    fields = Path(f"/proc/{gateway.popen.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def memory_mb(gateway: Gateway, which: str = "VmRSS") -> float:
    status = Path(f"/proc/{gateway.popen.pid}/status").read_text()
    return int(status.split(f"{which}:")[1].split()[0]) / 1024


def _taken(store: str, server: PostgresServer | None = None) -> dict[str, float]:
    """Upload, check and queue a file of 100,000 lines, none of which can run yet. Then submit single calls, one after the
    other.
    """
    content = "\n".join(line(f"r{n}") for n in range(LINES)).encode()
    settings: Any = {"slots": 1, "jobs": store, "jobs_max": 10_000, "log": "none"}
    with StandIn(slots=1, prefill_s=600) as engine, Gateway(engine.url, **settings) as gateway:
        sdk = client(gateway.url)
        before, began, cpu = memory_mb(gateway), time.monotonic(), cpu_s(gateway)
        file = sdk.files.create(file=("in.jsonl", content), purpose="batch")
        uploaded = time.monotonic()
        id = sdk.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h").id  # type: ignore[arg-type]
        wait_batch(sdk, id, "in_progress", timeout_s=120)
        took, cpu = time.monotonic() - began, cpu_s(gateway) - cpu
        grown = memory_mb(gateway, "VmHWM") - before
        cpu_calls = cpu_s(gateway)
        cpu_server = server.cpu_s() if server is not None else 0.0
        calls = _submit_calls(gateway, 5000)
        cpu_calls = (cpu_s(gateway) - cpu_calls) / 5000 * 1e6
        cpu_server = (server.cpu_s() - cpu_server) / 5000 * 1e6 if server is not None else 0.0
    rate, cpu_us = LINES / took, cpu / LINES * 1e6
    print(f"  {LINES} lines, {len(content) / 1e6:.0f} MB: up in {uploaded - began:.2f} s, taken in {took:.2f} s: {rate:.0f}/s")
    print(f"  {cpu_us:.1f} µs of CPU a line; memory grew by {grown:.1f} MB at most; {calls:.0f} single calls/s")
    print(f"  a single call costs {cpu_calls:.0f} µs of CPU to take, and the server {cpu_server:.0f} µs")
    return {
        "lines": LINES,
        "seconds": took,
        "per_s": rate,
        "cpu_us": cpu_us,
        "grown_mb": grown,
        "calls_per_s": calls,
        "call_us": cpu_calls,
    }


def _submit_calls(gateway: Gateway, count: int) -> float:
    body = b'{"messages":[{"role":"user","content":"hello"}],"max_tokens":3}'
    lines = [f"POST {CHAT} HTTP/1.1", "host: b", "prefer: respond-async", f"content-length: {len(body)}"]
    request = "\r\n".join([*lines, "", ""]).encode() + body

    async def one(remaining: Iterator[int]) -> None:
        reader, writer = await asyncio.open_connection(*gateway.address)
        for _ in remaining:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 202"), head
            await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
        writer.close()

    async def all_of_them() -> float:
        remaining = iter(range(count))
        began = time.monotonic()
        await asyncio.gather(*(one(remaining) for _ in range(64)))
        return count / (time.monotonic() - began)

    return uvloop.run(all_of_them())


def _again(store: str) -> dict[str, float]:
    """Start a gateway on the 100,000 queued items of the one before."""
    with StandIn(slots=64, prefill_s=0.001, token_s=0.0005) as engine:
        began = time.monotonic()
        with Gateway(engine.url, slots=64, jobs=store, log="none") as gateway:
            live = httpx.post(gateway.url + CHAT, json={"messages": [], "max_tokens": 2})
            served = time.monotonic() - began
            assert live.status_code == 200
            wait_until(lambda: gateway.metrics().get('hangup_job_items_ended_total{result="succeeded"}'), 30, "an item")
            item = time.monotonic() - began
    print(f"  restart with {LINES} queued items: first live answer after {served:.2f} s, first item after {item:.2f} s")
    return {"live_s": served, "item_s": item}


def _run_items(store: str) -> dict[str, float]:
    """Claim, run and store items as fast as possible, on an engine that takes no time."""
    with (
        targets.engine() as engine,
        Gateway(f"http://127.0.0.1:{engine.port}", slots=64, jobs=store, log="none") as gateway,
    ):
        sdk = client(gateway.url)
        id = start_batch(sdk, [line(f"r{n}", instant=True, max_tokens=16) for n in range(RUN)])
        wait_batch(sdk, id, "in_progress", "completed", timeout_s=60)
        began, cpu = time.monotonic(), cpu_s(gateway)
        batch = wait_batch(sdk, id, timeout_s=120)
        took, cpu = time.monotonic() - began, cpu_s(gateway) - cpu
        assert batch.request_counts.completed == RUN
    print(f"  {RUN} items in {took:.2f} s: {RUN / took:.0f}/s, {cpu / RUN * 1e6:.0f} µs of CPU each: {RUN / cpu:.0f}/s a core")
    return {"items": RUN, "per_s": RUN / took, "per_core_s": RUN / cpu, "cpu_us": cpu / RUN * 1e6}


def _live() -> dict[str, Any]:
    behaviour: Any = {"slots": 16, "prefill_s": 0.05, "token_s": 0.01, "answer_tokens": 100}
    with StandIn(**behaviour) as engine, Gateway(engine.url, slots=16, log="none") as gateway:
        return beside_live(gateway, 100)


def beside_live(gateway: Gateway, tokens: int, rounds: int = 3, calls: int = 120, prompt: str = PROMPT) -> dict[str, Any]:
    """Measure the time to the first token for live clients, in turn alone and beside an endless batch."""
    results: dict[str, Any] = {}
    alone: list[float] = []
    beside: list[float] = []
    places: list[int] = []
    for _ in range(rounds):
        alone += _first_tokens(gateway, calls, prompt, [])
        with _batch(gateway, tokens) as done:
            beside += _first_tokens(gateway, calls, prompt, places)
            results["items_done"] = results.get("items_done", 0) + done()
    for name, times in (("alone", alone), ("beside jobs", beside)):
        times.sort()
        results[name] = {"p50_ms": percentile(times, 0.5) * 1e3, "p99_ms": percentile(times, 0.99) * 1e3}
        print("  {}: first token p50 {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms".format(name, **results[name]))
    results["in_flight_beside"] = statistics.mean(places)
    results["mean_ratio"] = statistics.mean(beside) / statistics.mean(alone)
    print(
        f"  mean {results['mean_ratio']:.3f} × of alone; {results['in_flight_beside']:.1f} places taken on average beside jobs"
    )
    return results


@contextmanager
def _batch(gateway: Gateway, tokens: int) -> Iterator[Any]:
    sdk = client(gateway.url)
    lines = [line(f"r{n}", PATH, prompt=PROMPT, messages=None, max_tokens=tokens) for n in range(3000)]
    id = start_batch(sdk, lines, PATH)
    wait_until(lambda: sdk.batches.retrieve(id).request_counts.completed >= 5, 60, "the batch to run")  # type: ignore[union-attr]
    yield lambda: sdk.batches.retrieve(id).request_counts.completed  # type: ignore[union-attr]
    sdk.batches.cancel(id)
    wait_batch(sdk, id, "cancelled", timeout_s=60)


def _first_tokens(gateway: Gateway, count: int, prompt: str, places: list[int], clients: int = 4) -> list[float]:
    """Run a few clients that pause between two calls; append what the backend had in flight to `places`."""
    times: list[float] = []
    body = {"model": "m", "prompt": prompt, "stream": True, "max_tokens": 10}

    def one() -> None:
        with httpx.Client(timeout=30) as http:
            for _ in range(count // clients):
                began = time.perf_counter()
                with http.stream("POST", gateway.url + PATH, json=body) as answer:
                    pieces = answer.iter_raw()
                    while b'"text":"' not in next(pieces).replace(b'"text":""', b""):
                        pass
                    times.append(time.perf_counter() - began)
                    for _ in pieces:
                        pass
                places.append(httpx.get(f"{gateway.admin_url}/api/backends").json()["backends"][0]["in_flight"])
                time.sleep(0.05)

    threads = [threading.Thread(target=one) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times
