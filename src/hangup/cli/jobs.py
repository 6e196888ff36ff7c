"""`hangup jobs`: lists, shows, cancels and prunes jobs, the work that runs without a connected client."""

from __future__ import annotations

import argparse
import json
from typing import Any

from hangup.cli import client, submit, watch
from hangup.cli.table import Column, cell_text, for_stdout, seconds, styles
from hangup.terminal import count, duration

_EXAMPLES = """\
examples:
  hangup jobs                                     active jobs; --all also lists ended jobs
  hangup jobs show batch_3f9c0a7be1d24c55a0e1b2c3
  hangup jobs cancel batch_3f9c0a7be1d24c55a0e1b2c3
  hangup jobs submit requests.jsonl               run a file of requests and show the progress
  hangup jobs prune --older-than 7d
"""
_ID = "id of a job, or its beginning"
_ENDED = ("completed", "failed", "cancelled", "expired")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "jobs",
        description="Manages jobs: work that may outlive its connection, but not its owner.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=lambda arguments: parser.print_help() or 2)
    subcommands = parser.add_subparsers(metavar="COMMAND", title="commands")
    listing = _command(subcommands, "ls", "list jobs, newest first", run_ls)
    watch.add_flag(listing)
    listing.add_argument("--all", action="store_true", help="also list ended jobs")
    listing.add_argument("--tenant", help="only jobs of this tenant")
    listing.add_argument("--kind", choices=("call", "response", "batch", "message_batch"), help="only jobs of this kind")
    listing.add_argument("--limit", type=int, default=100, metavar="N", help="show at most this many jobs (default: 100)")
    _command(subcommands, "show", "show the details of a job", run_show).add_argument("id", metavar="ID", help=_ID)
    _command(subcommands, "cancel", "cancel jobs, also in the engines", run_cancel).add_argument(
        "id", nargs="+", metavar="ID", help=_ID
    )
    pruning = _command(subcommands, "prune", "delete ended jobs and their results", run_prune)
    pruning.add_argument(
        "--older-than",
        default="30d",
        metavar="TIME",
        help="delete jobs that ended longer ago than this, such as 24h (default: 30d)",
    )
    pruning.add_argument("--tenant", help="only jobs of this tenant")
    submit.add_parser(subcommands)


def _command(subcommands: Any, name: str, help: str, run: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subcommands.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
    client.add_flags(parser)
    parser.set_defaults(run=run)
    return parser


def run_ls(arguments: argparse.Namespace) -> int:
    admin = client.Admin(arguments)
    chosen = {"tenant": arguments.tenant, "kind": arguments.kind, "limit": arguments.limit}

    def page(answer: dict[str, Any]) -> list[str]:
        more = [f"Only the first {arguments.limit} are shown; use --limit to see more."] * bool(answer["more"])
        return lines(answer["jobs"], "no jobs" if arguments.all else "no active jobs (--all lists ended ones, too)") + more

    return watch.show(arguments, lambda: admin.get("/api/jobs", active="" if arguments.all else "1", **chosen), page)


_STATUSES = styles({"completed": "green", "failed": "red", "expired": "red", "cancelled": "yellow"})
COLUMNS = (
    Column("ID", least=11),
    Column("TENANT", least=6, rank=4),
    Column("STATUS", least=9, style=_STATUSES),
    Column("DONE", right=True),
    Column("TOTAL", right=True),
    Column("RUNNING", right=True, rank=2),
    Column("FAILED", right=True, style=styles({"0": ""}, "red")),
    Column("AGE", right=True, rank=3),
    Column("EXPIRES IN", right=True, rank=1),
    Column("MODEL", least=8, rank=6),
    Column("ENDPOINT", least=9, rank=5),
)


def lines(jobs: list[dict[str, Any]], none: str = "no jobs") -> list[str]:
    return for_stdout(COLUMNS, [row(job) for job in jobs]) if jobs else [none]


def row(job: dict[str, Any]) -> list[str]:
    """Return the cells of `COLUMNS` for a job."""
    items = job["items"]
    status = f"{job['status']} ({job['cause']})" if job["cause"] not in (None, "cancelled") else job["status"]
    counts = [items["succeeded"], items["total"], items["running"], items["errored"]]
    return [
        job["id"],
        job["tenant"],
        status,
        *map(count, counts),
        duration(job["age_s"]),
        _remaining(job),
        cell_text(job["model"]),
        job["what"],
    ]


def _remaining(job: dict[str, Any]) -> str:
    """Return the time left of the job's lease, or else of its completion window."""
    if job["status"] in _ENDED:
        return "-"
    if job["lease_left_s"] is not None:
        return duration(job["lease_left_s"])
    return "-" if job["expires_at"] is None else duration(job["expires_at"] - job["created_at"] - job["age_s"])


def run_show(arguments: argparse.Namespace) -> int:
    admin = client.Admin(arguments)
    job = admin.get(client.path_of("jobs", admin.find_job(arguments.id)))
    if arguments.json:
        print(json.dumps(job, indent=2))
        return 0
    items = job.pop("items")
    problems = job.pop("problems") or []
    for name, value in job.items():
        print(f"{name.replace('_', ' '):<14} {cell_text(value)}")
    print(f"{'items':<14} " + ", ".join(f"{count} {state}" for state, count in items.items() if count))
    for problem in problems:
        print(f"  line {cell_text(problem['line'])}: {problem['message']} ({problem['code']})")
    return 0


def run_cancel(arguments: argparse.Namespace) -> int:
    admin = client.Admin(arguments)
    jobs: list[dict[str, Any]] = []
    missing = []
    for id in arguments.id:
        try:
            jobs.append(admin.request("DELETE", client.path_of("jobs", admin.find_job(id))))
        except client.NotFound:
            missing.append(id)
    if arguments.json:
        print(json.dumps({"jobs": jobs, "missing": missing}, indent=2))
    else:
        for job in jobs:
            claimed = job["items"]["claimed"]
            note = f": waiting for the engine to stop {claimed} item{'s' * (claimed != 1)}" if claimed else ""
            print(f"{job['id']} {job['status']}{note}")
        for id in missing:
            print(f"no such job: {id}")
    return 1 if missing else 0


def run_prune(arguments: argparse.Namespace) -> int:
    admin = client.Admin(arguments)
    older_than = seconds(arguments.older_than)
    pruned = admin.request("DELETE", "/api/jobs", ended_before_s=str(older_than), tenant=arguments.tenant)
    print(json.dumps(pruned) if arguments.json else f"{pruned['pruned']} jobs deleted")
    return 0
