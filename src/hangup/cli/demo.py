"""`hangup demo`: shows in one minute how much work a gateway that hangs up saves."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import signal
import socket
import sys
import textwrap
from typing import Any, TextIO

import uvloop

from hangup.cli.demo_parts.crowd import WHAT_THEY_DO, DemoCrowd
from hangup.cli.demo_parts.phases import abandoned, play
from hangup.cli.demo_parts.picture import PhaseResult, table, verdict
from hangup.cli.demo_parts.wedge import wedged
from hangup.errors import HangupError
from hangup.terminal import is_coloured, paint

_FOREVER_S = 86_400.0
_SPECULATIVE = "a fake llama-server with speculative decoding that gets stuck in its draft loop at a hang-up"
_EXAMPLES = """\
examples:
  hangup demo
  hangup demo --wedge                an engine with speculative decoding gets stuck when a client hangs up
  hangup demo --seconds 60 --slots 8
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        description="Simulated clients that hang up, time out, refresh and retry, on the embedded engine: first behind a plain "
        "proxy, then behind hangup, at the same load. Tokens and engine time are the engine's own counters.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--wedge",
        action="store_true",
        help="a fake llama-server with speculative decoding gets stuck in its draft loop at a hang-up, once per side",
    )
    parser.add_argument("--seconds", type=float, default=24.0, help="duration of each side (default: 24)")
    parser.add_argument("--slots", type=int, default=4, help="engine slots (default: 4)")
    parser.add_argument("--seed", type=int, default=1, help="random seed of the clients (default: 1)")
    parser.add_argument(
        "--admin-port", type=int, default=8081, metavar="PORT", help="port of the dashboard, if it is free (default: 8081)"
    )
    parser.add_argument("--leave", action="store_true", help="end after the result, also at a terminal")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    screen = _DemoScreen(_usable_port(arguments.admin_port))
    stays = sys.stdin.isatty() and sys.stderr.isatty() and not arguments.leave
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            results = runner.run(_play(arguments, screen, stays))
        except asyncio.CancelledError:
            return 143
        except KeyboardInterrupt:
            screen.stopped()
            return 130
    if not screen.finished:
        screen.tell(results)
    return 0


def _usable_port(wanted: int) -> int:
    """Return the port, or any free one if somebody else has it."""
    for port in (wanted, 0):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)) as sock:
            return int(sock.getsockname()[1])
    raise HangupError("no port is free")


async def _play(arguments: argparse.Namespace, screen: _DemoScreen, stays: bool) -> list[PhaseResult]:
    """Run the phases; stop their processes on a signal, too."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    story = (wedged if arguments.wedge else abandoned)(arguments.slots, screen.admin_port)
    screen.begin(wedge=arguments.wedge)
    return await play(story, arguments.seconds, arguments.seed, screen.draw, screen.stay if stays else None)


class _DemoScreen:
    """Redraws the table in place. Draws nothing before the end if the output is not a terminal."""

    def __init__(self, admin_port: int) -> None:
        self.admin_port = admin_port
        self.finished = False  # the result is on the screen
        self._lines = 0
        self._results: list[PhaseResult] = []

    def begin(self, *, wedge: bool) -> None:
        self._say(WHAT_THEY_DO)
        self._say(f"The engine is {_SPECULATIVE if wedge else 'a small model on this machine'}.")
        self._say("First a plain proxy is in front of it, then hangup.")
        self._say(f"The dashboard is at http://127.0.0.1:{self.admin_port}/ in the second half.")
        if not wedge:
            self._say("Measuring how fast the engine is …")

    def _say(self, text: str) -> None:
        print(_wrapped(f"hangup: {text}", sys.stderr), file=sys.stderr, flush=True)

    def draw(self, results: list[PhaseResult]) -> None:
        self._results = results
        if sys.stderr.isatty():
            self._clear()
            width = shutil.get_terminal_size().columns
            lines = table(results, width - 1, live=True)
            self._lines = len(lines)
            print("\n".join(lines), file=sys.stderr, flush=True)

    def tell(self, results: list[PhaseResult]) -> None:
        """Print the table and the verdict."""
        self._clear()
        self.finished = True
        width = shutil.get_terminal_size().columns - 1 if sys.stdout.isatty() else 80
        print("\n".join(table(results, width)))
        print("\n" + paint(_wrapped(verdict(*results), sys.stdout), "bold", is_coloured(sys.stdout)), flush=True)

    async def stay(self, results: list[PhaseResult], crowd: DemoCrowd) -> None:
        """Keep the dashboard and the clients until Ctrl-C."""
        self.tell(results)
        self._say(f"The dashboard stays at http://127.0.0.1:{self.admin_port}/ and clients keep coming; Ctrl-C ends the demo.")
        await crowd.run(_FOREVER_S)

    def stopped(self) -> None:
        """Say what is known when somebody stops the demo."""
        print(file=sys.stderr)  # after the terminal's ^C
        if self.finished:
            self._say("the demo is over")
            return
        self._clear()
        if self._results:
            print("\n".join(table(self._results, shutil.get_terminal_size().columns - 1, live=True)))
        self._say("stopped before the end")

    def _clear(self) -> None:
        if self._lines:
            print(f"\x1b[{self._lines}F\x1b[J", end="", file=sys.stderr, flush=True)
            self._lines = 0


def _wrapped(text: str, output: TextIO) -> str:
    """Return the text in lines that fit, broken between words; as one line where no terminal has a width."""
    width = max(20, shutil.get_terminal_size().columns - 1)
    return textwrap.fill(text, width, break_on_hyphens=False) if output.isatty() else text
