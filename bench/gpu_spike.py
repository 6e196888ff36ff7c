"""What does a GPU's bill buy when half of the clients disconnect early? Behind a plain proxy, and behind hangup.

usage: PYTHONPATH=src:. python -m bench.gpu_spike OUT [--price DOLLARS_PER_HOUR] [--seconds 60]
       (needs torch with CUDA, safetensors, hangup[nvidia])

The embedded engine serves a random Llama of 1 B on the GPU with 32 slots. 64 clients stream; each calls again as soon as its
call is over. A client that leaves resets the connection after 1 to 127 of 512 tokens and calls again. The plain proxy reads the
engine's answer to its end even if the client is gone; hangup gets the engine's address and no other setting. Writes
OUT/gpu_spike.json.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import string
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import uvloop

from bench.gpu_stops import Gpu, counters, free_port, wait_for
from bench.load import request

CLIENTS, TOKENS, PROMPT = 64, 512, 128
SETTLE_S, REST_S_MAX, SAMPLE_S = 6.0, 60.0, 0.2
RETRY_S = 0.1  # after a refusal
TOKEN = b'"finish_reason":null'  # in each event that carries a token, and in no other
TICKS = os.sysconf("SC_CLK_TCK")


class Crowd:
    """Clients that call again and again; they leave a share of their calls early."""

    def __init__(self, port: int, leaving: float) -> None:
        self.port, self.leaving = port, leaving
        self.completed = self.hung_up = self.refused = self.broken = self.tokens = 0
        self.first_s: list[float] = []
        self.whole_s: list[float] = []
        self._chance = random.Random(3)

    async def client(self) -> None:
        while True:
            patience = self._chance.randrange(1, TOKENS // 4) if self._chance.random() < self.leaving else None
            prompt = "".join(self._chance.choices(string.ascii_lowercase, k=PROMPT))
            body = {"prompt": prompt, "max_tokens": TOKENS, "stream": True, "ignore_eos": True, "temperature": 0}
            call = Call(self, request("/v1/completions", body, close=True), patience)
            transport, _ = await asyncio.get_running_loop().create_connection(partial(_same, call), "127.0.0.1", self.port)
            try:
                await call.ended
            finally:
                transport.abort()
            if call.refused:
                await asyncio.sleep(RETRY_S)


def _same(call: Call) -> Call:
    return call


class Call(asyncio.Protocol):
    """One streamed call, to its end or until its client loses patience."""

    transport: asyncio.Transport

    def __init__(self, crowd: Crowd, data: bytes, patience: int | None) -> None:
        self.ended = asyncio.get_running_loop().create_future()
        self.refused = False
        self._crowd, self._data, self._patience = crowd, data, patience
        self._seen = 0
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._began = time.monotonic()
        self.transport.write(self._data)

    def data_received(self, data: bytes) -> None:
        if self.ended.done():
            return
        crowd, text = self._crowd, self._tail + data
        if not self._seen and data.startswith(b"HTTP/1.1") and not data.startswith(b"HTTP/1.1 200"):
            self.refused = True
            crowd.refused += 1
            self.ended.set_result(None)
            return
        found = text.count(TOKEN)
        if found and not self._seen:
            crowd.first_s.append(time.monotonic() - self._began)
        self._tail = text[1 - len(TOKEN) :]  # too short to be counted twice
        self._seen += found
        crowd.tokens += found
        if self._patience is not None and self._seen >= self._patience:
            crowd.hung_up += 1
            self.transport.abort()
            self.ended.set_result(None)
        elif b"[DONE]" in text:
            assert self._seen == TOKENS, f"{self._seen} of {TOKENS} tokens"
            crowd.completed += 1
            crowd.whole_s.append(time.monotonic() - self._began)
            self.ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self._crowd.broken += 1
            self.ended.set_result(None)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def snapshot(crowd: Crowd, gpu: Gpu, engine: int, pids: dict[str, int]) -> dict[str, float]:
    engine_now = await asyncio.to_thread(counters, engine)
    return {
        "at": time.monotonic(),
        **{name: getattr(crowd, name) for name in ("completed", "left", "refused", "broken")},
        "delivered": crowd.tokens,
        "computed": engine_now["hangup_engine_tokens_total"] + engine_now["hangup_engine_tokens_dropped_total"],
        "joules": gpu.joules(),
        **{f"cpu_{name}": cpu_s(pid) for name, pid in pids.items()},
    }


async def phase(gpu: Gpu, port: int, engine: int, leaving: float, seconds: float, pids: dict[str, int]) -> dict[str, Any]:
    crowd = Crowd(port, leaving)
    async with asyncio.TaskGroup() as group:
        clients = [group.create_task(crowd.client()) for _ in range(CLIENTS)]
        await asyncio.sleep(SETTLE_S)
        before = await snapshot(crowd, gpu, engine, pids)
        crowd.first_s.clear()
        crowd.whole_s.clear()
        use = []
        while time.monotonic() - before["at"] < seconds:
            await asyncio.sleep(SAMPLE_S)
            use.append(gpu.use())
        after = await snapshot(crowd, gpu, engine, pids)
        for client in clients:
            client.cancel()
    await rest(engine)
    found = {name: after[name] - before[name] for name in after}
    found["refused_at_first"] = before["refused"]
    return {**found, "use": statistics.mean(use), "first_s": quantiles(crowd.first_s), "whole_s": quantiles(crowd.whole_s)}


def quantiles(seconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=20)
    return {"p50": cuts[9], "p95": cuts[18]}


async def rest(engine: int) -> None:
    """Wait until the engine has nothing left of a phase before the next one begins."""
    until = time.monotonic() + REST_S_MAX
    while time.monotonic() < until:
        now = await asyncio.to_thread(counters, engine)
        if not now["hangup_engine_running"] + now["hangup_engine_waiting"]:
            return
        await asyncio.sleep(SAMPLE_S)
    raise RuntimeError("the engine did not come to rest")


def summary(row: dict[str, Any], price: float) -> dict[str, Any]:
    """Return the figures for the table."""
    seconds, nobody = row["at"], row["computed"] - row["delivered"]
    return {
        "completed_per_s": row["completed"] / seconds,
        "left_per_s": row["left"] / seconds,
        "refused": row["refused"],
        "refused_at_first": row["refused_at_first"],
        "broken": row["broken"],
        "delivered_per_s": row["delivered"] / seconds,
        "for_nobody_per_s": nobody / seconds,
        "for_nobody_share": nobody / row["computed"],
        "gpu_use": row["use"],
        "watts": row["joules"] / seconds,
        "joules_per_completed": row["joules"] / row["completed"],
        "dollars_per_1000_completed": price * seconds / 3600 / row["completed"] * 1000,
        "first_s": row["first_s"],
        "whole_s": row["whole_s"],
        "cpu": {name[4:]: value / seconds for name, value in row.items() if name.startswith("cpu_")},
    }


class Programs:
    """The processes beside the clients. Each phase has its own proxy or gateway, and nothing else calls the engine."""

    def __init__(self, log: IO[str]) -> None:
        self._log = log
        self.engine = free_port()
        self.served = self._start("bench.gpu_stops", "engine", str(self.engine), "512")
        wait_for(f"http://127.0.0.1:{self.engine}/health", self.served)

    def _start(self, *arguments: str, stdout: int | None = None) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", *arguments]
        return subprocess.Popen(command, stdout=self._log if stdout is None else stdout, stderr=self._log, text=True)

    def plain_proxy(self) -> tuple[int, subprocess.Popen[str]]:
        proxy = self._start("hangup.cli.demo_parts.plain_proxy", str(self.engine), stdout=subprocess.PIPE)
        assert proxy.stdout is not None
        return int(proxy.stdout.readline()), proxy

    def hangup(self) -> tuple[int, subprocess.Popen[str]]:
        data, admin = free_port(), free_port()
        ports = ["--port", str(data), "--admin-port", str(admin)]
        gateway = self._start("hangup", "serve", "--upstream", f"http://127.0.0.1:{self.engine}", "--jobs", "none", *ports)
        wait_for(f"http://127.0.0.1:{admin}/readyz", gateway)
        return data, gateway


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def main(out: Path, price: float, seconds: float) -> None:
    gpu = Gpu()
    results: dict[str, Any] = {"gpu": gpu.name, "clients": CLIENTS, "price": price, "phases": []}
    with (out / "gpu_spike.log").open("w") as log, contextlib.ExitStack() as stack:
        programs = Programs(log)
        stack.callback(end, programs.served)
        pids = {"engine": programs.served.pid, "clients": os.getpid()}
        # Capture the graphs and let the clocks rise.
        uvloop.run(phase(gpu, programs.engine, programs.engine, 0.5, seconds / 4, pids))
        both = (("plain proxy", programs.plain_proxy), ("hangup", programs.hangup))
        for leaving, length in ((0.0, seconds / 2), (0.5, seconds), (0.5, seconds)):
            for name, between in both:
                port, process = between()
                try:
                    all_pids = {**pids, "between": process.pid}
                    found = uvloop.run(phase(gpu, port, programs.engine, leaving, length, all_pids))
                finally:
                    end(process)
                row = {"path": name, "leaving": leaving, **summary(found, price)}
                results["phases"].append(row)
                print(json.dumps(row), flush=True)
                (out / "gpu_spike.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--price", type=float, default=4.0, help="dollars an hour for the GPU (default: 4)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each phase in which half leave (default: 60)")
    arguments = parser.parse_args()
    main(arguments.out, arguments.price, arguments.seconds)
