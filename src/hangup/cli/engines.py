"""`hangup engines`: lists the kinds of engine that hangup supports."""

from __future__ import annotations

import argparse
import json
from typing import Any

from hangup.cli.table import Column, for_stdout
from hangup.gateway.backends.adapters import ADAPTERS, EngineAdapter

HEAD = ("name", "engine", "stopped by", "verified by", "zombie after")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "engines",
        description="Lists the supported engines, how hangup stops their work and how it verifies that they stopped.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    rows = list(map(row, ADAPTERS.values()))
    if arguments.json:
        names = [name.replace(" ", "_") for name in HEAD]
        print(json.dumps({"engines": [dict(zip(names, cells, strict=True)) for cells in rows]}, indent=2))
        return 0
    ranks = {"engine": 1, "zombie after": 2}
    columns = [Column(name, least=12 if name not in ("name", "zombie after") else 0, rank=ranks.get(name, 0)) for name in HEAD]
    print("\n".join(for_stdout(columns, rows)))
    return 0


def row(adapter: EngineAdapter) -> tuple[str, ...]:
    how = "nothing" if not adapter.status_path else "slots" if adapter.pins_slots else "counts"
    where = f"{how} ({adapter.status_path.partition('?')[0]})" if adapter.status_path else how
    grace = f"{adapter.grace_s + adapter.lag_s:g} s" if adapter.status_path else "-"
    return adapter.name, adapter.title, adapter.stops_by, where, grace
