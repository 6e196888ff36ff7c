"""Learned slots are of the whole: a gateway or worker that starts under full load knows what the others have learned."""

from __future__ import annotations

import contextlib
import os
import signal

from support.linux import proc
from support.processes import Gateway, StandIn
from support.raw import Client
from support.redis_server import RedisServer
from support.waiting import wait_until

SLOTS, LONG = 4, 30_000  # of the engine, which nobody is told; tokens: minutes
MORE_MAX = 4  # calls that wait in the engine beyond those that were there when it was found to be full


def limited(gateway: Gateway) -> bool:
    rows = [name for name, value in gateway.metrics().items() if name.startswith("hangup_backend_limited_by{") and value]
    return any('"none"' not in name for name in rows)


def call(stack: contextlib.ExitStack, gateway: Gateway, count: int) -> None:
    for _ in range(count):
        stack.enter_context(Client(gateway.address)).chat(stream=True, max_tokens=LONG)


def taught(stack: contextlib.ExitStack, engine: StandIn, gateway: Gateway) -> int:
    """Fill the engine until the gateway knows that it is full; return how many calls wait in it."""
    with Client(gateway.address) as client:
        for _ in range(8):  # how long a first token usually takes
            client.chat(max_tokens=1)
            client.read_answer()
    call(stack, gateway, 3 * SLOTS)
    wait_until(lambda: limited(gateway), what="a limit")
    return engine.stats()["waiting"]


def waiting_here(gateway: Gateway, calls: int) -> None:
    wait_until(lambda: sum(n for name, n in gateway.metrics().items() if name.startswith("hangup_queue_depth")) >= calls)


def test_a_gateway_that_starts_under_full_load_is_not_blind() -> None:
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(StandIn(slots=SLOTS, prefill_s=0.02, token_s=0.02, answer_tokens=LONG))
        store = stack.enter_context(RedisServer())
        first = stack.enter_context(Gateway(engine.url, shared_state=store.url, queue_s=60))
        waiting = taught(stack, engine, first)
        second = stack.enter_context(Gateway(engine.url, shared_state=store.url, queue_s=60))
        wait_until(lambda: limited(second), what="the limit at the new gateway")
        call(stack, second, 20)
        waiting_here(second, 20 - MORE_MAX)
        assert engine.stats()["waiting"] <= waiting + MORE_MAX


def test_another_leader_goes_on_with_what_was_learned() -> None:
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(StandIn(slots=SLOTS, prefill_s=0.02, token_s=0.02, answer_tokens=LONG))
        store = stack.enter_context(RedisServer())
        leader = stack.enter_context(Gateway(engine.url, shared_state=store.url, queue_s=60))
        second = stack.enter_context(Gateway(engine.url, shared_state=store.url, queue_s=60))
        waiting = taught(stack, engine, second)
        wait_until(lambda: limited(second), what="the limit at the other gateway")
        call(stack, second, 20)
        waiting_here(second, 20 - MORE_MAX)
        leader.signal(signal.SIGKILL)
        leads = lambda: any(row.get("event") == "gateway_died" for row in second.log())  # noqa: E731
        wait_until(leads, what="another leader")
        call(stack, second, 5)
        waiting_here(second, 25 - MORE_MAX)
        assert limited(second)
        assert engine.stats()["waiting"] <= waiting + MORE_MAX


def test_a_worker_that_replaces_another_is_not_blind() -> None:
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(StandIn(slots=SLOTS, prefill_s=0.02, token_s=0.02, answer_tokens=LONG))
        gateway = stack.enter_context(Gateway(engine.url, workers=2, queue_s=60))
        waiting = taught(stack, engine, gateway)
        call(stack, gateway, 30)  # whichever worker has most of them, the other one's keep the engine full when it dies
        waiting_here(gateway, 15)
        pids = {row["pid"] for row in gateway.log() if row.get("event") == "worker_started"}
        os.kill(min(pids), signal.SIGKILL)
        wait_until(lambda: sum(row.get("event") == "worker_started" for row in gateway.log()) == 3, what="another worker")
        assert not proc(min(pids)).exists()
        call(stack, gateway, 30)
        waiting_here(gateway, 15)
        assert engine.stats()["waiting"] <= waiting + MORE_MAX
