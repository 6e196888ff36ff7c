"""Engines that hangup runs itself, with several workers: the supervisor owns them, and the workers share them."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
from pathlib import Path
from typing import Any

from support.linux import proc
from support.processes import HANGUP, Gateway, get_json, reserved_port
from support.raw import Client
from support.waiting import wait_until

STANDIN = shlex.join([*HANGUP, "standin", "--port", "{port}"])
QUICK: dict[str, Any] = {"release_grace_s": 0.5, "prefill_grace_s": 0.5, "abort_backoff_s": 0.1, "health_interval_s": 0.5}


def events(gateway: Gateway, event: str) -> list[dict[str, Any]]:
    return [row for row in gateway.log() if row.get("event") == event]


def workers_of(gateway: Gateway) -> list[int]:
    return [row["pid"] for row in events(gateway, "worker_started")]


def answers(gateway: Gateway) -> bool:
    """Return whether a call over a new connection is served; workers may not know yet that an engine is back, or just die."""
    with contextlib.suppress(OSError, AssertionError), Client(gateway.address) as client:
        client.chat(max_tokens=2)
        return client.read_answer().status == 200
    return False


def is_gone(pid: int) -> bool:
    return not proc(pid, "stat").exists() or proc(pid, "stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_the_embedded_engine_serves_all_workers_and_outlives_each() -> None:
    with Gateway(workers=2, jobs="none") as gateway:
        assert answers(gateway), "from the first moment on"
        wait_until(lambda: len(workers_of(gateway)) == 2, what="both workers")
        (engine,) = [row["pid"] for row in events(gateway, "engine_spawned")]
        backends = get_json(f"{gateway.admin_url}/api/backends")["backends"]
        assert [(row["name"], row["engine"]) for row in backends] == [("embedded", "hangup")]
        with Client(gateway.address) as client:
            client.chat(stream=True, max_tokens=4000)
            client.read_until(b"data: ")
            for pid in workers_of(gateway)[:2]:
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: len(workers_of(gateway)) == 4, what="two other workers")
            wait_until(lambda: answers(gateway), what="an answer by another worker")
        assert len(events(gateway, "engine_spawned")) == 1 and not is_gone(engine)
        os.kill(engine, signal.SIGKILL)
        wait_until(lambda: len(events(gateway, "engine_spawned")) == 2, what="another engine")
        wait_until(lambda: answers(gateway), what="an answer by the other engine")
        last = events(gateway, "engine_spawned")[1]["pid"]
        gateway.signal(signal.SIGTERM)
        assert gateway.wait() == 0
        assert is_gone(last)


def test_the_leader_has_a_stuck_engine_restarted(tmp_path: Path) -> None:
    """The next leader does so as well, after the first one was killed."""
    command = f"{STANDIN} --like llamacpp --wedge --token-s 0.01 --slots 2 --answer-tokens 500"
    config = f'[[backend]]\nurl = "http://127.0.0.1:PORT"\nname = "own"\nspawn = "{command}"\nspawn_log = "{tmp_path}/log"\n'
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        settings: dict[str, Any] = {"workers": 2, "jobs": "none", **QUICK}
        gateway = stack.enter_context(Gateway(config=config.replace("PORT", str(port)), **settings))
        for turn in (1, 2):
            wait_until(lambda: answers(gateway), what="an answer")
            wait_until(lambda: gateway.ready() == 200, what="readiness")
            with Client(gateway.address) as client:
                client.chat(stream=True)
                client.read_until(b"data: ")
            steps = [f"{name}" for name in ("quarantined", "restarting", "canary", "healthy")]
            wait_until(
                lambda steps=steps, turn=turn: (
                    [  # type: ignore[misc]
                        row["step"] for row in events(gateway, "ladder_step_taken") if row["step"] in steps
                    ]
                    == steps * turn
                ),
                what="a restart and the way back",
            )
            assert len(events(gateway, "engine_spawned")) == 1 + turn
            leader = events(gateway, "worker_leads")[-1]["pid"]
            os.kill(leader, signal.SIGKILL)
            wait_until(lambda leader=leader: events(gateway, "worker_leads")[-1]["pid"] != leader, what="another leader")  # type: ignore[misc]
        wait_until(lambda: answers(gateway), what="an answer")
        pids = [row["pid"] for row in events(gateway, "engine_spawned")]
        gateway.popen.kill()  # nobody can stop the engine: the kernel does
        wait_until(lambda: all(map(is_gone, pids)), what="the end of all engines")


def test_a_reload_starts_and_ends_engines() -> None:
    command = f"{STANDIN} --slots 4 --answer-tokens 5000 --token-s 0.02"
    with reserved_port() as first, reserved_port() as second:
        backend = '[[backend]]\nurl = "http://127.0.0.1:{}"\nname = "{}"\nspawn = "{}"\n'
        one, two = (backend.format(port, name, command) for port, name in ((first, "one"), (second, "two")))
        with Gateway(config=one, workers=2, jobs="none") as gateway:
            wait_until(lambda: answers(gateway), what="an answer")
            with Client(gateway.address) as client:
                client.chat(stream=True)
                client.read_until(b"data: ")
                assert gateway.config_path is not None
                gateway.config_path.write_text(two)
                gateway.signal(signal.SIGHUP)
                wait_until(lambda: len(events(gateway, "engine_spawned")) == 2, what="the new engine")
                wait_until(lambda: len(events(gateway, "config_reloaded")) == 2, what="the reload of both workers")
                wait_until(lambda: answers(gateway), what="an answer by the new engine")
                old, new = events(gateway, "engine_spawned")
                assert (old["backend"], new["backend"]) == ("one", "two")
                assert client.read_some() and not is_gone(old["pid"]), "its call goes on"
            wait_until(lambda: is_gone(old["pid"]), what="the end of the old engine")
            assert not is_gone(new["pid"])
