"""`hangup.Gate`: its slots, its queue and its limits, on its own, under load, and over sockets."""

from __future__ import annotations

import asyncio
import inspect
import random
import socket
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import hangup
from library.harness import Served
from library.pretender import Pretender
from support.raw import Client
from support.virtual import run_virtually
from support.waiting import wait_until

SLOTS, QUEUE = 2, 4  # of the gates in served.py


def test_the_gate_lets_so_many_run_so_many_wait_and_refuses_the_rest() -> None:
    async def main() -> None:
        gate = hangup.Gate(slots=1, queue=1, max_wait_s=5)
        order: list[str] = []

        async def call(name: str) -> None:
            async with gate.enter(Pretender().request):
                order.append(name)
                await asyncio.sleep(0.02)

        first, second = asyncio.create_task(call("first")), asyncio.create_task(call("second"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (gate.running, gate.waiting) == (1, 1)
        with pytest.raises(hangup.CallEnded) as refused:
            await call("third")
        assert refused.value.ended.cause == "queue_full" and 1 <= (refused.value.retry_after_s or 0) <= 30
        await asyncio.gather(first, second)
        assert order == ["first", "second"]
        assert (gate.running, gate.waiting, gate.refused["queue_full"]) == (0, 0, 1)

    run_virtually(main())


def test_waiting_has_an_end_and_a_cancelled_waiter_leaves_no_trace() -> None:
    async def main() -> None:
        gate = hangup.Gate(slots=1, queue=4, max_wait_s=0.05)
        async with gate.enter(Pretender().request):
            with pytest.raises(hangup.CallEnded) as late:
                async with gate.enter(Pretender().request):
                    pass
            assert late.value.ended.cause == "queue_s"

            async def wait() -> None:
                async with gate.enter(Pretender().request):
                    pass

            waiter = asyncio.create_task(wait())
            await asyncio.sleep(0.01)
            waiter.cancel()
            await asyncio.wait({waiter})
            assert gate.waiting == 0
        assert gate.running == 0
        async with gate.enter(Pretender().request):
            assert gate.running == 1

    run_virtually(main())


def test_a_slot_that_comes_with_a_cancellation_is_passed_on() -> None:
    async def main() -> None:
        gate = hangup.Gate(slots=1, queue=4)
        entered = asyncio.Event()

        async def wait(note: asyncio.Event | None) -> None:
            async with gate.enter(Pretender().request):
                if note is not None:
                    note.set()

        async with gate.enter(Pretender().request):
            unlucky = asyncio.create_task(wait(None))
            lucky = asyncio.create_task(wait(entered))
            await asyncio.sleep(0.01)
        unlucky.cancel()  # in the same turn in which its slot came
        await asyncio.wait({unlucky})
        await asyncio.wait_for(entered.wait(), 60)
        await lucky
        assert gate.running == 0

    run_virtually(main())


def test_a_line_that_moves_too_slowly_is_not_joined() -> None:
    """A call that would not get a slot within `max_wait_s` at the current rate is refused at once."""

    async def main() -> None:
        gate = hangup.Gate(slots=1, queue=100, max_wait_s=0.5)

        async def call() -> str:
            try:
                async with gate.enter(Pretender().request):
                    await asyncio.sleep(0.04)
                return "ran"
            except hangup.CallEnded as refused:
                return refused.ended.cause

        counts = Counter[str]()
        for _ in range(5):
            counts.update(await asyncio.gather(*(call() for _ in range(20))))
        assert counts["ran"] >= 45 and counts["queue_too_long"] >= 5, counts

    run_virtually(main())


@pytest.mark.parametrize("seed", range(5))
def test_a_crowd_that_comes_waits_gives_up_and_leaves(seed: int) -> None:
    """At most `slots` calls run and `queue` calls wait; each call ends exactly once, and nothing stays behind."""
    dice = random.Random(seed)
    slots, queue, calls = dice.randint(1, 4), dice.randint(0, 6), 150
    most: Counter[str] = Counter()

    async def main() -> Counter[str]:
        gate = hangup.Gate(slots=slots, queue=queue, max_wait_s=dice.choice([0.005, 0.05, 5]))

        def look() -> None:
            most["running"], most["waiting"] = max(most["running"], gate.running), max(most["waiting"], gate.waiting)

        inside = 0

        async def call() -> None:
            nonlocal inside
            await asyncio.sleep(dice.random() * 0.2)
            async with gate.enter(Pretender().request):
                inside += 1
                look()
                assert inside <= gate.running
                try:
                    await asyncio.sleep(dice.random() * 0.01)
                finally:
                    inside -= 1

        async def impatient(task: asyncio.Task[None]) -> None:
            await asyncio.sleep(dice.random() * 0.2)
            look()
            task.cancel()

        tasks = [asyncio.create_task(call()) for _ in range(calls)]
        leaving = [asyncio.create_task(impatient(task)) for task in dice.sample(tasks, calls // 3)]
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*leaving)
        assert (gate.running, gate.waiting) == (0, 0)
        counts = Counter("ran" if end is None else type(end).__name__ for end in ends)
        assert counts["CallEnded"] == gate.refused.total()
        return counts

    counts = run_virtually(main())
    assert counts["ran"] and not set(counts) - {"ran", "CallEnded", "CancelledError"}, counts
    assert most["running"] <= slots and most["waiting"] <= queue


@contextmanager
def connected() -> Iterator[tuple[socket.socket, Any]]:
    """Yield a client on a socket, and its request."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        ours, name = listener.accept()
        with ours:
            yield client, ({"type": "http", "client": name, "server": ours.getsockname()}, Pretender().receive)


def test_who_left_before_it_came_gets_no_slot() -> None:
    async def main() -> None:
        gate = hangup.Gate(slots=1)
        with connected() as (client, request):
            client.close()
            with pytest.raises(hangup.CallEnded) as left:
                await gate.enter(request).__aenter__()
        assert left.value.ended.cause == "fin"
        assert (gate.running, gate.waiting) == (0, 0)

    asyncio.run(main(), debug=True)


def test_who_leaves_in_the_turn_in_which_its_slot_comes_gets_none() -> None:
    async def main() -> None:
        gate = hangup.Gate(slots=1)
        with connected() as (client, request):
            async with gate.enter(Pretender().request):
                waiter = asyncio.create_task(gate.enter(request).__aenter__())
                await asyncio.sleep(0)
                assert gate.waiting == 1
                client.close()
            with pytest.raises(hangup.CallEnded) as left:
                await waiter
        assert left.value.ended.cause == "fin"
        assert (gate.running, gate.waiting) == (0, 0)

    asyncio.run(main(), debug=True)


@pytest.mark.parametrize(("version", "warned"), [("0.105.0", 0), ("0.106.0", 1), ("0.117.1", 1), ("0.118.0", 0)])
def test_a_fastapi_that_gives_the_slot_away_early_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, version: str, warned: int
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: version)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        inspect.signature(hangup.Gate(slots=1))
    assert len(caught) == warned


# On sockets


@pytest.fixture(scope="module")
def gated() -> Iterator[Served]:
    with Served("uvicorn-gated") as served:
        yield served


def posted(served: Served, stack: ExitStack, way: str, *ids: str) -> list[Client]:
    return [stack.enter_context(served.post(way, id)) for id in ids]


def wait_gate(served: Served, way: str, **expected: int) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        gate = served.state()["gates"][way]
        return dict(gate) if all(gate[name] == value for name, value in expected.items()) else None

    return wait_until(look, what=f"{expected} at the gate") or {}


@pytest.mark.parametrize("way", ["dependency", "context", "middleware"])
def test_every_way_through_the_gate(gated: Served, way: str) -> None:
    """Two calls run, four wait, and the rest get 503; a client that leaves the queue is removed at once, and its handler
    never runs."""
    with ExitStack() as stack:
        running = posted(gated, stack, way, "r1", "r2")
        wait_gate(gated, way, running=SLOTS)
        staying, leaving = posted(gated, stack, way, "s1", "s2"), posted(gated, stack, way, "l1", "l2")
        wait_gate(gated, way, running=SLOTS, waiting=QUEUE)
        for client in posted(gated, stack, way, "x1", "x2", "x3"):
            answer = client.read_answer()
            assert (answer.status, answer.headers["x-hangup-reason"]) == (503, "queue_full")
            assert 1 <= int(answer.headers["retry-after"]) <= 30
        leaving[0].fin()
        leaving[1].reset()
        wait_gate(gated, way, running=SLOTS, waiting=2)
        with gated.post(f"release-{way}", "") as release:
            release.read_answer()
        assert [client.read_answer().status for client in running + staying] == [200] * 4
        gate = wait_gate(gated, way, running=0, waiting=0)
    assert sorted(gate["ran"]) == ["r1", "r2", "s1", "s2"]
    assert gate["most"] == SLOTS
    assert sum(gate["refused"].values()) == 5


def test_waiting_has_an_end_on_sockets(gated: Served) -> None:
    with ExitStack() as stack:
        posted(gated, stack, "brief", "one")
        wait_gate(gated, "brief", running=1)
        (late,) = posted(gated, stack, "brief", "two")
        answer = late.read_answer()
        assert (answer.status, answer.headers["x-hangup-reason"]) == (503, "queue_s")
        assert int(answer.headers["retry-after"]) >= 1
    assert wait_gate(gated, "brief", waiting=0)["ran"] == ["one"]


def test_a_long_queue_of_clients_that_left_at_once_costs_no_slot() -> None:
    """A slot that nobody takes passes from one call to the next; recursion would end in a RecursionError."""

    async def main() -> None:
        gate = hangup.Gate(slots=1, queue=5000, max_wait_s=3600)
        release = asyncio.Event()

        async def hold() -> None:
            async with gate.enter(Pretender().request):
                await release.wait()

        async def wait() -> None:
            async with gate.enter(Pretender().request):
                pass

        holder = asyncio.create_task(hold())
        await asyncio.sleep(0)
        waiters = [asyncio.create_task(wait()) for _ in range(3000)]
        await asyncio.sleep(0)
        assert (gate.running, gate.waiting) == (1, 3000)
        release.set()  # the holder is woken first: it ends in the turn in which all the others leave
        for waiter in waiters:
            waiter.cancel()
        await asyncio.wait([holder, *waiters])
        assert holder.exception() is None
        assert (gate.running, gate.waiting) == (0, 0)

    run_virtually(main())
