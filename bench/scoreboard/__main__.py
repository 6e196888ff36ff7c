"""make scoreboard: probes every engine and gateway of the lineup, and writes docs/scoreboard.md.

usage: python -m bench.scoreboard [--engines DIR] [--only NAME …] [--at-once N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from tools.markdown import formatted

from bench.scoreboard.lineup import GATEWAYS, Start, engines
from hangup.errors import HangupError
from hangup.probe import ProbeOptions, ProbeReport, run_probe
from hangup.probe.budget import ProbeBudget
from hangup.probe.render.markdown import side_by_side

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "scoreboard.md"
KEPT = ROOT / "bench" / "out" / "scoreboard.json"
_HEAD = """\
# Scoreboard: who stops when clients hang up?

Made by `make scoreboard` with [`hangup probe`](probe.md): the same cases for all, ours among them. A
tick has the time within which the engine was idle after the departure. A cross has the tokens that
were computed for a client that had left, or how many of several departures did not stop the engine.
A question mark means that it cannot be told. A tick in brackets: it stopped, but the engine may be
asked only so rarely that nobody can say whether within 1 s. A tick with more than 1 s and no
brackets: nothing was computed in that time, because the call still waited for a slot. What is
*shown only* is no fault: see [probe.md](probe.md#cases).

The machine is a small shared one, with other load: times are upper bounds.
"""
_GATEWAYS = """\
All gateways stand in front of the same stand-in engine (4 slots, 50 tokens a second), which stops as
soon as its own connection closes. So what goes on behind a gateway is the gateway's doing.
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="make scoreboard", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--engines", type=Path, default=ROOT / ".engines", help="where `make test-engines` put the engines")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="some of the lineup; the others keep their results"
    )
    parser.add_argument("--at-once", type=int, default=3, help="probes at the same time (default: 3)")
    arguments = parser.parse_args()
    lineup = {"engines": engines(arguments.engines.resolve()), "gateways": GATEWAYS}
    asyncio.run(_run(lineup, arguments.only, arguments.at_once))


async def _run(lineup: dict[str, dict[str, Start]], only: list[str], at_once: int) -> None:
    found: dict[str, ProbeReport | str] = {}
    gate = asyncio.Semaphore(at_once)

    async def one(name: str, start: Start) -> None:
        async with gate:
            found[name] = await _probe(name, start)

    chosen = {name: start for part in lineup.values() for name, start in part.items() if not only or name in only}
    await asyncio.gather(*(one(name, start) for name, start in chosen.items()))
    KEPT.parent.mkdir(exist_ok=True)
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    kept |= {name: result if isinstance(result, str) else _row(result) for name, result in found.items()}
    KEPT.write_text(json.dumps(kept, indent=2))
    PAGE.write_text(formatted(page(lineup, kept)))
    print(f"written to {PAGE}")


async def _probe(name: str, start: Start) -> ProbeReport | str:
    """Start one of the lineup and probe it; return why that was not possible."""
    context = start()
    try:
        up = await asyncio.to_thread(context.__enter__)
    except (OSError, RuntimeError, AssertionError) as error:
        print(f"  {name:<20} left out: {error}", flush=True)
        return f"left out: {error}"
    try:
        options = ProbeOptions(
            up.url,
            up.model,
            engine_metrics=up.engine_metrics,
            slots=up.slots,
            name=name,
            command=up.started_by,
            budget=ProbeBudget(2_000, 2_000_000, 1_200.0),  # tiny models are fast: the usual tokens would not do
        )
        report = replace(await run_probe(options), version=up.version)
        print(f"  {name:<20} {len(report.faults)} faults in {len(report.counted)} cases, {report.seconds:g} s", flush=True)
        return report
    except HangupError as error:
        print(f"  {name:<20} not probed: {error}", flush=True)
        return f"not probed: {error}"
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


def _row(report: ProbeReport) -> dict[str, object]:
    return {"report": report.as_json(), "table": side_by_side([report])}


def page(lineup: dict[str, dict[str, Start]], kept: dict[str, object]) -> str:
    """Return the page, from the results of this run and of those before it."""
    parts = [_HEAD]
    for part, title in (("engines", "## Engines, probed directly"), ("gateways", f"## Gateways\n\n{_GATEWAYS}")):
        rows = [(name, kept[name]) for name in lineup[part] if isinstance(kept.get(name), dict)]
        left_out = [f"- {name}: {kept[name]}" for name in lineup[part] if isinstance(kept.get(name), str)]
        parts += [title, "", _joined([row["table"] for _, row in rows if isinstance(row, dict)]), ""]
        parts += ["| name | version | started by | evidence | probed |", "| -- | -- | -- | -- | -- |"]
        parts += [_facts(name, row["report"]) for name, row in rows if isinstance(row, dict)]
        parts += [
            "",
            *left_out,
            *(line for name, row in rows if isinstance(row, dict) for line in _notes(name, row["report"])),
            "",
        ]
    return "\n".join(parts)


def _joined(tables: list[str]) -> str:
    """Put tables of one endpoint each beside each other; all have the same cases."""
    split = [[line.split("|") for line in table.strip().splitlines()] for table in tables]
    lines = [[row[1], *(rows[index][2] for rows in split)] for index, row in enumerate(split[0] if split else [])]
    return "\n".join("|" + "|".join(line) + "|" for line in lines)


def _notes(name: str, report: dict[str, Any]) -> list[str]:
    """Return what else was found: of the whole, and of new calls that failed after a case."""
    failed = Counter(note for row in report["results"] for note in row["notes"] if "new calls failed" in note)
    cases = [f"after {count} of {len(report['results'])} cases {note}" for note, count in failed.items()]
    return [f"- {name}: {note}" for note in (*report["notes"], *cases)]


def _facts(name: str, report: dict[str, str]) -> str:
    evidence = "figures" if "figures" in report["evidence"] else report["evidence"]
    return f"| {name} | {report['version']} | `{report['command']}` | {evidence} | {report['date']} |"


if __name__ == "__main__":
    main()
