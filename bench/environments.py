"""Installs other people's programs, each once in its own virtual environment under bench/.envs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ENVIRONMENTS = Path(__file__).parent / ".envs"


_LINE_MAX = 240  # pip lists every existing version when none fits
_failed: dict[str, str] = {}  # do not try again in this run what could not be installed


class NotInstalled(RuntimeError):
    """A program could not be installed; the message says why."""


def environment(name: str, *packages: str) -> Path:
    """Return the bin folder of an environment with these packages; create it again if the packages have changed."""
    folder = ENVIRONMENTS / name
    ready = folder / "ready"
    if ready.exists() and ready.read_text() in ("", "\n".join(packages)):  # empty: created by an older version of this file
        return folder / "bin"
    if name in _failed:
        raise NotInstalled(_failed[name])
    print(f"  installing {name} ({', '.join(packages)}); this can take minutes …", flush=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    try:
        _run("cannot make a virtual environment", sys.executable, "-m", "venv", "--clear", str(folder))
        _run(f"pip cannot install {' '.join(packages)}", *pip, *packages)
    except NotInstalled as error:
        _failed[name] = f"{name} is missing: {error}"
        raise NotInstalled(_failed[name]) from None
    ready.write_text("\n".join(packages))
    return folder / "bin"


def program(name: str, package: str) -> None:
    """Ensure that a system program is installed; if not, install Debian's package if permitted."""
    if shutil.which(name) is not None:
        return
    if name in _failed:
        raise NotInstalled(_failed[name])
    try:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise NotInstalled("we are not root, or there is no apt-get")
        _run("apt-get update failed", "apt-get", "update", "-qq")
        _run("apt-get install failed", "apt-get", "install", "-y", "-qq", package)
    except NotInstalled as error:
        _failed[name] = f"{name} is missing (apt-get install {package}): {error}"
        raise NotInstalled(_failed[name]) from None


def _run(failed: str, *command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        last_lines = [line if len(line) <= _LINE_MAX else line[:_LINE_MAX] + " …" for line in lines[-3:]]
        raise NotInstalled(f"{failed}: " + (" / ".join(last_lines) or f"it ended with {done.returncode}"))
