"""Several workers and one engine: one worker judges it for all, by counts that include everybody's calls."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.test_workers import Load, Streams, admin, events, started, workers_of
from support.processes import Gateway, StandIn, get_json
from support.raw import Client
from support.waiting import wait_until

QUICK: dict[str, Any] = {
    "release_grace_s": 0.5,
    "prefill_grace_s": 0.5,
    "abort_backoff_s": 0.1,
    "abort_again_max": 2,
    "health_interval_s": 0.5,
}
ALARM: dict[str, Any] = {"counters_interval_s": 0.2, "divergence_window_s": 1, "divergence_hold_s": 1}
SLOW: dict[str, Any] = {"slots": 64, "prefill_s": 0.01, "token_s": 0.02, "answer_tokens": 30_000}
STREAMS = 12  # the kernel spreads them over both workers


def steps(gateway: Gateway) -> list[str]:
    return [row["step"] for row in events(gateway, "ladder_step_taken")]


def leader_of(gateway: Gateway) -> int:
    """Return the pid of the worker that judges the engines."""
    return int(wait_until(lambda: events(gateway, "worker_leads"))[-1]["pid"])


def sum_of(gateway: Gateway, metric: str, **labels: str) -> float:
    wanted = [f'{name}="{value}"' for name, value in labels.items()]
    found = gateway.metrics().items()
    return sum(n for name, n in found if name.split("{")[0] == metric and all(part in name for part in wanted))


def computed(gateway: Gateway, backend: str) -> int:
    engines = get_json(f"{gateway.admin_url}/api/report")["engines"]
    return int(engines[backend]["computed"]) if backend in engines else 0


@contextlib.contextmanager
def two_backends(gateway_settings: dict[str, Any], command: str = "") -> Iterator[tuple[StandIn, Gateway]]:
    """A deaf engine with calls of both workers, and a good one for everybody else."""
    with StandIn(deaf=True, **SLOW) as deaf, StandIn(**SLOW) as good:
        config = f'[[backend]]\nurl = "{deaf.url}"\nname = "deaf"\nrestart_command = """{command}"""\n'
        config += f'[[backend]]\nurl = "{good.url}"\nname = "good"\n'
        with Gateway(config=config, workers=2, **gateway_settings) as gateway:
            started(gateway, 2)
            known = lambda: sum("recognised" in str(row.get("change")) for row in gateway.log()) >= 4  # noqa: E731
            wait_until(known, what="both workers to know both engines")
            admin(gateway, "PUT", "/api/backends/good/drain")
            streams = Streams(gateway, STREAMS)
            wait_until(lambda: deaf.stats()["running"] == STREAMS)
            admin(gateway, "DELETE", "/api/backends/good/drain")
            streams.close()
            yield deaf, gateway


def test_zombies_of_all_workers_are_found_and_the_ladder_is_climbed_once() -> None:
    with two_backends(QUICK | ALARM) as (deaf, gateway), Load(gateway) as load:
        wait_until(lambda: "quarantined" in steps(gateway), what="the quarantine")
        load.wait_for_more()
        found = [row["id"] for row in events(gateway, "zombie_found")]
        assert sorted(found) == sorted(f"stream-{number}" for number in range(STREAMS))
        assert Counter(steps(gateway)) == {"degraded": 1, "abort": 2 * STREAMS, "quarantined": 1}
        assert deaf.stats()["abort_requests"] == 3 * STREAMS, "when the calls ended, and twice more"
        (backend,) = (b for b in get_json(f"{gateway.admin_url}/api/backends")["backends"] if b["name"] == "deaf")
        assert backend["ladder"] == "quarantined" and len(backend["zombies"]) == STREAMS
        assert sum_of(gateway, "hangup_zombies", backend="deaf") == STREAMS
        told = [get_json(f"{gateway.admin_url}/api/calls/stream-{number}") for number in range(STREAMS)]
        assert {row["release"] for row in told} == {"zombie"}, "the worker that had the call knows it, too"
        raised = wait_until(lambda: events(gateway, "divergence_alarm_changed"), what="the alarm")
        assert [(row["backend"], row["state"]) for row in raised] == [("deaf", "raised")]
        assert {row["id"] for row in raised[0]["suspects"]["calls"]} <= set(found)
        wait_until(lambda: computed(gateway, "deaf") > 100, what="what the engine computed, in the report")
    assert set(load.outcomes) == {"200"}


@pytest.mark.parametrize("kill_at", ["abort", "restarting"])
def test_if_the_worker_that_judges_dies_the_next_one_goes_on(kill_at: str, tmp_path: Path) -> None:
    """No step is taken twice, and the restart is done once, also if its worker dies during it."""
    ran = tmp_path / "ran"
    script = tmp_path / "restart.py"
    script.write_text(f"import time\nopen({str(ran)!r}, 'a').write('x')\ntime.sleep({60 if kill_at == 'restarting' else 0})\n")
    settings = QUICK | {"abort_backoff_s": 1.0 if kill_at == "abort" else 0.1}
    with contextlib.ExitStack() as stack:
        deaf, gateway = stack.enter_context(two_backends(settings, f"{sys.executable} {script}"))
        leader = leader_of(gateway)
        if kill_at == "restarting":
            wait_until(ran.exists, what="the restart")
            deaf.popen.kill()
            stack.enter_context(StandIn(port=deaf.port, **SLOW))  # it has worked: the zombies are gone
        else:
            wait_until(lambda: kill_at in steps(gateway))
        os.kill(leader, signal.SIGKILL)  # at once: it must not be done before
        load = stack.enter_context(Load(gateway, 1))
        wait_until(lambda: "healthy" in steps(gateway), what="the way back")
        assert leader_of(gateway) != leader
        taken = Counter(steps(gateway))
        assert taken["abort"] <= 2 * STREAMS and taken["degraded"] == 1 and taken["restarting"] == 1
        assert taken["quarantined"] == (2 if kill_at == "restarting" else 1), "a restart without a result is not a success"
        assert ran.read_text() == "x"
        found = [row["id"] for row in events(gateway, "zombie_found")]
        assert found and len(set(found)) == len(found) <= STREAMS, "each is named once"
        load.wait_for_more()
    assert load.outcomes["200"] > 10


@pytest.mark.parametrize("engine_settings", [{}, {"like": "vllm"}])
def test_a_healthy_engine_is_never_suspected(engine_settings: dict[str, Any]) -> None:
    """Calls come, end and are left in both workers; stops are verified by the engine's counts."""
    with StandIn(**SLOW, **engine_settings) as engine, Gateway(engine.url, workers=2, release_grace_s=1, **ALARM) as gateway:
        started(gateway, 2)
        with Load(gateway, 3):
            for _ in range(6):
                streams = Streams(gateway, STREAMS)
                streams.close()
        wait_until(lambda: not sum_of(gateway, "hangup_pending_stops"), what="all stops")
        wait_until(lambda: sum_of(gateway, "hangup_releases_total") >= 6 * STREAMS, what="the metrics")
        assert engine.stats()["running"] == 0
        verified, released = (sum_of(gateway, "hangup_releases_total", **by) for by in ({"result": "verified"}, {}))
        assert verified >= 0.8 * released, "on a slow machine, calls that start while the engine is asked may leave a doubt"
        for event in ("zombie_found", "orphans_found", "ladder_step_taken", "divergence_alarm_changed"):
            assert not events(gateway, event)


