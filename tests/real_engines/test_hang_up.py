"""After a hang-up, real engines compute nothing more, directly and through hangup.

`-s` shows the figures, by CPU time and, in brackets, by the engine's own counters.
"""

from __future__ import annotations

import json

import pytest

from real_engines.real import (
    CHAT,
    NEVER,
    Engine,
    Idle,
    accused,
    read_until_at_work_on,
    recognised,
    released,
    settle,
    shown,
    until_idle,
    wait_busy,
)
from support.processes import Gateway
from support.raw import Client
from support.waiting import wait_until

LONG_PROMPT = {"llamacpp": 1500, "transformers": 300, "vllm": 1500}  # words; a prefill that takes a moment
ITS_OWN_PACE_S = 2.0  # llama-server looks after silent connections every second, and a machine may have more to do
RUNNERS = 4  # as many as llama-server has slots here, and vLLM sequences


def leave(real: Engine, address: tuple[str, int], mode: str) -> Idle:
    settle(real)
    client = Client(address)
    words = LONG_PROMPT[real.name] if mode == "before the first token" else 1
    client.post(CHAT, real.body(stream=mode != "non-streaming", words=words))
    if mode == "mid-stream":
        client.read_until(b'"content"')
        client.read_some()
    else:
        wait_busy(real)
    client.fin()
    return until_idle(real, 4.0)


@pytest.mark.parametrize("mode", ["mid-stream", "before the first token", "non-streaming"])
def test_an_engine_stops_when_its_client_hangs_up(real: Engine, mode: str) -> None:
    direct = leave(real, real.address, mode)
    with Gateway(real.url) as gateway:
        recognised(gateway, real)
        through = leave(real, gateway.address, mode)
        wait_until(lambda: released(gateway) == 1, what="the release")
        assert not accused(gateway)
    print(f"\n| {real.name} | {mode} | {direct} | {through} |")
    assert through.cpu_s <= max(ITS_OWN_PACE_S, direct.cpu_s * 1.5)
    assert through.word_s is None or through.word_s <= max(ITS_OWN_PACE_S, (direct.word_s or 0.0) * 1.5)


def leave_queued(real: Engine, address: tuple[str, int], gateway: Gateway | None) -> tuple[float, Idle]:
    """Disconnect a client that waits behind others, then all others but one, then that one. Return how long the engine
    reports more than that one, and how long it is busy after the last disconnect."""
    settle(real)
    before = real.taken()
    stays, *others = [Client(address) for _ in range(RUNNERS)]
    for client in (stays, *others):
        client.post(CHAT, real.body(stream=True))
        client.read_until(b'"content"')
    waiter = Client(address)
    waiter.post(CHAT, real.body(stream=False), {"X-Request-Id": "waiter"})
    wait_until(lambda: real.taken() - before + _queued(gateway) == RUNNERS + 1, what="all five")
    for client in (waiter, *others):
        client.fin()
    beside_s = NEVER if real.at_work_on() is None else read_until_at_work_on(real, 1, stays, 4.0)
    stays.fin()
    return beside_s, until_idle(real, 4.0)


def _queued(gateway: Gateway | None) -> float:
    return gateway.metrics()["hangup_queue_depth"] if gateway is not None else 0.0


def test_one_who_left_while_queued_is_never_computed_for(real: Engine) -> None:
    """llama-server starts the call when a slot is free, and does not notice the disconnect while others have traffic;
    transformers serve, which has no queue, runs it beside them to its end. hangup sends llama-server no more calls than it
    has slots, and can disconnect the others' calls."""
    direct_beside_s, direct = leave_queued(real, real.address, None)
    with Gateway(real.url) as gateway:
        recognised(gateway, real)
        beside_s, through = leave_queued(real, gateway.address, gateway)
        row = gateway.call_log("waiter")
        assert row["outcome"] == "client_gone" and (not row["backend"] or real.name != "llamacpp")
        assert not accused(gateway)
    if real.name != "transformers":
        print(f"\n| {real.name} | queued, while another goes on | {shown(direct_beside_s)} | {shown(beside_s)} |")
        assert beside_s < 1.0
    print(f"\n| {real.name} | queued, after the others | {direct} | {through} |")
    assert through.cpu_s < 1.0


def test_llama_server_with_other_traffic(llama_server: Engine) -> None:
    """While anyone else has traffic, it never notices that a non-streaming client is gone; through hangup it stops at once."""
    real = llama_server
    times = {}
    with Gateway(real.url) as gateway:
        recognised(gateway, real)
        for way, address in (("direct", real.address), ("through hangup", gateway.address)):
            settle(real)
            other = Client(address)
            other.post(CHAT, real.body(stream=True))
            other.read_until(b'"content"')
            lost = Client(address)
            lost.post(CHAT, real.body(stream=False))
            wait_until(lambda: real.at_work_on() == 2, what="both at work")
            lost.fin()
            times[way] = read_until_at_work_on(real, 1, other, 4.0)
            other.fin()
        wait_until(lambda: released(gateway) == 2, what="both releases")
    print(f"\n| llamacpp | non-streaming, others busy | {shown(times['direct'])} | {shown(times['through hangup'])} |")
    assert times["through hangup"] < 1.0 and times["direct"] == NEVER


def test_a_slot_is_seen_free_by_the_engines_own_word(llama_server: Engine) -> None:
    """Its slots report the same as its log, which the other tests read."""
    settle(llama_server)
    client = Client(llama_server.address)
    client.post(CHAT, llama_server.body(stream=True))
    client.read_until(b'"content"')
    busy = [row["is_processing"] for row in json.loads(llama_server.get("/slots"))]
    assert sum(busy) == llama_server.at_work_on() == 1
    client.fin()
    wait_until(lambda: llama_server.at_work_on() == 0, what="the release")
    assert not any(row["is_processing"] for row in json.loads(llama_server.get("/slots")))
