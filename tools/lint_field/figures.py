"""Computes the linter's precision and recall in the field test, from judged.json and leaks.json.

`python -m tools.lint_field.figures` prints the tables of docs/lint-field-report.md.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PARTS = (
    "held-out",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
    "thirteenth",
    "fourteenth",
    "fifteenth",
    "sixteenth",
    "seventeenth",
    "eighteenth",
    "nineteenth",
    "twentieth",
    "twenty-first",
    "twenty-second",
    "twenty-third",
    "twenty-fourth",
    "twenty-fifth",
    "twenty-sixth",
    "twenty-seventh",
    "twenty-eighth",
    "twenty-ninth",
    "thirtieth",
    "thirty-first",
    "thirty-second",
    "thirty-third",
    "thirty-fourth",
    "thirty-fifth",
    "thirty-sixth",
)  # in the order of time


def load(name: str) -> Any:
    return json.loads((HERE / name).read_text())


def has_levels(part: str) -> bool:
    """Return whether the findings of a part have a certainty: before the fourteenth set, none had."""
    return any("certainty" in row for row in load("judged.json") if row["part"] == part)


def precision(part: str, *, certain: bool = False) -> dict[str, tuple[int, int, int]]:
    """Return right, debatable and wrong findings of each rule in one part of the projects, or of those that are certain."""
    rows = [row for row in load("judged.json") if row["part"] == part]
    if certain:
        rows = [row for row in rows if row.get("certainty", "certain") == "certain"]
    counts = Counter((row["code"], row["verdict"]) for row in rows)
    codes = sorted({code for code, _ in counts})
    return {code: (counts[code, "right"], counts[code, "debatable"], counts[code, "wrong"]) for code in codes}


def recall(part: str, *, certain: bool = False) -> tuple[int, int]:
    """Return how many of the leaks that were found by reading the linter reports, or as certain, and how many there are.

    Without those that their reader called minor, since the twenty-sixth set.
    """
    leaks = [leak for leak in load("leaks.json") if leak["part"] == part and "minor" not in leak]
    return sum(leak.get("certain", leak["found"]) if certain else leak["found"] for leak in leaks), len(leaks)


def table(part: str, *, certain: bool = False) -> str:
    lines = ["| rule | findings | right | debatable | wrong | precision |", "| -- | -- | -- | -- | -- | -- |"]
    total = [0, 0, 0]
    for code, row in precision(part, certain=certain).items():
        lines.append(_line(code, row))
        total = [a + b for a, b in zip(total, row, strict=True)]
    return "\n".join([*lines, _line("all", (total[0], total[1], total[2]))])


def _line(name: str, row: tuple[int, int, int]) -> str:
    return f"| {name} | {sum(row)} | {row[0]} | {row[1]} | {row[2]} | {row[0] / sum(row):.2f} |"


if __name__ == "__main__":
    for part in PARTS:
        for certain in (False, True) if has_levels(part) else (False,):
            found, leaks = recall(part, certain=certain)
            what = f"{part}, certain" if certain else part
            sys.stdout.write(f"{what}\n\n{table(part, certain=certain)}\n\nrecall: {found} of {leaks} ({found / leaks:.2f})\n")
