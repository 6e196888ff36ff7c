"""What several workers gain, with a load that costs little: wrk as the client, nginx with constant answers as the engine.

usage: python -m bench.lean_workers [--rounds N] [--seconds S]

The generator and the engine of `bench.workers` take half of two cores, so that two workers cannot serve twice as much as one.
Here each line says how many cores the gateway, wrk, nginx and everybody else used, and by how much two workers could exceed one
on the cores that remain for them: at most twice, and no more than all cores divided by what a call costs all three. If others
used more than a tenth of a core, the machine was busy and the figures are too low.

An answer comes in one piece, also the stream of 8 tokens: this measures calls. `bench.workers` measures streamed chunks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import targets
from bench.environments import program
from bench.targets import Target

CONNECTIONS = 32  # for each worker
TOKENS = 8
CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
BODIES = {"/v1/embeddings": {"model": "m", "input": "x"}, "/v1/chat/completions": CHAT | {"stream": True, "max_tokens": TOKENS}}


def _stream() -> str:
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    deltas = [{"index": 0, "delta": {"content": "x "}, "finish_reason": None}] * TOKENS
    deltas.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    events = [json.dumps(chunk | {"choices": [delta]}) for delta in deltas]
    return "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])


def _answers() -> dict[str, tuple[str, str]]:
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    vector = {"object": "embedding", "index": 0, "embedding": [0.5]}
    return {
        "/v1/embeddings": ("application/json", json.dumps({"object": "list", "data": [vector], "model": "m", "usage": usage})),
        "/v1/models": ("application/json", json.dumps({"object": "list", "data": [{"id": "m", "object": "model"}]})),
        "/v1/chat/completions": ("text/event-stream", _stream()),
    }


@contextlib.contextmanager
def constant_engine() -> Iterator[Target]:
    """Start nginx with answers that never differ."""
    program("nginx", "nginx-light")
    port = targets.free_port()
    places = "".join(
        f"location = {path} {{ default_type {kind}; return 200 '{body.replace(chr(10), chr(92) + 'n')}'; }}\n"
        for path, (kind, body) in _answers().items()
    )
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "nginx.conf"
        config.write_text(f"""
            worker_processes 1; daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
            events {{ worker_connections 4096; }}
            http {{
              access_log off;
              client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
              uwsgi_temp_path {folder}; scgi_temp_path {folder};
              server {{
                listen 127.0.0.1:{port} backlog=4096;
                keepalive_requests 100000000;
                {places}
              }}
            }}""")
        with targets.started(["nginx", "-c", str(config)]) as process:
            targets.wait_for_port(port, process)
            yield Target("nginx", port, [process])


@dataclass
class Window:
    """What was measured, over all rounds."""

    calls: int = 0
    wall_s: float = 0.0
    gateway_s: float = 0.0
    wrk_s: float = 0.0
    engine_s: float = 0.0
    others_s: float = 0.0

    @property
    def rate(self) -> float:
        return self.calls / self.wall_s

    def us(self, seconds: float) -> float:
        return seconds / self.calls * 1e6


def _busy_s() -> float:
    """Return how long all cores of the machine have been busy."""
    ticks = [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")  # without idle and waiting for disks


def measure(window: Window, target: Target, engine: Target, path: str, connections: int, seconds: float) -> None:
    """Let wrk call for so many seconds, and add what that cost."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(f"wrk.method = 'POST'\nwrk.body = [[{json.dumps(BODIES[path])}]]\n")
        script.write("wrk.headers['Content-Type'] = 'application/json'\n")
        script.flush()
        url = f"http://127.0.0.1:{target.port}{path}"
        arguments = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "-s", script.name, url]
        gateway_s, engine_s, busy_s, at = target.cpu_s(), engine.cpu_s(), _busy_s(), time.monotonic()
        before = os.times()
        found = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
        after, took = os.times(), time.monotonic() - at
    if "Non-2xx" in found or "Socket errors" in found:
        raise RuntimeError(found)
    calls = re.search(r"(\d+) requests in", found)
    assert calls is not None, found
    wrk_s = after.children_user + after.children_system - before.children_user - before.children_system
    gateway_s, engine_s = target.cpu_s() - gateway_s, engine.cpu_s() - engine_s
    window.calls += int(calls[1])
    window.wall_s += took
    window.gateway_s, window.wrk_s = window.gateway_s + gateway_s, window.wrk_s + wrk_s
    window.engine_s += engine_s
    window.others_s += max(_busy_s() - busy_s - gateway_s - engine_s - wrk_s, 0.0)


def show(path: str, windows: dict[int, Window], cores: int) -> None:
    for workers, window in windows.items():
        used = {"gateway": window.gateway_s, "wrk": window.wrk_s, "nginx": window.engine_s, "others": window.others_s}
        shares = ", ".join(f"{name} {seconds / window.wall_s:.2f}" for name, seconds in used.items())
        print(
            f"{path}, {workers} workers: {window.rate:.0f} calls/s, {window.us(window.gateway_s):.1f} us of CPU a call;"
            f" cores used of {cores}: {shares}",
            flush=True,
        )
    one, two = windows[1], windows[2]
    possible = cores / (two.us(two.gateway_s + two.wrk_s + two.engine_s) / 1e6) / one.rate
    print(
        f"  {two.us(two.gateway_s) - one.us(one.gateway_s):+.1f} us, {two.rate / one.rate:.2f} times the rate;"
        f" {min(possible, 2.0):.2f} possible on these cores",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3.0)
    chosen = parser.parse_args()
    program("wrk", "wrk")
    with (
        constant_engine() as engine,
        targets.hangup(engine.port, "--workers", "1") as one,
        targets.hangup(engine.port, "--workers", "2") as two,
    ):
        measured = {1: one, 2: two}
        for path in BODIES:
            windows = {workers: Window() for workers in measured}
            for workers, target in measured.items():  # unmeasured, to warm up
                measure(Window(), target, engine, path, CONNECTIONS * workers, 1)
            for _ in range(chosen.rounds):
                for workers, target in measured.items():
                    measure(windows[workers], target, engine, path, CONNECTIONS * workers, chosen.seconds)
            show(path, windows, len(os.sched_getaffinity(0)))


if __name__ == "__main__":
    main()
