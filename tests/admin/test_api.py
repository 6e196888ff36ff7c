"""The admin port over sockets: it lists live calls, and ends them in the engine."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from support.processes import Gateway, StandIn, gateway_and_engine, get_json, post_json
from support.raw import Client, ask
from support.waiting import wait_until


def admin(gateway: Gateway, method: str, path: str, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    request = urllib.request.Request(gateway.admin_url + path, method=method, headers={"x-hangup": "1", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@contextlib.contextmanager
def streaming(gateway: Gateway, id: str, key: str = "none") -> Iterator[Client]:
    """Open a stream that would take minutes, and yield its client after the first token."""
    with Client(gateway.address) as client:
        client.chat({"X-Request-Id": id, "Authorization": f"Bearer {key}"}, stream=True, ignore_eos=True, max_tokens=20000)
        client.read_until(b'"content":" ')
        yield client


def live(gateway: Gateway) -> list[str]:
    return [row["id"] for row in admin(gateway, "GET", "/api/calls")[1]["calls"]]


def test_a_live_call_is_shown_with_its_owner_and_its_progress(gateway: Gateway) -> None:
    with streaming(gateway, "seen"):
        status, answer = admin(gateway, "GET", "/api/calls?sort=-age")
        assert status == 200
        (row,) = [row for row in answer["calls"] if row["id"] == "seen"]
        assert (row["tenant"], row["client"], row["phase"]) == ("default", "127.0.0.1", "answering")
        assert row["tokens_out"] >= 1 and row["tokens_per_s"] > 0 and row["waits_for"] == "the next token"
        assert 0 < row["deadline_left_s"] <= 600 and row["backend"]
        status, one = admin(gateway, "GET", "/api/calls/seen")
        assert status == 200 and one["timeline"][0]["at_s"] == 0 and one["outcome"] is None
    wait_until(lambda: "seen" not in live(gateway))


def test_tokens_of_engines_that_do_not_count_are_told_apart() -> None:
    """One engine counts its tokens, one does not: only those of the first can be compared with what it computed."""
    with StandIn(like="vllm", token_s=0.001) as counts, StandIn(like="openai", token_s=0.001) as silent:
        config = "[limits]\ncounters_interval_s = 0.1\n"
        for name, engine in (("counts", counts), ("silent", silent)):
            config += f'[[backend]]\nname = "{name}"\nurl = "{engine.url}"\nmodels = ["{name}"]\n'
        with Gateway(config=config) as gateway:
            wait_until(lambda: sum(row.get("event") == "backend_found" for row in gateway.log()) == 2, what="both recognised")
            history = f"{gateway.admin_url}/api/history?seconds=900"
            wait_until(lambda: any(row["computed"] is not None for row in get_json(history)["rows"]), what="a first count")
            for model, tokens in (("counts", 30), ("silent", 20)):
                post_json(f"{gateway.url}/v1/chat/completions", {"model": model, "messages": [], "max_tokens": tokens})

            def sums() -> tuple[int, ...]:
                rows = get_json(history)["rows"]
                return tuple(sum(row[name] or 0 for row in rows) for name in ("computed", "uncounted", "received"))

            wait_until(lambda: sums() == (30, 20, 50), what=f"30 of 50 tokens are counted, {sums()}")
            rates = get_json(f"{gateway.admin_url}/api/overview")["rates"]
            assert set(rates) == {"busy", "computed_per_s", "received_per_s", "uncounted_per_s"}


def test_an_ended_call_is_remembered(gateway: Gateway) -> None:
    with streaming(gateway, "left"):
        pass
    gateway.call_log("left")
    status, call = admin(gateway, "GET", "/api/calls/left")
    assert (status, call["outcome"], call["cause"]) == (200, "client_gone", "fin")
    assert any("ended: client_gone (fin)" in step["what"] for step in call["timeline"])
    assert admin(gateway, "GET", "/api/calls/never-was")[0] == 404


def test_a_kill_stops_the_engine(gateway: Gateway, engine: StandIn) -> None:
    engine.wait_idle()
    before = engine.stats()["aborted"]
    with streaming(gateway, "doomed") as client:
        status, answer = admin(gateway, "DELETE", "/api/calls/doomed")
        assert status == 200
        (killed,) = answer["killed"]
        assert killed["id"] == "doomed" and killed["connection_cut"]
        assert (killed["verified"], killed["release"]) == (True, "verified") and killed["let_go_after_s"] >= 0
        stats = engine.stats()
        assert (stats["running"], stats["aborted"]) == (0, before + 1)
        assert b'"killed"' in client.read_until(b'killed"')
        assert client.closed_within()
    assert gateway.call_log("doomed")["outcome"] == "killed"
    assert admin(gateway, "DELETE", "/api/calls/doomed")[0] == 404


def test_a_waiting_call_is_killed_without_an_engine() -> None:
    with (
        gateway_and_engine({"slots": 1}, token_s=0.01) as (gateway, engine),
        streaming(gateway, "first"),
        Client(gateway.address) as b,
    ):
        b.chat({"X-Request-Id": "second"}, stream=True)
        wait_until(lambda: "second" in live(gateway))
        assert admin(gateway, "GET", "/api/calls/second")[1]["waits_for"] == "a free backend"
        (killed,) = admin(gateway, "DELETE", "/api/calls/second")[1]["killed"]
        assert (killed["connection_cut"], killed["abort_sent"], killed["verified"]) == (False, False, True)
        assert b.read_answer().headers["x-hangup-reason"] == "killed"
        assert live(gateway) == ["first"] and engine.stats()["requests"] == 1


def test_a_kill_by_filter_and_its_dry_run() -> None:
    with gateway_and_engine() as (gateway, engine), contextlib.ExitStack() as stack:
        for at in range(3):
            stack.enter_context(streaming(gateway, f"many-{at}"))
        assert admin(gateway, "DELETE", "/api/calls")[0] == 400
        assert admin(gateway, "DELETE", "/api/calls?teannt=default")[0] == 400
        assert admin(gateway, "DELETE", "/api/calls?tenant=other")[1] == {"killed": []}
        dry = admin(gateway, "DELETE", "/api/calls?tenant=default&dry_run=1")[1]
        assert len(dry["would_kill"]) == 3 and len(live(gateway)) == 3
        assert len(admin(gateway, "DELETE", "/api/calls?tenant=default")[1]["killed"]) == 3
        assert live(gateway) == []
        engine.wait_stopped(3)


def test_a_drained_backend_gets_no_new_calls_and_keeps_those_it_has() -> None:
    with StandIn(slots=16) as one, StandIn(slots=16) as two, Gateway(one.url, two.url, slots=16) as gateway:
        names = [row["name"] for row in admin(gateway, "GET", "/api/backends")[1]["backends"]]
        with contextlib.ExitStack() as stack:
            stack.enter_context(streaming(gateway, "old-1"))
            stack.enter_context(streaming(gateway, "old-2"))
            status, answer = admin(gateway, "PUT", f"/api/backends/{names[0]}/drain")
            assert (status, answer["backends"][0]["state"]) == (200, "draining, up")
            for at in range(4):
                stack.enter_context(streaming(gateway, f"new-{at}"))
            assert (one.stats()["running"], two.stats()["running"]) == (1, 5)
            assert admin(gateway, "DELETE", f"/api/backends/{names[0]}/drain")[1]["backends"][0]["state"] == "up"
            stack.enter_context(streaming(gateway, "again"))
            assert one.stats()["running"] == 2
        assert admin(gateway, "PUT", "/api/backends/nowhere/drain")[0] == 404


def test_what_must_go_on_is_shown(gateway: Gateway) -> None:
    for task in ("admin", "health", "job results", "loop lag", "ledger", "log", "loop watch", "monitor", "reaper", "store"):
        wait_until(lambda name=task: gateway.metrics()[f'hangup_tasks_running{{task="{name}"}}'] >= 1, what=task)  # type: ignore[misc]
    failures = [value for name, value in gateway.metrics().items() if name.startswith("hangup_task_failures_total")]
    assert failures and not any(failures)
    assert "not running" not in urllib.request.urlopen(f"{gateway.admin_url}/readyz", timeout=60).read().decode()


def test_when_all_are_drained_a_call_is_refused_at_once() -> None:
    """A call must not wait for the queue's timeout if no backend can accept it."""
    with gateway_and_engine({"queue_s": 60}) as (gateway, _):
        name = admin(gateway, "GET", "/api/backends")[1]["backends"][0]["name"]
        admin(gateway, "PUT", f"/api/backends/{name}/drain")
        got = ask(gateway.address, "/v1/chat/completions", {"messages": []})
        assert (got.status, got.headers["x-hangup-reason"]) == (503, "backends_unavailable")
        assert 1 <= int(got.headers["retry-after"]) <= 30
        admin(gateway, "DELETE", f"/api/backends/{name}/drain")
        assert ask(gateway.address, "/v1/chat/completions", {"messages": [], "max_tokens": 1}).status == 200


