"""Runs the gateway as a process between odd clients and an odd engine, and checks it once it is idle."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz import clients, engine
from fuzz.grammar import Dice
from fuzz.parts import try_corpus, try_one, try_parts
from support.linux import proc
from support.processes import Gateway, get_json
from support.raw_engine import RawEngine
from support.waiting import wait_until

FOUND = Path(".fuzz")  # where the bytes of cases that found something are written
THREADS = 6
PARTS_SHARE = 0.25  # share of the time for the parsers in this process
RSS_GROWTH_MAX = 64 * 1024 * 1024
FILES_GROWTH_MAX = 8  # kept-alive connections to the engine, and a thread that has just started
# Short, so that a call to an engine that stays silent ends within the run.
SETTINGS: dict[str, Any] = {
    "header_s": 2,
    "body_idle_s": 2,
    "body_s": 3,
    "idle_s": 3,
    "first_token_s": 5,
    "gap_s": 5,
    "total_s": 16,
    "queue_s": 16,
    "write_stall_s": 2,
    "linger_s": 0.5,
    "slots": 4000,  # slots of disconnected clients stay taken for a while: no call shall wait for these
    "client_silence_s": 5,
    "job_lease_s": 2,
    "engine_idle_s": 1,
    "job_failures_max": 1,
}


CALLS: list[tuple[float, Callable[[tuple[str, int], int], list[str]]]] = [
    (0.42, clients.odd_call),
    (0.77, clients.odd_answer),
    (0.80, clients.batch_job),
    (1.01, clients.checked_call),
]


@dataclass
class Report:
    found: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str, found: list[str]) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.found += found


def fuzz(seconds: float, seed: int, say: Callable[[str], None] = print) -> Report:
    """Run every kind of case for `seconds`."""
    report = Report()
    numbers = _numbers(seed)
    until = time.monotonic() + seconds * PARTS_SHARE
    tried = itertools.count()

    def more() -> bool:
        next(tried)
        return time.monotonic() < until

    report.found += try_corpus() + try_parts(numbers, more)
    report.counts["parts"] = next(tried) - 1
    say(f"parts: {report.counts['parts']} cases")
    with running() as (gateway, _):
        _warm_up(gateway, report)
        before = _size(gateway)
        batch(gateway, _numbers(seed), seconds * (1 - PARTS_SHARE), report)
        say(", ".join(f"{name}: {count}" for name, count in sorted(report.counts.items())))
        report.found += at_rest(gateway, before)
    _keep(report.found)
    return report


def _keep(found: list[str]) -> None:
    """Save the bytes of what was found: numbers mean something else when the grammar changes, bytes do not."""
    for number in {int(word) for row in found for word in re.findall(r"\b\d{9,15}\b", row)}:
        FOUND.mkdir(exist_ok=True)
        dice = {kind: Dice(number) for kind in ("request", "events", "configuration")}
        (FOUND / f"{number}.request").write_bytes(dice["request"].request(number))
        (FOUND / f"{number}.events").write_bytes(dice["events"].events(number))
        (FOUND / f"{number}.configuration").write_bytes(dice["configuration"].configuration())
        (FOUND / f"{number}.answer").write_bytes(engine.odd_answer(number)[0])


def again(number: int) -> Report:
    """Repeat one case, in all its forms."""
    report = Report(try_one(number))
    with running() as (gateway, _):
        before = _size(gateway)
        for _, call in CALLS:
            report.add(call.__name__, call(gateway.address, number))
        report.found += at_rest(gateway, before)
    return report


class running:  # noqa: N801 - used like a function
    def __enter__(self) -> tuple[Gateway, RawEngine]:
        self._engine = RawEngine(engine.script)
        self._gateway = Gateway(self._engine.url, **SETTINGS)
        return self._gateway, self._engine

    def __exit__(self, *_: object) -> None:
        self._gateway.close()
        self._engine.close()


def _numbers(seed: int) -> Iterator[int]:
    dice = Dice(seed)
    while True:
        yield dice.getrandbits(48)


def _warm_up(gateway: Gateway, report: Report) -> None:
    for number in range(20):
        report.add("checked_call", clients.checked_call(gateway.address, number))


def batch(gateway: Gateway, numbers: Iterator[int], seconds: float, report: Report) -> None:
    """Let threads take numbers and run their cases until the time is over or something is found."""
    until, lock = time.monotonic() + seconds, threading.Lock()

    def work() -> None:
        while time.monotonic() < until and len(report.found) < 20 and gateway.popen.poll() is None:
            with lock:
                number = next(numbers)
            chance = Dice(~number).random()
            call = next(call for share, call in CALLS if chance < share)
            try:
                found = call(gateway.address, number)
            except OSError as error:
                found = [f"{call.__name__} {number}: {type(error).__name__} {error}"]
            with lock:
                report.add(call.__name__, found)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def at_rest(gateway: Gateway, before: tuple[int, int]) -> list[str]:
    """Check that nothing is left (calls, connections, slots, bodies, descriptors, memory) and that no fault was logged."""
    found: list[str] = []
    if gateway.popen.poll() is not None:
        return [f"the gateway ended with {gateway.popen.returncode}: {gateway.stderr_lines[-20:]}"]

    def rests() -> bool:
        metrics = gateway.metrics()
        gauges = ("hangup_connections", "hangup_body_bytes", "hangup_queue_depth")
        busy = [name for name in metrics if name.startswith(("hangup_in_flight", "hangup_calls{", "hangup_backend_in_flight"))]
        return not any(metrics[name] for name in (*gauges, *busy) if name in metrics) and _live(gateway) == 0

    def no_jobs() -> bool:
        return not get_json(f"{gateway.admin_url}/api/jobs?active=1&limit=5")["jobs"]

    try:
        wait_until(no_jobs, 90, "the end of all jobs")
        found += clients.wrong_results(gateway.address)
        wait_until(rests, what="a gateway at rest")
        wait_until(lambda: gateway.open_files() <= before[0] + FILES_GROWTH_MAX, what="descriptors that are closed")
    except AssertionError as error:
        calls = get_json(f"{gateway.admin_url}/api/calls")["calls"][:5]
        found.append(f"{error}; live: {calls}; jobs: {get_json(f'{gateway.admin_url}/api/jobs?active=1')['jobs'][:3]}")
    if (grown := _size(gateway)[1] - before[1]) > RSS_GROWTH_MAX:
        found.append(f"memory grew by {grown // 2**20} MB")
    found += [f"fault: {row}" for row in gateway.log() if row["event"] in ("internal_error", "reaper_check_failed")][:20]
    found += [f"stderr: {gateway.stderr_lines[1:40]}"] if any("Traceback" in line for line in gateway.stderr_lines) else []
    return found


def _live(gateway: Gateway) -> int:
    return int(get_json(f"{gateway.admin_url}/api/calls")["total"])


def _size(gateway: Gateway) -> tuple[int, int]:
    """Return the number of open files, and bytes in memory."""
    pages = int(proc(gateway.popen.pid, "statm").read_text().split()[1])
    return gateway.open_files(), pages * 4096
