"""make test-container: builds deploy/Dockerfile, where no registry can be reached on a base made by debootstrap.

usage: python -m tools.container [BASE]

BASE is an image that can be pulled, such as python:3.13-slim. Without it, Debian 13 with its Python 3.13 stands in. Needs
root, buildah and, for the stand-in, debootstrap (Debian packages), and a network to Debian and to a package index.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMAGE = "localhost/hangup:test"
STAND_IN = "localhost/hangup-base:trixie"
_PACKAGES = "python3,python3-venv,python3-pip,ca-certificates"
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"  # the host's: a proxy before the index may have its own authority
ENV = {"STORAGE_DRIVER": "vfs", **os.environ}  # works where overlays do not


def main(arguments: list[str]) -> int:
    base = arguments[0] if arguments else STAND_IN
    if base == STAND_IN and _run("buildah", "inspect", "--type", "image", STAND_IN, quiet=True):
        make_stand_in()
    options = ["--format", "docker", "--layers", "--isolation", "chroot", "--build-arg", f"BASE={base}"]
    if Path(_CERTIFICATES).exists():
        options += ["-v", f"{_CERTIFICATES}:{_CERTIFICATES}:ro"]
    return _run("buildah", "bud", "-q", *options, "-t", IMAGE, "-f", "deploy/Dockerfile", ".")


def make_stand_in() -> None:
    with tempfile.TemporaryDirectory() as folder:
        _must("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "trixie", folder)
        made = subprocess.run(["buildah", "from", "scratch"], env=ENV, capture_output=True, text=True, check=True)  # noqa: S607
        container = made.stdout.strip()
        _must("buildah", "copy", "-q", container, folder, "/")
        _must("buildah", "commit", "-q", "--rm", container, STAND_IN)


def _must(*command: str) -> None:
    if _run(*command):
        raise SystemExit(f"{command[0]} failed")


def _run(*command: str, quiet: bool = False) -> int:
    output = subprocess.DEVNULL if quiet else None
    return subprocess.run(command, env=ENV, cwd=ROOT, stdout=output, stderr=output, check=False).returncode  # noqa: S603


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
