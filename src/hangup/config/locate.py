"""Finds the line and column of a key in a TOML text, for error messages.

`tomllib` gives values without positions. This module reads only headers and `key =` lines; inside inline tables it falls back
to the enclosing key, which is still the right place to look.
"""

from __future__ import annotations

import pathlib
import re

_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\[\]#]+?)\s*\]")
_KEY = re.compile(r"^\s*((?:\"[^\"]*\"|'[^']*'|[A-Za-z0-9_-]+)(?:\s*\.\s*(?:\"[^\"]*\"|'[^']*'|[A-Za-z0-9_-]+))*)\s*=")
_PART = re.compile(r"\"([^\"]*)\"|'([^']*)'|([A-Za-z0-9_-]+)")

Path = tuple[str | int, ...]
Position = tuple[int, int]  # line and column, both from 1


class Places:
    """Names a place in the file, such as hangup.toml:12:1."""

    def __init__(self, path: pathlib.Path | None, positions: dict[Path, Position]) -> None:
        self._path = path
        self._positions = positions

    def __call__(self, key: Path) -> str:
        position = position_of(self._positions, key)
        return f"{self._path}:{position[0]}:{position[1]}" if position else str(self._path or key[0])


def key_positions(text: str) -> dict[Path, Position]:
    """Return lines and columns by path, such as ("backend", 0, "url")."""
    positions: dict[Path, Position] = {}
    counts: dict[str, int] = {}
    table: Path = ()
    inside_string = ""
    for number, line in enumerate(text.splitlines(), 1):
        if inside_string:
            if line.count(inside_string) % 2:
                inside_string = ""
            continue
        if header := _HEADER.match(line):
            table = tuple(_parts(header[2]))
            if header[1] == "[[":
                name = str(table[0])
                counts[name] = counts.get(name, -1) + 1
            if table and str(table[0]) in counts:
                table = (table[0], counts[str(table[0])], *table[1:])
            positions.setdefault(table, (number, header.start(1) + 1))
        elif key := _KEY.match(line):
            path = table + tuple(_parts(key[1]))
            for end in range(len(table) + 1, len(path) + 1):
                positions.setdefault(path[:end], (number, key.start(1) + 1))
        for quotes in ('"""', "'''"):
            if line.count(quotes) % 2:
                inside_string = quotes
    return positions


def position_of(positions: dict[Path, Position], path: Path) -> Position | None:
    """Return the position of `path`, or of the nearest enclosing key that has one."""
    whole = path[:1]
    while path:
        if path in positions:
            return positions[path]
        path = path[:-1]
    return positions.get((*whole, 0))  # of the first table of an array


def _parts(dotted: str) -> list[str]:
    return [a or b or c for a, b, c in _PART.findall(dotted)]
