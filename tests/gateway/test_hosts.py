"""Gateways that share their state through Redis, with real processes and a real server: each row of what fails elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hangup.gateway.hosts.store import SharedStateFailed, Store
from support.processes import Gateway, StandIn
from support.raw import Client
from support.redis_server import RedisServer, Wire, require_redis, require_valkey
from support.waiting import PATIENCE_S, wait_until

SLOTS = 8
LONG = 30_000  # tokens: five minutes


@pytest.fixture(scope="module", autouse=True)
def _needs_redis() -> None:
    require_redis()


@contextlib.contextmanager
def engine_and_store(*options: str, program: str = "", **behaviour: Any) -> Iterator[tuple[StandIn, RedisServer]]:
    engine = StandIn(**{"slots": 64, "prefill_s": 0.01, "token_s": 0.01, "answer_tokens": LONG} | behaviour)
    with engine, RedisServer(*options, program=program) as store:
        yield engine, store


def gateway_at(engine: StandIn, url: str, **settings: Any) -> Gateway:
    chosen: dict[str, Any] = {"slots": SLOTS, "shared_state": url} | settings
    return Gateway(engine.url, **chosen)


def events(gateway: Gateway, event: str) -> list[dict[str, Any]]:
    return [row for row in gateway.log() if row.get("event") == event]


def seen(gateway: Gateway, event: str, count: int = 1) -> list[dict[str, Any]]:
    wait_until(lambda: len(events(gateway, event)) >= count, what=f"{count} × {event}")
    return events(gateway, event)


def streams(gateway: Gateway, count: int, name: str = "stream", tokens: int = LONG) -> list[Client]:
    """Begin streams; those beyond the places wait in the queue."""
    clients = [Client(gateway.address) for _ in range(count)]
    for number, client in enumerate(clients):
        client.chat({"X-Request-Id": f"{name}-{number}"}, stream=True, max_tokens=tokens)
    return clients


def running(engine: StandIn, count: int) -> None:
    wait_until(lambda: engine.stats()["running"] == count, what=f"{count} calls in the engine")


def never_too_many(engine: StandIn, most: int = SLOTS) -> None:
    assert engine.stats()["running_peak"] <= most


class Load:
    """Threads that call all the time, and note every answer that is not a 200."""

    def __init__(self, gateways: list[Gateway], threads: int = 3, key: str = "", tokens: int = 5) -> None:
        self.good, self.bad = 0, list[str]()
        self._headers, self._tokens = ({"Authorization": f"Bearer {key}"} if key else {}), tokens
        self._over = threading.Event()
        targets = [gateway for gateway in gateways for _ in range(threads)]
        self._threads = [threading.Thread(target=self._run, args=(target,), daemon=True) for target in targets]

    def _run(self, gateway: Gateway) -> None:
        while not self._over.is_set():
            try:
                with Client(gateway.address) as client:
                    client.chat(self._headers, max_tokens=self._tokens)
                    status = client.read_answer().status
                self.good += status == 200
                if status != 200:
                    self.bad.append(str(status))
            except (OSError, AssertionError) as error:
                self.bad.append(repr(error))

    def wait_for_more(self, calls: int = 30) -> None:
        before = self.good
        wait_until(lambda: self.good >= before + calls, what="more calls")

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        self.wait_for_more()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)


def read_on(client: Client, count: int = 100) -> None:
    """Read so many tokens: meanwhile, the gateway has written many snapshots."""
    for _ in range(count):
        client.read_until(b"\n\n")


def close(*clients: Client) -> None:
    for client in clients:
        client.sock.close()


@pytest.mark.parametrize("victim", ["the leader", "another", "another, on Valkey"])
def test_a_killed_gateways_places_are_free_again_and_its_calls_are_stopped(victim: str) -> None:
    """On an engine that does not notice when a connection ends: only an abort by id stops a call there."""
    program = require_valkey() if "Valkey" in victim else ""
    with engine_and_store(program=program, deaf_to="stream") as (engine, store), contextlib.ExitStack() as stack:
        first = stack.enter_context(gateway_at(engine, store.url))
        second = stack.enter_context(gateway_at(engine, store.url))
        wait_until(lambda: first.metrics()["hangup_gateways"] == second.metrics()["hangup_gateways"] == 2)
        killed, alive = (first, second) if victim == "the leader" else (second, first)
        kept, lost = streams(alive, 4, "kept"), streams(killed, 4, "lost")
        for client in (*kept, *lost):
            read_on(client)
        killed.popen.send_signal(signal.SIGKILL)
        more = streams(alive, 4, "more")
        (died,) = seen(alive, "gateway_died")
        stopped = seen(alive, "left_call_stopped", 4)
        assert died["calls"] == 4 and {row["id"] for row in stopped} == {f"lost-{n}" for n in range(4)}
        for client in (*kept, *more):  # the survivor's calls go on, and it uses all places
            read_on(client)
        assert engine.stats()["aborted"] == 4, "no innocent call was aborted"
        assert alive.metrics()["hangup_gateways"] == 1
        close(*kept, *lost, *more)


def test_slots_follow_the_calls_and_a_newcomer_starts_nothing_beyond_them() -> None:
    with engine_and_store() as (engine, store), gateway_at(engine, store.url) as first:
        one = streams(first, 20, tokens=200)  # two seconds
        running(engine, SLOTS)
        with gateway_at(engine, store.url) as second:  # a standby that joins under full load
            two = streams(second, SLOTS, tokens=200)
            seen(first, "gateway_joined", 2)
            for client in (*one, *two):  # each is answered
                assert client.read_answer().status == 200
            third = streams(second, SLOTS, tokens=200)  # it can use all slots, as the other one needs none
            running(engine, SLOTS)
            for client in third:
                assert client.read_answer().status == 200
            never_too_many(engine)
            close(*one, *two, *third)
            second.popen.send_signal(signal.SIGTERM)
            second.popen.wait(60)
        (left,) = seen(first, "gateway_left")
        assert left["gateway"] == events(second, "shared_state_found")[0]["gateway"]
        assert events(first, "gateway_died") == []
        again = streams(first, SLOTS)
        running(engine, SLOTS)
        close(*again)


def test_calls_that_a_leaving_gateway_cuts_short_keep_their_places_until_the_engine_has_stopped() -> None:
    """The engine ignores aborts, and takes half a second to notice that a connection has ended."""
    with engine_and_store(late_s=0.5, lies="aborts") as (engine, store), contextlib.ExitStack() as stack:
        first = stack.enter_context(gateway_at(engine, store.url))
        second = stack.enter_context(gateway_at(engine, store.url))
        wait_until(lambda: first.metrics()["hangup_gateways"] == second.metrics()["hangup_gateways"] == 2)
        mine = streams(second, 4, "cut")
        others = streams(first, SLOTS, "waits")
        running(engine, SLOTS)
        second.popen.send_signal(signal.SIGTERM)
        seen(second, "drain_started")
        second.popen.send_signal(signal.SIGTERM)  # cut short: its calls end now
        second.popen.wait(60)
        seen(first, "gateway_left")
        for client in others:  # all are served at once, with its places, too
            read_on(client, 1)
        never_too_many(engine)
        assert events(first, "gateway_died") == []
        close(*mine, *others)


def test_a_stopped_gateway_keeps_its_places_and_its_calls() -> None:
    with engine_and_store() as (engine, store), contextlib.ExitStack() as stack:
        first = stack.enter_context(gateway_at(engine, store.url, gateway_silence_s=300))
        second = stack.enter_context(gateway_at(engine, store.url, gateway_silence_s=300))
        mine, others = streams(second, 4), streams(first, 4)
        running(engine, SLOTS)
        read_on(mine[0])
        for victim, witness in ((second, first), (first, second)):  # the leader is the second one to be stopped
            victim.popen.send_signal(signal.SIGSTOP)
            name = events(victim, "shared_state_found")[0]["gateway"]
            wait_until(lambda w=witness, n=name: n in [row["gateway"] for row in events(w, "gateway_silent")])  # type: ignore[misc]
            waiting = streams(witness, 2, "waits")
            victim.popen.send_signal(signal.SIGCONT)
            wait_until(lambda w=witness, n=name: n in [row["gateway"] for row in events(w, "gateway_back")])  # type: ignore[misc]
            close(*waiting)
        for client in (*mine, *others):
            read_on(client)
        stats = engine.stats()
        assert stats["aborted"] == 0 and stats["running"] == SLOTS
        never_too_many(engine)
        close(*mine, *others)


def test_a_gateway_that_is_silent_for_too_long_is_given_up() -> None:
    with engine_and_store() as (engine, store), contextlib.ExitStack() as stack:
        first = stack.enter_context(gateway_at(engine, store.url, gateway_silence_s=1))
        second = stack.enter_context(gateway_at(engine, store.url, gateway_silence_s=1))
        mine = streams(second, 4)
        read_on(mine[0])
        second.popen.send_signal(signal.SIGSTOP)
        seen(first, "gateway_died")
        wait_until(lambda: engine.stats()["aborted"] == 4, what="the aborts of its calls")
        second.popen.send_signal(signal.SIGCONT)
        seen(first, "gateway_joined", 3)  # it is back, with what it holds
        close(*mine)
        engine.wait_idle()
        again = [*streams(first, 4, "first"), *streams(second, 4, "second")]
        running(engine, SLOTS)
        close(*again)


@pytest.mark.parametrize("server", ["Redis", "Valkey"])
def test_without_the_store_nothing_fails_and_an_empty_one_changes_nothing(server: str) -> None:
    with (
        engine_and_store(program=require_valkey() if server == "Valkey" else "") as (engine, store),
        contextlib.ExitStack() as stack,
    ):
        gateways = [stack.enter_context(gateway_at(engine, store.url)) for _ in range(2)]
        wait_until(lambda: gateways[1].metrics()["hangup_gateways"] == 2)
        with Load(gateways, threads=6) as load:
            for _ in range(2):
                store.stop()
                for gateway in gateways:
                    wait_until(lambda g=gateway: g.metrics()["hangup_shared_state_failing"] == 1)  # type: ignore[misc]
                load.wait_for_more()
                store.start()  # it is empty
                for gateway in gateways:
                    wait_until(lambda g=gateway: g.metrics()["hangup_shared_state_failing"] == 0)  # type: ignore[misc]
                load.wait_for_more()
        assert load.bad == []
        for gateway in gateways:
            assert len(seen(gateway, "shared_state_lost", 2)) >= 2 and events(gateway, "gateway_died") == []
        never_too_many(engine, SLOTS + 2)  # on a slow machine the store is away for 5 s: one may rise to its part first
        wait_until(lambda: all(g.metrics()["hangup_gateways"] == 2 for g in gateways))
        every = streams(gateways[0], SLOTS)  # all places can be used from one gateway again
        running(engine, SLOTS)
        close(*every)


def test_a_gateway_cut_off_from_the_store_keeps_what_it_holds_and_then_uses_its_part() -> None:
    with engine_and_store() as (engine, store), Wire(store.port) as wire, contextlib.ExitStack() as stack:
        first = stack.enter_context(gateway_at(engine, store.url, gateway_silence_s=1))
        second = stack.enter_context(gateway_at(engine, wire.url, gateway_silence_s=1))
        mine = streams(second, 1)
        with Load([first], threads=SLOTS) as load:  # the other one uses all the rest
            read_on(mine[0])
            wire.cut()
            seen(second, "shared_state_lost")
            seen(first, "gateway_silent")
            mine += streams(second, SLOTS)
            in_flight = f'hangup_backend_in_flight{{backend="127.0.0.1:{engine.port}"}}'
            wait_until(lambda: second.metrics()[in_flight] == SLOTS // 2, what="its part")
            # The leader has set that much aside. `test_shared_state` is strict about when; here the machine may be slow.
            wait_until(
                lambda: all(engine.stats()["running"] <= SLOTS for _ in range(20)), what="the others to leave it its part"
            )
            load.wait_for_more()
            wire.mend()
            seen(first, "gateway_back")
        assert load.bad == [] and events(first, "gateway_died") == [] and engine.stats()["aborted"] == 0
        never_too_many(engine, SLOTS + SLOTS // 2)
        close(*mine)
        engine.wait_idle()


def test_a_slow_or_frozen_store_costs_no_call() -> None:
    with engine_and_store() as (engine, store), contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(store.port, delay_s=0.3)) for _ in range(2)]
        gateways = [stack.enter_context(gateway_at(engine, wire.url, shared_state_timeout_s=1)) for wire in wires]
        with Load(gateways, threads=4) as load:
            load.wait_for_more()
            store.freeze()
            seen(gateways[0], "shared_state_lost")
            load.wait_for_more()
            store.thaw()
            wait_until(lambda: gateways[0].metrics()["hangup_shared_state_failing"] == 0)
            load.wait_for_more()
        assert load.bad == [] and events(gateways[0], "gateway_died") == []
        never_too_many(engine)


def test_hang_ups_leave_no_place_behind() -> None:
    with engine_and_store() as (engine, store), contextlib.ExitStack() as stack:
        # Nothing tells these gateways that the engine has stopped: the time decides.
        grace = {"release_grace_s": 0.2, "prefill_grace_s": 0.2}
        gateways = [stack.enter_context(gateway_at(engine, store.url, **grace)) for _ in range(2)]
        for number in range(120):
            with Client(gateways[number % 2].address) as client:
                client.chat(stream=True, max_tokens=LONG)
                if number % 3:
                    client.read_head()
                if number % 3 == 2:
                    read_on(client, 1 + number % 5)
        engine.wait_idle()
        for gateway in gateways:
            clients = streams(gateway, SLOTS)
            running(engine, SLOTS)
            close(*clients)
            engine.wait_idle()


def test_what_somebody_else_wrote_into_the_store_stops_no_call() -> None:
    with engine_and_store() as (engine, store), gateway_at(engine, store.url) as gateway:
        store.command("HSET", "hangup:{hangup}:members", "somebody", '{"seq": 1}')
        (lost,) = seen(gateway, "shared_state_lost")
        assert "it holds what this version cannot read" in lost["error"]
        clients = streams(gateway, SLOTS)
        running(engine, SLOTS)
        store.command("HDEL", "hangup:{hangup}:members", "somebody")
        wait_until(lambda: gateway.metrics()["hangup_shared_state_failing"] == 0)
        close(*clients)


# The start


def test_a_gateway_starts_without_the_store_and_joins_later() -> None:
    with engine_and_store() as (engine, store):
        store.stop()
        with gateway_at(engine, store.url) as gateway:
            assert gateway.find_line("cannot use redis://127.0.0.1.*this gateway serves alone until that changes")
            clients = streams(gateway, SLOTS)
            running(engine, SLOTS // 2)
            assert gateway.metrics()["hangup_shared_state_failing"] == 1
            store.start()
            running(engine, SLOTS)
            close(*clients)


def exit_line(engine: StandIn, url: str, *flags: str) -> str:
    command = [sys.executable, "-m", "hangup", "serve", "--port", "0", "--admin-port", "0", "--upstream", engine.url]
    done = subprocess.run(
        [*command, "--slots", "8", "--shared-state", url, *flags], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode != 0
    warning = ("hangup: warning: --shared-state shows a password", "  hint: use HANGUP_SHARED_STATE")
    lines = [line for line in done.stderr.splitlines() if line and not line.startswith(warning)]
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_a_changed_file_is_reloaded_without_a_signal() -> None:
    with engine_and_store() as (engine, store):
        text = f'config_watch_s = 0.1\nslots = {SLOTS}\nshared_state = "{store.url}"\n[[backend]]\nurl = "{engine.url}"\n'
        with Gateway(config=text) as gateway:
            assert gateway.config_path is not None
            gateway.config_path.write_text(text + 'name = "renamed"\n')
            assert seen(gateway, "config_reloaded")[0]["backends"] == ["renamed"]


def line_of_check(url: str) -> str:
    """Return what `Store.check` says: no process is needed to know that."""

    async def check() -> None:
        store = Store(url, "test", 5.0)
        try:
            await store.check()
        finally:
            await store.close()

    with pytest.raises(SharedStateFailed) as failure:
        asyncio.run(check())
    return str(failure.value)


def test_what_is_wrong_with_the_store_is_said_in_one_line() -> None:
    with engine_and_store("--requirepass", "secret") as (engine, store):
        required = ("--shared-state-required", "true")
        assert "the server needs a password" in exit_line(engine, store.url, *required)
        wrong = f"redis://:false@127.0.0.1:{store.port}"
        line = exit_line(engine, wrong, *required)
        assert "wrong password" in line and "false@" not in line
        store.stop()
        assert "Connection refused" in exit_line(engine, store.url, *required)
        assert "expected redis://" in exit_line(engine, "http://127.0.0.1", *required)
        assert "others cannot reach 0.0.0.0" in exit_line(engine, store.url, "--peer-host", "0.0.0.0")
        assert line_of_check(f"redis+cluster://127.0.0.1:{store.port}").endswith(
            f"Connect call failed ('127.0.0.1', {store.port})."
        )
        sentinel = f"redis+sentinel://127.0.0.1:{store.port}/main"
        assert line_of_check(sentinel) == f"cannot use {sentinel}: no Sentinel that answers knows a master of the service main"
        assert "is no address of a store" in exit_line(engine, "redis://127.0.0.1:port", *required)
        with old_server() as port:
            assert "needs Redis 6.0 or newer" in exit_line(engine, f"redis://127.0.0.1:{port}", *required)


@contextlib.contextmanager
def old_server() -> Iterator[int]:
    """A server that says that it is Redis 5."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    threading.Thread(target=answer, args=(client,), daemon=True).start()

        def answer(client: socket.socket) -> None:
            info = b"redis_version:5.0.14\r\n"
            with client, contextlib.suppress(OSError):
                while data := client.recv(65536):
                    for command in data.upper().split(b"*")[1:]:
                        known = b"INFO" in command
                        client.sendall(b"$%d\r\n%s\r\n" % (len(info), info) if known else b"-ERR unknown command\r\n")

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
