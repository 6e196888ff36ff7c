"""Hosts with several workers that share their state by a store: each worker is a gateway of its own there, one admin port
answers for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from gateway.test_hosts import LONG, Load, close, engine_and_store, events, never_too_many, read_on, running, seen, streams
from gateway.test_hosts_admin import hangup
from gateway.test_workers import admin, workers_of
from hangup.gateway.hosts.life import LifePort
from hangup.gateway.workers.settings import peer_ports
from support.processes import Gateway, StandIn, get_json
from support.raw import Client
from support.redis_server import RedisServer, free_port, require_redis
from support.waiting import wait_until

WORKERS = 2
SLOTS = 16


@pytest.fixture(scope="module", autouse=True)
def _needs_redis() -> None:
    require_redis()


@contextlib.contextmanager
def hosts_at(store: RedisServer, engine: StandIn, count: int = 2, **settings: Any) -> Iterator[list[Gateway]]:
    chosen = {"slots": SLOTS, "workers": WORKERS} | settings
    with contextlib.ExitStack() as stack:
        hosts = [stack.enter_context(Gateway(engine.url, shared_state=store.url, **chosen)) for _ in range(count)]
        all_known(hosts, count * WORKERS)
        yield hosts


def all_known(hosts: list[Gateway], gateways: int) -> None:
    wait_until(lambda: all(host.metrics()["hangup_gateways"] == gateways for host in hosts), what=f"{gateways} gateways")


def shown(host: Gateway) -> list[str]:
    return sorted(row["id"] for row in get_json(f"{host.admin_url}/api/calls")["calls"])


def silent_at(host: Gateway) -> list[str]:
    return list(get_json(f"{host.admin_url}/api/calls").get("gateways_silent", ()))


def test_one_set_of_places_and_calls_for_all_workers_of_all_hosts() -> None:
    with engine_and_store() as (engine, store), hosts_at(store, engine) as (first, second):
        began = [*streams(first, SLOTS, "first"), *streams(second, SLOTS, "second")]  # half of them wait
        running(engine, SLOTS)
        ids = sorted(f"{name}-{n}" for name in ("first", "second") for n in range(SLOTS))
        for host in (first, second):
            assert shown(host) == ids and get_json(f"{host.admin_url}/api/overview")["live"] == 2 * SLOTS
            (backend,) = get_json(f"{host.admin_url}/api/backends")["backends"]
            assert backend["in_flight"] == SLOTS and backend["limit"] == SLOTS
            assert get_json(f"{host.admin_url}/api/calls/second-3")["id"] == "second-3"
        admin(first, "DELETE", "/api/calls/second-3")  # whichever worker of whichever host has it
        wait_until(lambda: "second-3" not in shown(second))
        assert "second-5" in hangup("ps", "--admin", first.admin_url).stdout
        name = backend["name"]
        admin(second, "PUT", f"/api/backends/{name}/drain")
        assert all(get_json(f"{host.admin_url}/api/backends")["backends"][0]["drained"] for host in (first, second))
        admin(first, "DELETE", f"/api/backends/{name}/drain")
        assert not any(get_json(f"{host.admin_url}/api/backends")["backends"][0]["drained"] for host in (first, second))
        admin(first, "DELETE", f"/api/calls?backend={name}")
        close(*began)
        running(engine, 0)
        never_too_many(engine, SLOTS)


def test_a_killed_worker_is_replaced_and_its_calls_are_stopped_by_whoever_leads() -> None:
    """On an engine that does not notice when a connection ends: only an abort by id stops a call there."""
    with engine_and_store(deaf_to="stream") as (engine, store), hosts_at(store, engine) as (first, second):
        kept, began = streams(second, 4, "kept"), streams(first, 12, "began")
        for client in (*kept, *began):
            read_on(client, 20)
        victim = workers_of(first)[0]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: [*events(first, "gateway_died"), *events(second, "gateway_died")], what="its end to be found")
        (died,) = [*events(first, "gateway_died"), *events(second, "gateway_died")]
        assert f"-{victim}-" in died["gateway"] and 0 < died["calls"] < 12
        running(engine, 16 - died["calls"])
        for client in kept:  # the others do not notice
            read_on(client, 20)
        seen(first, "worker_started", WORKERS + 1)
        all_known([first, second], 2 * WORKERS)
        more = streams(first, died["calls"], "more")  # what it held can be used again
        running(engine, 16)
        assert first.metrics()["hangup_worker_restarts_total"] == 1
        assert engine.stats()["aborted"] == died["calls"], "no innocent call was aborted"
        close(*kept, *began, *more)
        never_too_many(engine, SLOTS)


def test_without_the_store_a_host_shows_the_calls_of_its_own_workers() -> None:
    with engine_and_store() as (engine, store), hosts_at(store, engine) as (first, second):
        began = [*streams(first, 6, "first"), *streams(second, 2, "second")]
        for client in began:
            read_on(client, 20)
        store.stop()
        seen(first, "shared_state_lost", WORKERS)
        wait_until(lambda: shown(first) == [f"first-{n}" for n in range(6)], what="the calls of both workers")
        silent = get_json(f"{first.admin_url}/api/calls")["gateways_silent"]
        others = {row["gateway"] for row in events(second, "shared_state_found")}
        assert set(silent) == others, "those of the other host, and nobody who answered"
        admin(first, "DELETE", "/api/calls/first-2")
        running(engine, 7)
        store.start()
        wait_until(lambda: len(shown(first)) == 7 and shown(first) == shown(second), what="all calls again")
        close(*began)


def test_workers_that_start_without_the_store_share_the_part_of_a_host() -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    with StandIn(slots=64, token_s=0.01, answer_tokens=30_000) as engine:
        alone: dict[str, Any] = {"slots": SLOTS, "workers": WORKERS, "shared_state": url, "shared_state_alone_share": 0.5}
        with Gateway(engine.url, **alone) as host:
            began = streams(host, 2 * SLOTS)
            running(engine, SLOTS // 2)
            assert host.metrics()["hangup_shared_state_failing"] == 1
            never_too_many(engine, SLOTS // 2)
            close(*began)


def test_a_worker_is_replaced_while_the_store_is_away_also_where_a_start_needs_it() -> None:
    with engine_and_store() as (engine, store), hosts_at(store, engine, 1, shared_state_required=True) as (host,):
        store.stop()
        seen(host, "shared_state_lost", WORKERS)
        os.kill(workers_of(host)[0], signal.SIGKILL)
        seen(host, "worker_started", WORKERS + 1)
        assert not events(host, "worker_failed")
        with Client(host.address) as client:
            client.chat(max_tokens=3)
            assert client.read_answer().status == 200


def test_workers_are_replaced_one_after_another_without_a_refused_call() -> None:
    first_port = free_port()
    with engine_and_store() as (engine, store), hosts_at(store, engine, peer_port=first_port, drain_s=5) as (first, second):
        long = streams(second, 2, "long")
        with Load([first]) as load:
            before = set(workers_of(first))
            first.signal(signal.SIGUSR2)
            seen(first, "workers_rolled")
            load.wait_for_more()
        assert not load.bad
        wait_until(lambda: not before & set(workers_of(first)), what="the old workers to end")
        all_known([first, second], 2 * WORKERS)
        for client in long:
            read_on(client, 20)
        close(*long)
        never_too_many(engine, SLOTS)


def test_a_worker_and_its_successor_have_ports_of_their_own() -> None:
    assert peer_ports(0, 1, 4) == [0]
    ports = [port for slot in range(4) for port in peer_ports(7000, slot, 4)]
    assert sorted(ports) == list(range(7000, 7008))


def test_a_port_that_is_taken_or_does_not_exist_is_no_fault_of_the_gateway() -> None:
    async def run() -> None:
        first, second, third = LifePort("first"), LifePort("second"), LifePort("third")
        _, taken = await first.open("127.0.0.1", [0])
        other = free_port()
        assert await second.open("127.0.0.1", [taken, other]) == ("127.0.0.1", other)
        with pytest.raises(OSError, match="address already in use"):
            await third.open("127.0.0.1", [taken, other])
        with pytest.raises(OverflowError):  # `StoreLink` logs both
            await third.open("127.0.0.1", [70_000])
        for port in (first, second, third):
            port.close()

    asyncio.run(run())


def test_a_worker_that_hangs_is_named_and_the_others_answer() -> None:
    with engine_and_store() as (engine, store), hosts_at(store, engine, worker_silence_s=300, gateway_silence_s=300) as hosts:
        first, second = hosts
        began = streams(first, 8)
        for client in began:
            read_on(client, 5)
        victim = workers_of(first)[0]
        os.kill(victim, signal.SIGSTOP)
        for host in hosts:
            wait_until(partial(silent_at, host), what="the silent one to be named")
            (silent,) = silent_at(host)
            assert f"-{victim}-" in silent
        os.kill(victim, signal.SIGCONT)
        wait_until(lambda: len(shown(first)) == len(shown(second)) == 8, what="its calls to be shown again")
        close(*began)


def test_a_quota_is_one_for_the_workers_of_all_hosts_also_after_a_reload() -> None:
    key = "k" * 20
    tenant = f'[[tenant]]\nname = "a"\nkey_sha256 = ["{hashlib.sha256(key.encode()).hexdigest()}"]\nconcurrency_max = '
    with engine_and_store() as (engine, store), contextlib.ExitStack() as stack:
        config = f'shared_state = "{store.url}"\nworkers = 2\n[[backend]]\nurl = "{engine.url}"\nslots = 32\n{tenant}'
        hosts = [stack.enter_context(Gateway(config=f"{config}4\n")) for _ in range(2)]
        all_known(hosts, 4)

        def answers(count: int) -> list[int]:
            clients = [Client(hosts[n % 2].address) for n in range(count)]
            for client in clients:
                client.chat({"Authorization": f"Bearer {key}"}, stream=True, max_tokens=LONG)
            found = sorted(client.read_head()[0] for client in clients)
            close(*clients)
            engine.wait_idle()
            return found

        assert answers(12) == [200] * 4 + [429] * 8
        for host in hosts:
            assert host.config_path is not None
            host.config_path.write_text(f"{config}6\n")
            host.signal(signal.SIGHUP)
            seen(host, "config_reloaded", WORKERS)
        wait_until(lambda: answers(12) == [200] * 6 + [429] * 6, what="the new quota")
        assert engine.stats()["running_peak"] == 6
