"""`hangup kill`: stops calls, in the gateway and in the engine."""

from __future__ import annotations

import argparse
import json
from typing import Any

from hangup.cli import client, ps
from hangup.cli.table import seconds
from hangup.errors import HangupError

_EXAMPLES = """\
examples:
  hangup kill hu-3f9c0a7be1d24c55a0e1b2c3
  hangup kill --tenant batch --older-than 60s --dry-run     which calls that would be
  hangup kill --tenant batch --older-than 60s
  hangup kill --tenant batch --wait 0                       without waiting for the engines' word
  hangup kill --orphans 10.0.0.1:8000                       what an engine runs that is nobody's, such as a former gateway's
"""

SAID = {
    "verified": "verified: the engine let go after {let_go_after_s} s",
    "restarted": "the engine was restarted after {let_go_after_s} s",
    "unverified": "not verified: the engine does not tell",
    "pending": "not verified: the engine has not told yet",
    "zombie": "NOT GONE: the engine still works on it",
    None: "the engine had not begun",
}


_ORPHANS = {
    "abort": "told to stop",
    "restart": "the engine gets no new calls, and is restarted when those it has have finished",
    "quarantine": "there is no room beside them, so the engine gets no calls until they are gone",
    "nothing": "the engine cannot be told to stop them; with `spawn` or `restart_command` it would be restarted",
}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "kill",
        help="end calls, in the engine too, and verify",
        description="Ends calls by id or by filter. Their clients get an error; their engines are stopped, and asked\n"
        "whether they did. The exit status is 1 if one of the ids is not live, or an engine is known to work on.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("id", nargs="*", metavar="ID")
    ps.add_filters(parser)
    parser.add_argument(
        "--wait",
        default="5s",
        metavar="TIME",
        help="how long to wait for the engines to confirm (default: 5s; at most the gateway's kill_wait_s)",
    )
    parser.add_argument(
        "--orphans",
        metavar="BACKEND",
        help="stop work in this backend that no call of this gateway caused; use it only if nobody waits for that work",
    )
    parser.add_argument("--dry-run", action="store_true", help="only list the matching calls")
    client.add_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    chosen = {name: value for name, value in ps.filters(arguments).items() if value}
    if arguments.orphans:
        if arguments.id or chosen:
            raise HangupError("--orphans is about work that is no call of ours: it goes with neither ids nor filters")
        return _end_orphans(client.Admin(arguments), arguments)
    if bool(arguments.id) == bool(chosen):
        raise HangupError("which calls? Give ids, or a filter such as --tenant or --older-than, but not both")
    if arguments.id:
        chosen = {"id": ",".join(arguments.id)}
    admin = client.Admin(arguments)
    if arguments.dry_run:
        return _dry_run(admin, arguments, chosen)
    wait_s = seconds(arguments.wait)
    killed = admin.ask("DELETE", "/api/calls", client.TIMEOUT_S + wait_s, wait_s=str(wait_s), **chosen)["killed"]
    missing = [id for id in arguments.id if id not in {row["id"] for row in killed}]
    if arguments.json:
        print(json.dumps({"killed": killed, "missing": missing}, indent=2))
    else:
        for row in killed:
            print(f"killed {row['id']}: {engine_side(row)}")
        for id in missing:
            print(f"not live: {id}")
        if not killed and not missing:
            print("no live call matches")
    return 1 if missing or any(row["verified"] is False for row in killed) else 0


def _end_orphans(admin: client.Admin, arguments: argparse.Namespace) -> int:
    path = client.path_of("backends", arguments.orphans, "orphans")
    found = admin.ask("GET" if arguments.dry_run else "DELETE", path)
    if arguments.json:
        print(json.dumps(found, indent=2))
    elif not found["orphans"]:
        why = " (it is shared, so that what others run is theirs)" if found["shared"] else ""
        print(f"{found['backend']}: nothing is known to run there that is nobody's{why}")
    else:
        print(f"{found['backend']}: {found['orphans']} calls that are nobody's: {_ORPHANS[found['means']]}")
    return 1 if found["orphans"] and found["means"] == "nothing" else 0


def _dry_run(admin: client.Admin, arguments: argparse.Namespace, chosen: dict[str, Any]) -> int:
    rows = admin.ask("DELETE", "/api/calls", dry_run=1, **chosen)["would_kill"]
    if arguments.json:
        print(json.dumps({"dry_run": True, "would_kill": rows}, indent=2))
        return 0
    for line in ps.lines(rows):
        print(line)
    return 0


def engine_side(row: dict[str, Any]) -> str:
    """Describe what was done at the engine to stop the call, and whether the engine released it."""
    if not row["connection_cut"] and not row["abort_sent"]:
        return "no engine was at work on it"
    did = " and ".join(
        what for what, done in (("connection cut", row["connection_cut"]), ("abort sent", row["abort_sent"])) if done
    )
    slot = f" slot {row['slot']}" if row["slot"] is not None else ""
    return f"{did}, {SAID[row['release']].format_map(row)} ({row['backend']}{slot}, {row['tokens_out']} tokens)"
