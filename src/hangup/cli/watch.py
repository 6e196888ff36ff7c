"""`--watch`: shows the output of a command again and again, until Ctrl-C."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from hangup.cli.client import silent_note
from hangup.cli.table import seconds

_LEAST_S = 0.1


def add_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-w", "--watch", nargs="?", const="2s", metavar="TIME", help="show it again after this time, until Ctrl-C (default: 2s)"
    )


def show(
    arguments: argparse.Namespace, ask: Callable[[], dict[str, Any]], lines: Callable[[dict[str, Any]], Sequence[str]]
) -> int:
    """Print what `ask` returns, as JSON or as `lines`; with --watch, again and again."""
    if not arguments.watch:
        _print(arguments, ask(), lines)
        return 0
    every_s = max(seconds(arguments.watch), _LEAST_S)
    on_screen = sys.stdout.isatty() and not arguments.json
    if on_screen:
        sys.stdout.write("\x1b[H\x1b[2J")
    while True:
        answer = ask()
        if on_screen:
            height = shutil.get_terminal_size().lines
            shown = [f"{line}\x1b[K" for line in (*_note(answer), *lines(answer))][: height - 1]
            sys.stdout.write("\x1b[H" + "\n".join(shown) + "\n\x1b[J")
        elif arguments.json:
            print(json.dumps(answer))  # one line for each look, for programs that follow
        else:
            print("\n".join([*_note(answer), *lines(answer)]), end="\n\n")
        sys.stdout.flush()
        time.sleep(every_s)


def _print(arguments: argparse.Namespace, answer: dict[str, Any], lines: Callable[[dict[str, Any]], Sequence[str]]) -> None:
    if not arguments.json:
        warn_of_silence(answer)
    print(json.dumps(answer, indent=2) if arguments.json else "\n".join(lines(answer)))


def warn_of_silence(answer: dict[str, Any]) -> None:
    """Say on stderr who did not answer."""
    for line in _note(answer):
        print(f"hangup: warning: {line}", file=sys.stderr)


def _note(answer: dict[str, Any]) -> list[str]:
    note = silent_note(answer)
    return [note] if note else []
