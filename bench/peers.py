"""The same measurements on other gateways, each in its own environment; one that cannot be installed is skipped and named."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from bench import suites, targets
from bench.environments import environment, program
from bench.load import CHAT
from bench.targets import Target

STREAMS = 64  # the slower ones cannot keep up with more
Start = Callable[[int], contextlib.AbstractContextManager[Target]]


@contextlib.contextmanager
def _serving(name: str, port: int, arguments: list[str], model: str = "bench-model") -> Iterator[Target]:
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with targets.started(arguments, **quiet) as process:
        targets.wait_for_port(port, process, 120)
        _wait_until_it_answers(port, model)
        yield Target(name, port, [process])


def _wait_until_it_answers(port: int, model: str) -> None:
    body = json.dumps({**CHAT, "model": model, "plain": True}).encode()
    deadline = time.monotonic() + 60
    while True:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/chat/completions",
            body,
            {"content-type": "application/json", "authorization": "Bearer none"},
        )
        try:
            urllib.request.urlopen(request, timeout=10).read()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


@contextlib.contextmanager
def haproxy(upstream: int, slots: int = 0) -> Iterator[Target]:
    """Start HAProxy. With `slots`, it is tuned by hand for such an engine: a short queue, and it drops calls of departed
    clients.
    """
    tuned = f"maxconn {slots} maxqueue {2 * slots}" if slots else ""
    program("haproxy", "haproxy")
    port = targets.free_port()
    with tempfile.NamedTemporaryFile("w", suffix=".cfg") as config:
        config.write(f"""
global
  nbthread 1
  maxconn 4000
defaults
  mode http
  timeout connect 5s
  timeout client 600s
  timeout server 600s
  option http-no-delay
frontend in
  bind 127.0.0.1:{port}
  default_backend engine
backend engine
  http-reuse always
  timeout queue 2s
  option abortonclose
  server e 127.0.0.1:{upstream} {tuned}
""")
        config.flush()
        with _serving("haproxy", port, ["haproxy", "-db", "-f", config.name]) as target:
            yield target


@contextlib.contextmanager
def vllm_router(upstream: int) -> Iterator[Target]:
    python = str(environment("vllm-router", "vllm-router==0.1.16") / "python")
    port, metrics = targets.free_port(), targets.free_port()
    flags = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics), "--policy", "round_robin"]
    command = [python, "-m", "vllm_router.launch_router", *flags, "--worker-urls", f"http://127.0.0.1:{upstream}"]
    with _serving("vllm-router", port, command) as target:
        yield target


@contextlib.contextmanager
def sglang_router(upstream: int) -> Iterator[Target]:
    python = str(environment("sglang-router", "sglang-router==0.3.2") / "python")
    port, metrics = targets.free_port(), targets.free_port()
    flags = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics), "--policy", "round_robin"]
    command = [python, "-m", "sglang_router.launch_router", *flags, "--worker-urls", f"http://127.0.0.1:{upstream}"]
    with _serving("sglang-router", port, command) as target:
        yield target


@contextlib.contextmanager
def litellm(upstream: int, model: str = "bench-model") -> Iterator[Target]:
    binary = str(environment("litellm", "litellm[proxy]<1.107") / "litellm")
    port = targets.free_port()
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        entry = {"model": f"openai/{model}", "api_base": f"http://127.0.0.1:{upstream}/v1", "api_key": "none"}
        models = [{"model_name": model, "litellm_params": entry}]
        no_key = {"dangerously_permit_weak_or_unset_master_key": True}  # it listens on loopback, for a minute
        config.write(json.dumps({"model_list": models, "general_settings": no_key}))
        config.flush()
        command = [binary, "--config", config.name, "--port", str(port), "--host", "127.0.0.1", "--num_workers", "1"]
        with _serving("litellm", port, command, model) as target:
            yield target


PEERS: dict[str, Start] = {
    "haproxy": haproxy,
    "vllm-router": vllm_router,
    "sglang-router": sglang_router,
    "litellm": litellm,
}


async def run() -> dict[str, Any]:
    """Measure CPU per chunk at 64 streams, and CPU per small non-streaming request at concurrency 64 (8 for litellm)."""
    rows: dict[str, Any] = {}
    with targets.engine() as engine, targets.nginx(engine.port) as nginx, targets.hangup(engine.port) as hangup:
        for target in (nginx, hangup):
            rows[target.name] = await _measure(target)
        for name, start in PEERS.items():
            try:
                with start(engine.port) as target:
                    rows[name] = await _measure(target)
            except (OSError, RuntimeError, subprocess.SubprocessError, AssertionError) as error:
                print(f"  {name:<14} left out: {error}", flush=True)
                rows[name] = {"left_out": str(error)}
    return rows


async def _measure(target: Target) -> dict[str, float]:
    concurrency = 8 if target.name == "litellm" else 64
    (chunk,) = await suites.streams([target], count=STREAMS, rounds=3)
    (call,) = await suites.requests(
        [target], "/v1/chat/completions", {**CHAT, "plain": True}, concurrency=concurrency, rounds=2
    )
    print(f"  {target.name:<14} {chunk.us:8.1f} us per chunk   {call.us / 1e3:8.3f} ms per request", flush=True)
    return {"us_per_chunk": round(chunk.us, 1), "ms_per_request": round(call.us / 1e3, 4), "chunks_per_s": round(chunk.rate)}
