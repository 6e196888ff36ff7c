"""Other people's programs, each in a virtual environment of its own under bench/.envs, made once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ENVIRONMENTS = Path(__file__).parent / ".envs"


class NotInstalled(RuntimeError):
    """A program could not be had; says why."""


def environment(name: str, *packages: str) -> Path:
    """An environment with these packages in it; returns its bin folder. Other packages than last time: made anew."""
    folder = ENVIRONMENTS / name
    ready = folder / "ready"
    if ready.exists() and ready.read_text() in ("", "\n".join(packages)):  # empty: made by an older version of this file
        return folder / "bin"
    print(f"  installing {name} ({', '.join(packages)}); this can take minutes …", flush=True)
    _run("cannot make a virtual environment", sys.executable, "-m", "venv", "--clear", str(folder))
    pip = [str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    _run(f"pip cannot install {' '.join(packages)}", *pip, *packages)
    ready.write_text("\n".join(packages))
    return folder / "bin"


def _run(failed: str, *command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise NotInstalled(f"{failed}: " + " / ".join(lines[-3:]))
