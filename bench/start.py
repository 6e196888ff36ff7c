"""How long hangup takes to start: `import hangup`, `hangup --version`, and `hangup serve` until it has answered a call."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import targets

GOALS = {"import hangup": 0.05, "hangup --version": 0.15, "serve --upstream": 1.0, "serve, embedded engine": 1.0}


def run(rounds: int) -> dict[str, Any]:
    """Return wall and CPU seconds of each start: the quickest of some, and the median."""
    rows: dict[str, Any] = {}
    python = [sys.executable, "-c"]
    bare = [_whole([*python, "pass"]) for _ in range(rounds)]
    rows["python -c pass"] = _row("python -c pass", bare)
    rows["import hangup"] = _row("import hangup", [_whole([*python, "import hangup"]) for _ in range(rounds)], min(bare))
    program = str(Path(sys.executable).with_name("hangup"))
    rows["hangup --version"] = _row("hangup --version", [_whole([program, "--version"]) for _ in range(rounds)])
    with targets.standin(prefill_s=0, token_s=0) as engine:
        upstream = ["--upstream", f"http://127.0.0.1:{engine.port}"]
        rows["serve --upstream"] = _row("serve --upstream", [_served(program, upstream, "stand-in") for _ in range(rounds)])
    rows["serve, embedded engine"] = _row(
        "serve, embedded engine", [_served(program, [], "hangup-shakespeare") for _ in range(rounds)]
    )
    return rows


def _row(name: str, measured: list[tuple[float, float]], less: tuple[float, float] = (0.0, 0.0)) -> dict[str, float]:
    walls, cpus = (sorted(values) for values in zip(*measured, strict=True))
    row = {
        "wall_s": walls[0] - less[0],
        "wall_s_median": walls[len(walls) // 2] - less[0],
        "cpu_s": cpus[0] - less[1],
    }
    goal = GOALS.get(name)
    verdict = "" if goal is None else f"   goal {goal} s: {'met' if row['wall_s_median'] <= goal else 'MISSED'}"
    print("  {:<24} {wall_s:.3f} s, median {wall_s_median:.3f}; CPU {cpu_s:.3f} s{}".format(name, verdict, **row))
    return row


def _whole(command: list[str]) -> tuple[float, float]:
    """Return the wall and CPU time of a process from its start to its end."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=targets.ROOT)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return time.monotonic() - start, usage.ru_utime + usage.ru_stime


def _served(program: str, flags: list[str], model: str) -> tuple[float, float]:
    """Return the wall and CPU time from the start of a gateway to the end of its first call."""
    port = targets.free_port()
    ports = ["--port", str(port), "--admin-port", str(targets.free_port())]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        files = ["--jobs", f"{folder}/jobs.sqlite", "--log", f"{folder}/log"]
        start = time.monotonic()
        process = stack.enter_context(_started([program, "serve", *ports, *files, *flags]))
        _call(port, model)
        wall = time.monotonic() - start
        cpu = targets.Target("hangup", port, [process]).cpu_s()
    return wall, cpu


@contextlib.contextmanager
def _started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    with targets.started(command, stderr=subprocess.DEVNULL) as process:
        yield process
        process.send_signal(signal.SIGKILL)


def _call(port: int, model: str) -> None:
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body, {"content-type": "application/json"})
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(ConnectionError, urllib.error.URLError), urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200
            return
        time.sleep(0.01)
    raise RuntimeError("the gateway did not answer")


if __name__ == "__main__":
    run(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
