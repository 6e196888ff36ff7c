"""Many calls end in one instant, for whatever cause: engines are stopped first, and no iteration of the loop ends all calls.

`make bench ARGS=departures` has ten thousand, and times.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Sized
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvloop
from bench import call_cost

from hangup.config import BackendSettings, LimitSettings, Settings
from hangup.core import reasons
from hangup.core.call import Call
from hangup.core.reasons import Reason
from hangup.gateway.backends.connection import EngineConnection
from hangup.gateway.call_flow import CallFlow
from hangup.gateway.client import end_queue, sockets
from hangup.gateway.client.connection import ClientConnection
from hangup.gateway.client.connection_state import CLOSED
from hangup.gateway.client.end_queue import AT_ONCE_MAX, SEEN_MAX, SLICE_S, EndQueue
from hangup.gateway.gateway import Gateway as HangupGateway
from hangup.gateway.log import Log
from hangup.tasks import in_slices
from support.processes import Gateway, StandIn
from support.raw import Client
from support.raw_engine import DONE, HEAD, chunk, event, raw_engine
from support.waiting import wait_until

CLIENTS = 120
STEPS = 10  # that fit into a slice of the fake clock


class Leaver:
    """A connection and its call in one; records what happens to it."""

    def __init__(self, events: list[tuple[str, int]], number: int, fails: bool = False) -> None:
        self.handler: Any = self
        self.transport: Any = self
        self.events, self.number, self.fails = events, number, fails

    def pause_engine(self) -> None:
        self.events.append(("pause", self.number))

    def stop_engine(self, reason: Reason) -> None:
        self.events.append(("stop", self.number))

    def client_left(self, reason: Reason) -> None:
        self.events.append(("end", self.number))
        if self.fails:
            raise KeyError("a bug")

    def fault(self, error: Exception) -> None:
        self.events.append(("fault", self.number))

    def close(self) -> None:
        self.events.append(("close", self.number))

    def hold_back(self) -> bool:
        return False

    def read_again(self) -> None:
        raise AssertionError("it was not held back")


def slow_clock() -> Callable[[], float]:
    ticks = itertools.count()
    return lambda: next(ticks) * SLICE_S / STEPS


async def turns_until_done(ends: EndQueue, events: list[tuple[str, int]]) -> list[list[tuple[str, int]]]:
    """Run the event loop until all clients have left; return what happened in each iteration."""
    turns = []
    while len(ends):
        before = len(events)
        await asyncio.sleep(0)
        turns.append(events[before:])
    return turns


def test_few_departures_are_handled_at_once_and_many_in_slices() -> None:
    async def main() -> None:
        events: list[tuple[str, int]] = []
        ends = EndQueue(clock=lambda: 5.0, used_s=slow_clock())
        taken = [ends.client_left(cast(Any, Leaver(events, n)), reasons.CLIENT_FIN) for n in range(1000)]
        assert taken == [False] * AT_ONCE_MAX + [True] * (1000 - AT_ONCE_MAX)
        assert events == [("pause", number) for number in range(AT_ONCE_MAX, 1000)]
        events.clear()
        turns = await turns_until_done(ends, events)
        late = list(range(AT_ONCE_MAX, 1000))
        assert max(map(len, turns)) <= 2 * STEPS  # an end is two events
        assert [n for what, n in events if what == "stop"] == [n for what, n in events if what == "end"] == late
        assert [what for what, _ in events[: len(late)]] == ["stop"] * len(late)  # all engines, before any call ends
        assert {n for what, n in events if what == "close"} == set(late)

    asyncio.run(main())


def test_departures_after_a_pause_are_handled_at_once_again() -> None:
    async def main() -> None:
        now = 5.0
        ends = EndQueue(clock=lambda: now)
        for _ in range(100):
            now += 1.0
            assert not ends.client_left(cast(Any, Leaver([], 0)), reasons.CLIENT_FIN)

    asyncio.run(main())


def test_a_bug_in_one_departure_does_not_keep_the_others() -> None:
    async def main() -> None:
        events: list[tuple[str, int]] = []
        ends = EndQueue(clock=lambda: 5.0)
        for n in range(AT_ONCE_MAX + 10):
            ends.client_left(cast(Any, Leaver(events, n, fails=n % 2 == 0)), reasons.CLIENT_FIN)
        events.clear()
        await turns_until_done(ends, events)
        assert Counter(what for what, _ in events) == {"stop": 10, "end": 10, "close": 10, "fault": 5}

    asyncio.run(main())


def fail(error: Exception) -> None:
    raise error


class Held(Leaver):
    """A client that has not been seen to leave."""

    held = False

    def hold_back(self) -> bool:
        self.held = True
        return True

    def read_again(self) -> None:
        self.events.append(("read", self.number))


def test_once_many_have_left_in_a_turn_the_others_are_read_from_a_few_at_a_time() -> None:
    async def main() -> None:
        events: list[tuple[str, int]] = []
        others = [Held(events, n) for n in range(3 * SEEN_MAX + 1)]
        ends = EndQueue(cast(Any, others), clock=lambda: 5.0)
        for n in range(AT_ONCE_MAX + SEEN_MAX - 1):
            ends.client_left(cast(Any, Leaver([], n)), reasons.CLIENT_FIN)
        assert not any(other.held for other in others)
        ends.client_left(cast(Any, Leaver([], 0)), reasons.CLIENT_FIN)
        assert all(other.held for other in others)
        turns = await turns_until_done(ends, events)
        assert max(sum(what == "read" for what, _ in turn) for turn in turns) == SEEN_MAX
        assert [n for what, n in events if what == "read"] == list(range(len(others)))

    asyncio.run(main())


def test_once_an_engine_has_lost_many_connections_in_a_turn_its_others_are_read_from_a_few_at_a_time() -> None:
    async def main() -> None:
        events: list[tuple[str, int]] = []
        mine, another = ([Held(events, n) for n in range(2 * SEEN_MAX)] for _ in range(2))
        ends = EndQueue(clock=lambda: 5.0)
        for n in range(AT_ONCE_MAX + SEEN_MAX):
            ends.note_loss(cast(Any, mine))
            ends.defer(partial(events.append, ("end", n)), fail)
            if n % 2:
                ends.note_loss(cast(Any, another))
        assert all(one.held for one in mine) and not any(one.held for one in another)
        turns = await turns_until_done(ends, events)
        assert [sum(what == "read" for what, _ in turn) for turn in turns[:3]] == [SEEN_MAX, SEEN_MAX, 0]
        assert not any(what == "end" for what, _ in turns[0])

    asyncio.run(main())


def test_losses_are_counted_by_the_turn() -> None:
    async def main() -> None:
        others = [Held([], 0)]
        ends = EndQueue()
        for _ in range(3 * SEEN_MAX):
            ends.note_loss(cast(Any, others))
            await asyncio.sleep(0)
        assert not others[0].held and not len(ends)

    asyncio.run(main())


def test_those_that_are_read_from_again_are_held_back_again_if_many_are_lost_together() -> None:
    """An engine's process takes a while to die: its connections are closed one after the other."""

    async def main() -> None:
        ends = EndQueue(clock=lambda: 5.0)
        read: list[tuple[str, int]] = []
        others = [Held(read, n) for n in range(3 * SEEN_MAX)]
        for _ in range(SEEN_MAX):
            ends.note_loss(cast(Any, others))
        await asyncio.sleep(0)
        assert len(read) == SEEN_MAX and len(ends) == 2 * SEEN_MAX
        for _ in range(2 * SEEN_MAX):
            assert len(ends) == 2 * SEEN_MAX
            ends.note_loss(cast(Any, others))
        assert len(ends) > 2 * SEEN_MAX

    asyncio.run(main())


