"""`hangup report`: shows where every token went and what it cost."""

from __future__ import annotations

import argparse
import csv
import sys
from typing import Any

from hangup.cli import client, watch
from hangup.cli.table import Column, for_stdout, seconds
from hangup.gateway.store.ledger_tables import GROUPS
from hangup.terminal import count

_EXAMPLES = """\
examples:
  hangup report                                   the last 24 hours, by tenant
  hangup report --since 7d --by cause
  hangup report --since 30d --by model --csv > models.csv
"""
_COLUMNS = {
    "CALLS": "calls",
    "TOKENS IN": "tokens_in",
    "DELIVERED": "tokens_delivered",
    "WASTED": "tokens_wasted",
    "ESTIMATED": "tokens_estimated",
    "SAVED ~": "tokens_saved",
    "ENGINE S": "engine_s",
    "WASTED S": "engine_wasted_s",
    "COST": "money",
    "WASTED COST": "money_wasted",
    "SAVED COST ~": "money_saved",
}
# What is left out first on a narrow terminal.
_RANKS = {"tokens_estimated": 9, "engine_wasted_s": 7, "money_saved": 8, "money_wasted": 5, "engine_s": 6, "tokens_in": 4}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        description="Sums up the ledger. SAVED is an estimate (~), from the usual length of such answers. ESTIMATED is\n"
        "the part of WASTED that several zombies computed together: their shares are estimates.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--since", default="24h", metavar="TIME", help="how far back to look, such as 90m, 24h or 7d (default: 24h)"
    )
    parser.add_argument("--by", default="tenant", choices=GROUPS, help="group by this (default: tenant)")
    parser.add_argument("--csv", action="store_true", help="print CSV")
    watch.add_flag(parser)
    client.add_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    admin, since_s = client.Admin(arguments), seconds(arguments.since)
    if arguments.csv:
        report = admin.get("/api/report", since_s=since_s, by=arguments.by)
        writer = csv.DictWriter(sys.stdout, [arguments.by, *_COLUMNS.values()])
        writer.writeheader()
        writer.writerows(report["rows"])
        return 0
    return watch.show(arguments, lambda: admin.get("/api/report", since_s=since_s, by=arguments.by), lines)


def lines(report: dict[str, Any]) -> list[str]:
    if not report["total"]["calls"] and not report["rows"]:
        return ["no calls in this time"]
    by, total = report["by"], report["total"]
    priced = any(total[key] for key in _COLUMNS.values() if key.startswith("money"))  # without prices they say nothing
    shown = {name: key for name, key in _COLUMNS.items() if priced or not key.startswith("money")}
    columns = [
        Column(by.upper(), least=8),
        *(
            Column(f"{name} {report['currency']}" if "COST" in name else name, right=True, rank=_RANKS.get(key, 0))
            for name, key in shown.items()
        ),
    ]
    cells = [[str(row[by]) or "-", *(_cell(key, row[key]) for key in shown.values())] for row in report["rows"]]
    cells.append(["total", *(_cell(key, total[key]) for key in shown.values())])
    text = for_stdout(columns, cells)
    if report["engines"]:
        names = {
            "COMPUTED": "computed",
            "UNCOUNTED": "uncounted",
            "IN LEDGER": "booked",
            "LIVE": "live",
            "DIFFERENCE": "difference",
        }
        engines = [[name, *(_cell(key, row[key]) for key in names.values())] for name, row in report["engines"].items()]
        text += ["", *for_stdout([Column("ENGINE", least=8), *(Column(name, right=True) for name in names)], engines)]
    return text


def _cell(key: str, value: float) -> str:
    """Return a count, a sum of money, or seconds, as exactly as people read them; --csv and --json have all digits."""
    return count(value) if isinstance(value, int) else f"{value:,.4f}" if key.startswith("money") else f"{value:,.1f}"
