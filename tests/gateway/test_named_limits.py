"""Limits with a name, a default and a line in the docs, each exceeded by one test on one small gateway."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from hangup.config import LimitSettings
from support.jobs import client, line, start_batch, wait_batch
from support.processes import Gateway, StandIn
from support.raw import Client, ask
from support.raw_engine import RawEngine, raw_engine
from support.waiting import PATIENCE_S, wait_until

EMBEDDINGS = "/v1/embeddings"
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
LARGE_HEAD = b"HTTP/1.1 200 OK\r\nx-large: " + b"x" * 2000 + b"\r\ncontent-length: 2\r\n\r\n{}"
FULL = b"HTTP/1.1 429 Too Many\r\nretry-after-ms: 20\r\ncontent-length: 2\r\n\r\n{}"
DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_each_has_a_line_in_the_docs() -> None:
    text = DOCS.read_text()
    assert [field.name for field in dataclasses.fields(LimitSettings) if f"| `{field.name}` |" not in text] == []


@pytest.fixture(scope="module")
def engine() -> Iterator[RawEngine]:
    def script(sock: socket.socket, request: bytes) -> None:
        sock.sendall(LARGE_HEAD if b"large head" in request else FULL if b"no room" in request else OK)

    with raw_engine(script) as found:
        yield found


@pytest.fixture(scope="module")
def gateway(engine: RawEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    limits: dict[str, Any] = {
        "header_count_max": 40,
        "engine_header_bytes_max": 1024,
        "engine_idle_connections_max": 0,
        "batch_items_max": 2,
        "batch_window_max_s": 3600,
        "job_lease_max_s": 100,
        "job_items_max": 1,
        "failures_max": 1000,
        "json_elements_max": 200,
        "json_depth_max": 8,
        "header_bytes_max": 4096,
        "url_bytes_max": 300,
        "upload_s": 1,
        "refusals_max": 2,
        "health_interval_s": 600,
    }
    with Gateway(engine.url, engine="openai", jobs=tmp_path_factory.mktemp("jobs") / "jobs.sqlite", **limits) as process:
        yield process


def test_header_count_max(gateway: Gateway) -> None:
    with Client(gateway.address) as one:
        one.post(EMBEDDINGS, {"input": "x"}, {f"X-{n}": "x" for n in range(41)})
        answer = one.read_answer()
    assert (answer.status, answer.headers["x-hangup-reason"]) == (431, "header_bytes_max")


def test_engine_header_bytes_max(gateway: Gateway) -> None:
    answer = ask(gateway.address, EMBEDDINGS, {"input": "large head"})
    assert (answer.status, answer.headers["x-hangup-reason"]) == (502, "engine_invalid_answer")


def test_engine_idle_connections_max(gateway: Gateway, engine: RawEngine) -> None:
    """No unused connection is kept, so each call opens its own."""
    before = gateway.open_files()
    for _ in range(5):
        assert ask(gateway.address, EMBEDDINGS, {"input": "x"}).status == 200
    wait_until(lambda: gateway.open_files() <= before, 30)


CHAT = "/v1/chat/completions"


def test_json_elements_max(gateway: Gateway) -> None:
    answer = ask(gateway.address, CHAT, {"messages": [1] * 300})
    assert (answer.status, answer.headers["x-hangup-reason"]) == (400, "bad_json") and b"200 values" in answer.body


def test_json_depth_max(gateway: Gateway) -> None:
    nested: Any = 1
    for _ in range(9):
        nested = [nested]
    answer = ask(gateway.address, CHAT, {"messages": nested})
    assert (answer.status, answer.headers["x-hangup-reason"]) == (400, "bad_json") and b"8 levels" in answer.body


def test_header_bytes_max(gateway: Gateway) -> None:
    answer = ask(gateway.address, EMBEDDINGS, {"input": "x"}, {"X-Long": "x" * 5000})
    assert (answer.status, answer.headers["x-hangup-reason"]) == (431, "header_bytes_max")


def test_url_bytes_max(gateway: Gateway) -> None:
    answer = ask(gateway.address, f"{EMBEDDINGS}?{'x' * 300}", {"input": "x"})
    assert (answer.status, answer.headers["x-hangup-reason"]) == (414, "url_bytes_max")


def test_upload_s(gateway: Gateway) -> None:
    with Client(gateway.address) as one:
        form = b"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 9999\r\n\r\n--b\r\n"
        one.send(b"POST /v1/files HTTP/1.1\r\nHost: a\r\n" + form)
        answer = one.read_answer()
    assert (answer.status, answer.headers["x-hangup-reason"]) == (408, "body_s")


def test_refusals_max(gateway: Gateway, engine: RawEngine) -> None:
    """The engine has no room, and promises some in a moment, each time."""
    answer = ask(gateway.address, EMBEDDINGS, {"input": "no room"})
    assert answer.status == 429
    assert sum(b"no room" in request for request in engine.requests) == 3


def test_batch_items_max(gateway: Gateway) -> None:
    sdk = client(gateway.url)
    batch = wait_batch(sdk, start_batch(sdk, [*(line(f"c{n}") for n in range(3)), ""], window="1h"), timeout_s=60)
    assert (batch.status, batch.errors.data[0].code) == ("failed", "too_many_requests")


def test_batch_window_max_s(gateway: Gateway) -> None:
    with pytest.raises(openai.BadRequestError, match="completion_window"):
        start_batch(client(gateway.url), [line("c")], window="2h")


def test_job_lease_max_s(gateway: Gateway) -> None:
    headers = {"prefer": "respond-async", "x-hangup-lease": "101"}
    answer = httpx.post(f"{gateway.url}/v1/chat/completions", json={"messages": []}, headers=headers, timeout=60)
    assert answer.status_code == 400 and "x-hangup-lease" in answer.text


def test_job_items_max(gateway: Gateway) -> None:
    params = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
    requests = [{"custom_id": f"c{n}", "params": params} for n in range(2)]
    answer = httpx.post(f"{gateway.url}/v1/messages/batches", json={"requests": requests}, timeout=60)
    assert (answer.status_code, answer.headers["x-hangup-reason"]) == (429, "job_quota")


def test_linger_s(engine: RawEngine) -> None:
    """A refused client may read the error for this long; then hangup closes the connection."""
    with Gateway(engine.url, linger_s=4) as gateway, Client(gateway.address) as client:
        client.send(b"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n")
        assert client.read_answer().status == 413
        refused_at = time.monotonic()
        wait_until(lambda: gateway.metrics()["hangup_connections"] == 0, what="the connection to be closed")
        assert time.monotonic() - refused_at >= 3.5


def test_thread_stall_s(tmp_path: Path) -> None:
    """Nobody reads the log's pipe any more: /readyz and the metrics name the thread that hangs, and calls continue."""
    path = tmp_path / "log"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    try:
        with StandIn() as engine, Gateway(engine.url, log=path, thread_stall_s=0.5) as gateway:

            def stuck() -> bool:
                assert ask(gateway.address, "/v1/chat/completions", {"messages": [], "max_tokens": 1}).status == 200
                with urllib.request.urlopen(f"{gateway.admin_url}/readyz", timeout=PATIENCE_S) as answer:
                    return "not running: log (stuck for" in answer.read().decode()

            wait_until(stuck, what="the log's thread to be named")
            assert gateway.metrics()['hangup_thread_busy_seconds{task="log"}'] > 0.5
            assert gateway.metrics()['hangup_thread_busy_seconds{task="store"}'] < 0.5
    finally:
        os.close(reader)
