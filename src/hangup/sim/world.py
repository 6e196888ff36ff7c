"""Simulates one run of a load, a policy and engines. The same seed gives the same result, bit for bit."""

from __future__ import annotations

import gc
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from hangup.sim.clients import People, SimPolicy
from hangup.sim.clock import VirtualClock
from hangup.sim.engine import EngineModel, SimEngine, SimWork
from hangup.sim.load import Load, SimCall
from hangup.sim.policies import GatewayMaker
from hangup.sim.tally import RunTally

_PROGRESS_STEPS = 50


@dataclass(slots=True)
class Run:
    """The result of a run."""

    tally: RunTally
    engines: list[SimEngine]
    read: float  # prompt tokens computed within the window
    written: float  # output tokens computed within the window
    busy_s: float  # engine seconds within the window
    waiting_peak: int


def run(
    load: Load,
    model: EngineModel | Sequence[EngineModel],
    make: GatewayMaker,
    *,
    rate: float,
    seconds: float,
    warm_s: float,
    seed: int,
    gateways: int = 1,
    progress: Callable[[float], None] | None = None,
) -> Run:
    """Run clients that arrive at `rate` a second for `warm_s + seconds`; count only what happens after `warm_s`."""
    clock = VirtualClock()
    models = [model] if isinstance(model, EngineModel) else model
    engines = [SimEngine(m, clock) for m in models]
    rng = random.Random(seed)  # noqa: S311 (a seed must give one result)
    tally = RunTally(warm_s, warm_s + seconds)
    entrances: list[SimPolicy] = []
    pick = (lambda: entrances[0]) if gateways == 1 else (lambda: entrances[int(rng.random() * gateways)])
    prompts = sorted(request.prompt for request in load.requests)
    low, middle, high = (prompts[len(prompts) * part // 4] for part in (1, 2, 3))
    people = People(clock, tally, pick, load.crowd.retries, rng, (low, middle, high))
    entrances += [make(clock, people, engines, rng) for _ in range(gateways)]
    samples = load.samples(rate, seed)

    def come(sample: SimCall, _: int) -> None:
        people.come(sample)
        following = next(samples)
        clock.at(following.at_s, come, following)

    first = next(samples)
    clock.at(first.at_s, come, first)
    with _no_collector():
        clock.run(warm_s)
        for engine in engines:
            engine.waiting_peak = engine.waiting
        before = _totals(engines)
        for step in range(1, _PROGRESS_STEPS + 1):
            clock.run(warm_s + seconds * step / _PROGRESS_STEPS)
            if progress is not None:
                progress(step / _PROGRESS_STEPS)
    read, written, busy = (after - at for after, at in zip(_totals(engines), before, strict=True))
    return Run(tally, engines, read, written, busy, max(engine.waiting_peak for engine in engines))


@contextmanager
def _no_collector() -> Iterator[None]:
    """Turn the garbage collector off: there are no reference cycles, and searching for them costs more with more engines."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _totals(engines: list[SimEngine]) -> tuple[float, float, float]:
    return sum(e.read for e in engines), sum(e.written for e in engines), sum(e.busy_s for e in engines)


class Capacity(NamedTuple):
    """What an engine sustains when there are always enough calls."""

    output_s: float  # output tokens a second: G*
    prompt_s: float  # prompt tokens a second beside them


def capacity(load: Load, model: EngineModel, step_slo_s: float = math.inf) -> Capacity:
    """Measure an engine at the best number of calls in flight that keeps the time per token within the SLO."""
    model = replace(model, deaf=False, slow_from_s=math.inf, slow_until_s=math.inf, dead_from_s=math.inf)  # a healthy engine
    best = Capacity(0.0, 0.0)
    for in_flight in sorted({max(1, round(model.slots * part)) for part in (0.25, 0.5, 0.75, 1.0)}):
        found, step_s = _closed_loop(load, model, in_flight)
        if step_s <= step_slo_s or not best.output_s:
            best = max(best, found)
    return best


def _closed_loop(load: Load, model: EngineModel, in_flight: int) -> tuple[Capacity, float]:
    clock = VirtualClock()
    engine = SimEngine(model, clock)
    requests = _in_order(load)
    steps: list[float] = []
    began: dict[int, float] = {}

    def first(work: SimWork) -> None:
        began[id(work)] = clock.now

    def again(work: SimWork | None = None) -> None:
        if work is not None and work.output > 1:
            steps.append((clock.now - began.pop(id(work))) / (work.output - 1))
        prompt, output = next(requests)
        engine.submit(SimWork(None, prompt, output, first, again))

    for _ in range(in_flight):
        again()
    calls = max(4 * len(load.requests) // 10, 20 * in_flight)
    while len(steps) < calls // 4:
        clock.run(clock.now + 10)
    start, written, read = clock.now, engine.written, engine.read
    steps.clear()
    while len(steps) < calls:
        clock.run(clock.now + 10)
    passed = clock.now - start
    return Capacity((engine.written - written) / passed, (engine.read - read) / passed), statistics.fmean(steps)


def _in_order(load: Load) -> Iterator[tuple[int, int]]:
    if load.crowd.images:  # images are not in the trace, but the engine has to read them
        yield from ((sample.prompt, sample.output) for sample in load.samples(1.0, 1) if not sample.whole)
    while True:
        for request in load.requests:
            yield request.prompt, request.output
