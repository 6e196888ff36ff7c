"""`hangup ps`: lists the live calls."""

from __future__ import annotations

import argparse
import json
from typing import Any

from hangup.cli import client
from hangup.cli.table import cell_text, seconds, table
from hangup.gateway.admin.calls import SORTS

_EXAMPLES = """\
examples:
  hangup ps
  hangup ps --tenant search --sort idle          the calls of a tenant, longest idle first
  hangup ps --phase waiting --json
"""
COLUMNS = {
    "ID": "id",
    "TENANT": "tenant",
    "CLIENT": "client",
    "MODEL": "model",
    "BACKEND": "backend",
    "SLOT": "slot",
    "PHASE": "phase",
    "AGE": "age_s",
    "IN": "tokens_in",
    "OUT": "tokens_out",
    "TOK/S": "tokens_per_s",
    "IDLE": "idle_s",
    "DEADLINE": "deadline_left_s",
    "WAITING FOR": "waits_for",
}
RIGHT = frozenset(["SLOT", "AGE", "IN", "OUT", "TOK/S", "IDLE", "DEADLINE"])


def add_filters(parser: argparse.ArgumentParser) -> None:
    for name in ("tenant", "model", "backend", "route", "phase", "client"):
        parser.add_argument(f"--{name}", metavar=name.upper(), help=f"only calls with this {name}")
    parser.add_argument("--older-than", metavar="TIME", help="only calls older than this, such as 60s or 5m")


def filters(arguments: argparse.Namespace) -> dict[str, Any]:
    given = {name: getattr(arguments, name) for name in ("tenant", "model", "backend", "route", "phase", "client")}
    older = seconds(arguments.older_than) if arguments.older_than else None
    return {**given, "older_than_s": older}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "ps", help="list the live calls", epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_filters(parser)
    parser.add_argument(
        "--sort", default="age", metavar="|".join(SORTS), help="sort key; a leading - reverses the order (--sort=-age)"
    )
    parser.add_argument("--limit", type=int, default=100, metavar="N", help="show at most this many calls (default: 100)")
    client.add_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    answer = client.Admin(arguments).get("/api/calls", sort=arguments.sort, limit=arguments.limit, **filters(arguments))
    if arguments.json:
        print(json.dumps(answer, indent=2))
        return 0
    for line in lines(answer["calls"]):
        print(line)
    if answer["total"] > len(answer["calls"]):
        print(f"({len(answer['calls'])} of {answer['total']}; use --limit to see more)")
    return 0


def lines(calls: list[dict[str, Any]]) -> list[str]:
    if not calls:
        return ["no live calls"]
    return table(list(COLUMNS), [[cell_text(call[key]) for key in COLUMNS.values()] for call in calls], RIGHT)
