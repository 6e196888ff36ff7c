"""What a store can do to the gateways that share their state through it, with real servers: none of it may cost a call.

Other gateways have failed in these ways. Who tests ours against each (`h`: `test_hosts.py`, `v`: `test_hosts_verify.py`, `s`:
`test_shared_state.py`, in virtual time):

- A release is lost because the hang-up cancelled it: `h` hang_ups_leave_no_place_behind; 10,000: `bench.hosts hangups`.
- A call's record has a time to live, too short or too long: a_call_of_two_hours here and in `s`.
- A counter falls below zero: `test_allotments.py`, no_place_is_used_twice_and_none_is_lost.
- Without the store there is no limit, or each has all of it: `h` without_the_store, full_store here; `bench.hosts outage`.
- A store that is back brings a herd, or an old value: `h` without_the_store, `s` an_emptied_store, failover here.
- The time of day is in keys: a_clock_that_is_wrong here, `s` no_time_of_day_is_used.
- A standby starts blind: `h` a_newcomer_starts_nothing_beyond.
- A fresh gateway or engine attracts all calls: `h` silent_for_too_long; `test_dns_backends.py`, new_ones_get_a_canary_first.
- Calls of a dead gateway run on: `h` a_killed_gateways_places, `v` named_aborted_and_verified; 50 kills: `bench.hosts kill`.
- Two climb the ladder for one engine: `v` climbed_once, the_next_one_goes_on, stopped_and_wakes_up.
- The store is slow or frozen, or cannot be reached from one gateway: `h` slow_or_frozen, cut_off; `v` one_that_is_cut_off.
- The store cannot be used at the start: `h` what_is_wrong_with_the_store, serves_alone here.

Redis is used, and Valkey in `h` and `test_shared_state_servers.py`. With STORE_TESTS=valkey, all of them use Valkey.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from chaos.clock import Clock
from gateway.test_hosts import (
    SLOTS,
    Load,
    close,
    engine_and_store,
    events,
    gateway_at,
    never_too_many,
    old_server,
    read_on,
    running,
    seen,
    streams,
)
from support.processes import Gateway, StandIn
from support.redis_server import RedisServer, require_redis
from support.waiting import wait_until


@pytest.fixture(scope="module", autouse=True)
def _needs_redis() -> None:
    require_redis()


def failing(gateway: Gateway) -> bool:
    return gateway.metrics()["hangup_shared_state_failing"] == 1


def all_places_can_be_used(engine: StandIn, gateway: Gateway) -> None:
    clients = streams(gateway, SLOTS)
    running(engine, SLOTS)
    close(*clients)
    engine.wait_idle()


@contextlib.contextmanager
def master_and_replica(folder: Path) -> Iterator[tuple[RedisServer, RedisServer, RedisServer]]:
    """Two servers, and a Sentinel that knows both."""
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(RedisServer("--repl-diskless-sync-delay", "0"))
        replica = stack.enter_context(RedisServer("--replicaof", "127.0.0.1", str(master.port)))
        wait_until(lambda: "master_link_status:up" in replica.command("INFO", "replication"), what="the replica")
        watch = folder / "sentinel.conf"
        watch.write_text(
            f"sentinel monitor main 127.0.0.1 {master.port} 1\n"
            "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 5000\n"
        )
        sentinel = stack.enter_context(RedisServer("--sentinel", config=str(watch)))
        wait_until(lambda: str(replica.port) in sentinel.command("SENTINEL", "REPLICAS", "main"), what="its Sentinel")
        yield master, replica, sentinel


def test_a_failover_by_sentinel_costs_no_call(tmp_path: Path) -> None:
    engine = StandIn(slots=64, prefill_s=0.01, token_s=0.03)
    with engine, master_and_replica(tmp_path) as (master, replica, sentinel), contextlib.ExitStack() as stack:
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/main"
        gateways = [stack.enter_context(gateway_at(engine, url)) for _ in range(2)]
        wait_until(lambda: all(g.metrics()["hangup_gateways"] == 2 for g in gateways))
        with Load(gateways, threads=5) as load:
            master.stop()
            wait_until(lambda: all(map(failing, gateways)), what="the loss of the store")
            load.wait_for_more()
            wait_until(lambda: "role:master" in replica.command("INFO", "replication"), what="the failover")
            wait_until(lambda: not any(map(failing, gateways)), what="the new master")
            load.wait_for_more()
            master.start()  # it comes back, empty: nobody writes to it
            load.wait_for_more()
        assert load.bad == []
        assert not any(events(gateway, "gateway_died") for gateway in gateways)
        wait_until(lambda: all(g.metrics()["hangup_gateways"] == 2 for g in gateways))
        never_too_many(engine, SLOTS + 1)  # after 5 s, one gateway may use its part before the other does
        all_places_can_be_used(engine, gateways[0])
        assert not any(map(failing, gateways))


def test_a_full_store_costs_no_call() -> None:
    with engine_and_store("--maxmemory-policy", "noeviction", token_s=0.03) as (engine, store), contextlib.ExitStack() as stack:
        gateways = [stack.enter_context(gateway_at(engine, store.url)) for _ in range(2)]
        wait_until(lambda: all(g.metrics()["hangup_gateways"] == 2 for g in gateways))
        with Load(gateways, threads=5) as load:
            store.command("CONFIG", "SET", "maxmemory", "1")
            for gateway in gateways:
                assert "it is full" in seen(gateway, "shared_state_lost")[0]["error"]
            load.wait_for_more()
            assert all(map(failing, gateways))
            store.command("CONFIG", "SET", "maxmemory", "0")
            wait_until(lambda: not any(map(failing, gateways)), what="the store's return")
            load.wait_for_more()
        assert load.bad == []
        assert not any(events(gateway, "gateway_died") for gateway in gateways)
        never_too_many(engine, SLOTS + 1)  # after 5 s, one gateway may use its part before the other does
        all_places_can_be_used(engine, gateways[1])


def test_a_clock_that_is_wrong_changes_nothing(tmp_path: Path) -> None:
    """One gateway's clock is 90 s ahead, and then 90 s behind: nobody's clock is compared with another's."""
    clock = Clock(tmp_path)
    if not clock.works:
        pytest.skip("needs a C compiler")
    clock.set(90)
    with engine_and_store() as (engine, store), contextlib.ExitStack() as stack:
        right = stack.enter_context(gateway_at(engine, store.url))
        wrong = stack.enter_context(gateway_at(engine, store.url, env=clock.env))
        wait_until(lambda: right.metrics()["hangup_gateways"] == wrong.metrics()["hangup_gateways"] == 2)
        stamps = [seen(gateway, "shared_state_found")[0]["time"] for gateway in (right, wrong)]
        assert (datetime.fromisoformat(stamps[1]) - datetime.fromisoformat(stamps[0])).total_seconds() > 80, "it is wrong"
        with Load([right, wrong], threads=6) as load:
            load.wait_for_more(60)
            clock.set(-90)
            load.wait_for_more(60)
        assert load.bad == []
        never_too_many(engine)
        for gateway in (right, wrong):
            assert not events(gateway, "gateway_died") and not events(gateway, "shared_state_lost")
            all_places_can_be_used(engine, gateway)
        right.popen.kill()  # the leader: the one with the wrong clock goes on
        seen(wrong, "gateway_died")
        all_places_can_be_used(engine, wrong)


