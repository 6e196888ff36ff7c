"""make scoreboard: probes every engine and gateway of the lineup, and writes docs/scoreboard.md.

usage: python -m bench.scoreboard [--engines DIR] [--only NAME …] [--at-once N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import replace
from pathlib import Path

from tools.markdown import formatted

from bench.scoreboard import page
from bench.scoreboard.lineup import GATEWAYS, OWN_ENGINE, REAL_ENGINES, Start, engines
from hangup.errors import HangupError
from hangup.probe import ProbeOptions, ProbeReport, run_probe
from hangup.probe.budget import ProbeBudget

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "scoreboard.md"
KEPT = ROOT / "bench" / "out" / "scoreboard.json"


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

    names = [name for part in lineup.values() for name in part]
    if unknown := [name for name in only if name not in names]:
        raise SystemExit(f"there is no {', '.join(map(repr, unknown))} here; choose from: {', '.join(names)}")
    chosen = {name: start for part in lineup.values() for name, start in part.items() if not only or name in only}
    await asyncio.gather(*(one(name, start) for name, start in chosen.items()))
    KEPT.parent.mkdir(exist_ok=True)
    reports = {name: result if isinstance(result, str) else result.as_json() for name, result in found.items()}
    KEPT.write_text(json.dumps(reports, indent=2))
    standings = page.read(PAGE.read_text()) | {name: page.standing_of(name, result) for name, result in found.items()}
    order = {"engines": [OWN_ENGINE, *REAL_ENGINES], "gateways": list(GATEWAYS)}
    PAGE.write_text(formatted(page.write(order, standings)))
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


if __name__ == "__main__":
    main()
