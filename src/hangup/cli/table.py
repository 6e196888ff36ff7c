"""Formats plain tables, and parses durations such as 5m."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hangup.errors import HangupError

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
