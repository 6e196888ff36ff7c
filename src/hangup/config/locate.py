"""Finds the line of a key in a TOML text, for error messages.

`tomllib` gives values without positions. This module reads only headers and `key =` lines; inside inline tables it falls back
to the line of the enclosing key, which is still the right place to look.
"""

from __future__ import annotations

import re

_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\[\]#]+?)\s*\]")
_KEY = re.compile(r"^\s*((?:\"[^\"]*\"|'[^']*'|[A-Za-z0-9_-]+)(?:\s*\.\s*(?:\"[^\"]*\"|'[^']*'|[A-Za-z0-9_-]+))*)\s*=")
_PART = re.compile(r"\"([^\"]*)\"|'([^']*)'|([A-Za-z0-9_-]+)")

Path = tuple[str | int, ...]


def key_lines(text: str) -> dict[Path, int]:
    """Return line numbers (from 1) by path, such as ("backend", 0, "url")."""
    lines: dict[Path, int] = {}
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
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            path = table + tuple(_parts(key[1]))
            for end in range(len(table) + 1, len(path) + 1):
                lines.setdefault(path[:end], number)
        for quotes in ('"""', "'''"):
            if line.count(quotes) % 2:
                inside_string = quotes
    return lines


def line_of(lines: dict[Path, int], path: Path) -> int | None:
    """Return the line of `path`, or of the nearest enclosing key that has one."""
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return None


def _parts(dotted: str) -> list[str]:
    return [a or b or c for a, b, c in _PART.findall(dotted)]
