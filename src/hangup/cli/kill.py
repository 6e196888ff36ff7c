"""`hangup kill`: ends calls, in the gateway and in the engine."""

from __future__ import annotations

import argparse
import json
from typing import Any

from hangup.cli import client, ps
from hangup.errors import HangupError

_EXAMPLES = """\
examples:
  hangup kill hu-3f9c0a7be1d24c55a0e1b2c3
  hangup kill --tenant batch --older-than 60s --dry-run     which calls that would be
  hangup kill --tenant batch --older-than 60s
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "kill",
        help="end calls, in the engine too",
        description="Ends calls by id or by filter. Their clients get an error, their engines are stopped.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("id", nargs="*", metavar="ID")
    ps.add_filters(parser)
    parser.add_argument("--dry-run", action="store_true", help="only say which calls are meant")
    client.add_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    chosen = {name: value for name, value in ps.filters(arguments).items() if value}
    if bool(arguments.id) == bool(chosen):
        raise HangupError("which calls? Give ids, or a filter such as --tenant or --older-than, but not both")
    admin = client.Admin(arguments)
    if arguments.dry_run:
        return _dry_run(admin, arguments, chosen)
    killed, missing = _by_id(admin, arguments.id)
    if chosen:
        killed = admin.ask("DELETE", "/api/calls", **chosen)["killed"]
    if arguments.json:
        print(json.dumps({"killed": killed, "missing": missing}, indent=2))
    else:
        for row in killed:
            print(f"killed {row['id']}: {engine_side(row)}")
        for id in missing:
            print(f"not live: {id}")
        if not killed and not missing:
            print("no live call is meant by that")
    return 1 if missing else 0


def _by_id(admin: client.Admin, ids: list[str]) -> tuple[list[dict[str, Any]], list[str]]:
    killed: list[dict[str, Any]] = []
    missing = []
    for id in ids:
        try:
            killed += admin.ask("DELETE", client.path_of("calls", id))["killed"]
        except HangupError as error:
            if "there is no live call" not in str(error):
                raise
            missing.append(id)
    return killed, missing


def _dry_run(admin: client.Admin, arguments: argparse.Namespace, chosen: dict[str, Any]) -> int:
    if chosen:
        rows = admin.ask("DELETE", "/api/calls", dry_run=1, **chosen)["would_kill"]
    else:
        rows = [row for id in arguments.id if not (row := admin.get(client.path_of("calls", id)))["outcome"]]
    if arguments.json:
        print(json.dumps({"dry_run": True, "would_kill": rows}, indent=2))
        return 0
    for line in ps.lines(rows):
        print(line)
    return 0


def engine_side(row: dict[str, Any]) -> str:
    """What is known of the engine, in words."""
    if not row["connection_cut"] and not row["abort_sent"]:
        return "no engine was at work on it"
    did = " and ".join(
        what for what, done in (("connection cut", row["connection_cut"]), ("abort sent", row["abort_sent"])) if done
    )
    said = {True: "the engine let go", False: "the engine still works on it", None: "not verified by the engine"}
    return f"{did}, {said[row['verified']]} ({row['backend']}, {row['tokens_out']} tokens)"
