"""`hangup backends`, `hangup drain` and `hangup undrain`: list the backends, stop new calls to one, and allow them again."""

from __future__ import annotations

import argparse
import json
from typing import Any

from hangup.cli import client, watch
from hangup.cli.table import Column, cell_text, for_stdout, styles
from hangup.terminal import count

_MODELS_SHOWN = 3
_EXAMPLES = """\
examples:
  hangup backends
  hangup drain 10.0.0.1:8000       stop sending new calls there; running calls may finish
  hangup undrain 10.0.0.1:8000
"""


def add_parser(commands: Any) -> None:
    listing = commands.add_parser("backends", epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    watch.add_flag(listing)
    client.add_flags(listing)
    listing.set_defaults(run=run_list)
    for name, method in (("drain", "PUT"), ("undrain", "DELETE")):
        parser = commands.add_parser(name, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("backend", metavar="BACKEND", help="name of a backend, as `hangup backends` shows it")
        client.add_flags(parser)
        parser.set_defaults(run=run_drain, method=method)


def run_list(arguments: argparse.Namespace) -> int:
    admin = client.Admin(arguments)
    return watch.show(arguments, lambda: admin.get("/api/backends"), lambda answer: lines(answer["backends"]))


def run_drain(arguments: argparse.Namespace) -> int:
    admin = client.Admin(arguments)
    path = client.path_of("backends", admin.find_backend(arguments.backend), "drain")
    answer = admin.request(arguments.method, path)
    if not arguments.json:
        watch.warn_of_silence(answer)
    print(json.dumps(answer, indent=2) if arguments.json else "\n".join(lines(answer["backends"])))
    return 1 if client.silent_note(answer) else 0


_STATES = styles({"up": "green", "down": "red", "quarantined": "red"}, "yellow")
COLUMNS = (
    Column("BACKEND", least=9),
    Column("ENGINE", rank=4),
    Column("STATE", least=11, style=_STATES),
    Column("IN FLIGHT", right=True),
    Column("LIMIT", least=9, rank=2),
    Column("LADDER", rank=5, style=styles({"healthy": ""}, "red")),
    Column("ZOMBIES", right=True, style=styles({"0": ""}, "red")),
    Column("REASON", least=10, rank=1),
    Column("MODELS", least=8, rank=6),
)


def lines(backends: list[dict[str, Any]]) -> list[str]:
    return for_stdout(COLUMNS, rows(backends)) if backends else ["no backends"]


def rows(backends: list[dict[str, Any]]) -> list[list[str]]:
    return [
        [
            row["name"],
            row["engine"],
            row["state"],
            count(row["in_flight"]),
            _limit(row),
            cell_text(row["ladder"]),
            str(len(row["zombies"])),
            cell_text(row["ladder_reason"] or row["fault"]),
            _models(row["models"]),
        ]
        for row in backends
    ]


def _models(names: list[str] | None) -> str:
    if names is None:
        return "any"
    more = f" and {len(names) - _MODELS_SHOWN} more" if len(names) > _MODELS_SHOWN else ""
    return cell_text(", ".join(names[:_MODELS_SHOWN]) + more)


_LIMITED_BY = {
    "slots": "slots",
    "late_first_tokens": "first tokens are late",
    "engine_reports_waiting": "calls wait in the engine",
    "engine_refused": "the engine refuses more",
    "slow_steps": "tokens are slow",
}


def _limit(row: dict[str, Any]) -> str:
    """Return the backend's limit of calls in flight, and the reason for it."""
    if row["limit"] is None:
        return "none"
    why = (
        f"engine refuses calls for {row['paused_s']:g} s" if row["paused_s"] is not None else _LIMITED_BY.get(row["limited_by"])
    )
    return f"{row['limit']} ({why})" if why else str(row["limit"])
