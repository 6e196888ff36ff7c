"""The examples against the stand-in engine: leaking without hangup, clean with it, by the engine's own counters."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hangup.lint import lint_file
from support.processes import StandIn, get_json
from support.raw import Client
from support.waiting import wait_until

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ANSWER_TOKENS = 30
TOKEN_S = 0.05


@pytest.fixture(scope="module")
def engine() -> Iterator[StandIn]:
    with StandIn(slots=8, prefill_s=0.5, token_s=TOKEN_S, answer_tokens=ANSWER_TOKENS) as process:
        yield process


@contextmanager
def served(example: str, engine: StandIn) -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        descriptor = listener.fileno()
        command = [sys.executable, "-m", "uvicorn", f"{example}:app", "--app-dir", str(EXAMPLES), "--fd", str(descriptor)]
        command += ["--timeout-graceful-shutdown", "1"]
        env = os.environ | {"ENGINE": engine.url}
        process = subprocess.Popen(
            command, pass_fds=[descriptor], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        address = listener.getsockname()
    try:
        wait_until(lambda: answers(address), 20, f"{example} to serve")
        yield address
    finally:
        process.terminate()
        process.wait(10)


def answers(address: tuple[str, int]) -> bool:
    try:
        return bool(get_json(f"http://{address[0]}:{address[1]}/openapi.json"))
    except OSError:
        return False


@pytest.fixture(scope="module", params=["leaking", "clean"])
def example(request: pytest.FixtureRequest, engine: StandIn) -> Iterator[tuple[str, tuple[str, int]]]:
    with served(request.param, engine) as address:
        yield request.param, address


@pytest.mark.parametrize("path", ["answer", "blocking", "background"])
def test_what_is_computed_after_the_client_left(example: tuple[str, tuple[str, int]], engine: StandIn, path: str) -> None:
    name, address = example
    before = engine.stats()
    client = Client(address)
    client.post(f"/{path}?prompt=hello", {})
    began = wait_until(lambda: (t := engine.stats()["tokens"] - before["tokens"]) >= 2 and t, 10, "two tokens")
    client.fin()
    after = engine.wait_idle(10)
    computed = after["tokens"] - before["tokens"]
    if name == "leaking":
        assert (after["finished"] - before["finished"], computed) == (1, ANSWER_TOKENS), "computed to its end, for nobody"
    else:
        assert after["aborted"] - before["aborted"] == 1
        assert computed <= began + 2  # one on its way through the client's library, one for a step that had begun


def test_a_client_that_leaves_during_the_prefill(example: tuple[str, tuple[str, int]], engine: StandIn) -> None:
    name, address = example
    before = engine.stats()
    client = Client(address)
    client.post("/stream?prompt=hello", {})
    wait_until(lambda: engine.stats()["prefills"] > before["prefills"], 10, "the prefill")
    client.fin()
    computed = engine.wait_idle(10)["tokens"] - before["tokens"]
    assert (computed > 0) == (name == "leaking")


def test_a_stream_is_complete(engine: StandIn) -> None:
    with served("clean", engine) as address, Client(address) as client:
        client.post("/stream?prompt=hello", {})
        answer = client.read_answer()
    assert answer.complete and answer.body.endswith(b"data: [DONE]\n\n")
    assert answer.body.count(b"data: {") >= ANSWER_TOKENS


def test_a_server_that_shuts_down_stops_the_engine(engine: StandIn) -> None:
    before = engine.stats()
    with served("clean", engine) as address:
        client = Client(address)
        client.post("/answer?prompt=hello", {})
        wait_until(lambda: engine.stats()["tokens"] > before["tokens"], 10, "a token")
    after = engine.wait_idle(3)
    client.fin()
    assert after["aborted"] - before["aborted"] == 1


def test_the_linter_tells_them_apart() -> None:
    assert {f.code for f in lint_file(EXAMPLES / "leaking.py")} == {"HU001", "HU003", "HU004", "HU007"}
    assert lint_file(EXAMPLES / "clean.py") == []
    assert lint_file(EXAMPLES / "gated.py") == []


def test_the_gate_on_sockets(engine: StandIn) -> None:
    """One runs, one waits, the third is shed with 503; who leaves the line is never asked of the engine."""
    before = engine.stats()["requests"]
    with served("gated", engine) as address:

        def gate() -> dict[str, int]:
            return dict(get_json(f"http://{address[0]}:{address[1]}/gate"))

        first, second, third = Client(address), Client(address), Client(address)
        first.post("/stream?prompt=one", {})
        wait_until(lambda: gate()["running"] == 1, what="the first in its slot")
        second.post("/stream?prompt=two", {})
        wait_until(lambda: gate()["waiting"] == 1, what="the second in line")
        third.post("/stream?prompt=three", {})
        answer = third.read_answer()
        assert (answer.status, answer.headers["x-hangup-reason"]) == (503, "queue_full")
        assert 1 <= int(answer.headers["retry-after"]) <= 30
        wait_until(lambda: engine.stats()["requests"] == before + 1, what="the first at the engine")
        second.fin()
        wait_until(lambda: gate()["waiting"] == 0, 0.5, "the departed out of the line")
        first.fin()
        wait_until(lambda: gate()["running"] == 0, what="the slot free")
        third.fin()
    assert engine.stats()["requests"] == before + 1
