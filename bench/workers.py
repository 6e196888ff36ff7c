"""What several workers cost and gain: CPU per chunk and per call with one worker and with two, in alternating windows.

usage: python -m bench.workers [--rounds N]

Each worker gets the same load, so two get twice as much: fewer calls in a turn of the event loop cost more each, with any
number of processes. Load, engine and gateway share the machine's cores, so the gain in calls per second is bounded by what the
first two leave over: each line says how many cores the gateway and the load generator used. The engine is two processes, so
that it is no bottleneck behind two workers; it costs the gateway more if it is.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import uvloop

from bench import load, suites, targets
from bench.suites import Cost
from bench.targets import Target

STREAMS, CONCURRENCY = 150, 32  # for each worker


async def measure(rounds: int) -> None:
    with (
        targets.engine(processes=2) as engine,
        targets.hangup(engine.port, "--workers", "1") as one,
        targets.hangup(engine.port, "--workers", "2") as two,
    ):
        measured = {1: one, 2: two}
        _show("streamed chunk", await _in_turn(measured, rounds, _streams))
        instant = {**load.CHAT, "instant": True}
        for path, body in (("/v1/embeddings", {"input": "x"}), ("/v1/chat/completions", instant)):
            _show(path, await _in_turn(measured, rounds, lambda target, n, p=path, b=body: _calls(target, n, p, b)))


async def _in_turn(measured: dict[int, Target], rounds: int, window: Any) -> dict[int, Cost]:
    costs = {workers: Cost(f"{workers} workers") for workers in measured}
    for _ in range(rounds):
        for workers, target in measured.items():
            (cost,) = await window(target, workers)
            total = costs[workers]
            total.units, total.cpu_s, total.wall_s, total.load_s = (
                total.units + cost.units,
                total.cpu_s + cost.cpu_s,
                total.wall_s + cost.wall_s,
                total.load_s + cost.load_s,
            )
    return costs


async def _streams(target: Target, workers: int) -> list[Cost]:
    return await suites.streams([target], count=STREAMS * workers, rounds=1)


async def _calls(target: Target, workers: int, path: str, body: dict[str, Any]) -> list[Cost]:
    return await suites.requests([target], path, body, concurrency=CONCURRENCY * workers, rounds=1)


def _show(unit: str, costs: dict[int, Cost]) -> None:
    for cost in costs.values():
        print(
            f"{unit}, {cost.name}: {cost.us:.1f} us of CPU, {cost.rate:.0f}/s over {cost.wall_s:.0f} s; the gateway used"
            f" {cost.cpu_s / cost.wall_s:.2f} cores, the load generator {cost.load_s / cost.wall_s:.2f}",
            flush=True,
        )
    print(f"  {costs[2].us - costs[1].us:+.1f} us, {costs[2].rate / costs[1].rate:.2f} times the rate", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=4)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(parser.parse_args().rounds))
