"""Reads `# hangup: ignore[HU003]` comments, with which the source ignores findings."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Collection

from hangup.lint.rule import RULES

# On a finding's own lines `ignore` ignores the named rules, or all; `ignore-file` does so for the whole file.
COMMENT = re.compile(r"#\s*hangup:\s*ignore(?P<file>-file)?\b(?:\s*\[(?P<codes>[^\]]*)\])?")
Row = tuple[int, list[str], bool]


def read_ignores(text: str) -> list[Row]:
    """Return line, codes (none means all rules) and scope of each ignore comment. Strings are no comments."""
    if "hangup:" not in text:
        return []
    found: list[Row] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT and (match := COMMENT.search(token.string)):
                row = token.start[0], codes_of(match["codes"]), bool(match["file"])
                found.append(row)  # what was read before an error counts
    except (tokenize.TokenError, SyntaxError):
        return found
    return found


def codes_of(given: str | None) -> list[str]:
    """Return the codes that a comment names, by code in either case or by name; one that does not exist ignores nothing."""
    if given is None:
        return []
    by_name = {rule.name: code for code, rule in RULES.items()}
    names = [name.strip() for name in given.split(",") if name.strip()]
    return [by_name.get(name.lower(), name.upper()) for name in names] or ["-"]


class Ignores:
    """The ignore comments of a file, and which of them ignored something."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.used: set[tuple[int, str]] = set()  # line, code ("" for all)

    def covers(self, code: str, first: int, last: int) -> bool:
        found = False
        for line, codes, whole_file in self.rows:
            if (whole_file or first <= line <= last) and (not codes or code in codes):
                self.used.add((line, code if codes else ""))
                found = True
        return found

    def unused(self, ran: Collection[str]) -> list[tuple[int, str]]:
        """Return line and message of each comment, or each of its codes, that ignored nothing though its rule ran."""
        found = []
        for line, codes, _ in self.rows:
            if not codes and not any(used == line for used, _ in self.used):
                found.append((line, "this ignore comment ignores nothing"))
            for code in codes:
                if code not in RULES:
                    found.append((line, f"`{code.lower()}` is no rule"))
                elif code in ran and (line, code) not in self.used:
                    found.append((line, f"nothing to ignore here for {code}"))
        return found