class Asker:
    """A call whose engine streams to it, over a socket of its own."""

    def __init__(self, lost: list[int], ends: EndQueue, all_of_them: set[EngineConnection]) -> None:
        self.lost, self.ends, self.all_of_them = lost, ends, all_of_them

    def engine_leaving(self) -> None:
        self.ends.note_loss(self.all_of_them)

    def engine_lost(self, connection: EngineConnection, error: Exception | None) -> None:
        self.lost.append(1)


def test_an_engine_that_closes_many_connections_at_once_makes_no_long_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop reads from all sockets before it reports the first lost connection, so an end must count when it is read."""
    few = 16
    monkeypatch.setattr(end_queue, "SEEN_MAX", few)

    async def main() -> None:
        loop, lost, mine = asyncio.get_running_loop(), list[int](), set[EngineConnection]()
        owner: Any = SimpleNamespace(secret=b"", connection_closed=mine.discard)
        ends, engines = EndQueue(), []
        for _ in range(10 * few):
            here, there = socket.socketpair()
            engines.append(there)
            _, connection = await loop.create_connection(lambda: EngineConnection(owner, 65536), sock=here)
            connection.ask(cast(Any, Asker(lost, ends, mine)), b"", b"")
            mine.add(connection)
        for engine in engines:
            engine.close()
        turns: list[int] = []
        while sum(turns) < len(engines):
            before = len(lost)
            await asyncio.sleep(0)
            turns.append(len(lost) - before)
        assert max(turns) <= few, turns

    uvloop.run(asyncio.wait_for(main(), 30))


def test_few_ends_of_any_cause_are_not_deferred_and_many_come_in_order_in_slices() -> None:
    async def main() -> None:
        events: list[tuple[str, int]] = []
        ends = EndQueue(clock=lambda: 5.0, used_s=slow_clock())
        deferred = [ends.defer(partial(events.append, ("end", n)), fail) for n in range(500)]
        assert deferred == [False] * AT_ONCE_MAX + [True] * (500 - AT_ONCE_MAX)
        turns = await turns_until_done(ends, events)
        assert max(map(len, turns)) <= STEPS
        assert events == [("end", n) for n in range(AT_ONCE_MAX, 500)]

    asyncio.run(main())


class Crowd:
    """A gateway without sockets, between many clients and one engine that streams to them."""

    def __init__(self, total_s: float = 600.0) -> None:
        loop = asyncio.get_running_loop()
        self.log = Log(os.devnull, 10_000)
        settings = Settings(
            backend=(BackendSettings(url="http://127.0.0.1:1", name="engine", health_path=""),),
            limits=LimitSettings(total_s=total_s),
        )
        self.gateway = HangupGateway(settings, loop, self.log)
        self.gateway.ends._clock = lambda: 5.0  # however slow this machine is, all that follows happens in one moment
        self.gateway.ends._used_s = slow_clock()
        [backend] = self.gateway.backends.by_name.values()
        self.engine = [EngineConnection(backend.pool, 65536) for _ in range(CLIENTS)]
        sent, reads = call_cost.KINDS["streamed"]
        for engine in self.engine:
            engine.connection_made(call_cost._Transport())
            backend.pool.put_back(engine)
            client = ClientConnection(self.gateway.intake, loop)
            client.connection_made(call_cost._Transport())
            client.data_received(sent)
            engine.data_received(reads[0])
            engine.data_received(reads[1])
        assert len(self.live) == CLIENTS

    @property
    def live(self) -> Sized:
        return self.gateway.registry.live

    async def ended_per_turn(self) -> list[int]:
        """Let the loop turn until no call is live; return how many ended in each turn."""
        turns = []
        while self.live:
            before = len(self.live)
            await asyncio.sleep(0)
            turns.append(before - len(self.live))
        return turns

    def causes(self) -> Counter[str]:
        return Counter(call.reason.code for call in self.gateway.registry.ended if call.reason is not None)

    async def close(self) -> None:
        await self.gateway.close()
        self.log.close()


def test_an_engine_that_dies_under_many_calls_does_not_end_them_all_in_one_turn() -> None:
    async def main() -> None:
        crowd = Crowd()
        for engine in crowd.engine:
            engine.connection_lost(ConnectionResetError())
        assert len(crowd.live) == CLIENTS - AT_ONCE_MAX
        turns = await crowd.ended_per_turn()
        assert max(turns) <= STEPS and sum(turns) == CLIENTS - AT_ONCE_MAX
        assert crowd.causes() == {reasons.ENGINE_DIED.code: CLIENTS}
        await crowd.close()

    asyncio.run(main())


def test_a_call_whose_client_leaves_while_its_engines_death_waits_to_be_handled_ends_once() -> None:
    async def main() -> None:
        crowd = Crowd()
        flows = list(crowd.gateway.registry.live.values())
        for engine in crowd.engine:
            engine.connection_lost(ConnectionResetError())
        flows[-1].client_left(reasons.CLIENT_RESET)
        await crowd.ended_per_turn()
        assert crowd.causes() == {reasons.ENGINE_DIED.code: CLIENTS - 1, reasons.CLIENT_RESET.code: 1}
        await crowd.close()

    asyncio.run(main())


def test_deadlines_that_pass_together_do_not_end_all_calls_in_one_turn() -> None:
    async def main() -> None:
        crowd = Crowd(total_s=0.3)
        time.sleep(0.35)  # noqa: ASYNC251 (the loop must find all of them due in one turn)
        turns = await crowd.ended_per_turn()
        assert max(turns) <= AT_ONCE_MAX + STEPS and sum(turns) == CLIENTS, turns
        assert crowd.causes() == {reasons.TOTAL_TIME.code: CLIENTS}
        await crowd.close()

    asyncio.run(main())


def test_slices_let_others_run_and_survive_a_cancel() -> None:
    async def main() -> None:
        done: list[int] = []
        work = asyncio.ensure_future(in_slices(done.append, range(1000), slow_clock()))
        for turn in range(1, 11):
            await asyncio.sleep(0)
            assert len(done) <= turn * STEPS
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert done == list(range(1000)) and work.cancelled()

    asyncio.run(main())


@pytest.mark.parametrize("leave", [Client.fin, Client.reset])
@pytest.mark.parametrize("like", ["openai", "sglang"])  # the latter gets an abort by id before its connection is cut
def test_a_crowd_that_leaves_at_once_leaves_nothing_behind(leave: Callable[[Client], None], like: str) -> None:
    with StandIn(slots=CLIENTS, prefill_s=0.0, token_s=0.05, like=like) as engine, Gateway(engine.url) as gateway:
        with ExitStack() as stack:
            clients = [stack.enter_context(Client(gateway.address)) for _ in range(CLIENTS)]
            for number, client in enumerate(clients):
                client.chat({"X-Request-Id": f"crowd-{number}"}, stream=True, max_tokens=20_000, ignore_eos=True)
            for client in clients:
                client.read_until(b'"content":" ')
            gateway.signal(signal.SIGSTOP)  # so that the loop sees all of them leave in one turn
            for client in clients:
                leave(client)
            gateway.signal(signal.SIGCONT)
            engine.wait_stopped(CLIENTS)
        rows = [gateway.call_log(f"crowd-{number}") for number in range(CLIENTS)]
        assert Counter(row["outcome"] for row in rows) == {"client_gone": CLIENTS}, Counter(
            (row["cause"], row["detail"]) for row in rows
        )
        assert {row["cause"] for row in rows} <= {"fin", "reset"}
        wait_until(lambda: sum(value for name, value in gateway.metrics().items() if name.startswith("hangup_calls_live")) == 0)
        wait_until(lambda: gateway.metrics()["hangup_connections"] == 0)


@pytest.mark.parametrize("who", ["clients", "engine"])
def test_members_of_a_crowd_that_are_held_back_are_read_from_again(who: str) -> None:
    """More are lost in one iteration than are read from; the others are, in the next ones."""
    crowd = SEEN_MAX + AT_ONCE_MAX + 100
    with StandIn(slots=crowd, prefill_s=0.0, token_s=0.5) as engine, Gateway(engine.url) as gateway, ExitStack() as stack:
        clients = [stack.enter_context(Client(gateway.address)) for _ in range(crowd)]
        for client in clients:
            client.chat(stream=True, max_tokens=20_000, ignore_eos=True)
        for client in clients:
            client.read_until(b'"content":" ')
        engine.behave(token_s=600.0)  # so that no write shows that a client is gone
        gateway.signal(signal.SIGSTOP)
        if who == "clients":
            for client in clients:
                client.fin()
        else:
            engine.signal(signal.SIGKILL)
            engine.wait()
        gateway.signal(signal.SIGCONT)
        wait_until(lambda: sum(value for name, value in gateway.metrics().items() if name.startswith("hangup_calls_live")) == 0)
        ended = {name: count for name, count in gateway.metrics().items() if name.startswith("hangup_calls_total")}
        outcome = "client_gone" if who == "clients" else "engine_failed"
        assert sum(count for name, count in ended.items() if f'outcome="{outcome}"' in name) == crowd, ended


def test_a_client_whose_departure_waits_has_left() -> None:
    """Its socket may be closed already, so nobody can check it."""
    connection = ClientConnection.__new__(ClientConnection)
    connection.state = CLOSED
    assert connection.has_left()


def test_a_closed_socket_has_no_peer() -> None:
    class Closed:  # uvloop's
        def getsockopt(self, *_: int) -> bytes:
            raise ValueError("negative file descriptor")

    closed = cast(Any, Closed())
    assert sockets.peer_left(closed, True) == (sys.platform == "linux")
    assert sockets.seconds_since_ack(closed) is None and not sockets.retransmits(closed)


def test_queued_calls_of_a_crowd_that_left_reach_no_engine() -> None:
    """Places become free while departures still wait to be handled: they must not go to clients that are gone."""
    with StandIn(slots=8, prefill_s=0.0, token_s=0.05) as engine, Gateway(engine.url, slots=8) as gateway:
        with ExitStack() as stack:
            clients = [stack.enter_context(Client(gateway.address)) for _ in range(CLIENTS)]
            for number, client in enumerate(clients):
                client.chat({"X-Request-Id": f"queued-{number}"}, stream=True, max_tokens=20_000, ignore_eos=True)
            wait_until(lambda: engine.stats()["running"] == 8 and gateway.metrics()["hangup_queue_depth"] == CLIENTS - 8)
            gateway.signal(signal.SIGSTOP)
            for client in clients:
                client.reset()
            gateway.signal(signal.SIGCONT)
            rows = [gateway.call_log(f"queued-{number}") for number in range(CLIENTS)]
        assert Counter(row["outcome"] for row in rows) == {"client_gone": CLIENTS}
        assert engine.stats()["requests"] == 8


def test_engines_that_have_finished_get_no_abort_for_a_crowd() -> None:
    """Calls of which only the last chunk is missing end as completed, so nothing of them is to be stopped."""
    unfinished = CLIENTS // 4

    def script(sock: socket.socket, request: bytes) -> None:
        rest = b"" if b"unfinished" in request else chunk(event("", '"stop"')) + chunk(DONE)
        sock.sendall(HEAD + chunk(event("a")) + rest)

    config: dict[str, Any] = {"engine": "sglang", "health_interval_s": 600, "release_grace_s": 60}
    with raw_engine(script) as engine, Gateway(engine.url, **config) as gateway, ExitStack() as stack:
        clients = [stack.enter_context(Client(gateway.address)) for _ in range(CLIENTS)]
        for number, client in enumerate(clients):
            model = "unfinished" if number < unfinished else "finished"
            client.chat({"X-Request-Id": f"crowd-{number}"}, stream=True, model=model)
        for number, client in enumerate(clients):
            client.read_until(b'"content":"a"' if number < unfinished else b"[DONE]\n\n\r\n")
        gateway.signal(signal.SIGSTOP)
        for client in reversed(clients):  # those that have finished come first
            client.fin()
        gateway.signal(signal.SIGCONT)
        rows = [gateway.call_log(f"crowd-{number}") for number in range(CLIENTS)]
        assert [row["outcome"] for row in rows] == ["client_gone"] * unfinished + ["completed"] * (CLIENTS - unfinished)
        assert gateway.metrics()['hangup_aborts_total{result="sent"}'] == unfinished


def test_a_call_whose_departure_waits_does_not_fail_over() -> None:
    """Its engine dies meanwhile: no other engine must begin anew for a client that is gone."""
    ended: list[Reason] = []

    class Flow(CallFlow):
        def end(self, reason: Reason, detail: str = "") -> None:
            ended.append(reason)

    flow = Flow.__new__(Flow)
    flow.call = Call("left", 0.0)
    flow.call.received(1.0)
    flow.call.sent("first", 2.0)
    flow.call.fell_back(3.0)
    connection = ClientConnection.__new__(ClientConnection)
    connection.state = CLOSED
    flow.client = connection
    flow.placed(cast(Any, "second"), waited=False)
    assert ended == [reasons.CLIENT_FIN] and flow.call.attempts == 1
