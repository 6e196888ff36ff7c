"""Splits the projects of the field test at random into one half to develop rules on and one half to measure them on.

`python -m tools.lint_field.split < NAMES` reads lines of `owner/name commit` and writes projects.json. The seed is fixed, so
the same list always gives the same halves.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

HERE = Path(__file__).parent
SEED = 20261116


def split(lines: list[str]) -> list[dict[str, str]]:
    """Return each project with its commit and its part, in the order of their names."""
    rows = sorted(tuple(line.split()) for line in lines if line.strip())
    order = list(range(len(rows)))
    random.Random(SEED).shuffle(order)  # noqa: S311 - the split must be the same each time
    developing = set(order[: len(order) // 2])
    return [
        {"project": row[0], "commit": row[1], "part": "development" if i in developing else "held-out"}
        for i, row in enumerate(rows)
    ]


if __name__ == "__main__":
    rows = split(sys.stdin.read().splitlines())
    text = ",\n".join("  " + json.dumps(row) for row in rows)
    (HERE / "projects.json").write_text(f"[\n{text}\n]\n")
