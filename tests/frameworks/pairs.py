"""The pairs of framework and server, and what the tests check for each."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from library.harness import Served
from support.raw import Client

ASGI_SERVERS = [
    "uvicorn",
    "uvicorn-uvloop",
    "uvicorn-h11",
    "hypercorn",
    "granian",
    "daphne",
    "gunicorn-uvicorn",
    "gunicorn-asgi",
]
ASGI_FRAMEWORKS = ["starlette", "fastapi", "litestar", "plain", "django", "quart"]
PAIRS = [(framework, server) for framework in ASGI_FRAMEWORKS for server in ASGI_SERVERS]
PAIRS += [("aiohttp", "own"), ("aiohttp", "gunicorn-aiohttp"), ("sanic", "own")]

LEAVES = {"fin": Client.fin, "rst": Client.reset, "pipelined": Client.fin, "half_close": Client.half_close}
WORKS = ["stream", "thread", "run", "thread_run"]
PACE_S = 0.02
HOLD_S = 60  # that the engine then takes for a token: far more than it takes to notice a hang-up
SCRIPT = Path(__file__).resolve().parent / "apps.py"


def check(framework: str, server: str) -> None:
    """Hang up in every way, during every kind of work; then nothing may continue and nothing may be left."""
    with Served(framework, server, script=SCRIPT) as served, ThreadPoolExecutor(32) as pool:
        cases = [pool.submit(_hang_up, served, work, leave) for work in WORKS for leave in LEAVES]
        early = [pool.submit(_hang_up, served, work, leave, 0) for work in WORKS for leave in ("fin", "rst")]
        wrong = [problem for case in [*cases, *early] for problem in case.result(180)]
        assert not wrong, "\n".join([*wrong, *served.lines])
        _complete(served)
        _limited(served)
        served.wait_nothing_left()
        if server not in KNOWN_NOISE:
            assert not served.complaints(), "\n".join(served.lines)


KNOWN_NOISE = {
    "uvicorn-uvloop": "on a pipelined connection uvicorn writes to uvloop's closed transport, and logs that itself",
    "gunicorn-uvicorn": "the same: its workers use uvloop",
}


def _hang_up(served: Served, work: str, leave: str, computed: int = 2) -> list[str]:
    """Disconnect while the engine computes the next token."""
    id = f"{work}-{leave}-{computed}"
    client = served.post(work, id, pace_s=PACE_S, hold_after=computed, hold_s=HOLD_S)
    if leave == "pipelined":
        client.send(b"GET /state HTTP/1.1\r\nHost: test\r\n\r\n" * 2)
    served.wait_running(id)
    served.wait_computed(id, computed)
    LEAVES[leave](client)
    after = served.wait_ended(id)
    client.sock.close()
    return _judge(id, after, computed + ("thread" in work))  # a thread cannot be interrupted: it finishes its token


def _judge(id: str, work: dict[str, Any], at_most: int) -> list[str]:
    """Return what is wrong with a call whose client disconnected."""
    wrong = []
    if work["computed"] > at_most:
        wrong.append(f"{id}: {work['computed']} tokens, at most {at_most} were allowed")
    if [ended["outcome"] for ended in work["ended"]] != ["client_gone"] or work["aborted"] != 1:
        wrong.append(f"{id}: {work}")
    return wrong


def _complete(served: Served) -> None:
    """Check that a client that stays gets the whole answer."""
    with served.post("stream", "whole", pace_s=0.01, count=5) as client:
        answer = client.read_answer()
    assert (answer.status, answer.complete, answer.body) == (200, True, b"data: token\n\n" * 5)
    assert answer.headers["content-type"].startswith("text/event-stream")
    with served.post("run", "whole-run", pace_s=0.01, count=2) as client:
        answer = client.read_answer()
    assert answer.status in (200, 201) and answer.json() == {"text": "data: token\n\n" * 2}  # Litestar answers a POST with 201


def _limited(served: Served) -> None:
    """Check that a limit has its own status before the first token, for streams and for whole answers."""
    with served.post("stream", "late", pace_s=5, first_token_s=0.2) as client:
        answer = client.read_answer()
    assert (answer.status, answer.headers["x-hangup-reason"]) == (504, "first_token_s"), answer
    with served.post("run", "long", pace_s=5, total_s=0.2) as client:
        answer = client.read_answer()
    assert (answer.status, answer.headers.get("x-hangup-reason")) == (504, "total_s"), answer
