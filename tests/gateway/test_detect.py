"""The gateway notices a disconnect in every phase, and the engine stops, as its own counters show."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from support.linux import proc
from support.processes import Gateway, StandIn, elapsed, gateway_and_engine
from support.raw import Client
from support.waiting import wait_until

LONG: dict[str, Any] = {"max_tokens": 20_000, "ignore_eos": True}
LEAVE: list[Callable[[Client], None]] = [Client.fin, Client.reset, Client.half_close]


@pytest.fixture(autouse=True)
def nothing_left(engine: StandIn) -> None:
    engine.wait_idle()


@pytest.mark.parametrize("leave", LEAVE)
def test_between_tokens(gateway: Gateway, engine: StandIn, leave: Callable[[Client], None]) -> None:
    before = engine.stats()["aborted"]
    with Client(gateway.address) as client:
        client.chat({"X-Request-Id": f"mid-{leave.__name__}"}, stream=True, **LONG)
        client.read_until(b'"content":" ')
        leave(client)
        engine.wait_stopped(before + 1)
    row = gateway.call_log(f"mid-{leave.__name__}")
    assert row["outcome"] == "client_gone"
    assert row["cause"] == ("reset" if leave is Client.reset else "fin")
    assert row["status"] == 200  # it had begun
    assert row["tokens_out"] >= 1


@pytest.mark.parametrize("leave", LEAVE)
@pytest.mark.parametrize("stream", [True, False])
def test_before_the_first_token(leave: Callable[[Client], None], stream: bool) -> None:
    with gateway_and_engine(prefill_s=30.0) as (gateway, engine), Client(gateway.address) as client:
        client.chat({"X-Request-Id": "early"}, stream=stream, **LONG)
        wait_until(lambda: engine.stats()["running"] == 1)
        leave(client)
        stats = engine.wait_idle()
        assert stats["tokens"] == 0
        assert gateway.call_log("early")["outcome"] == "client_gone"


@pytest.mark.parametrize("leave", LEAVE)
def test_non_streaming(gateway: Gateway, engine: StandIn, leave: Callable[[Client], None]) -> None:
    before = engine.stats()
    with Client(gateway.address) as client:
        client.chat({"X-Request-Id": f"plain-{leave.__name__}"}, **LONG)
        wait_until(lambda: engine.stats()["tokens"] > before["tokens"])
        leave(client)
        stats = engine.wait_idle()
    assert stats["aborted"] == before["aborted"] + 1
    row = gateway.call_log(f"plain-{leave.__name__}")
    assert (row["outcome"], row["status"]) == ("client_gone", 499)


@pytest.mark.parametrize("leave", [Client.fin, Client.reset])
def test_while_the_body_arrives(gateway: Gateway, engine: StandIn, leave: Callable[[Client], None]) -> None:
    before = engine.stats()["requests"]
    name = f"body-{leave.__name__}"
    with Client(gateway.address) as client:
        client.send(f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nX-Request-Id: {name}\r\n".encode())
        client.send(b'Content-Length: 1000\r\n\r\n{"messages": [')
        wait_until(lambda: gateway.metrics()['hangup_calls_live{phase="receiving"}'] == 1)
        leave(client)
    assert gateway.call_log(name)["outcome"] == "client_gone"
    assert engine.stats()["requests"] == before


@pytest.mark.parametrize("leave", LEAVE)
def test_while_waiting_for_a_backend(leave: Callable[[Client], None]) -> None:
    """A call that waits for a slot and whose client leaves never reaches the engine."""
    with StandIn(slots=4) as engine:
        config = f'[[backend]]\nurl = "{engine.url}"\nslots = 1\n'
        with Gateway(config=config) as gateway, Client(gateway.address) as first, Client(gateway.address) as second:
            first.chat(stream=True, **LONG)
            first.read_until(b'"content":" ')
            second.chat({"X-Request-Id": "waiter"}, stream=True, **LONG)
            wait_until(lambda: gateway.metrics()["hangup_queue_depth"] == 1)
            leave(second)
            row = gateway.call_log("waiter")
            assert (row["outcome"], row["attempts"]) == ("client_gone", 0)
            assert gateway.metrics()["hangup_queue_depth"] == 0
            first.fin()
            stats = engine.wait_idle()
            assert stats["requests"] == 1


@pytest.mark.parametrize("leave", LEAVE)
@pytest.mark.parametrize("extra", [b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n", b"GET /v1/mod", b"x" * 300_000])
def test_with_a_pipelined_request_behind(
    gateway: Gateway, engine: StandIn, leave: Callable[[Client], None], extra: bytes
) -> None:
    """A server that stops reading while it answers does not see a FIN behind pipelined bytes."""
    before = engine.stats()
    with Client(gateway.address) as client:
        client.chat(stream=True, **LONG)
        client.send(extra)
        client.read_until(b'"content":" ')
        leave(client)
        stats = engine.wait_idle()
    assert stats["aborted"] == before["aborted"] + 1
    assert stats["requests"] == before["requests"] + 1  # the pipelined one never started


def test_a_pipelined_request_is_answered_in_its_turn(gateway: Gateway) -> None:
    with Client(gateway.address) as client:
        client.chat(max_tokens=2)
        client.send(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n" * 3)
        assert client.read_answer().json()["object"] == "chat.completion"
        for _ in range(3):
            assert client.read_answer().json()["object"] == "list"


def test_half_close_can_be_allowed() -> None:
    with gateway_and_engine({"half_close": "allow"}) as (gateway, _), Client(gateway.address) as client:
        client.chat(stream=True, max_tokens=5)
        client.half_close()
        answer = client.read_answer()
        assert answer.complete
        assert b"[DONE]" in answer.body
        assert client.closed_within()


@pytest.mark.alone
def test_vanished_while_we_write() -> None:
    """There is no FIN and no RST: the kernel's user timeout detects it, within the limit."""
    with gateway_and_engine({"client_silence_s": 3}) as (gateway, engine), Client(gateway.address) as client:
        client.chat({"X-Request-Id": "gone"}, stream=True, **LONG)
        client.read_until(b'"content":" ')
        client.vanish()
        left_at = time.monotonic()
        engine.wait_idle()
        assert elapsed(left_at) > 1
        row = gateway.call_log("gone")
        assert (row["outcome"], row["cause"]) == ("client_gone", "silence")


