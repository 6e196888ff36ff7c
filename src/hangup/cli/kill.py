"""`hangup kill`: stops calls, in the gateway and in the engine."""

from __future__ import annotations

import argparse
import json
from typing import Any

from hangup.cli import client, ps, watch
from hangup.cli.table import seconds
from hangup.errors import HangupError

_EXAMPLES = """\
examples:
  hangup kill hu-3f9c0a7be1d24c55a0e1b2c3
  hangup kill --tenant batch --older-than 60s --dry-run     list the calls that would be killed
  hangup kill --tenant batch --older-than 60s
  hangup kill --tenant batch --wait 0                       do not wait for the engines to confirm
  hangup kill --orphans 10.0.0.1:8000                       stop orphaned work, such as that of a previous gateway
"""

STOP_STATE_TEXT = {
    "verified": "verified: the engine stopped after {let_go_after_s} s",
    "restarted": "the engine was restarted after {let_go_after_s} s",
    "unverified": "not verified: the engine does not report its work",
    "pending": "not verified yet: waiting for the engine to confirm",
    "zombie": "NOT STOPPED: the engine is still working on it",
    None: "the engine had not started",
}


_ORPHANS = {
    "abort": "abort sent",
    "restart": "the engine gets no new calls and restarts when its running calls have finished",
    "quarantine": "they fill the engine, so it is quarantined until they are gone",
    "nothing": "cannot stop them: the engine has no abort API; set `spawn` or `restart_command` to have it restarted",
}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "kill",
        description="Stops calls by id or by filter. Their clients get an error. hangup stops the engines' work and\n"
        "verifies it. The exit status is 1 if an id is not live, or if an engine is known to be still working on a call.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("id", nargs="*", metavar="ID", help="id of a live call, as `hangup ps` shows it, or its beginning")
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
        help="stop work in this backend that this gateway did not send; use it only if nobody needs that work",
    )
    parser.add_argument("--dry-run", action="store_true", help="only list the matching calls")
    client.add_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    selection = {name: value for name, value in ps.filters(arguments).items() if value}
    if arguments.orphans:
        if arguments.id or selection:
            raise HangupError("--orphans cannot be combined with ids or filters: it stops work that this gateway did not send")
        return _end_orphans(client.Admin(arguments), arguments)
    if bool(arguments.id) == bool(selection):
        raise HangupError("pass either call ids or a filter such as --tenant or --older-than")
    admin = client.Admin(arguments)
    arguments.id = [admin.find_call(id, live=True) for id in arguments.id]
    if arguments.id:
        selection = {"id": ",".join(arguments.id)}
    if arguments.dry_run:
        return _dry_run(admin, arguments, selection)
    wait_s = seconds(arguments.wait)
    answer = admin.request("DELETE", "/api/calls", client.TIMEOUT_S + wait_s, wait_s=str(wait_s), **selection)
    killed = answer.pop("killed")
    missing = [id for id in arguments.id if id not in {row["id"] for row in killed}]
    if arguments.json:
        print(json.dumps({"killed": killed, "missing": missing, **answer}, indent=2))
    else:
        watch.warn_of_silence(answer)
        for row in killed:
            print(f"killed {row['id']}: {engine_side(row)}")
        for id in missing:
            print(f"not live: {id}")
        if not killed and not missing:
            print("no live call matches")
    return 1 if missing or client.silent_note(answer) or any(row["verified"] is False for row in killed) else 0


def _end_orphans(admin: client.Admin, arguments: argparse.Namespace) -> int:
    path = client.path_of("backends", arguments.orphans, "orphans")
    found = admin.request("GET" if arguments.dry_run else "DELETE", path)
    if arguments.json:
        print(json.dumps(found, indent=2))
    elif not found["orphans"]:
        why = " (it is shared, so hangup does not count the work of others)" if found["shared"] else ""
        print(f"{found['backend']}: no orphans found{why}")
    else:
        print(f"{found['backend']}: {found['orphans']} orphan{'s' * (found['orphans'] != 1)}: {_ORPHANS[found['means']]}")
    return 1 if found["orphans"] and found["means"] == "nothing" else 0


def _dry_run(admin: client.Admin, arguments: argparse.Namespace, selection: dict[str, Any]) -> int:
    rows = admin.request("DELETE", "/api/calls", dry_run=1, **selection)["would_kill"]
    if arguments.json:
        print(json.dumps({"dry_run": True, "would_kill": rows}, indent=2))
        return 0
    for line in ps.lines(rows, "no live call matches"):
        print(line)
    return 0


def engine_side(row: dict[str, Any]) -> str:
    """Describe what was done at the engine to stop the call, and whether the engine released it."""
    if not row["connection_cut"] and not row["abort_sent"]:
        return "no engine was working on it"
    actions = " and ".join(
        what for what, done in (("connection cut", row["connection_cut"]), ("abort sent", row["abort_sent"])) if done
    )
    slot = f" slot {row['slot']}" if row["slot"] is not None else ""
    return f"{actions}, {STOP_STATE_TEXT[row['release']].format_map(row)} ({row['backend']}{slot}, {row['tokens_out']} tokens)"
