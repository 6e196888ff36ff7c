"""A real engine as a process, the calls that tests make, and two ways to see that it is idle: its reports and its CPU time.

Each is blind where the other sees. vLLM's figures cover only finished steps, so a prefill is in none of them; CPU time says
nothing about a call that waits. Tests read llama-server's log instead of querying it, since queries change what it does;
transformers serve reports nothing.
"""

from __future__ import annotations

import os
import re
import time
import urllib.request
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from hangup.gateway.backends.adapters.base import gauges
from support.processes import Gateway
from support.raw import Client
from support.waiting import wait_until

CHAT = "/v1/chat/completions"
TOKENS = {"llamacpp": 6000, "transformers": 300, "vllm": 2000}  # some ten seconds of work
_QUIET_SHARE = 0.2  # of a processor
_ASK_S = 0.1  # between two questions; one of them costs vLLM some 8 ms
NEVER = float("inf")


@dataclass
class Engine:
    name: str
    url: str
    model: str
    pid: int
    log: Path
    _numbers: count[int] = field(default_factory=count)

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", int(self.url.rpartition(":")[2])

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return str(answer.read().decode())

    def gauges(self) -> dict[str, float]:
        return gauges(self.get("/metrics").encode())

    def body(self, *, stream: bool, words: int = 1, tokens: int = 0) -> dict[str, Any]:
        """Return a request that nobody has made before, so that no cache has any of it. Except for transformers serve, which
        cannot be told to go on: it answers this one at length."""
        text = ("" if self.name == "transformers" else f"{next(self._numbers)} ") + "word " * words
        request = {"model": self.model, "messages": [{"role": "user", "content": text}], "stream": stream}
        to_the_end = {} if self.name == "transformers" else {"ignore_eos": True}  # which refuses fields that it does not know
        return request | {"max_tokens": tokens or TOKENS[self.name]} | to_the_end

    def cpu_s(self) -> float:
        """Return the CPU time that all its processes have used; reading it changes nothing."""
        ticks = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            ticks += int(fields[11]) + int(fields[12]) if int(fields[2]) == self.pid else 0
        return ticks / os.sysconf("SC_CLK_TCK")

    def at_work_on(self) -> int | None:
        """Return the number of calls that it reports, queried as often as it tolerates."""
        match self.name:
            case "vllm":
                gauges = self.gauges()
                return int(gauges["vllm:num_requests_running"] + gauges["vllm:num_requests_waiting"])
            case "llamacpp":
                text = self.log.read_text(errors="replace")
                return text.count("launch_slot_") - text.count("stop processing")
        return None

    def taken(self) -> int:
        """Return the number of calls that have reached it and not ended, including its queue. Do not call this after a
        hang-up."""
        match self.name:
            case "llamacpp":
                gauges = self.gauges()
                return int(gauges["llamacpp:requests_processing"] + gauges["llamacpp:requests_deferred"])
            case "transformers":  # never ended, as far as it says
                return len(re.findall("Request received", self.log.read_text(errors="replace")))
        return self.at_work_on() or 0


class Idle(NamedTuple):
    """Seconds from the hang-up until the engine is idle, by each measure."""

    cpu_s: float
    word_s: float | None

    def __str__(self) -> str:
        return f"{shown(self.cpu_s)} ({'-' if self.word_s is None else shown(self.word_s)})"


def shown(seconds: float) -> str:
    """Format the seconds; below the resolution of the clock (10 ms) and of an engine's step, only that bound."""
    return "not within 4 s" if seconds == NEVER else f"{seconds:.2f} s" if seconds > 0.05 else "< 0.05 s"


def until_idle(real: Engine, limit_s: float, quiet_s: float = 0.3) -> Idle:
    """Return the time until the engine uses almost no CPU for a moment, and until it reports that it has nothing to do."""
    start = time.monotonic()
    mark, used = start, real.cpu_s()
    asked_at, told_at = -NEVER, NEVER
    speaks = real.at_work_on() is not None
    quiet_at = NEVER
    while time.monotonic() - start < limit_s + quiet_s and (quiet_at == NEVER or (speaks and told_at == NEVER)):
        time.sleep(0.01)
        now, cpu = time.monotonic(), real.cpu_s()
        if cpu - used > _QUIET_SHARE * (now - mark) + 0.02:
            mark, used, quiet_at = now, cpu, NEVER
        elif now - mark >= quiet_s:
            quiet_at = mark - start
        if speaks and now - asked_at >= _ASK_S:
            asked_at = now
            told_at = NEVER if real.at_work_on() else min(told_at, time.monotonic() - start)
    return Idle(quiet_at, told_at if speaks else None)


def settle(real: Engine) -> None:
    """Wait until the engine has finished what an earlier call left behind."""
    assert until_idle(real, 90, quiet_s=1.5).cpu_s < 90


def wait_busy(real: Engine, cpu_s: float = 0.2) -> None:
    before = real.cpu_s()
    wait_until(lambda: real.cpu_s() > before + cpu_s, what="the engine to be at work")


def recognised(gateway: Gateway, real: Engine) -> None:
    wait_until(lambda: any(f"as {real.name}" in str(row.get("change")) for row in gateway.log()), what="recognition")


def released(gateway: Gateway) -> float:
    return sum(value for name, value in gateway.metrics().items() if name.startswith("hangup_releases_total"))


def accused(gateway: Gateway) -> list[dict[str, Any]]:
    return [row for row in gateway.log() if row.get("event") in ("zombie_found", "orphans_found", "ladder_step_taken")]


def read_until_at_work_on(real: Engine, calls: int, client: Client, limit_s: float) -> float:
    """Return the seconds until the engine reports this many calls, while one of its clients keeps reading."""
    start = time.monotonic()
    while (now := time.monotonic() - start) < limit_s:
        if real.at_work_on() == calls:
            return now
        assert client.read_some()
        client.buffer = b""
    return NEVER
