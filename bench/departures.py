"""Ten thousand calls that end in one instant, since a front proxy or an engine dies: what others notice, and when engines know.

    clients: one process that holds all streams and is killed (kill -9) ──▶ hangup ──▶ engine "crowd"
    bystanders: 20 streams of 50 chunks/s each ─────────────────────────▶ hangup ──▶ engine "others"
                the same straight from that engine, for comparison ────────────────▶

A turn of the loop is measured inside the gateway (`watched_serve`), a chunk's lateness at the bystander, the end of a stream by
its engine's own clock.

usage: python -m bench.departures [--clients 9900] [--how rst fin engine]      engine: "crowd" is killed, not the clients
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop

from bench import load, targets, watched_serve
from bench.suites import _get

BYSTANDERS = 20
RATE = 50.0
QUIET_S = 4.0  # watched before the departure, and after it
_WAYS = ("rst", "fin", "engine")


class Timed(load.Stream):
    """A stream that notes when its chunks come."""

    def __init__(self, data: bytes) -> None:
        super().__init__([0], data)
        self.came: list[float] = []

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.came.append(time.monotonic())

    def latest(self, since: float, until: float) -> float:
        """Return by how much the latest chunk in this time was late: its distance to the one before, less the usual."""
        came = [at for at in self.came if since <= at <= until]
        return max(later - earlier for earlier, later in itertools.pairwise(came)) - 1 / RATE


async def run(clients: int = 9900, ways: tuple[str, ...] = _WAYS) -> dict[str, Any]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    clients = min(clients, (files - 250) // 2)
    return {way: await _leave(clients, way) for way in ways}


async def _leave(clients: int, way: str) -> dict[str, float]:
    with contextlib.ExitStack() as stack:
        crowd, others = stack.enter_context(targets.engine(rate=0.02)), stack.enter_context(targets.engine(rate=RATE))
        gateway, noted = stack.enter_context(_gateway(crowd.port, others.port))
        proxy = stack.enter_context(_proxy(gateway.port, clients, way))
        body = {**load.STREAM, "model": "others"}
        through = [await _open(gateway.port, body) for _ in range(BYSTANDERS)]
        direct = [await _open(others.port, body) for _ in range(BYSTANDERS)]
        await asyncio.sleep(QUIET_S)
        cpu, left_at = gateway.cpu_s(), time.monotonic()
        (crowd.processes[0] if way == "engine" else proxy).send_signal(signal.SIGKILL)
        await asyncio.sleep(QUIET_S)
        cpu = gateway.cpu_s() - cpu
        after = left_at + QUIET_S
        lost = {} if way == "engine" else json.loads(await asyncio.to_thread(_get, crowd.port, "/stats"))["lost"]
        before, turns = watched_serve.turns(noted, left_at - QUIET_S, left_at), watched_serve.turns(noted, left_at, after)
        row = {
            "clients": clients,
            "engines_told": len(lost),
            "engines_told_s": max(lost.values(), default=float("nan")) - left_at,
            "longest_turn_ms": max((wall for wall, _ in turns), default=0.0) * 1e3,
            "longest_turn_cpu_ms": max((cpu for _, cpu in turns), default=0.0) * 1e3,
            "turns_over_50_ms": sum(wall > 0.05 for wall, _ in turns),
            "longest_turn_before_ms": max((wall for wall, _ in before), default=0.0) * 1e3,
            "late_ms": max(s.latest(left_at, after) for s in through) * 1e3,
            "late_before_ms": max(s.latest(left_at - QUIET_S, left_at) for s in through) * 1e3,
            "late_direct_ms": max(s.latest(left_at, after) for s in direct) * 1e3,
            "us_per_departure": cpu / clients * 1e6,
        }
        for stream in (*through, *direct):
            stream.transport.abort()
        print(_ROW.format(way, **row), flush=True)
        return row


_ROW = """  {}: {clients} clients leave; engines told of {engines_told}, the last after {engines_told_s:.2f} s
       longest turn {longest_turn_ms:.0f} ms (before: {longest_turn_before_ms:.0f} ms), {turns_over_50_ms} above 50 ms
       most CPU time in a turn: {longest_turn_cpu_ms:.0f} ms
       others' chunks late by {late_ms:.0f} ms (before: {late_before_ms:.0f} ms; direct meanwhile: {late_direct_ms:.0f} ms)
       {us_per_departure:.0f} us of CPU per departure, others' streams included"""


async def _open(port: int, body: dict[str, Any]) -> Timed:
    data = load.request("/v1/chat/completions", body)
    _, stream = await asyncio.get_running_loop().create_connection(lambda: Timed(data), "127.0.0.1", port)
    await stream.first
    return stream


@contextlib.contextmanager
def _gateway(crowd: int, others: int) -> Iterator[tuple[targets.Target, str]]:
    """Start a gateway whose crowd and whose others have an engine each; also return the file with its long turns."""
    port, admin_port = targets.free_port(), targets.free_port()
    with tempfile.TemporaryDirectory() as folder:
        config, noted = f"{folder}/hangup.toml", f"{folder}/turns"
        backends = "".join(
            f'[[backend]]\nname = "{name}"\nurl = "http://127.0.0.1:{engine}"\nmodels = ["{name}"]\nslots = 20000\n'
            for name, engine in (("crowd", crowd), ("others", others))
        )
        Path(config).write_text(f"{backends}[limits]\ngap_s = 600\n")
        ports = ["--port", str(port), "--admin-port", str(admin_port)]
        serve = ["serve", *ports, "--jobs", "none", "--config", config, "--log", f"{folder}/log"]
        command = [sys.executable, "-m", "bench.watched_serve", noted, *serve]
        with targets.started(command, stderr=subprocess.DEVNULL) as process:
            targets.wait_for_port(port, process)
            yield targets.Target("hangup", port, [process], admin_port), noted


@contextlib.contextmanager
def _proxy(port: int, clients: int, way: str) -> Iterator[subprocess.Popen[str]]:
    """Start the process that holds the clients' streams, and wait until each has its first byte."""
    with targets.started(
        [sys.executable, "-m", "bench.departures", "--hold", str(port), "--clients", str(clients), "--how", way],
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "open", "not all streams opened"
        yield process


async def _hold(port: int, clients: int, way: str) -> None:
    streams = []
    for start in range(0, clients, 1000):
        body, count = {**load.STREAM, "model": "crowd"}, min(1000, clients - start)
        streams += await load.open_streams(port, count, [0], body, f"c{start}-")
    if way == "rst":
        for stream in streams:
            sock: socket.socket = stream.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    print("open", flush=True)
    await asyncio.sleep(600)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=9900)
    parser.add_argument("--how", nargs="+", choices=_WAYS, default=_WAYS)
    parser.add_argument("--hold", type=int, default=0)
    given = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if given.hold:
        uvloop.run(_hold(given.hold, given.clients, given.how[0]))
    else:
        uvloop.run(run(given.clients, tuple(given.how)))
