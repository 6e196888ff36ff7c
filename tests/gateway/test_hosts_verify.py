"""Several gateways on one store and one engine: one of them judges it for all, by counts that include everybody's calls."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.test_hosts import Load, close, events, read_on, running, seen, streams
from gateway.test_workers import admin
from gateway.test_workers_verify import ALARM, QUICK, SLOW, computed, sum_of
from support.processes import Gateway, StandIn, get_json
from support.raw import Client
from support.redis_server import RedisServer, Wire, require_redis
from support.waiting import wait_until

EACH = 5  # streams through each gateway
RESTART = """import os, socket, time
open({ran!r}, "a").write("x")
os.kill({pid}, 9)
for _ in range(600):
    try:
        socket.create_connection(("127.0.0.1", {port}), 1).close()
        break
    except OSError:
        time.sleep(0.1)
"""  # kills the engine, and waits until somebody has started it again


@pytest.fixture(scope="module", autouse=True)
def _needs_redis() -> None:
    require_redis()


def of_all(gateways: list[Gateway], event: str) -> list[dict[str, Any]]:
    return [row for gateway in gateways for row in events(gateway, event)]


def steps(gateways: list[Gateway]) -> Counter[str]:
    return Counter(row["step"] for row in of_all(gateways, "ladder_step_taken"))


def all_known(gateways: list[Gateway]) -> None:
    wait_until(lambda: all(g.metrics()["hangup_gateways"] == len(gateways) for g in gateways), what="all gateways to be known")


def judge_of(gateways: list[Gateway]) -> Gateway:
    """Return the gateway that judges the engines."""
    wait_until(lambda: any(events(gateway, "gateway_leads") for gateway in gateways))
    terms = {max((row["term"] for row in events(g, "gateway_leads")), default=0): g for g in gateways}
    return terms[max(terms)]


@contextlib.contextmanager
def gateways_at(store: RedisServer, engine: StandIn, count: int, **settings: Any) -> Iterator[list[Gateway]]:
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(Gateway(engine.url, shared_state=store.url, **settings)) for _ in range(count)]
        all_known(found)
        yield found


@contextlib.contextmanager
def deaf_engine(settings: dict[str, Any], command: str = "") -> Iterator[tuple[StandIn, list[Gateway]]]:
    """A deaf engine with ended calls of both gateways, and a good one for everybody else."""
    with StandIn(deaf=True, **SLOW) as deaf, StandIn(**SLOW) as good, RedisServer() as store, contextlib.ExitStack() as stack:
        config = f'shared_state = "{store.url}"\n[[backend]]\nurl = "{deaf.url}"\nname = "deaf"\nslots = 64\n'
        config += f'restart_command = """{command}"""\n[[backend]]\nurl = "{good.url}"\nname = "good"\nslots = 64\n'
        gateways = [stack.enter_context(Gateway(config=config, **settings)) for _ in range(2)]
        all_known(gateways)
        clients: list[Client] = []
        for number, gateway in enumerate(gateways):
            recognised = lambda g=gateway: sum("recognised" in str(row.get("change")) for row in g.log()) >= 2  # noqa: E731
            wait_until(recognised, what="both engines to be known")
            admin(gateway, "PUT", "/api/backends/good/drain")
            clients += streams(gateway, EACH, f"of-{number}")
        running(deaf, 2 * EACH)
        for gateway in gateways:
            admin(gateway, "DELETE", "/api/backends/good/drain")
        close(*clients)
        yield deaf, gateways


def test_zombies_of_all_gateways_are_found_and_the_ladder_is_climbed_once() -> None:
    with deaf_engine(QUICK | ALARM) as (deaf, gateways), Load(gateways, 1) as load:
        wait_until(lambda: steps(gateways)["quarantined"], what="the quarantine")
        load.wait_for_more()
        found = [row["id"] for row in of_all(gateways, "zombie_found")]
        assert sorted(found) == sorted(f"of-{number}-{n}" for number in range(2) for n in range(EACH))
        taken = steps(gateways)
        assert taken == {"degraded": 1, "abort": taken["abort"], "quarantined": 1}
        assert 2 * EACH <= taken["abort"] <= 4 * EACH, "twice, or once if it was named later than others"
        assert deaf.stats()["abort_requests"] == 2 * EACH + taken["abort"]
        for number, gateway in enumerate(gateways):  # the gateway that had the call knows it, too, and neither uses the engine
            told = lambda g=gateway, n=number: {get_json(f"{g.admin_url}/api/calls/of-{n}-{i}")["release"] for i in range(EACH)}  # noqa: E731
            wait_until(lambda t=told: t() == {"zombie"}, what="its zombies")  # type: ignore[misc]
            wait_until(lambda g=gateway: sum_of(g, "hangup_backend_quarantined", backend="deaf") == 1)  # type: ignore[misc]
        raised = wait_until(lambda: of_all(gateways, "divergence_alarm_changed"), what="the alarm")
        assert [(row["backend"], row["state"]) for row in raised] == [("deaf", "raised")]
        wait_until(lambda: computed(judge_of(gateways), "deaf") > 100, what="what the engine computed, in the report")
    assert load.bad == []


@pytest.mark.parametrize("kill_at", ["abort", "restarting"])
def test_if_the_gateway_that_judges_dies_the_next_one_goes_on(kill_at: str, tmp_path: Path) -> None:
    """No step is taken twice, and the restart is done once, also if its gateway dies during it."""
    ran = tmp_path / "ran"
    script = tmp_path / "restart.py"
    script.write_text(f"import time\nopen({str(ran)!r}, 'a').write('x')\ntime.sleep({60 if kill_at == 'restarting' else 0})\n")
    settings = QUICK | {"abort_backoff_s": 1.0 if kill_at == "abort" else 0.1}
    with contextlib.ExitStack() as stack:
        deaf, gateways = stack.enter_context(deaf_engine(settings, f"{sys.executable} {script}"))
        leader = judge_of(gateways)
        (other,) = (gateway for gateway in gateways if gateway is not leader)
        if kill_at == "restarting":
            wait_until(ran.exists, what="the restart")
            deaf.popen.kill()
            stack.enter_context(StandIn(port=deaf.port, **SLOW))  # it has worked: the zombies are gone
        else:
            wait_until(lambda: steps(gateways)[kill_at])
        leader.popen.send_signal(signal.SIGKILL)  # at once: it must not be done before
        load = stack.enter_context(Load([other], 1))
        wait_until(lambda: steps(gateways)["healthy"], what="the way back")
        taken, led = steps(gateways), len(of_all(gateways, "gateway_leads"))
        assert judge_of(gateways) is other and taken["degraded"] == 1 and taken["abort"] <= 4 * EACH
        again = led - 2  # on a slow machine, the lead may change before or after that
        assert 1 <= taken["restarting"] <= 1 + again and len(ran.read_text()) <= 1 + again
        quarantined = 2 if kill_at == "restarting" else 1  # a restart without a result is not a success
        assert quarantined - again <= taken["quarantined"] <= quarantined + again
        found = [row["id"] for row in of_all(gateways, "zombie_found")]
        assert found and len(set(found)) == len(found), "each is named once"
        load.wait_for_more()
    assert len(load.bad) <= 1, "the restart may take one away from the engine"


def test_a_judge_that_is_stopped_and_wakes_up_does_nothing_twice(tmp_path: Path) -> None:
    """It is given up in the middle of a ladder, the next one goes on, and the steps that it still wants to take are refused."""
    ran = tmp_path / "ran"
    script = tmp_path / "restart.py"
    settings = QUICK | {"abort_backoff_s": 1.0, "gateway_silence_s": 1}
    with contextlib.ExitStack() as stack:
        deaf, gateways = stack.enter_context(deaf_engine(settings, f"{sys.executable} {script}"))
        script.write_text(RESTART.format(pid=deaf.popen.pid, port=deaf.port, ran=str(ran)))
        leader = judge_of(gateways)
        (other,) = (gateway for gateway in gateways if gateway is not leader)
        wait_until(lambda: steps(gateways)["abort"])
        leader.popen.send_signal(signal.SIGSTOP)  # in the pause before the next aborts
        before = steps([leader])
        wait_until(ran.exists, what="the restart")
        deaf.popen.wait(60)
        engine = stack.enter_context(StandIn(port=deaf.port, **SLOW))
        wait_until(lambda: steps([other])["healthy"], what="the way back")
        assert events(other, "gateway_died")
        leader.popen.send_signal(signal.SIGCONT)
        all_known(gateways)
        with Load(gateways, 1) as load:
            load.wait_for_more()
        assert load.bad == [] and judge_of(gateways) is other
        assert not {"quarantined", "restarting", "healthy"} & (steps([leader]) - before).keys()
        taken = steps(gateways)
        assert taken["degraded"] == taken["quarantined"] == taken["restarting"] == 1 and ran.read_text() == "x"
        assert engine.stats()["aborted"] == 0


@pytest.mark.parametrize("like", ["", "vllm"])
def test_a_healthy_engine_is_never_suspected(like: str) -> None:
    """Calls come, end and are left in three gateways; stops are verified by the engine's counts."""
    engine_settings = SLOW | ({"like": like} if like else {})
    with (
        StandIn(**engine_settings) as engine,
        RedisServer() as store,
        gateways_at(store, engine, 3, slots=64, release_grace_s=1, **ALARM) as gateways,
    ):
        with Load(gateways, 1) as load:
            for turn in range(4):
                clients = [client for g in gateways for client in streams(g, EACH, f"turn-{turn}")]
                for client in clients[turn % 2 :: 2]:
                    read_on(client, 3)
                close(*clients)
        assert load.bad == []
        wait_until(lambda: not sum(sum_of(g, "hangup_pending_stops") for g in gateways), what="all stops")
        judge = judge_of(gateways)
        verified, released = (sum_of(judge, "hangup_releases_total", **by) for by in ({"result": "verified"}, {}))
        assert released >= 12 * EACH and verified >= 0.8 * released, "a slow machine may leave a doubt"
        assert engine.stats()["running"] == 0
        for event in ("zombie_found", "orphans_found", "ladder_step_taken", "divergence_alarm_changed", "gateway_died"):
            assert not of_all(gateways, event)