def test_when_the_only_one_is_down_a_call_is_refused_soon_and_told_when_to_come_back() -> None:
    """The address swallows all packets, so each connection attempt takes until its timeout."""
    with socket.socket() as hole, contextlib.ExitStack() as stack:
        hole.bind(("127.0.0.1", 0))
        hole.listen(0)
        for _ in range(8):  # until there is no room for one more
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(hole.getsockname())
        limits: dict[str, Any] = {"connect_s": 40, "health_timeout_s": 0.3, "health_interval_s": 0.2, "failures_max": 1}
        with Gateway(f"http://127.0.0.1:{hole.getsockname()[1]}", **limits) as gateway:
            wait_until(lambda: any("down" in str(row.get("change")) for row in gateway.log()), what="the word that it is down")
            began = time.monotonic()
            got = ask(gateway.address, "/v1/chat/completions", {"messages": []})
            assert (got.status, got.headers["x-hangup-reason"]) == (502, "engine_unreachable")
            assert time.monotonic() - began < 15 and 1 <= int(got.headers["retry-after"]) <= 30


def test_when_all_are_drained_the_gateway_is_not_ready() -> None:
    with gateway_and_engine({"queue_s": 0.05}) as (gateway, _):
        name = admin(gateway, "GET", "/api/backends")[1]["backends"][0]["name"]
        admin(gateway, "PUT", f"/api/backends/{name}/drain")
        assert gateway.ready() == 503
        with Client(gateway.address) as client:
            client.chat()
            assert client.read_answer().status == 503


@pytest.mark.parametrize("path", ["/api/calls?sort=price", "/api/calls?limit=-1"])
def test_nonsense_is_answered_with_400(gateway: Gateway, path: str) -> None:
    status, answer = admin(gateway, "GET", path)
    assert status == 400 and answer["error"]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_open_dashboard_neither_holds_up_the_end_nor_fills_the_terminal(engine: StandIn, workers: int) -> None:
    with Gateway(engine.url, workers=workers) as gateway:
        with urllib.request.urlopen(f"{gateway.admin_url}/api/events", timeout=60) as watching:
            assert watching.readline().startswith(b"data: ")
            gateway.signal(signal.SIGINT)
            assert gateway.wait() == 0
            watching.read()  # ends, and as a whole answer
        assert not [line for line in gateway.stderr_lines if "Traceback" in line or "graceful" in line]
