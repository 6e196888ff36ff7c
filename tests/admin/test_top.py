"""`hangup top`: its keys, what it draws, and a whole session in a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from typing import Any

from admin.test_api import live, streaming
from admin.test_commands import as_json, hangup
from hangup.cli.top import TopState, press, screen
from support.processes import Gateway, StandIn

IDS = ["a", "b", "c"]
NAMES = ("tenant", "client", "model", "backend", "slot", "phase", "tokens_in", "tokens_out", "tokens_per_s", "idle_s")
ROW: dict[str, Any] = {**dict.fromkeys((*NAMES, "deadline_left_s", "waits_for")), "age_s": 1.0}


def after(keys: str, state: TopState | None = None) -> TopState:
    state = state or TopState()
    for key in keys:
        state = press(state, key, IDS)
    return state


def test_keys() -> None:
    assert after("jjjj").selected == 2 and after("jk").selected == 0
    assert after("r").sort == "-age" and after("rr").sort == "age" and after("s").sort != "age"
    assert after("jx").awaiting_confirmation == "b"
    assert after("jxy").kill == "b" and after("jxn").kill == "" and after("jxn").awaiting_confirmation == ""
    assert after("/ops\r").tenant == "ops" and after("/ops\r").typing is False
    assert after("/q").quit is False and after("/opx\x7f").tenant == "op"
    assert after("q").quit


def test_the_screen_keeps_to_its_size_and_shows_the_chosen_call() -> None:
    calls = [{**ROW, "id": f"call-{at:03d}" + "x" * 90} for at in range(100)]
    glance: dict[str, Any] = {
        "not_ready": None,
        "live": 100,
        "waiting": 3,
        "tokens": {},
        "alarms": [{"backend": "b", "signal": "exact"}],
    }
    lines = screen({"calls": calls}, glance, TopState(selected=60), "", 40, 20)
    plain = [re.sub(r"\x1b\[\d*m", "", line) for line in lines]
    assert len(lines) < 20 and all(len(line) <= 40 for line in plain[4:])
    assert any(line.startswith("\x1b[7mcall-060") for line in lines) and "b is computing" in plain[1]


def test_in_a_terminal(gateway: Gateway, engine: StandIn) -> None:
    """It draws the screen, takes the keys for a kill, and restores the terminal."""
    with streaming(gateway, "doomed-by-top"):
        leader, follower = pty.openpty()
        command = [sys.executable, "-m", "hangup", "top", "--every", "0.1s", "--admin", gateway.admin_url]
        with subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower) as process:
            os.close(follower)
            _read_until(leader, b"doomed-by-top")
            os.write(leader, b"x")
            _read_until(leader, b"kill doomed-by-top?")
            os.write(leader, b"y")
            _read_until(leader, b"killed doomed-by-top")
            os.write(leader, b"q")
            _read_until(leader, b"\x1b[?1049l")
            assert process.wait(60) == 0
        os.close(leader)
        engine.wait_idle()
        assert live(gateway) == []


def test_without_a_terminal(gateway: Gateway) -> None:
    assert "top needs a terminal" in hangup(gateway, "top").stderr
    assert set(as_json(gateway, "top")) >= {"calls", "backends", "live"}


def _read_until(fd: int, mark: bytes) -> None:
    got, deadline = b"", time.monotonic() + 60
    while mark not in got:
        assert select.select([fd], [], [], max(deadline - time.monotonic(), 0))[0], got[-500:]
        got += os.read(fd, 65536)
