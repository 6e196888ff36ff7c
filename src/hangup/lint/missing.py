"""Modules of the project that are imported and are not there: `from app.utils.tokens import ...`, where `app/utils` has none.

A folder that is meant to be filled later says so: the module is named in a `.gitignore` or `.gitmodules`, or made by a tool.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from hangup.lint.modules import Modules, Parts, folder_of, parts_of

_MADE_LATER = re.compile(r"_pb2|version|generated|prisma|secrets?$|credentials?$|local|private")
_LISTS = (".gitignore", ".gitmodules", ".dockerignore")


class Missing:
    def __init__(self, every: Modules) -> None:
        self._every = every
        self._entries: dict[Parts, frozenset[str] | None] = {}

    def is_missing(self, module: str, importer: str) -> bool:
        """Return whether a module's name begins with a package of the project, as the importer sees it, that lacks the rest."""
        wanted, near = parts_of(module), folder_of(importer)
        if module.startswith("."):
            level = len(module) - len(module.lstrip("."))
            return bool(wanted) and level <= len(near) + 1 and self._ends(near[: len(near) - level + 1], wanted, 0)
        if len(wanted) < 2 or self._every.fitting(wanted):
            return False
        # Only the package that the importer is in itself: another of this name may come from outside.
        size = next((size for size in range(len(near) - 1, -1, -1) if near[size] == wanted[0]), None)
        return size is not None and self._ends(near[:size], wanted, 1)

    def _ends(self, root: Parts, wanted: Parts, size: int) -> bool:
        """Return whether the folders of a name, from the first ones on, lead to one that does not have the next part."""
        while size < len(wanted) and (found := self._entries_of(root + wanted[:size])) is not None:
            if wanted[size] not in found:
                return not _MADE_LATER.search(wanted[size].lower()) and not _is_listed(root + wanted[:size], wanted[size])
            size += 1
        return False

    def _entries_of(self, folder: Parts) -> frozenset[str] | None:
        """Return the names of what is in a folder, without endings; None if there is no such folder."""
        if folder not in self._entries:
            try:
                names = [entry.name for entry in Path(*folder).iterdir()]
                self._entries[folder] = frozenset(name.partition(".")[0] for name in names if not name.startswith("."))
            except OSError:
                self._entries[folder] = None
        return self._entries[folder]


def _is_listed(folder: Parts, name: str) -> bool:
    """Return whether the folder, or one above it, has a file that says that the module is kept elsewhere."""
    line = re.compile(rf"(?:^|[/\s]){re.escape(name)}(?:\.py)?/?\s*$", re.M)
    return any(line.search(text) for text in texts_above(folder, _LISTS))


def texts_above(folder: Parts, names: tuple[str, ...]) -> Iterator[str]:
    """Yield the texts of the files with these names in a folder and in those above it."""
    above = Path(*folder)
    for place in (above, *above.parents):
        for name in names:
            if (file := place / name).is_file():
                yield file.read_text(errors="replace")
