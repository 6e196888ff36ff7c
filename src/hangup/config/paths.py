"""Paths as they stand in the configuration."""

from __future__ import annotations

import errno
from pathlib import Path


def expanded(path: str) -> Path:
    """Return a path with ~ replaced by the home directory; raise OSError if there is none, as for a user without an entry."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise FileNotFoundError(errno.ENOENT, "nobody knows the home directory that ~ stands for", path) from None


def with_home(path: str) -> str:
    """Return a path with ~ replaced by the home directory, if there is one; opening the file says if there is none."""
    try:
        return str(expanded(path)) if path.startswith("~") else path
    except OSError:
        return path
