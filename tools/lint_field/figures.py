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
)  # in the order of time


def load(name: str) -> Any:
    return json.loads((HERE / name).read_text())


def precision(part: str) -> dict[str, tuple[int, int, int]]:
    """Return right, debatable and wrong findings of each rule in one part of the projects."""
    counts = Counter((row["code"], row["verdict"]) for row in load("judged.json") if row["part"] == part)
    codes = sorted({code for code, _ in counts})
    return {code: (counts[code, "right"], counts[code, "debatable"], counts[code, "wrong"]) for code in codes}


def recall(part: str) -> tuple[int, int]:
    """Return how many of the leaks that were found by reading the linter reports, and how many there are."""
    leaks = [leak for leak in load("leaks.json") if leak["part"] == part]
    return sum(leak["found"] for leak in leaks), len(leaks)


def table(part: str) -> str:
    lines = ["| rule | findings | right | debatable | wrong | precision |", "| -- | -- | -- | -- | -- | -- |"]
    total = [0, 0, 0]
    for code, row in precision(part).items():
        lines.append(_line(code, row))
        total = [a + b for a, b in zip(total, row, strict=True)]
    return "\n".join([*lines, _line("all", (total[0], total[1], total[2]))])


def _line(name: str, row: tuple[int, int, int]) -> str:
    return f"| {name} | {sum(row)} | {row[0]} | {row[1]} | {row[2]} | {row[0] / sum(row):.2f} |"


if __name__ == "__main__":
    for part in PARTS:
        found, leaks = recall(part)
        sys.stdout.write(f"{part}\n\n{table(part)}\n\nrecall: {found} of {leaks} ({found / leaks:.2f})\n")