@pytest.mark.parametrize("victim", ["the leader", "another"])
def test_calls_of_a_dead_gateway_are_named_aborted_and_verified(victim: str) -> None:
    with (
        StandIn(deaf_to="stream", **SLOW) as engine,
        RedisServer() as store,
        gateways_at(store, engine, 2, slots=64, **QUICK) as gateways,
    ):
        leader = judge_of(gateways)
        (other,) = (gateway for gateway in gateways if gateway is not leader)
        killed, alive = (leader, other) if victim == "the leader" else (other, leader)
        kept, lost = streams(alive, EACH, "kept"), streams(killed, EACH, "lost")
        for client in (*kept, *lost):
            read_on(client, 30)  # its gateway has reported it
        name = events(killed, "shared_state_found")[0]["gateway"]
        killed.popen.send_signal(signal.SIGKILL)
        stopped = seen(alive, "left_call_stopped", EACH)
        assert {row["id"] for row in stopped} == {f"lost-{n}" for n in range(EACH)}
        assert {row["gateway"] for row in stopped} == {name}
        running(engine, EACH)
        wait_until(lambda: sum_of(alive, "hangup_releases_total", result="verified") == EACH, what="the proof")
        for client in kept:
            read_on(client, 30)
        assert engine.stats()["aborted"] == EACH, "no innocent call was aborted"
        assert not events(alive, "zombie_found") and not steps(gateways)
        close(*kept, *lost)


