"""Each rule's bad example leaks and its good one does not, by the engine's own counts, after a real hang-up."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn

from hangup.lint import RULES
from support.processes import StandIn
from support.raw import Client
from support.waiting import wait_until

ANSWER_TOKENS = 30
TOKEN_S = 0.05
MESSAGES = [{"role": "user", "content": "hello"}]
Address = tuple[str, int]


@pytest.fixture(scope="module")
def engine() -> Iterator[StandIn]:
    with StandIn(slots=64) as process:
        yield process


@pytest.fixture(autouse=True)
def normal(engine: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.behave(prefill_s=0.3, token_s=TOKEN_S, answer_tokens=ANSWER_TOKENS, deaf=False, fail_status=0)
    monkeypatch.setenv("OPENAI_BASE_URL", f"{engine.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "none")


@contextmanager
def served(source: str) -> Iterator[tuple[Address, str]]:
    """Serve an example with uvicorn in a thread; yields its address and the path of its route."""
    scope: dict[str, Any] = {"__name__": "example"}
    exec(compile(source, "example.py", "exec", dont_inherit=True), scope)
    app = scope["app"]
    path = next(route.path for route in app.routes if "POST" in getattr(route, "methods", ()))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started, what="the example to serve")
        yield listener.getsockname(), path
    finally:
        server.should_exit = server.force_exit = True
        thread.join(30)
        listener.close()


def post(address: Address, path: str) -> Client:
    client = Client(address)
    client.post(path, MESSAGES)
    return client


def hang_up_after(engine: StandIn, source: str, count: str = "tokens", least: int = 2) -> dict[str, int]:
    """Send a request, hang up once the engine has counted, and return its count when it is idle."""
    before = engine.stats()
    with served(source) as (address, path):
        client = post(address, path)
        wait_until(lambda: engine.stats()[count] - before[count] >= least, what=count)
        client.fin()
        client.sock.close()
        after = engine.wait_idle()
    return {name: after[name] - before[name] for name in ("tokens", "finished", "aborted", "prefills")}


@pytest.mark.parametrize("code", ["HU001", "HU002", "HU003", "HU004", "HU005", "HU009", "HU010"])
def test_a_whole_answer_is_computed_for_nobody(engine: StandIn, code: str) -> None:
    leaked = hang_up_after(engine, RULES[code].bad)
    assert (leaked["finished"], leaked["aborted"], leaked["tokens"]) == (1, 0, ANSWER_TOKENS)
    stopped = hang_up_after(engine, RULES[code].good)
    assert (stopped["finished"], stopped["aborted"]) == (0, 1) and stopped["tokens"] < ANSWER_TOKENS


def test_a_client_that_leaves_before_the_first_token(engine: StandIn) -> None:
    """HU011: the example polls with the first chunk, so the prefill and one token are computed first."""
    leaked = hang_up_after(engine, RULES["HU011"].bad, "prefills", 1)
    stopped = hang_up_after(engine, RULES["HU011"].good, "prefills", 1)
    assert leaked["tokens"] >= 1 and stopped["tokens"] == 0
    assert stopped["aborted"] == 1


def test_an_engine_that_ignores_hang_ups(engine: StandIn) -> None:
    """HU007: only the limit ends it."""
    engine.behave(deaf=True)
    assert hang_up_after(engine, RULES["HU007"].bad)["tokens"] == ANSWER_TOKENS
    assert hang_up_after(engine, RULES["HU007"].good)["tokens"] == 8


def test_retries_for_a_client_that_left(engine: StandIn) -> None:
    """HU012: long after the hang-up, the bad example still retries; the good one has stopped."""

    def asked_after(source: str) -> Callable[[], int]:
        engine.behave(fail_status=500)
        with served(source) as (address, path):
            before = len(engine.seen())
            client = post(address, path)
            wait_until(lambda: len(engine.seen()) > before, what="the first attempt")
            client.fin()
            client.sock.close()
            limit = time.monotonic() + 2
            wait_until(lambda: len(engine.seen()) - before > 6 or time.monotonic() > limit, what="retries, or two seconds")
            asked = len(engine.seen()) - before
            engine.behave(fail_status=0, answer_tokens=1)  # let the loop of the bad example end
        engine.wait_idle()
        return lambda: asked

    assert asked_after(RULES["HU012"].bad)() > 6
    assert asked_after(RULES["HU012"].good)() <= 3


def test_a_queue_of_clients_that_left(engine: StandIn) -> None:
    """HU013: the engine computes for every client that ever came, or for as many as fit into the queue."""
    engine.behave(answer_tokens=2, token_s=0.01, prefill_s=0.05)
    callers = 8

    def answered(source: str) -> int:
        before = engine.stats()["finished"]
        with served(source) as (address, path):
            clients = [post(address, path) for _ in range(callers)]
            wait_until(lambda: engine.stats()["running"] or engine.stats()["finished"] > before, what="the first call")
            for client in clients:
                client.fin()
                client.sock.close()
            settle(engine)
        return engine.stats()["finished"] - before

    assert answered(RULES["HU013"].bad) == callers
    assert answered(RULES["HU013"].good) < callers


def settle(engine: StandIn) -> None:
    """Wait until the engine has been idle for a while: the example's worker sends the next call only after the last one."""
    idle_since = [time.monotonic(), -1.0]

    def quiet() -> bool:
        finished = engine.stats()["finished"]
        if finished != idle_since[1]:
            idle_since[:] = [time.monotonic(), finished]
        return time.monotonic() - idle_since[0] > 1

    wait_until(quiet, what="an idle engine")


def test_every_rule_is_shown() -> None:
    shown = {"HU001", "HU002", "HU003", "HU004", "HU005", "HU007", "HU009", "HU010", "HU011", "HU012", "HU013"}
    assert set(RULES) == shown
