"""The baseline: findings that a project already has, so that only new ones are reported.

A finding is known by its file, rule and message, not by its line, so that it stays known when lines move.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from hangup.errors import ConfigError
from hangup.lint.finding import Finding


def _key(finding: Finding, folder: Path) -> tuple[str, str, str]:
    path = os.path.relpath(finding.path, folder).replace(os.sep, "/")
    return path, finding.code, re.sub(r"(:|line )\d+", r"\1", finding.message)


def write_baseline(file: Path, findings: Iterable[Finding]) -> int:
    """Write the findings as known ones, and return their number."""
    known = Counter(_key(f, file.parent) for f in findings)
    rows = [{"path": p, "code": c, "message": m, "count": n} for (p, c, m), n in sorted(known.items())]
    file.write_text(json.dumps({"version": 1, "findings": rows}, indent=1) + "\n")
    return sum(known.values())


def without_known(file: Path, findings: list[Finding]) -> list[Finding]:
    """Return the findings that the baseline does not know."""
    try:
        rows = json.loads(file.read_text())["findings"]
        known = Counter({(r["path"], r["code"], r["message"]): int(r["count"]) for r in rows})
    except FileNotFoundError:
        raise ConfigError([f"{file}: no such baseline; `hangup lint --write-baseline {file}` writes one"]) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError([f"{file}: not a baseline: {error}"]) from None
    new = []
    for finding in findings:
        key = _key(finding, file.parent)
        if known[key] > 0:
            known[key] -= 1
        else:
            new.append(finding)
    return new