def test_a_stopped_gateway_means_no_verdict() -> None:
    """Its calls are in the engine, and nobody can say how many: nobody is convicted, and its return changes nothing."""
    with (
        StandIn(**SLOW) as engine,
        RedisServer() as store,
        gateways_at(store, engine, 2, slots=64, gateway_silence_s=300, **QUICK) as gateways,
    ):
        leader = judge_of(gateways)
        (other,) = (gateway for gateway in gateways if gateway is not leader)
        mine, others = streams(leader, EACH, "mine"), streams(other, EACH, "others")
        for client in (*mine, *others):
            read_on(client, 5)
        other.popen.send_signal(signal.SIGSTOP)
        close(*mine)
        running(engine, EACH)
        with Load([leader], 1) as load:
            load.wait_for_more(40)  # several grace periods
        assert load.bad == [] and not of_all(gateways, "zombie_found")
        other.popen.send_signal(signal.SIGCONT)
        wait_until(lambda: not sum(sum_of(g, "hangup_pending_stops") for g in gateways), what="all stops")
        assert not of_all(gateways, "zombie_found") and not steps(gateways)
        close(*others)


def test_without_the_store_hang_ups_keep_no_places_and_with_it_zombies_are_found_again() -> None:
    with (
        StandIn(deaf_to="stream", **SLOW) as engine,
        RedisServer() as store,
        gateways_at(store, engine, 2, slots=8, **QUICK) as gateways,
    ):
        store.stop()
        for gateway in gateways:
            seen(gateway, "shared_state_lost")
        with Load(gateways, 1) as load:  # more hang-ups than there are places, beside calls that must go on
            for turn in range(4):
                clients = [client for g in gateways for client in streams(g, 4, f"turn-{turn}")]
                for client in clients:
                    client.read_head()
                close(*clients)
            load.wait_for_more()
        assert load.bad == [] and not of_all(gateways, "zombie_found") and not steps(gateways)
        store.start()
        for gateway in gateways:  # how many there are is known from before
            seen(gateway, "shared_state_found", 2)
        clients = [client for g in gateways for client in streams(g, 2, "late")]
        for client in clients:
            read_on(client, 5)
        close(*clients)  # it is deaf to hang-ups, and obeys aborts
        wait_until(lambda: sum(sum_of(g, "hangup_releases_total", result="verified") for g in gateways) >= 4, what="proofs")


