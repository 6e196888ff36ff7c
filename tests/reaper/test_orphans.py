"""How an operator stops work in an engine that no call of this gateway started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from admin.test_commands import hangup
from gateway.test_reload import reload
from hangup.core.reaper import Means, Orphans
from reaper.test_wedge_traffic import CHAT, LONG, QUICK, SHORT, SLOW, events, known, steps, stream
from support.processes import EngineProcess, Gateway, StandIn
from support.raw import Client, ask
from support.waiting import wait_until


def orphans(gateway: Gateway, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(hangup(gateway, "kill", "--orphans", name, "--dry-run", "--json").stdout)
    return found


@pytest.mark.parametrize(
    ("count", "named", "restart", "closes", "means"),
    [
        (0, True, True, True, Means.NOTHING),
        (2, True, True, True, Means.ABORT),
        (2, False, True, True, Means.RESTART),
        (2, False, False, True, Means.QUARANTINE),
        (2, False, False, False, Means.NOTHING),
    ],
)
def test_the_gentlest_means_is_taken(count: int, named: bool, restart: bool, closes: bool, means: Means) -> None:
    assert Orphans.of(count, named=named, restart=restart, closes=closes) == (count, means)


def test_an_engine_that_names_its_calls_is_told_to_stop_those_that_are_not_ours() -> None:
    with EngineProcess(slots=4) as engine, Gateway(engine.url, **QUICK | {"orphans_s": 0}) as gateway:
        known(gateway)
        (name,) = [row["backend"] for row in events(gateway, "backend_changed") if "recognised" in row["change"]]
        assert "no orphans found" in hangup(gateway, "kill", "--orphans", name).stdout
        request = {"prompt": "ROMEO:", "stream": True, "max_tokens": 1000, "ignore_eos": True, "logprobs": 20}
        with Client(engine.address, receive_buffer=2048) as former, Client(gateway.address, receive_buffer=2048) as mine:
            former.post("/v1/completions", request, {"X-Request-Id": "former"})
            former.read_until(b"data:")  # and no further: so that both run for as long as the test takes
            mine.post("/v1/completions", request, {"X-Request-Id": "mine"})
            mine.read_until(b"data:")
            wait_until(lambda: orphans(gateway, name)["orphans"] == 1, what="the orphan")
            assert orphans(gateway, name)["means"] == "abort" and engine.counters()["running"] == 2
            done = hangup(gateway, "kill", "--orphans", name)
            assert done.returncode == 0 and "1 orphan: abort sent" in done.stdout, done
            wait_until(lambda: engine.counters()["running"] == 1, what="the end of what was nobody's")
            mine.read_until(b"[DONE]")
        assert gateway.call_log("mine")["outcome"] == "completed"
        assert events(gateway, "orphans_kill_requested")[-1]["means"] == "abort" and steps(gateway) == []


def test_any_other_engine_is_restarted_when_our_calls_have_finished(tmp_path: Path) -> None:
    note = tmp_path / "note"
    with StandIn(like="sglang", slots=4, **SLOW) as engine:
        config = f'[[backend]]\nurl = "{engine.url}"\nname = "gpu"\nrestart_command = "/usr/bin/touch {note}"\n'
        with Gateway(config=config, **QUICK | {"orphans_s": 0}) as gateway, Client(("127.0.0.1", engine.port)) as former:
            known(gateway)
            former.chat(stream=True, **LONG)
            mine = stream(gateway, "mine")
            wait_until(lambda: orphans(gateway, "gpu")["orphans"] == 1, what="the orphan")
            assert hangup(gateway, "kill", "--orphans", "gpu").returncode == 0
            wait_until(lambda: "quarantined" in steps(gateway), what="the quarantine")
            for _ in range(20):
                assert mine.read_some()
            assert not note.exists(), "a live call was in it"
            mine.fin()
            wait_until(note.exists, what="the restart")
            assert "operator" in next(
                row["reason"] for row in events(gateway, "ladder_step_taken") if row["step"] == "quarantined"
            )


def test_where_nothing_can_be_done_the_command_says_so() -> None:
    with StandIn(like="vllm", slots=4, **SLOW) as engine:
        config = f'[[backend]]\nurl = "{engine.url}"\nname = "gpu"\n'
        with Gateway(config=config, **QUICK) as gateway, Client(("127.0.0.1", engine.port)) as former:
            known(gateway)
            former.chat(stream=True, **LONG)
            wait_until(lambda: orphans(gateway, "gpu")["orphans"] == 1, what="the orphan")
            done = hangup(gateway, "kill", "--orphans", "gpu")
            assert done.returncode == 1 and "cannot stop them" in done.stdout
            assert ask(gateway.address, CHAT, SHORT).status == 200 and steps(gateway) == []
            assert hangup(gateway, "kill", "--orphans", "none").returncode != 0
            assert "cannot be combined" in hangup(gateway, "kill", "x", "--orphans", "gpu").stderr


def test_calls_of_a_backend_that_a_reload_has_replaced_are_neither_orphans_nor_zombies(tmp_path: Path) -> None:
    """Both backends have calls in one engine, whose figures are of both."""
    note = tmp_path / "note"
    with StandIn(like="sglang", slots=8, prefill_s=0.01, token_s=0.01, answer_tokens=30_000) as engine:
        config = f'[[backend]]\nurl = "{engine.url}"\nname = "NAME"\nrestart_command = "/usr/bin/touch {note}"\n'
        with Gateway(config=config.replace("NAME", "old"), **QUICK | {"orphans_s": 0.1, "prefill_grace_s": 0}) as gateway:
            known(gateway)
            old, leaves_old = stream(gateway, "old"), stream(gateway, "leaves-old")
            reload(gateway, config.replace("NAME", "new"), "config_reloaded")
            new, leaves_new = stream(gateway, "new"), stream(gateway, "leaves-new")
            wait_until(lambda: len(events(gateway, "backend_found")) == 2, what="the new backend's figures")
            leaves_old.fin()
            leaves_new.fin()
            for _ in range(500):  # five seconds of the engine's time
                new.read_until(b"data:")
                old.read_until(b"data:")
            assert gateway.call_log("leaves-old")["release"] == gateway.call_log("leaves-new")["release"] == "verified"
            old.fin()
            assert gateway.call_log("old")["release"] == "verified"
            wait_until(lambda: orphans(gateway, "new")["orphans"] == 0)
            new.fin()
        assert steps(gateway) == [] and not events(gateway, "orphans_found") and not note.exists()
