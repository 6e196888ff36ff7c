"""`hangup demo`: shows in one minute how much work a gateway that hangs up saves."""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import sys
from typing import Any

import uvloop

from hangup.cli.demo_parts.phases import PhaseResult, play, table

_EXAMPLES = """\
examples:
  hangup demo
  hangup demo --seconds 60 --slots 8
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="compare a plain proxy with hangup under clients that hang up; takes one minute",
        description="Simulated clients that hang up, time out, refresh and retry, on the embedded engine: first behind a plain "
        "proxy, then behind hangup, at the same load. Tokens and engine time are the engine's own counters.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=24.0, help="duration of each phase (default: 24)")
    parser.add_argument("--slots", type=int, default=4, help="engine slots (default: 4)")
    parser.add_argument("--seed", type=int, default=1, help="random seed of the clients (default: 1)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    screen = _Screen()
    admin_port = _free_port()
    print(f"hangup: in the second half, open http://127.0.0.1:{admin_port}/ to look at it in a browser", file=sys.stderr)
    print("hangup: finding out what the engine can do on this machine …", file=sys.stderr, flush=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            outcomes = runner.run(_play(arguments, screen, admin_port))
        except asyncio.CancelledError:
            return 143
    screen.clear()
    print("\n".join(table(outcomes)))
    return 0


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


async def _play(arguments: argparse.Namespace, screen: _Screen, admin_port: int) -> list[PhaseResult]:
    """Run the phases; stop their processes on a signal, too."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await play(arguments.seconds, arguments.slots, arguments.seed, screen.draw, admin_port)


class _Screen:
    """Redraws the table in place. Draws nothing if the output is not a terminal."""

    def __init__(self) -> None:
        self._lines = 0

    def draw(self, outcomes: list[PhaseResult]) -> None:
        if sys.stderr.isatty():
            self.clear()
            lines = table(outcomes)
            self._lines = len(lines)
            print("\n".join(lines), file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._lines:
            print(f"\x1b[{self._lines}F\x1b[J", end="", file=sys.stderr, flush=True)
            self._lines = 0
