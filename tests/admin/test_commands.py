"""The commands that inspect a running gateway, as a user runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from admin.test_api import live, streaming
from support.processes import Gateway, StandIn, gateway_and_engine, get_json
from support.raw import Client
from support.waiting import wait_until


def hangup(gateway: Gateway | None, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HANGUP_")}
    url = gateway.admin_url if gateway is not None else "http://127.0.0.1:1"
    command = [sys.executable, "-m", "hangup", *arguments, "--admin", url]
    return subprocess.run(command, capture_output=True, text=True, env=clean | (env or {}), timeout=60, check=False)


def as_json(gateway: Gateway, *arguments: str) -> Any:
    done = hangup(gateway, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Gateway, StandIn]]:
    with gateway_and_engine() as made:
        yield made


def test_ps_kill_and_trace(pair: tuple[Gateway, StandIn]) -> None:
    gateway, engine = pair
    with streaming(gateway, "mine"):
        shown = hangup(gateway, "ps").stdout
        assert "mine" in shown and "answering" in shown and shown.startswith("ID")
        assert [row["id"] for row in as_json(gateway, "ps")["calls"]] == ["mine"]
        assert "no live call matches" in hangup(gateway, "ps", "--tenant", "nobody").stdout
        assert as_json(gateway, "kill", "--older-than", "0.001s", "--dry-run")["would_kill"][0]["id"] == "mine"
        assert live(gateway) == ["mine"]
        done = hangup(gateway, "kill", "mine", "gone")
        assert done.returncode == 1
        assert "killed mine: connection cut and abort sent, verified: the engine stopped" in done.stdout
        assert "not live: gone" in done.stdout
        assert engine.stats()["running"] == 0
    traced = hangup(gateway, "trace", "mine").stdout
    assert "first token" in traced and "ended: killed" in traced
    assert as_json(gateway, "trace", "mine")["outcome"] == "killed"
    assert hangup(gateway, "trace", "gone").returncode == 1


def test_kill_wants_to_know_which(pair: tuple[Gateway, StandIn]) -> None:
    for arguments in ([], ["x", "--tenant", "default"], ["--older-than", "soon"]):
        done = hangup(pair[0], "kill", *arguments)
        assert done.returncode == 1 and done.stderr.startswith("hangup: ")


def test_backends_drain_and_undrain(pair: tuple[Gateway, StandIn]) -> None:
    gateway, _ = pair
    wait_until(lambda: as_json(gateway, "backends")["backends"][0]["engine"] == "standin")
    (backend,) = as_json(gateway, "backends")["backends"]
    assert "drained, up" in hangup(gateway, "drain", backend["name"]).stdout
    assert as_json(gateway, "undrain", backend["name"])["backends"][0]["state"] == "up"
    assert "there is no backend nowhere" in hangup(gateway, "drain", "nowhere").stderr


def test_a_backend_that_does_not_answer_has_its_reason() -> None:
    with Gateway("http://127.0.0.1:9", health_interval_s=0.2) as gateway:
        wait_until(lambda: as_json(gateway, "backends")["backends"][0]["fault"], what="the first check")
        shown = hangup(gateway, "backends").stdout
        assert "cannot connect" in shown and " up " not in shown


@pytest.mark.parametrize("command", [["ps"], ["kill", "x"], ["trace", "x"], ["backends"], ["drain", "x"]])
def test_without_a_gateway_it_says_so(command: list[str]) -> None:
    done = hangup(None, *command)
    assert done.returncode == 1
    assert "cannot reach the gateway at http://127.0.0.1:1" in done.stderr and "hint:" in done.stderr
    assert done.stdout == ""


def test_the_token_comes_from_the_environment(engine: StandIn) -> None:
    with Gateway(engine.url, admin_token_env="ADMIN_TOKEN", env={"ADMIN_TOKEN": "s3cret"}) as gateway:
        assert "HANGUP_ADMIN_TOKEN" in hangup(gateway, "ps").stderr
        assert hangup(gateway, "ps", env={"HANGUP_ADMIN_TOKEN": "s3cret"}).stdout == "no live calls\n"


def test_no_name_commands_the_terminal(pair: tuple[Gateway, StandIn]) -> None:
    """Strangers choose model names, so terminals must never execute their control characters."""
    gateway, _ = pair
    name = "m\x1b]0;owned\x07\x1b[2J\r\u009b31m\u202e"
    with Client(gateway.address) as client:
        client.chat(stream=True, max_tokens=20000, ignore_eos=True, model=name)
        client.read_until(b"data:")
        id = get_json(f"{gateway.admin_url}/api/calls")["calls"][0]["id"]
        for arguments in (["ps"], ["trace", id], ["report", "--by", "model"], ["kill", "--model", name, "--dry-run"]):
            shown = hangup(gateway, *arguments).stdout
            assert all(character.isprintable() or character == "\n" for character in shown), arguments
        assert "owned" in hangup(gateway, "ps").stdout
        assert json.loads(hangup(gateway, "ps", "--json").stdout)["calls"][0]["model"] == name