def test_a_call_of_two_hours_stays_counted_because_every_snapshot_renews_its_record() -> None:
    """Keys without a living gateway expire after an hour; here they have a second left when the call is an hour old."""
    with engine_and_store() as (engine, store), gateway_at(engine, store.url) as gateway:
        (client,) = streams(gateway, 1)
        read_on(client)
        keys = ["lead", "members", "orders", "calls:" + events(gateway, "shared_state_found")[0]["gateway"]]
        names = [f"hangup:{{hangup}}:{key}" for key in keys]
        for name in names:
            store.command("EXPIRE", name, "1")
        wait_until(lambda: all(int(store.command("TTL", name)[1:]) > 3000 for name in names), what="another hour")
        over = time.monotonic() + 1
        while time.monotonic() < over:
            read_on(client, 10)
        assert "stream-0" in store.command("HKEYS", names[-1])
        assert not events(gateway, "shared_state_lost")
        close(client)


def test_a_gateway_serves_alone_if_the_store_cannot_be_used_at_the_start() -> None:
    """It says why in one line. `test_hosts` has the same with `shared_state_required`: it exits."""
    with (
        engine_and_store("--requirepass", "secret") as (engine, store),
        old_server() as old_port,
        contextlib.ExitStack() as stack,
    ):
        reasons = {
            f"redis://:false@127.0.0.1:{store.port}": "wrong password",
            f"redis://127.0.0.1:{old_port}": "needs Redis 6.0 or newer, or Valkey; this is 5.0.14",
        }
        for url, reason in reasons.items():
            gateway = stack.enter_context(gateway_at(engine, url))
            gateway.find_line(f"cannot use redis://.*{reason}.*; this gateway serves alone until that changes")
            assert sum("cannot use" in line for line in gateway.stderr_lines) == 1
            assert failing(gateway)
            (client,) = streams(gateway, 1)
            read_on(client, 1)
            close(client)
