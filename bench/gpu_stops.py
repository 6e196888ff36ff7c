"""When the client hangs up, does the GPU stop? Measured by NVML behind a plain proxy, direct, and behind hangup.

usage: PYTHONPATH=src:tests:. python -m bench.gpu_stops OUT     (needs torch with CUDA, safetensors, hangup[nvidia])

The embedded engine serves a random Llama of 1 B on the GPU; 32 clients stream and all disconnect at once. The GPU's utilisation
is sampled until it has been idle for a while. Writes OUT/gpu_stops.json.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pynvml
import uvloop

CLIENTS, TOKENS = 32, 3500
RUN_S, STILL_S, MOST_S = 4.0, 2.0, 40.0
BODY = json.dumps({"prompt": "x" * 64, "max_tokens": TOKENS, "stream": True, "ignore_eos": True}).encode()
REQUEST = b"POST /v1/completions HTTP/1.1\r\nhost: b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(BODY),
    BODY,
)


def serve_engine(port: int, waiting_max: int = 32) -> None:
    """Run the embedded engine with a model that needs no files."""
    from bench.embedded_gpu import LLAMA_1B, load_random
    from hangup.engine import runner
    from hangup.engine.options import EngineOptions
    from hangup.engine.serving.server import start

    runner.load_models = lambda options: (load_random(LLAMA_1B, foreseeable=False), None)

    async def serve() -> None:
        options = EngineOptions(slots=CLIENTS, waiting_max=waiting_max, context_max=4096, prefill_tokens_max=2048)
        await start(options, port=port)
        await asyncio.Event().wait()

    uvloop.run(serve())


class Gpu:
    def __init__(self) -> None:
        pynvml.nvmlInit()
        self._gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.name = pynvml.nvmlDeviceGetName(self._gpu)

    def use(self) -> int:
        return int(pynvml.nvmlDeviceGetUtilizationRates(self._gpu).gpu)

    def watts(self) -> float:
        return float(pynvml.nvmlDeviceGetPowerUsage(self._gpu)) / 1000

    def joules(self) -> float:
        """Return the energy used since the driver was loaded."""
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu)) / 1000


async def client(port: int) -> tuple[asyncio.StreamWriter, asyncio.Task[None]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(REQUEST)

    async def read() -> None:
        while await reader.read(65536):
            pass

    return writer, asyncio.get_running_loop().create_task(read())


def counters(port: int) -> dict[str, float]:
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
    rows = (line.split() for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in rows}


def seen_by_hangup(admin: int) -> float | None:
    """Return how busy the gateway reports the GPU to be."""
    page = urllib.request.urlopen(f"http://127.0.0.1:{admin}/api/backends", timeout=5).read()
    busy: float | None = json.loads(page)["backends"][0]["busy"]
    return busy


async def leave_at_once(gpu: Gpu, port: int, engine: int, admin: int) -> dict[str, Any]:
    crowd = [await client(port) for _ in range(CLIENTS)]
    await asyncio.sleep(RUN_S)
    before: dict[str, Any] = {"use": gpu.use(), "watts": gpu.watts(), "tokens": tokens(engine), "seen": None}
    before["seen"] = await asyncio.to_thread(seen_by_hangup, admin)
    for writer, task in crowd:
        task.cancel()
        writer.transport.abort()
    left_at = time.monotonic()
    samples: list[tuple[float, int, float]] = []
    busy_at = left_at
    while time.monotonic() - left_at < MOST_S and time.monotonic() - busy_at < STILL_S:
        await asyncio.sleep(0.05)
        now, use = time.monotonic(), gpu.use()
        samples.append((now - left_at, use, gpu.watts()))
        if use > 5 or counters(engine)["hangup_engine_running"]:
            busy_at = now
    return {
        "before": before,
        "busy_for_s": busy_at - left_at,
        "tokens_after": tokens(engine) - before["tokens"],
        "seen_after": await asyncio.to_thread(seen_by_hangup, admin),
        "samples": samples,
    }


def tokens(engine: int) -> float:
    """Return the tokens computed: those of answers, and those dropped."""
    now = counters(engine)
    return now["hangup_engine_tokens_total"] + now["hangup_engine_tokens_dropped_total"]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_for(url: str, process: subprocess.Popen[str]) -> None:
    while True:
        try:
            urllib.request.urlopen(url, timeout=1).read()
            return
        except OSError:
            assert process.poll() is None, f"{process.args!r} ended"
            time.sleep(0.5)


def main(out: Path) -> None:
    gpu, engine, data, admin = Gpu(), free_port(), free_port(), free_port()
    config = out / "gpu.toml"
    backend = f'[[backend]]\nurl = "http://127.0.0.1:{engine}"\nname = "gpu"\nbusy_from = "nvml"\n'
    config.write_text(f'log = "none"\n[limits]\ncounters_interval_s = 0.5\n{backend}')
    serve = ["serve", "--jobs", "none", "--config", str(config), "--port", str(data), "--admin-port", str(admin)]
    with contextlib.ExitStack() as stack:

        def start(*arguments: str) -> subprocess.Popen[str]:
            process = subprocess.Popen([sys.executable, "-m", *arguments], stdout=subprocess.PIPE, text=True)
            stack.callback(process.kill)
            return process

        wait_for(f"http://127.0.0.1:{engine}/health", start("bench.gpu_stops", "engine", str(engine)))
        proxy = start("hangup.cli.demo_parts.plain_proxy", str(engine))
        assert proxy.stdout is not None
        naive = int(proxy.stdout.readline())
        wait_for(f"http://127.0.0.1:{admin}/readyz", start("hangup", *serve))
        results: dict[str, Any] = {"gpu": gpu.name, "clients": CLIENTS}
        uvloop.run(leave_at_once(gpu, engine, engine, admin))  # captures the graphs, lets the clocks rise
        for name, target in (("direct", engine), ("plain proxy", naive), ("hangup", data)):
            row = results[name] = uvloop.run(leave_at_once(gpu, target, engine, admin))
            print(name, {key: value for key, value in row.items() if key != "samples"}, flush=True)
        (out / "gpu_stops.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    if sys.argv[1] == "engine":
        serve_engine(*map(int, sys.argv[2:]))
    else:
        main(Path(sys.argv[1]))
