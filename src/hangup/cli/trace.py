"""`hangup trace`: shows what happened to one call, from its first byte until the engine released it."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from hangup.cli import client
from hangup.cli.table import cell_text
from hangup.terminal import is_coloured, paint

_EXAMPLES = """\
examples:
  hangup trace hu-3f9c0a7be1d24c55a0e1b2c3      the id is in the x-request-id header of every response
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "trace",
        description="Shows the timeline of a live or recently ended call (ended_calls_max).",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("id", metavar="ID", help="id of the call, or its beginning")
    client.add_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    admin = client.Admin(arguments)
    call = admin.get(client.path_of("calls", admin.find_call(arguments.id)))
    print(json.dumps(call, indent=2) if arguments.json else "\n".join(lines(call, coloured=is_coloured(sys.stdout))))
    return 0


def lines(call: dict[str, Any], *, coloured: bool = False) -> list[str]:
    kind = "streaming" if call["stream"] else "not streaming"
    shown = [
        f"{paint(call['id'], 'bold', coloured)}  {call['route']} ({kind}), model {cell_text(call['model'])}",
        ", ".join(f"{name} {cell_text(call[name])}" for name in ("tenant", "client", "backend", "slot")),
    ]
    for step in call["timeline"]:
        at = f"{step['at_s']:>12.6f} s"
        shown.append(f"{paint(at, 'dim', coloured)}  {paint(step['what'], _style(step['what']), coloured)}")
    if call["waits_for"]:
        shown.append(f"{call['age_s']:>12.6f} s  now: waiting for {call['waits_for']}")
    return shown


def _style(what: str) -> str:
    """Return the style of a step: whether the engine stopped is what one looks for."""
    return "green" if what.startswith(("verified", "restarted")) else "red" if what.startswith("zombie") else ""
