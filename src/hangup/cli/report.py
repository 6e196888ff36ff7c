"""`hangup report`: shows where every token went and what it cost."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from typing import Any

from hangup.cli import client
from hangup.cli.table import seconds, table
from hangup.gateway.store.ledger_tables import GROUPS

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


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        help="show where every token went, and what it cost",
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
    client.add_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    report = client.Admin(arguments).get("/api/report", since_s=seconds(arguments.since), by=arguments.by)
    if arguments.json:
        print(json.dumps(report, indent=2))
    elif arguments.csv:
        writer = csv.DictWriter(sys.stdout, [arguments.by, *_COLUMNS.values()])
        writer.writeheader()
        writer.writerows(report["rows"])
    else:
        for line in lines(report):
            print(line)
    return 0


def lines(report: dict[str, Any]) -> list[str]:
    by = report["by"]
    head = [by.upper(), *(f"{name} {report['currency']}" if "COST" in name else name for name in _COLUMNS)]
    rows = [[str(row[by]) or "-", *map(_cell, (row[key] for key in _COLUMNS.values()))] for row in report["rows"]]
    rows.append(["total", *map(_cell, (report["total"][key] for key in _COLUMNS.values()))])
    text = table(head, rows, frozenset(head[1:]))
    if report["engines"]:
        columns = {
            "COMPUTED": "computed",
            "UNCOUNTED": "uncounted",
            "IN LEDGER": "booked",
            "LIVE": "live",
            "DIFFERENCE": "difference",
        }
        engines = [[name, *(str(row[key]) for key in columns.values())] for name, row in report["engines"].items()]
        text += ["", *table(["ENGINE", *columns], engines, frozenset(columns))]
    return text


def _cell(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4f}"
