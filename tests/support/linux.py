"""Skips what needs Linux: /proc, limits of other processes, packet filters, /dev/full. hangup itself also runs on macOS."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


def need_linux(what: str) -> None:
    """Skip the test that is running, unless this is Linux."""
    if sys.platform != "linux":
        pytest.skip(f"needs Linux: {what}")


def proc(pid: int | str, name: str = "") -> Path:
    """Return the path of what the kernel says about a process."""
    need_linux("/proc")
    return Path("/proc") / str(pid) / name
