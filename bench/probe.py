"""How often `hangup probe` is wrong: verdicts on stand-in engines of known behaviour, on a machine with other load.

Each engine is probed several times, many at once, while other processes keep the CPUs busy. A verdict is wrong if it is
another than the engine's behaviour calls for. "Cannot be told", or not whether in time, is not wrong, but missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from bench import targets
from hangup.probe import CASES, ProbeError, ProbeOptions, Ruling, run_probe
from hangup.probe.budget import ProbeBudget

HOGS, NICE = 20, 15  # processes that do nothing but keep a CPU busy; so many for a high load, so nice to let others work
AT_ONCE = 12  # probes, each with an engine of its own
PACE: dict[str, Any] = {"slots": 3, "token_s": 0.01, "prefill_s": 0.05}
WITHIN_S, LATE_S, REST_S = 0.8, 2.0, 4.0
STOPPED, LATE, NEVER, PARTLY = Ruling.STOPPED, Ruling.LATE, Ruling.NEVER, Ruling.PARTLY


@dataclass(frozen=True)
class Known:
    """An engine, and the verdict that each case must get."""

    name: str
    behaviour: dict[str, Any]
    expected: dict[str, Ruling]


def _all(ruling: Ruling, *cases: str) -> dict[str, Ruling]:
    return dict.fromkeys(cases, ruling)


_ONE = ("prefill-fin", "stream-fin", "stream-rst", "whole-fin", "whole-rst", "keep-alive-fin")
_MANY = ("queue-fin", "stream-fin-beside", "stream-fin-slots", "stream-fin-storm")
FIGURES = (
    Known(
        "stops",
        {},
        _all(STOPPED, *_ONE, "upload-fin", *_MANY),
    ),
    Known(
        "deaf",
        {"deaf": True},
        _all(NEVER, *_ONE, "whole-fin-slots", *_MANY),
    ),
    Known("late by 2 s", {"late_s": LATE_S}, _all(LATE, *_ONE, "stream-fin-beside", "whole-fin-slots")),
    Known(
        "deaf to whole answers", {"deaf_to": "whole"}, _all(STOPPED, "stream-fin") | _all(NEVER, "whole-fin", "whole-fin-slots")
    ),
    Known("deaf to every second", {"deaf_every": 2}, _all(PARTLY, "stream-fin-slots", "whole-fin-slots")),
)
ECHO = (
    Known("stops", {}, _all(STOPPED, *_ONE, "upload-fin")),
    Known("deaf", {"deaf": True}, _all(NEVER, *_ONE)),
    Known("late by 2 s", {"late_s": LATE_S}, _all(LATE, *_ONE)),
    Known("deaf to whole answers", {"deaf_to": "whole"}, _all(STOPPED, "stream-fin") | _all(NEVER, "whole-fin")),
)
_WITH_ID = ("prefill-fin", "stream-fin", "stream-rst", "keep-alive-fin")
USAGE = (
    Known("stops", {}, _all(STOPPED, *_WITH_ID)),
    Known("deaf", {"deaf": True}, _all(NEVER, *_WITH_ID)),
    Known("late by 2 s", {"late_s": LATE_S}, _all(LATE, *_WITH_ID)),
)


@dataclass(frozen=True)
class Evidence:
    """A kind of evidence: what its engines are like, and what the probe is told."""

    name: str
    engines: tuple[Known, ...]
    pace: dict[str, Any]
    options: dict[str, Any]


KINDS = (
    Evidence("figures", FIGURES, PACE, {"slots": PACE["slots"]}),
    Evidence("echo", ECHO, {**PACE, "like": "openai"}, {"slots": PACE["slots"]}),
    Evidence("echo, slots found", ECHO, {**PACE, "like": "openai"}, {}),
    Evidence("usage", USAGE, {**PACE, "like": "openrouter", "slots": 100}, {"clients": 2}),
)


@dataclass
class Calibration:
    verdicts: int = 0
    missed: int = 0
    wrong: list[str] = field(default_factory=list)
    by_engine: dict[str, Counter[str]] = field(default_factory=dict)


async def run(rounds: int) -> dict[str, Any]:
    """Calibrate all kinds of evidence beside each other; each engine gets `rounds` probes by each."""
    rows: dict[str, Any] = {"hogs": HOGS, "at_once": AT_ONCE, "rounds": rounds, "load_before": os.getloadavg()[0]}
    gate = asyncio.Semaphore(AT_ONCE)
    with contextlib.ExitStack() as stack:
        for _ in range(HOGS):
            stack.enter_context(targets.started(["nice", "-n", str(NICE), sys.executable, "-c", "while True: pass"]))
        found = await asyncio.gather(*(_calibrate(kind, rounds, gate) for kind in KINDS))
        rows["load_after"] = os.getloadavg()[0]
    rows |= {kind.name: _told(kind.name, one) for kind, one in zip(KINDS, found, strict=True)}
    print(f"  load average {rows['load_before']:.1f} before, {rows['load_after']:.1f} at the end", flush=True)
    return rows


async def _calibrate(kind: Evidence, rounds: int, gate: asyncio.Semaphore) -> Calibration:
    found = Calibration()

    async def one(known: Known) -> None:
        async with gate:
            await _probe(known, kind, found)

    await asyncio.gather(*(one(known) for _ in range(rounds) for known in kind.engines))
    return found


async def _probe(known: Known, kind: Evidence, found: Calibration) -> None:
    start = targets.standin(**kind.pace, **known.behaviour)
    engine = await asyncio.to_thread(start.__enter__)  # the other probes must not wait for it
    try:
        options = ProbeOptions(
            f"http://127.0.0.1:{engine.port}",
            cases=tuple(CASES[name] for name in known.expected),
            within_s=WITHIN_S,
            rest_s=REST_S,
            budget=ProbeBudget(10_000, 10_000_000, 900.0),
            **kind.options,
        )
        report = await run_probe(options)
    except ProbeError as error:
        found.verdicts += len(known.expected)
        found.missed += len(known.expected)
        found.by_engine.setdefault(known.name, Counter())[f"not probed: {error}"] += 1
        return
    finally:
        await asyncio.to_thread(start.__exit__, None, None, None)
    for result in report.results:
        ruling, expected = result.judgement.ruling, known.expected[result.case.name]
        is_missed = ruling is Ruling.UNTOLD or result.judgement.is_vague
        found.verdicts += 1
        found.missed += is_missed
        found.by_engine.setdefault(known.name, Counter())["cannot be told" if is_missed else ruling.value] += 1
        if ruling is not expected and not is_missed:
            found.wrong.append(f"{known.name}, {result.case.name}: {ruling.value}, not {expected.value} ({result.judgement})")


def _told(evidence: str, found: Calibration) -> dict[str, Any]:
    share = len(found.wrong) / found.verdicts
    print(
        f"  {evidence:<18} {found.verdicts} verdicts, {len(found.wrong)} wrong ({share:.1%}), {found.missed} not told",
        flush=True,
    )
    for name, counts in found.by_engine.items():
        print(
            f"                     {name:<22} {', '.join(f'{count} × {ruling}' for ruling, count in counts.items())}",
            flush=True,
        )
    for line in found.wrong:
        print(f"                     WRONG {line}", flush=True)
    by_engine = {name: dict(counter) for name, counter in found.by_engine.items()}
    return {"verdicts": found.verdicts, "wrong": found.wrong, "missed": found.missed, "by_engine": by_engine}
