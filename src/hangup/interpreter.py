"""Runs modules of hangup in processes of their own."""

from __future__ import annotations

import sys
from pathlib import Path


def command_for(module: str) -> list[str]:
    """Return the command that runs a module. `python -m` alone looks for all modules in the current directory first: whatever
    lies there as queue.py would be taken for Python's own. So it does that only if this process did so as well."""
    looks_here = sys.path[:1] in ([""], [str(Path.cwd())])
    return [sys.executable, *([] if looks_here else ["-P"]), "-m", module]
