"""The reaper's own requests do llama-server no harm.

llama-server checks a silent connection only when nothing has happened for a second, and every request for its slots counts as
something that happens: polled more often than that, it never notices that a client has disconnected.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from real_engines.real import CHAT, NEVER, Engine, settle, shown
from support.processes import Gateway
from support.raw import Client
from support.waiting import wait_until

TIMES = 6  # of which one meets whatever is asked every five seconds


def leave_silent(real: Engine, gateway: Gateway, while_waiting: Callable[[], object]) -> float:
    """Disconnect a client that does not stream, before the engine has sent anything; return the time until its slot is free."""
    settle(real)
    client = Client(gateway.address)
    client.post(CHAT, real.body(stream=False))
    wait_until(lambda: real.at_work_on() == 1, what="the call at work")
    client.fin()
    left_at = time.monotonic()
    while (now := time.monotonic() - left_at) < 4.0:
        if not real.at_work_on():
            return now
        while_waiting()
    return NEVER


def ask_often(real: Engine) -> None:
    json.loads(real.get("/slots"))
    time.sleep(0.3)


def test_the_reapers_questions_make_no_release_later(llama_server: Engine) -> None:
    """Compares the same disconnects with and without the reaper, and with a client that polls three times a second, which
    does harm."""
    real, found = llama_server, {}
    not_asked: dict[str, Any] = {"engine": "openai", "counters_interval_s": 1000}
    for way, settings in (("not asked", not_asked), ("asked by the reaper", {"engine": "llamacpp"})):
        with Gateway(real.url, assemble="false", **settings) as gateway:
            found[way] = max(leave_silent(real, gateway, lambda: time.sleep(0.01)) for _ in range(TIMES))
    with Gateway(real.url, assemble="false", **not_asked) as gateway:
        found["asked often"] = leave_silent(real, gateway, lambda: ask_often(real))
    print(f"\n| llamacpp | lost, non-streaming, worst of {TIMES} | {', '.join(f'{w}: {shown(s)}' for w, s in found.items())} |")
    assert found["asked often"] == NEVER
    assert found["asked by the reaper"] <= found["not asked"] + 0.2
