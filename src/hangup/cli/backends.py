"""`hangup backends`, `hangup drain` and `hangup undrain`: list the backends, stop new calls to one, and allow them again."""

from __future__ import annotations

import argparse
import json
from typing import Any

from hangup.cli import client
from hangup.cli.table import cell_text, table

_MODELS_SHOWN = 3
_EXAMPLES = """\
examples:
  hangup backends
  hangup drain 10.0.0.1:8000       stop sending new calls there; running calls may finish
  hangup undrain 10.0.0.1:8000
"""


def add_parser(commands: Any) -> None:
    listing = commands.add_parser(
        "backends", help="list the backends", epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    client.add_flags(listing)
    listing.set_defaults(run=run_list)
    for name, method, help in (
        ("drain", "PUT", "stop sending new calls to a backend"),
        ("undrain", "DELETE", "send calls to a drained backend again"),
    ):
        parser = commands.add_parser(name, help=help, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("backend", metavar="BACKEND", help="name of a backend, as `hangup backends` shows it")
        client.add_flags(parser)
        parser.set_defaults(run=run_drain, method=method)


def run_list(arguments: argparse.Namespace) -> int:
    _show(client.Admin(arguments).get("/api/backends"), arguments.json)
    return 0


def run_drain(arguments: argparse.Namespace) -> int:
    _show(
        client.Admin(arguments).request(arguments.method, client.path_of("backends", arguments.backend, "drain")),
        arguments.json,
    )
    return 0


def _show(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    rows = [
        [
            row["name"],
            row["engine"],
            row["state"],
            str(row["in_flight"]),
            _limit(row),
            cell_text(row["ladder"]),
            str(len(row["zombies"])),
            cell_text(row["ladder_reason"]),
            _models(row["models"]),
        ]
        for row in answer["backends"]
    ]
    head = ["BACKEND", "ENGINE", "STATE", "IN FLIGHT", "LIMIT", "LADDER", "ZOMBIES", "REASON", "MODELS"]
    for line in table(head, rows, frozenset(["IN FLIGHT", "ZOMBIES"])):
        print(line)


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
