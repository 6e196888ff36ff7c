"""`hangup engines`: lists the kinds of engine that hangup supports."""

from __future__ import annotations

import argparse
from typing import Any

from hangup.gateway.backends.adapters import ADAPTERS, EngineAdapter

HEAD = ("name", "engine", "stopped by", "verified by", "zombie after")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "engines",
        help="list the supported engines",
        description="Lists the supported engines, how hangup stops their work and how it verifies that they stopped.",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    rows = [HEAD, *map(row, ADAPTERS.values())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
    return 0


def row(adapter: EngineAdapter) -> tuple[str, ...]:
    how = "nothing" if not adapter.status_path else "slots" if adapter.pins_slots else "counts"
    where = f"{how} ({adapter.status_path.partition('?')[0]})" if adapter.status_path else how
    grace = f"{adapter.grace_s + adapter.lag_s:g} s" if adapter.status_path else "-"
    return adapter.name, adapter.title, adapter.stops_by, where, grace
