"""`hangup top`: calls, backends, zombies, queue, jobs and tenants on a screen that refreshes, with keys to look closer and act.

`top_parts` decides what to show and what a key does; this module has the terminal and the gateway.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hangup.cli import client, kill, ps, trace
from hangup.cli.table import cell_text, seconds
from hangup.cli.top_parts.screen import HELP, Drawing, draw, matching
from hangup.cli.top_parts.state import TopState, click, press, read_keys
from hangup.cli.top_parts.views import VIEWS, TopRow
from hangup.errors import HangupError
from hangup.gateway.admin.calls import SORTS
from hangup.terminal import is_coloured

_EXAMPLES = (
    "keys:\n  "
    + "\n  ".join(HELP[:8])
    + """

examples:
  hangup top
  hangup top backends
  hangup top --every 5s --sort=-tokens
"""
)
_KILL_WAIT_S = 2.0  # how long to wait for the engine's confirmation; the screen does not refresh meanwhile
_HOME, _CLEAR = "\x1b[H", "\x1b[J"
# The alternate screen, without a cursor, and with clicks and the wheel reported (1000) in numbers without bounds (1006).
_BEGIN = "\x1b[?1049h\x1b[?25l\x1b[?1000h\x1b[?1006h"
_END = "\x1b[?1006l\x1b[?1000l\x1b[?1049l\x1b[?25h"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "top",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("view", nargs="?", default="calls", choices=list(VIEWS), help="what to show first (default: calls)")
    parser.add_argument("--every", default="1s", metavar="TIME", help="refresh interval (default: 1s)")
    parser.add_argument(
        "--sort",
        default="age",
        type=ps.sort_key,
        metavar="|".join(SORTS),
        help="sort key of the calls; a leading - reverses the order",
    )
    client.add_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    admin = client.Admin(arguments)
    if arguments.json:
        print(json.dumps({**admin.get("/api/overview"), **admin.get("/api/calls", sort=arguments.sort)}, indent=2))
        return 0
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise HangupError("top needs a terminal\n  hint: use `hangup ps` or `hangup top --json`")
    admin.get("/api/overview")  # if there is no gateway, say so before taking the screen
    state = TopState(view=arguments.view, sorts={"calls": arguments.sort})
    with _terminal():
        _Session(admin, state, max(seconds(arguments.every), 0.1)).run()
    return 0


class _Session:
    """What was read from the gateway, and what is on the screen."""

    def __init__(self, admin: client.Admin, state: TopState, every_s: float) -> None:
        self._admin = admin
        self._state = state
        self._every_s = every_s
        self._overview: dict[str, Any] = {}
        self._rows: list[TopRow] = []
        self._page: list[str] = []  # the trace or job that covers the table,
        self._opened = ""  # and its id
        self._message = ""
        self._drawing = Drawing([])

    def run(self) -> None:
        while not self._state.quit:
            self._read()
            until = time.monotonic() + self._every_s
            read_for = self._state.view, self._state.sort
            while not self._state.quit and (self._state.view, self._state.sort) == read_for:
                self._draw()
                if not select.select([sys.stdin], [], [], max(0.0, until - time.monotonic()))[0]:
                    break
                self._handle(os.read(sys.stdin.fileno(), 1024))

    def _read(self) -> None:
        """Ask the gateway; if it does not answer, keep what is known and say so."""
        try:
            self._overview = self._admin.get("/api/overview")
            self._rows = self._state.shown.read(self._admin.get, self._state.sort)
            if self._state.page in ("trace", "job"):
                self._page = self._lines_of(self._state.page, self._opened)
        except HangupError as error:
            self._message = str(error).partition("\n")[0] + "; trying again"
            if not self._overview:
                raise
            self._rows = []
        else:
            if self._message.endswith("; trying again"):
                self._message = ""

    def _draw(self) -> None:
        rows = matching(self._rows, self._state.filter)
        size = os.get_terminal_size(sys.stdout.fileno())  # not by COLUMNS, which does not follow the window
        coloured = is_coloured(sys.stdout)
        self._drawing = draw(self._overview, rows, self._state, self._message, self._page, size, coloured=coloured)
        # No line end after the last line, which would scroll the screen.
        sys.stdout.write(_HOME + "\x1b[K\r\n".join(self._drawing.lines) + "\x1b[K" + _CLEAR)
        sys.stdout.flush()

    def _handle(self, data: bytes) -> None:
        if not data:  # the terminal is gone
            self._state = replace(self._state, quit=True)
        for key in read_keys(data):
            self._message = ""
            keys = [row.key for row in matching(self._rows, self._state.filter)]
            if key.startswith("\x1b[<"):
                self._state = click(self._state, key, self._drawing.rows, self._drawing.tabs, self._drawing.tab_line)
            else:
                self._state = press(self._state, key, keys, max(len(self._drawing.rows) - 1, 1))
            if self._state.action[0]:
                self._act(*self._state.action)

    def _act(self, action: str, key: str) -> None:
        self._state = replace(self._state, action=("", ""))
        try:
            if action in ("trace", "job"):
                self._page, self._opened = self._lines_of(action, key), key
                self._state = replace(self._state, page=action, scroll=0)
            else:
                self._message = _ACTIONS[action](self._admin, key)
        except HangupError as error:
            self._message = str(error).partition("\n")[0]

    def _lines_of(self, page: str, key: str) -> list[str]:
        if page == "trace":
            return trace.lines(self._admin.get(client.path_of("calls", key)))
        return _job_lines(self._admin.get(client.path_of("jobs", key)))


def _kill(admin: client.Admin, id: str) -> str:
    (row,) = admin.request("DELETE", client.path_of("calls", id), wait_s=_KILL_WAIT_S)["killed"]
    return f"killed {row['id']}: {kill.engine_side(row)}"


def _cancel(admin: client.Admin, id: str) -> str:
    job = admin.request("DELETE", client.path_of("jobs", id))
    return f"{job['id']}: {job['status']}"


def _drain(admin: client.Admin, name: str) -> str:
    """Drain a backend, or take it back if it is drained."""
    (row,) = [row for row in admin.get("/api/backends")["backends"] if row["name"] == name]
    admin.request("DELETE" if row["drained"] else "PUT", client.path_of("backends", name, "drain"))
    return f"{name} gets calls again" if row["drained"] else f"{name} gets no new calls; x again takes it back"


_ACTIONS = {"kill": _kill, "cancel": _cancel, "drain": _drain}


def _job_lines(job: dict[str, Any]) -> list[str]:
    return [f"{name.replace('_', ' '):<14} {cell_text(value)}" for name, value in job.items()]


@contextlib.contextmanager
def _terminal() -> Iterator[None]:
    """Read single keys and use the alternate screen; restore the terminal whatever happens."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    sys.stdout.write(_BEGIN)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        sys.stdout.write(_END)
        sys.stdout.flush()