def test_calls_of_a_dead_worker_are_verified_by_counts() -> None:
    with StandIn(deaf_to="stream", **SLOW) as engine, Gateway(engine.url, workers=2, **QUICK) as gateway:
        started(gateway, 2)
        streams = Streams(gateway, STREAMS)
        for client in streams.clients:  # its worker has reported it
            for _ in range(30):
                client.read_until(b"\n\n")
        victim = next(pid for pid in workers_of(gateway) if pid != leader_of(gateway))
        os.kill(victim, signal.SIGKILL)
        (died,) = wait_until(lambda: events(gateway, "worker_died"))
        assert 0 < died["calls"] < STREAMS
        wait_until(lambda: engine.stats()["running"] == STREAMS - died["calls"], what="the end of its calls")
        wait_until(lambda: sum_of(gateway, "hangup_releases_total", result="verified") == died["calls"], what="the proof")
        assert not events(gateway, "zombie_found") and not steps(gateway)
        streams.close()


def test_a_stopped_worker_means_no_verdict() -> None:
    """Its calls are in the engine, and nobody can say how many: nobody is convicted, and its return changes nothing."""
    with StandIn(**SLOW) as engine, Gateway(engine.url, workers=2, worker_silence_s=60, **QUICK) as gateway:
        started(gateway, 2)
        streams = Streams(gateway, STREAMS)
        stopped = next(pid for pid in workers_of(gateway) if pid != leader_of(gateway))
        os.kill(stopped, signal.SIGSTOP)
        for client in streams.clients[: STREAMS // 2]:
            client.sock.close()
        wait_until(lambda: engine.stats()["running"] < STREAMS, what="those of the other worker to end")
        with Load(gateway, 1) as load:
            load.wait_for_more(40)  # several grace periods
        assert set(load.outcomes) == {"200"} and not events(gateway, "zombie_found")
        os.kill(stopped, signal.SIGCONT)
        wait_until(lambda: engine.stats()["running"] == STREAMS // 2, what="the rest")
        wait_until(lambda: not sum_of(gateway, "hangup_pending_stops"), what="all stops")
        assert not events(gateway, "zombie_found") and not steps(gateway)
        streams.close()


def test_orphans_are_counted_beside_the_calls_of_all_workers() -> None:
    with StandIn(**SLOW) as engine, Gateway(engine.url, workers=2, **QUICK) as gateway:
        started(gateway, 2)
        (backend,) = get_json(f"{gateway.admin_url}/api/backends")["backends"]
        streams = Streams(gateway, STREAMS)
        with Client(("127.0.0.1", engine.port)) as other:
            other.chat(stream=True)
            other.read_until(b"data:")
            wait_until(lambda: sum_of(gateway, "hangup_orphans") == 1, what="the orphan")
            found = get_json(f"{gateway.admin_url}/api/backends/{backend['name']}/orphans")
            assert found["orphans"] == 1 and found["shared"] is False
        wait_until(lambda: sum_of(gateway, "hangup_orphans") == 0, what="its end")
        assert engine.stats()["running"] == STREAMS
        streams.close()
