"""Formats tables, for terminals of any width and for pipes, and parses durations such as 5m."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hangup.errors import HangupError
from hangup.terminal import cells, is_coloured, pad, paint

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[str] = frozenset()) -> list[str]:
    """Return the lines of a table; the columns named in `right` are right-aligned."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for row in (head, *rows):
        cells = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for cell, width, name in zip(row, widths, head, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table that fits its terminal."""

    name: str
    right: bool = False
    least: int = 0  # it may be cut to so many characters; 0: it is not cut
    rank: int = 0  # if the terminal is narrow, columns with a high rank are left out first; 0: it always stays
    style: Callable[[str], str] | None = None  # of a cell, by its text


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int, *, coloured: bool = False) -> list[str]:
    """Return the lines of a table that is at most `width` wide; 0: as wide as it needs."""
    kept = list(range(len(columns)))
    widths = {at: max(cells(columns[at].name), *(cells(row[at]) for row in rows), 0) for at in kept}

    def total() -> int:
        return sum(widths[at] for at in kept) + 2 * (len(kept) - 1)

    def cut() -> None:
        for at in sorted((at for at in kept if columns[at].least), key=lambda at: -widths[at]):
            widths[at] -= max(0, min(total() - width, widths[at] - max(columns[at].least, cells(columns[at].name))))

    if width:
        empty = [at for at in kept if columns[at].rank and rows and all(row[at] == "-" for row in rows)]
        for at in [
            *empty,
            *sorted((at for at in kept if columns[at].rank and at not in empty), key=lambda at: -columns[at].rank),
        ]:
            if total() <= width:
                break
            if at not in empty:
                before = dict(widths)
                cut()
                if total() <= width:
                    break
                widths.update(before)
            kept.remove(at)
        cut()
    lines = [
        paint("  ".join(pad(columns[at].name, widths[at], right=columns[at].right) for at in kept).rstrip(), "bold", coloured)
    ]
    for row in rows:
        parts = []
        for at in kept:
            style = columns[at].style
            text = pad(row[at], widths[at], right=columns[at].right)
            parts.append(paint(text, style(row[at]), coloured) if style is not None else text)
        lines.append("  ".join(parts).rstrip())
    return lines


def for_stdout(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table as wide as the terminal; into a pipe, one with everything in full."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    return fitted(columns, rows, width, coloured=is_coloured(sys.stdout))


def styles(by_text: Mapping[str, str], other: str = "") -> Callable[[str], str]:
    """Return the style of a cell by its first word."""
    return lambda text: by_text.get(text.split(" ")[0].strip(","), other) if text != "-" else ""


def cell_text(value: object) -> str:
    """Return a value as the text of a cell; an unknown value is a dash."""
    if value is None or value == "":
        return "-"
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def printable(value: Any) -> Any:
    """Escape control sequences in the strings of a JSON value: strangers may choose names, and a terminal would obey them."""
    if isinstance(value, str):
        return value if value.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in value)
    if isinstance(value, dict):
        return {printable(key): printable(item) for key, item in value.items()}
    return [printable(item) for item in value] if isinstance(value, list) else value


def seconds(text: str) -> float:
    """Parse a duration: 60, 60s, 5m, 24h or 7d."""
    number, unit = (text[:-1], text[-1]) if text and text[-1] in _UNITS else (text, "s")
    try:
        value = float(number) * _UNITS[unit]
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e10:
        raise HangupError(f"expected a duration such as 60s, 5m, 24h or 7d, got {text!r}")
    return value
