"""Text for people at a terminal: colour, widths, durations and counts. Used by the command line and by the log."""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from typing import Protocol

STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36", "reverse": "7"}


class Output(Protocol):
    def isatty(self) -> bool: ...


def is_coloured(output: Output) -> bool:
    """Return whether to colour what is written there: on a terminal, unless NO_COLOR is set; FORCE_COLOR colours everywhere."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (output.isatty() and os.environ.get("TERM") != "dumb")


def paint(text: str, style: str, coloured: bool = True) -> str:
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if coloured and style and text else text


def cells(text: str) -> int:
    """Return how many columns a text takes: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def fit(text: str, width: int) -> str:
    """Return the text, cut to `width` columns; an ellipsis shows that it was cut."""
    if width <= 0 or cells(text) <= width:
        return text if width > 0 else ""
    while text and cells(text) > width - 1:
        text = text[: -max(1, (cells(text) - width + 1) // 2)]
    return text + "…"


def wrap(text: str, width: int) -> list[str]:
    """Return the text in lines of at most `width` columns, broken between words; a longer word is cut into pieces."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if cells(longer) <= width:
            lines[-1] = longer
            continue
        lines[len(lines) - (not lines[-1]) :] = [word]
        while cells(lines[-1]) > max(width, 2):
            piece = fit(lines[-1], max(width, 2) + 1)[:-1]  # without the ellipsis
            lines[-1:] = [piece, lines[-1][len(piece) :]]
    return lines


def complain(text: str) -> None:
    """Print to stderr; at a terminal, lines are broken between words and the rest is indented."""
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else sys.maxsize
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip(" ")))
        first, *more = wrap(line.lstrip(" "), max(20, width - len(indent) - 2))
        sys.stderr.write("\n".join([indent + first, *(f"{indent}  {rest}" for rest in more), ""]))


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Return the text with exactly `width` columns; `right`: aligned to the right."""
    text = fit(text, width)
    room = " " * (width - cells(text))
    return room + text if right else text + room


def duration(seconds: float) -> str:
    """Return a time span for people: 0.42s, 3.1s, 42s, 3m05s, 2h10m, 3d4h."""
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds < 9.95:
        return f"{seconds:.2f}s" if seconds < 0.995 else f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    for size, part, big, small in ((60, 1, "m", "s"), (3600, 60, "h", "m"), (86400, 3600, "d", "h")):
        if whole < size * (60 if size == 60 else 24) or size == 86400:
            return f"{whole // size}{big}{whole % size // part:0{1 if size == 86400 else 2}}{small}"
    raise AssertionError


def count(number: float) -> str:
    """Return a whole number with separators: 12,345."""
    return f"{number:,.0f}"


def plural(number: float, noun: str) -> str:
    """Return a number with its noun: 1 call, 1,200 calls."""
    return f"{count(number)} {noun}{'s' * (number != 1)}"


def short_id(id: str) -> str:
    """Return as much of an id as people read; commands accept it for the whole while it is unique."""
    return id[:11]
