"""Real engines, in the environments that `make test-engines` sets up; without them these tests are skipped."""

from __future__ import annotations

import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.engines.commands import COMMANDS, command

from real_engines.real import Engine
from support.waiting import wait_until

CACHE = os.environ.get("HANGUP_ENGINES_DIR", "")


def _run(name: str, size: str = "tiny") -> Iterator[Engine]:
    if not CACHE:
        pytest.skip("no real engines: `make test-engines` sets them up")
    engine_command = command(name, Path(CACHE).resolve(), size)
    if not Path(engine_command.words[0]).exists():
        pytest.skip(f"{name} is not set up in {CACHE}")
    log = Path(CACHE) / f"{name}-test.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            engine_command.words, env=os.environ | engine_command.env, stdout=output, stderr=output, start_new_session=True
        )
    try:
        wait_until(lambda: _up(engine_command.url, process, log), 120, f"{name} to come up; see {log}")
        yield Engine(name, engine_command.url, engine_command.model, process.pid, log)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def _up(url: str, process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, f"it ended: {log.read_text()[-2000:]}"
    try:
        return bool(urllib.request.urlopen(f"{url}/health", timeout=2).status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="module", params=COMMANDS)
def real(request: pytest.FixtureRequest) -> Iterator[Engine]:
    yield from _run(request.param)


@pytest.fixture(scope="module")
def llama_server() -> Iterator[Engine]:
    yield from _run("llamacpp")


@pytest.fixture(scope="module", params=["llamacpp", "vllm"])
def slow_reader(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Start an engine with a model whose prefill of a long prompt takes many seconds."""
    yield from _run(request.param, "large")
