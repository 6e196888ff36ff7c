"""The figures of the last run that somebody kept, to print beside the new ones: `bench/previous.json`.

`make bench ARGS="calls requests streams --keep"` replaces those of the suites that it runs; commit the file with the change
that it measures. Only ratios and function calls compare well between machines.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "previous.json"
SUITES = ("calls", "requests", "one-client", "streams")


def kept(file: Path = FILE) -> dict[str, Any]:
    """Return the kept figures by suite."""
    figures: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return figures


def figure(*names: str, file: Path = FILE) -> float | None:
    """Return one kept figure by its suite, its row and its own name; None if there is none."""
    found: Any = kept(file)
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, (int, float)) else None


def beside(value: float, *names: str, file: Path = FILE) -> str:
    """Return how a new figure compares with the kept one, as a text for a table; "" if none was kept."""
    before = figure(*names, file=file)
    return f"(before: {before:.4g}, {value / before - 1:+.0%})" if before else ""


def keep(results: dict[str, Any], file: Path = FILE) -> None:
    """Keep the figures of the suites in `results`, and the older ones of the others."""
    new = {name: results[name] for name in SUITES if name in results}
    about = {name: {key: results[key] for key in ("date", "machine", "cpus")} for name in new}
    old = kept(file)
    figures = {**old, **new, "about": {**old.get("about", {}), **about}}
    file.write_text(json.dumps(figures, indent=2, sort_keys=True) + "\n")
