"""Keeps what was read from each file between runs, so that only changed files are read and parsed again.

The cache is JSON, which cannot run code when it is read. Whoever can write it can hide findings, as with any cache of a linter.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from hangup import __version__

FOLDER = ".hangup_cache"
Stamp = tuple[int, int]  # time of the last change in nanoseconds, size


@dataclass(slots=True)
class FileEntry:
    """What is known of one file."""

    stamp: Stamp
    says: int  # whether it names inference, in the bits of `scan`
    imports: list[tuple[str, str]]
    words: str = ""  # the names in it, by which it is found if something asks for one
    defines: str = ""  # those of its functions, and of its classes that have a base
    facts: str = ""  # as JSON; "" while nothing asked for them
    error: tuple[int, int, str] | None = None  # line, column and reason if it cannot be parsed


def stamp_of(path: str) -> Stamp:
    status = os.stat(path)  # noqa: PTH116 - called for every file, and half the time of Path.stat
    return status.st_mtime_ns, status.st_size


def _version() -> str:
    """Return what the facts depend on besides the files: the linter's own code, and the Python that parses."""
    import hashlib  # noqa: PLC0415 - takes time to load, which without a cache nobody needs

    digest = hashlib.sha256(f"{__version__} {sys.version_info[:3]}".encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(f"{path.name} {stamp_of(str(path))}".encode())
    return digest.hexdigest()


def _name(path: str) -> str:
    return os.path.abspath(path)  # noqa: PTH100 - likewise


class Cache:
    def __init__(self, folder: Path | None, target: str) -> None:
        """`folder` is None for no cache; `target` is the target version, on which parsing depends."""
        self.file = folder / f"lint-{target}.json" if folder is not None else None
        self.entries: dict[str, FileEntry] = {}
        self.changed = False
        self.version = _version() if folder is not None else ""
        if self.file is not None:
            self._load(self.file)

    def _load(self, file: Path) -> None:
        try:
            content = json.loads(file.read_bytes())
            if content["version"] != self.version:
                return
            for path, (stamp, says, imports, words, defines, facts, error) in content["files"].items():
                pairs = [(parent, name) for parent, name in imports]
                failed = (error[0], error[1], error[2]) if error else None
                self.entries[path] = FileEntry((stamp[0], stamp[1]), says, pairs, words, defines, facts, failed)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self.entries = {}  # a cache that cannot be read is as good as none

    def get(self, path: str) -> FileEntry | None:
        """Return what is known of a file, if it has not changed since."""
        entry = self.entries.get(_name(path))
        if entry is None:
            return None
        try:
            return entry if stamp_of(path) == entry.stamp else None
        except OSError:
            return None

    def put(self, path: str, entry: FileEntry) -> None:
        self.entries[_name(path)] = entry
        self.changed = True

    def save(self) -> None:
        """Write the cache, if it changed; a folder that cannot be written is no error."""
        if self.file is None or not self.changed:
            return
        rows = {p: [e.stamp, e.says, e.imports, e.words, e.defines, e.facts, e.error] for p, e in self.entries.items()}
        with contextlib.suppress(OSError):
            folder = self.file.parent
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ".gitignore").write_text("*\n")
            part = self.file.with_suffix(f".{os.getpid()}.part")
            part.write_text(json.dumps({"version": self.version, "files": rows}, separators=(",", ":")))
            part.replace(self.file)
