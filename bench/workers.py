"""What several workers cost and gain: CPU per chunk and per call with one worker and with two, in alternating windows.

usage: python -m bench.workers [--rounds N]

Load, engine and gateway share the machine's cores, so the gain in calls per second is bounded by what the first two leave over;
their share of the CPU time is printed beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import resource

import uvloop

from bench import load, suites, targets
from bench.targets import Target


async def measure(rounds: int) -> None:
    with (
        targets.engine() as engine,
        targets.hangup(engine.port, "--workers", "1") as one,
        targets.hangup(engine.port, "--workers", "2") as two,
    ):
        measured = [dataclasses.replace(target, name=f"{n} workers") for target, n in ((one, 1), (two, 2))]
        others = _Others(engine)
        _show("streamed chunk", await suites.streams(measured, count=200, rounds=rounds), others)
        _show("embeddings call", await suites.requests(measured, "/v1/embeddings", {"input": "x"}, rounds=rounds), others)
        _show("chat call", await suites.requests(measured, "/v1/chat/completions", load.CHAT, rounds=rounds), others)


class _Others:
    """The CPU time of load and engine."""

    def __init__(self, engine: Target) -> None:
        self._engine = engine
        self._before = self._now()

    def _now(self) -> float:
        own = resource.getrusage(resource.RUSAGE_SELF)
        return own.ru_utime + own.ru_stime + self._engine.cpu_s()

    def take_s(self) -> float:
        before, self._before = self._before, self._now()
        return self._before - before


def _show(unit: str, costs: list[suites.Cost], others: _Others) -> None:
    seconds, used = sum(cost.wall_s for cost in costs), others.take_s()
    for cost in costs:
        print(f"{unit}, {cost.name}: {cost.us:.1f} us of CPU, {cost.rate:.0f}/s over {cost.wall_s:.0f} s")
    first, last = costs
    print(f"  {last.us - first.us:+.1f} us, {last.rate / first.rate:.2f} times the rate;", end=" ")
    print(f"load and engine used at most {used / seconds / (os.cpu_count() or 1):.0%} of the machine")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=4)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(parser.parse_args().rounds))