def test_one_that_is_cut_off_costs_the_others_no_places() -> None:
    """Nobody can count what it has, so the others' ended calls are released without a proof in the end."""
    with StandIn(**SLOW) as engine, RedisServer() as store, Wire(store.port) as wire, contextlib.ExitStack() as stack:
        first = stack.enter_context(Gateway(engine.url, shared_state=store.url, slots=64, **QUICK))
        second = stack.enter_context(Gateway(engine.url, shared_state=wire.url, slots=64, **QUICK))
        all_known([first, second])
        kept = streams(second, 2, "kept")
        for client in kept:
            read_on(client, 5)
        wire.cut()
        wait_until(lambda: is_missed(first), what="its silence")
        clients = streams(first, 4, "left")
        for client in clients:
            read_on(client, 5)
        close(*clients)
        wait_until(lambda: sum_of(first, "hangup_releases_total", result="unverified") >= 4, what="their release")
        assert not of_all([first, second], "zombie_found")
        wire.mend()
        wait_until(lambda: not is_missed(first), what="its return")

        def one_more_is_verified() -> bool:
            (client,) = streams(first, 1, "later")
            read_on(client, 5)
            close(client)
            wait_until(lambda: not sum_of(first, "hangup_pending_stops"), what="its end")
            return sum_of(first, "hangup_releases_total", result="verified") >= 2

        wait_until(one_more_is_verified, what="a proof, with everybody back")
        close(*kept)


def is_missed(witness: Gateway) -> bool:
    """Return whether another gateway is silent now: on a slow machine, one may be silent and back more than once."""
    return len(events(witness, "gateway_silent")) > len(events(witness, "gateway_back"))
