"""Runs the two sides of the demo, one after the other, with the same clients."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial

from hangup.cli.demo_parts.crowd import DemoCrowd
from hangup.cli.demo_parts.picture import PhaseResult, Stuck
from hangup.cli.demo_parts.processes import engine, engine_counters, gateway, plain_proxy
from hangup.tasks import TASKS

ANSWER_TOKENS = 400
LOAD = 1.3  # × what the engine could serve if no client hung up
_REFRESH_S = 0.5


@dataclass(frozen=True, slots=True)
class EngineSample:
    """What the engine says of itself now."""

    computed: float
    busy_s: float
    in_engine: int
    stuck: Stuck | None = None


@dataclass(frozen=True, slots=True)
class Side:
    """One side while it runs: where clients connect, and how to look at the engine."""

    port: int
    sample: Callable[[], Awaitable[EngineSample]]
    start: Callable[[float], Coroutine[object, object, None]] | None = None  # runs beside the crowd: what befalls the engine


@dataclass(frozen=True, slots=True)
class Story:
    rate: Callable[[], Awaitable[float]]  # calls per second
    sides: tuple[tuple[str, Callable[[], contextlib.AbstractAsyncContextManager[Side]]], ...]


Show = Callable[[list[PhaseResult]], None]
Stay = Callable[[list[PhaseResult], DemoCrowd], Awaitable[None]]


async def play(story: Story, seconds: float, seed: int, show: Show, stay: Stay | None = None) -> list[PhaseResult]:
    """Run both sides at the same load, and call `show` regularly with the results so far. `stay` is awaited while the last side
    still runs, with more clients for it."""
    rate = await story.rate()
    results: list[PhaseResult] = []
    for name, open_side in story.sides:
        async with open_side() as side:
            results.append(await _run_side(name, side, DemoCrowd(side.port, rate, ANSWER_TOKENS, seed), seconds, results, show))
            if stay is not None and len(results) == len(story.sides):
                await stay(results, DemoCrowd(side.port, rate, ANSWER_TOKENS, seed + 1))
    return results


async def _run_side(
    name: str, side: Side, crowd: DemoCrowd, seconds: float, before: list[PhaseResult], show: Show
) -> PhaseResult:
    began = time.monotonic()
    tasks = [TASKS.start("crowd", crowd.run(seconds))]
    if side.start is not None:
        tasks.append(TASKS.start("fault", side.start(seconds)))
    try:
        while not tasks[0].done():
            await asyncio.wait(tasks[:1], timeout=min(_REFRESH_S, max(0.01, seconds - (time.monotonic() - began))))
            now = await side.sample()
            seen = time.monotonic() - began
            about_engine = (now.computed, now.busy_s, now.in_engine, now.stuck)
            result = PhaseResult(name, seen, seconds, crowd.tally, *about_engine)
            show([*before, result])
        return result
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# The story of abandoned work, on the embedded engine


def abandoned(slots: int, admin_port: int) -> Story:
    """Clients hang up, and the plain proxy lets the engine work on."""
    sides = (("without hangup", plain_proxy), ("with hangup", partial(gateway, admin_port=admin_port)))
    return Story(partial(_calibrated_rate, slots), tuple((name, partial(_side, slots, front)) for name, front in sides))


@contextlib.asynccontextmanager
async def _side(slots: int, front: Callable[[int], contextlib.AbstractAsyncContextManager[int]]) -> AsyncIterator[Side]:
    async with engine(slots) as engine_port, front(engine_port) as port:
        yield Side(port, partial(_sample, engine_port))


async def _sample(engine_port: int) -> EngineSample:
    now = await engine_counters(engine_port)
    in_engine = int(now["running"] + now["waiting"])
    return EngineSample(now["tokens"] + now["tokens_dropped"], now["busy_seconds"], in_engine)


async def _calibrated_rate(slots: int) -> float:
    """Return a rate of calls per second that is LOAD times what this machine's engine can answer."""
    async with engine(slots) as port:
        crowd = DemoCrowd(port, 1.0, ANSWER_TOKENS, 0)
        await crowd.ask_at_once(slots)  # warm
        began = time.monotonic()
        await crowd.ask_at_once(slots)
        return LOAD * slots / (time.monotonic() - began)
