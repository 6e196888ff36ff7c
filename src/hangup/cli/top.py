"""`hangup top`: shows the live calls and refreshes them, with keys to sort, filter and kill.

Plain functions decide what to show and what a key does; the terminal handling is at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import shutil
import sys
import termios
import tty
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from hangup.cli import client, kill, ps
from hangup.cli.table import fitted, seconds
from hangup.errors import HangupError
from hangup.gateway.admin.calls import SORTS

_EXAMPLES = """\
keys:
  ↑ ↓ or j k   select a call          x   kill it (y to confirm)
  s            next sort key          r   reverse the order
  /            filter by tenant       q   quit

examples:
  hangup top
  hangup top --every 5s --sort=-tokens
"""
_KILL_WAIT_S = 2.0  # how long to wait for the engine's confirmation; the screen does not refresh meanwhile
_HELP = "q quit  s sort  r reverse  / tenant  ↑↓ select  x kill"
_CLEAR, _HOME, _REVERSE, _BOLD, _PLAIN = "\x1b[J", "\x1b[H", "\x1b[7m", "\x1b[1m", "\x1b[0m"
_ALTERNATE, _NORMAL = "\x1b[?1049h\x1b[?25l", "\x1b[?1049l\x1b[?25h"
_ARROWS = {b"\x1b[A": "k", b"\x1b[B": "j", b"\x1bOA": "k", b"\x1bOB": "j"}


@dataclass(frozen=True, slots=True)
class TopState:
    """What the user has chosen."""

    sort: str = "age"
    tenant: str = ""
    selected: int = 0  # the selected row
    typing: bool = False  # the user is typing a tenant's name
    awaiting_confirmation: str = ""  # the call whose kill awaits confirmation
    kill: str = ""  # the call to kill now
    quit: bool = False


def press(state: TopState, key: str, ids: list[str]) -> TopState:
    """Return the state after a key press; `ids` are the calls on the screen."""
    if state.typing:
        return _type_tenant(state, key)
    if state.awaiting_confirmation:
        return replace(state, awaiting_confirmation="", kill=state.awaiting_confirmation if key == "y" else "")
    match key:
        case "q" | "\x03":
            return replace(state, quit=True)
        case "j":
            return replace(state, selected=min(state.selected + 1, max(len(ids) - 1, 0)))
        case "k":
            return replace(state, selected=max(state.selected - 1, 0))
        case "s":
            names = list(SORTS)
            return replace(state, sort=names[(names.index(state.sort.removeprefix("-")) + 1) % len(names)])
        case "r":
            return replace(state, sort=state.sort[1:] if state.sort.startswith("-") else f"-{state.sort}")
        case "/":
            return replace(state, typing=True, tenant="")
        case "x" if state.selected < len(ids):
            return replace(state, awaiting_confirmation=ids[state.selected])
    return state


def _type_tenant(state: TopState, key: str) -> TopState:
    if key in ("\r", "\n", "\x1b"):
        return replace(state, typing=False, selected=0)
    if key in ("\x7f", "\b"):
        return replace(state, tenant=state.tenant[:-1])
    return replace(state, tenant=state.tenant + key) if key.isprintable() else state


def screen(
    listing: dict[str, Any], overview: dict[str, Any], state: TopState, message: str, width: int, height: int
) -> list[str]:
    """Return the lines of the screen, none longer than `width`."""
    ready = overview["not_ready"] or "ready"
    tokens = overview["tokens"]
    lines = [
        f"{_BOLD}hangup{_PLAIN}  {ready}, {overview['live']} live, {overview['waiting']} waiting,"
        f" {tokens.get('delivered', 0)} tokens delivered, {tokens.get('wasted', 0)} wasted"
    ]
    lines += [
        f"{_BOLD}! {row['backend']} is computing tokens nobody receives ({row['signal']}){_PLAIN}" for row in overview["alarms"]
    ]
    lines.append(_prompt(state, message))
    calls = listing["calls"]
    head, *rows = fitted(ps.COLUMNS, ps.rows(calls, short=True), width) if calls else ["", "no live calls"]
    lines.append(_BOLD + head[:width] + _PLAIN)
    room = max(height - len(lines) - 1, 1)
    first = max(state.selected - room + 1, 0)
    for index, row in list(enumerate(rows))[first : first + room]:
        lines.append(_REVERSE + row[:width] + _PLAIN if index == state.selected and listing["calls"] else row[:width])
    return lines


def _prompt(state: TopState, message: str) -> str:
    if state.typing:
        return f"tenant: {state.tenant}_"
    if state.awaiting_confirmation:
        return f"kill {state.awaiting_confirmation}? y to confirm, any other key to cancel"
    return message or f"sorted by {state.sort}" + (f", tenant {state.tenant}" if state.tenant else "") + f"   {_HELP}"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "top",
        help="show the live calls, refreshed every second",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--every", default="1s", metavar="TIME", help="refresh interval (default: 1s)")
    parser.add_argument("--sort", default="age", metavar="|".join(SORTS), help="sort key; a leading - reverses the order")
    client.add_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    admin = client.Admin(arguments)
    if arguments.sort.removeprefix("-") not in SORTS:
        raise HangupError(f"--sort: expected one of {', '.join(SORTS)}, got {arguments.sort!r}")
    if arguments.json:
        print(json.dumps({**admin.get("/api/overview"), **admin.get("/api/calls", sort=arguments.sort)}, indent=2))
        return 0
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise HangupError("top needs a terminal\n  hint: use `hangup ps` or `hangup top --json`")
    with _terminal():
        _loop(admin, TopState(sort=arguments.sort), max(seconds(arguments.every), 0.1))
    return 0


def _loop(admin: client.Admin, state: TopState, every_s: float) -> None:
    message = ""
    while not state.quit:
        listing = admin.get("/api/calls", sort=state.sort, tenant="" if state.typing else state.tenant)
        overview = admin.get("/api/overview")
        width, height = shutil.get_terminal_size()
        lines = screen(listing, overview, state, message, width, height)
        sys.stdout.write(_HOME + "".join(f"{line}\x1b[K\r\n" for line in lines) + _CLEAR)
        sys.stdout.flush()
        message = ""
        for key in _keys(every_s):
            state = press(state, key, [row["id"] for row in listing["calls"]])
        if state.kill:
            message = _kill(admin, state.kill)
            state = replace(state, kill="")


def _kill(admin: client.Admin, id: str) -> str:
    try:
        (row,) = admin.request("DELETE", client.path_of("calls", id), wait_s=_KILL_WAIT_S)["killed"]
    except HangupError as error:
        return str(error)
    return f"killed {row['id']}: {kill.engine_side(row)}"


def _keys(wait_s: float) -> list[str]:
    """Return the keys pressed within that time."""
    if not select.select([sys.stdin], [], [], wait_s)[0]:
        return []
    data = os.read(sys.stdin.fileno(), 64)
    return [_ARROWS[data]] if data in _ARROWS else list(data.decode("utf-8", "ignore"))


@contextlib.contextmanager
def _terminal() -> Iterator[None]:
    """Read single keys and use the alternate screen; restore the terminal whatever happens."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    sys.stdout.write(_ALTERNATE)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        sys.stdout.write(_NORMAL)
        sys.stdout.flush()
