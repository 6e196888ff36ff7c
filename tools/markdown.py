"""Wraps the Markdown of this repository with mdformat: `python -m tools.markdown` writes, `--check` only checks."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
from pathlib import Path

import mdformat

ROOT = Path(__file__).resolve().parent.parent


def formatted(text: str) -> str:
    """Return the text as `make format` would write it."""
    options = tomllib.loads((ROOT / ".mdformat.toml").read_text())
    extensions = options.pop("extensions")
    return mdformat.text(text, options=options, extensions=extensions)


def pages() -> list[Path]:
    """Return every page that git tracks, or would track if it were added."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()  # noqa: S603
    return [path for name in names if (path := ROOT / name).exists()]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.markdown", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a page is not formatted")
    check = parser.parse_args().check
    wrong = [path for path in pages() if formatted(text := path.read_text()) != text]
    for path in wrong:
        if check:
            print(f"{path.relative_to(ROOT)}: not formatted; run `make format`", file=sys.stderr)
        else:
            path.write_text(formatted(path.read_text()))
    return 1 if check and wrong else 0


if __name__ == "__main__":
    sys.exit(main())