@pytest.mark.alone
@pytest.mark.parametrize("stream", [True, False])
def test_vanished_while_we_are_silent(stream: bool) -> None:
    """The gateway writes nothing, so only keep-alive probes can detect it."""
    with gateway_and_engine({"client_silence_s": 3}, prefill_s=60.0) as (gateway, engine), Client(gateway.address) as client:
        client.chat({"X-Request-Id": "gone"}, stream=stream, **LONG)
        wait_until(lambda: engine.stats()["running"] == 1)
        client.vanish()
        left_at = time.monotonic()
        engine.wait_idle()
        assert elapsed(left_at) > 1
        assert gateway.call_log("gone")["cause"] == "silence"


@pytest.mark.alone
def test_stops_reading_but_stays() -> None:
    """The client is cut off after write_stall_s although its host still answers; meanwhile the engine is paused and memory
    is bounded."""
    settings = {"write_stall_s": 4, "client_silence_s": 2}
    with (
        gateway_and_engine(settings, token_s=0.0005, prefill_s=0.0) as (gateway, engine),
        Client(gateway.address, receive_buffer=4096) as client,
    ):
        before = memory_kb(gateway)
        client.chat({"X-Request-Id": "stuck"}, stream=True, **LONG)
        client.read_until(b'"content":" ')
        stuck_at = time.monotonic()
        row = gateway.call_log("stuck")
        assert (row["outcome"], row["cause"]) == ("client_gone", "write_stall")
        assert elapsed(stuck_at) > 3.5
        engine.wait_idle()
        assert memory_kb(gateway) - before < 8_000


@pytest.mark.alone
def test_vanishes_while_stalled() -> None:
    """If both happen at once, the shorter timeout, for the silent host, applies."""
    settings = {"write_stall_s": 600, "client_silence_s": 3}
    with (
        gateway_and_engine(settings, token_s=0.0005, prefill_s=0.0) as (gateway, engine),
        Client(gateway.address, receive_buffer=4096) as client,
    ):
        client.chat({"X-Request-Id": "both"}, stream=True, **LONG)
        client.read_until(b'"content":" ')
        wait_until(lambda: stalled(engine), what="a stalled stream")
        client.vanish()
        row = gateway.call_log("both")
        assert (row["outcome"], row["cause"]) == ("client_gone", "silence")
        engine.wait_idle()


def test_a_slow_reader_is_not_cut() -> None:
    settings = {"write_stall_s": 4, "client_silence_s": 4}
    with (
        gateway_and_engine(settings, token_s=0.0005, prefill_s=0.0, answer_tokens=3000) as (gateway, _),
        Client(gateway.address, receive_buffer=4096) as client,
    ):
        client.chat({"X-Request-Id": "slow"}, stream=True, max_tokens=3000)
        started = time.monotonic()
        while b"[DONE]" not in client.buffer[-2000:]:
            assert client.read_some()
            # Reads in bits, far slower than the engine writes, for longer than the stall limit.
            time.sleep(0.02 if elapsed(started) < 6 else 0)
        assert gateway.call_log("slow")["outcome"] == "completed"


def stalled(engine: StandIn) -> bool:
    """Return whether the engine's own writes pile up because nobody reads them."""
    return engine.stats()["tokens"] > 3000


def memory_kb(gateway: Gateway) -> int:
    with proc(gateway.popen.pid, "status").open() as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
