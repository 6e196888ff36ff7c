"""Other people's programs, each in a virtual environment of its own under bench/.envs, made once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ENVIRONMENTS = Path(__file__).parent / ".envs"


_LINE_MAX = 240  # pip lists every version there is when it finds none that fits
_failed: dict[str, str] = {}  # what could not be installed is not tried again in this run


class NotInstalled(RuntimeError):
    """A program could not be had; says why."""


def environment(name: str, *packages: str) -> Path:
    """An environment with these packages in it; returns its bin folder. Other packages than last time: made anew."""
    folder = ENVIRONMENTS / name
    ready = folder / "ready"
    if ready.exists() and ready.read_text() in ("", "\n".join(packages)):  # empty: made by an older version of this file
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
    """Makes sure that a program of the system is there; installs Debian's package if it is not and we may."""
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
        said = [line if len(line) <= _LINE_MAX else line[:_LINE_MAX] + " …" for line in lines[-3:]]
        raise NotInstalled(f"{failed}: " + (" / ".join(said) or f"it ended with {done.returncode}"))
