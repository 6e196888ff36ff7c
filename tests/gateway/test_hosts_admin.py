"""The admin port of one gateway answers for all that share its state: `ps`, `top` and `kill`, asked anywhere."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from gateway.test_hosts import close, read_on, running, streams
from gateway.test_hosts_verify import all_known, gateways_at, judge_of
from gateway.test_workers import admin
from gateway.test_workers_verify import QUICK, SLOW
from support.processes import Gateway, StandIn, get_json
from support.raw import Client
from support.redis_server import RedisServer, require_redis
from support.waiting import wait_until


@pytest.fixture(scope="module", autouse=True)
def _needs_redis() -> None:
    require_redis()


def hangup(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hangup", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_any_gateway_shows_and_ends_the_calls_of_all() -> None:
    with (
        StandIn(**SLOW) as engine,
        RedisServer() as store,
        gateways_at(store, engine, 2, slots=64, gateway_silence_s=300) as gateways,
    ):
        first, second = gateways
        clients = [*streams(first, 2, "first"), *streams(second, 2, "second")]
        for client in clients:
            read_on(client, 3)
        for gateway in gateways:
            found = get_json(f"{gateway.admin_url}/api/calls")
            assert sorted(row["id"] for row in found["calls"]) == ["first-0", "first-1", "second-0", "second-1"]
            assert found["total"] == found["live"] == 4 and "gateways_silent" not in found
            overview = get_json(f"{gateway.admin_url}/api/overview")
            (backend,) = overview["backends"]
            assert overview["live"] == 4 and backend["in_flight"] == 4
            assert get_json(f"{gateway.admin_url}/api/calls/second-1")["id"] == "second-1"
        with pytest.raises(urllib.error.HTTPError) as unknown:
            admin(first, "DELETE", "/api/calls/nobody")
        assert unknown.value.code == 404
        admin(first, "DELETE", "/api/calls/second-0")  # by its id, at the other gateway
        running(engine, 3)
        admin(second, "DELETE", f"/api/calls?backend={backend['name']}")  # and all of them
        running(engine, 0)
        close(*clients)
        more = streams(second, 1, "more")
        read_on(more[0], 3)
        second.popen.send_signal(signal.SIGSTOP)
        name = next(row["gateway"] for row in second.log() if row.get("event") == "shared_state_found")
        shown = wait_until(lambda: get_json(f"{first.admin_url}/api/calls").get("gateways_silent"))
        assert shown == [name], "who does not answer is named"
        for command, status in (("ps", 0), ("backends", 0), ("kill --tenant nobody", 1)):
            done = hangup(*command.split(), "--admin", first.admin_url)
            assert f"1 gateway did not answer: {name}" in done.stderr and done.returncode == status, (command, done)
        with urllib.request.urlopen(f"{first.admin_url}/api/events", timeout=60) as stream:  # for the dashboard
            assert json.loads(stream.readline().removeprefix(b"data: "))["gateways_silent"] == [name]
        admin(first, "DELETE", f"/api/calls?backend={backend['name']}")  # nobody waits for it
        second.popen.send_signal(signal.SIGCONT)
        wait_until(lambda: get_json(f"{first.admin_url}/api/calls")["live"] == 1, what="its calls to be shown again")
        assert engine.stats()["running"] == 1
        close(*more)


def test_without_the_store_a_gateway_shows_its_own_calls_and_says_so() -> None:
    with StandIn(**SLOW) as engine, RedisServer() as store, gateways_at(store, engine, 2, slots=64) as gateways:
        first, second = gateways
        clients = [*streams(first, 1, "first"), *streams(second, 1, "second")]
        for client in clients:
            read_on(client, 3)
        store.stop()
        wait_until(lambda: first.metrics()["hangup_shared_state_failing"] == 1)
        found = get_json(f"{first.admin_url}/api/calls")
        assert [row["id"] for row in found["calls"]] == ["first-0"] and len(found["gateways_silent"]) == 1
        admin(first, "DELETE", "/api/calls/first-0")
        running(engine, 1)
        store.start()
        all_known(gateways)
        wait_until(lambda: get_json(f"{first.admin_url}/api/calls")["live"] == 1, what="the other's call")
        assert get_json(f"{first.admin_url}/api/calls/second-0")["id"] == "second-0"
        close(*clients)


def test_a_backend_is_drained_at_all_gateways_and_at_those_that_start_later() -> None:
    with (
        StandIn(**SLOW) as engine,
        RedisServer() as store,
        gateways_at(store, engine, 2, slots=64) as (first, second),
    ):
        name = f"127.0.0.1:{engine.port}"
        answer = admin(second, "PUT", f"/api/backends/{name}/drain")
        assert [row["drained"] for row in answer["backends"]] == [True] and "gateways_silent" not in answer
        with Gateway(engine.url, shared_state=store.url, slots=64) as third:
            for gateway in (first, second, third):
                assert drained(gateway, name), "also by its own account"
                with Client(gateway.address) as client:
                    client.chat(max_tokens=1)
                    assert client.read_answer().status == 503
            admin(third, "DELETE", f"/api/backends/{name}/drain")
            for gateway in (first, second, third):
                assert not drained(gateway, name)
                with Client(gateway.address) as client:
                    client.chat(max_tokens=1)
                    assert client.read_answer().status == 200
        with pytest.raises(urllib.error.HTTPError) as unknown:
            admin(first, "PUT", "/api/backends/nobody/drain")
        assert unknown.value.code == 404


def drained(gateway: Gateway, backend: str) -> bool:
    return gateway.metrics()[f'hangup_backend_drained{{backend="{backend}"}}'] == 1


def test_orphans_are_shown_and_ended_at_any_gateway() -> None:
    with (
        StandIn(**SLOW) as engine,
        RedisServer() as store,
        gateways_at(store, engine, 2, slots=64, **QUICK) as gateways,
    ):
        leader = judge_of(gateways)
        (other,) = (gateway for gateway in gateways if gateway is not leader)
        with Client(("127.0.0.1", engine.port)) as stranger:  # a call that is nobody's
            stranger.chat(stream=True, max_tokens=30_000)
            running(engine, 1)
            path = f"/api/backends/127.0.0.1:{engine.port}/orphans"
            wait_until(lambda: get_json(f"{leader.admin_url}{path}")["orphans"], what="the orphan")
            assert get_json(f"{other.admin_url}{path}")["orphans"] == get_json(f"{leader.admin_url}{path}")["orphans"]


def test_a_gateway_answers_to_others_only_what_shows_or_ends_calls() -> None:
    with StandIn(**SLOW) as engine, RedisServer() as store, gateways_at(store, engine, 1, slots=64) as (gateway,):
        name = next(row["gateway"] for row in gateway.log() if row.get("event") == "shared_state_found")
        for number, target in enumerate(["PUT /api/backends/x", "GET /metrics", "DELETE /api/jobs", "GET /api/overview"]):
            method, path = target.split()
            entry = f'{{"from":"me","ask":[{number},"{method}","{path}"]}}'
            store.command("RPUSH", f"hangup:{{hangup}}:mail:{name}", entry)
        wait_until(lambda: store.command("LLEN", "hangup:{hangup}:mail:me") == ":4\r\n", what="four answers")
        answers = store.command("LRANGE", "hangup:{hangup}:mail:me", "0", "-1")
        assert answers.count(",403,") == 3 and answers.count(",200,") == 1
