"""`hangup ps`: lists the live calls."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from hangup.cli import client, watch
from hangup.cli.parser import did_you_mean
from hangup.cli.table import Column, cell_text, for_stdout, seconds, styles
from hangup.core.call import Phase
from hangup.gateway.admin.calls import SORTS
from hangup.terminal import count, duration, short_id

_EXAMPLES = """\
examples:
  hangup ps
  hangup ps --tenant search --sort idle          the calls of a tenant, longest idle first
  hangup ps --phase waiting --json
  hangup ps --watch                              again every two seconds
"""
_PHASES = styles({"answering": "green", "waiting": "yellow"})
COLUMNS = (
    Column("ID", least=11),
    Column("TENANT", least=6, rank=5),
    Column("CLIENT", least=9, rank=9),
    Column("MODEL", least=8, rank=6),
    Column("BACKEND", least=8, rank=7),
    Column("SLOT", right=True, rank=11),
    Column("PHASE", style=_PHASES),
    Column("AGE", right=True),
    Column("IN", right=True, rank=10),
    Column("OUT", right=True),
    Column("TOK/S", right=True, rank=3),
    Column("IDLE", right=True, rank=8),
    Column("DEADLINE", right=True, rank=9),
    Column("WAITS FOR", least=9, rank=1),
)


def add_filters(parser: argparse.ArgumentParser) -> None:
    for name in ("tenant", "model", "backend", "route", "client"):
        parser.add_argument(f"--{name}", metavar=name.upper(), help=f"only calls with this {name}")
    parser.add_argument("--phase", choices=[phase.value for phase in Phase], help="only calls in this phase")
    parser.add_argument("--older-than", metavar="TIME", help="only calls older than this, such as 60s or 5m")


def filters(arguments: argparse.Namespace) -> dict[str, Any]:
    given = {name: getattr(arguments, name) for name in ("tenant", "model", "backend", "route", "phase", "client")}
    older = seconds(arguments.older_than) if arguments.older_than else None
    return {**given, "older_than_s": older}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("ps", epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_filters(parser)
    parser.add_argument(
        "--sort",
        default="age",
        type=sort_key,
        metavar="|".join(SORTS),
        help="sort key; a leading - reverses the order (--sort=-age)",
    )
    parser.add_argument("--limit", type=int, default=100, metavar="N", help="show at most this many calls (default: 100)")
    watch.add_flag(parser)
    client.add_flags(parser)
    parser.set_defaults(run=run)


def sort_key(text: str) -> str:
    """Check a sort key."""
    if text.removeprefix("-") not in SORTS:
        near = did_you_mean(text.removeprefix("-"), SORTS) or f"expected one of {', '.join(SORTS)}"
        raise argparse.ArgumentTypeError(f"unknown sort key {text!r}; {near}")
    return text


def run(arguments: argparse.Namespace) -> int:
    admin, chosen = client.Admin(arguments), filters(arguments)

    def ask() -> dict[str, Any]:
        answer: dict[str, Any] = admin.get("/api/calls", sort=arguments.sort, limit=arguments.limit, **chosen)
        return answer

    return watch.show(arguments, ask, lambda answer: _page(answer, any(chosen.values())))


def _page(answer: dict[str, Any], is_filtered: bool) -> list[str]:
    shown = lines(answer["calls"], "no live call matches the filter" if is_filtered and answer["live"] else "no live calls")
    if answer["total"] > len(answer["calls"]):
        shown.append(f"({len(answer['calls'])} of {count(answer['total'])}; use --limit to see more)")
    return shown


def lines(calls: list[dict[str, Any]], none: str = "no live calls") -> list[str]:
    if not calls:
        return [none]
    return for_stdout(COLUMNS, rows(calls, short=sys.stdout.isatty()))


def rows(calls: list[dict[str, Any]], *, short: bool) -> list[list[str]]:
    """Return the cells of `COLUMNS` for each call; `short`: only as much of an id as tells it from the others."""
    ids = shortened([call["id"] for call in calls]) if short else [call["id"] for call in calls]
    return [
        [
            id,
            *(cell_text(call[name]) for name in ("tenant", "client", "model", "backend", "slot", "phase")),
            _span(call["age_s"]),
            _number(call["tokens_in"]),
            _number(call["tokens_out"]),
            cell_text(call["tokens_per_s"]),
            _span(call["idle_s"]),
            _span(call["deadline_left_s"]),
            cell_text(call["waits_for"].removeprefix("the ").removeprefix("a ")),
        ]
        for id, call in zip(ids, calls, strict=True)
    ]


def shortened(ids: list[str]) -> list[str]:
    """Cut ids to the shortest length at which all of them differ, but not below what people are used to read."""
    length = len(short_id("x" * 99))
    while length < max(map(len, ids), default=0) and len({id[:length] for id in ids}) < len(set(ids)):
        length += 1
    return [id[:length] for id in ids]


def _span(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


def _number(value: int | None) -> str:
    return "-" if value is None else count(value)
