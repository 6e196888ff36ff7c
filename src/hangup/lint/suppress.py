"""Reads `# hangup: ignore[HU003]` comments, with which the source suppresses findings."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# `ignore` on a finding's own lines suppresses the named rules, or all; `ignore-file` does so for the whole file.
_COMMENT = re.compile(r"#\s*hangup:\s*ignore(?P<file>-file)?(?:\[(?P<codes>[A-Z0-9,\s]+)\])?")
_ALL = "all"


@dataclass(slots=True)
class Suppressions:
    lines: dict[int, frozenset[str]] = field(default_factory=dict)
    file: frozenset[str] = frozenset()

    def covers(self, code: str, first: int, last: int) -> bool:
        if code in self.file or _ALL in self.file:
            return True
        if not self.lines:
            return False
        return any(codes & {code, _ALL} for line, codes in self.lines.items() if first <= line <= last)


def suppressions(text: str) -> Suppressions:
    found = Suppressions()
    if "hangup:" not in text:
        return found
    for number, line in enumerate(text.split("\n"), 1):
        if match := _COMMENT.search(line):
            codes = frozenset(code.strip() for code in (match["codes"] or _ALL).split(","))
            if match["file"]:
                found.file |= codes
            else:
                found.lines[number] = codes
    return found
