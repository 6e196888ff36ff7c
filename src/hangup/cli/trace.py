"""`hangup trace`: shows what happened to one call, from its first byte until the engine released it."""

from __future__ import annotations

import argparse
import json
from typing import Any

from hangup.cli import client
from hangup.cli.table import cell_text

_EXAMPLES = """\
examples:
  hangup trace hu-3f9c0a7be1d24c55a0e1b2c3      the id is in the x-request-id header of every response
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "trace",
        help="show the timeline of one call",
        description="Shows the timeline of a live or recently ended call (ended_calls_max).",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("id", metavar="ID", help="id of the call")
    client.add_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    call = client.Admin(arguments).get(client.path_of("calls", arguments.id))
    if arguments.json:
        print(json.dumps(call, indent=2))
        return 0
    kind = "streaming" if call["stream"] else "not streaming"
    print(f"{call['id']}  {call['route']} ({kind}), model {cell_text(call['model'])}")
    print(", ".join(f"{name} {cell_text(call[name])}" for name in ("tenant", "client", "backend", "slot")))
    for step in call["timeline"]:
        print(f"{step['at_s']:>12.6f} s  {step['what']}")
    if call["waits_for"]:
        print(f"{call['age_s']:>12.6f} s  now: waiting for {call['waits_for']}")
    return 0
