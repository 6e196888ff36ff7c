"""Folders whose files are run as scripts: they import each other by their bare names, so Python finds there, and only there,
what they import.

In such a folder `from database import Database` means the `database.py` beside it, and a module of a folder above is not found,
unless something adds that folder to Python's path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from hangup.lint.missing import texts_above
from hangup.lint.modules import Modules, Parts, folder_of

_BARE = re.compile(r"^(?:from|import)[ \t]+(\w+)(?=[ \t]+(?:import|as)\b|[ \t]*(?:[,#\n]|$))", re.M)
_PATH = re.compile(r"sys\.path|PYTHONPATH|site\.addsitedir")
_STARTERS = ("Dockerfile", "docker-compose.yml", "docker-compose.yaml", "Makefile", "Procfile", "pyproject.toml", ".env")


class ScriptFolders:
    def __init__(self, every: Modules, text: Callable[[str], str], naming: Callable[[str], Iterable[tuple[str, str]]]) -> None:
        """`naming` returns the files with a word, and their texts."""
        self._every = every
        self._text = text
        self._naming = naming
        self._known: dict[Parts, bool] = {}
        self._in_folder: dict[Parts, list[str]] | None = None

    def beside(self, importer: str, module: str) -> str:
        """Return the file of a module in the importer's own folder, if that is one of scripts; "" otherwise."""
        folder = folder_of(importer)
        file = self._every.at.get((*folder, module), "")
        return file if file and self._is_script_folder(folder) else ""

    def is_out_of_reach(self, importer: str, module: str) -> bool:
        """Return whether a bare name means a module of a folder above, which the importer's folder of scripts hides."""
        folder = folder_of(importer)
        if (*folder, module) in self._every.at or Path(*folder, module).is_dir():
            return False
        above = [file for size in range(len(folder)) if (file := self._every.at.get((*folder[:size], module)))]
        return bool(above) and not any(file.endswith("__init__.py") for file in above) and self._is_script_folder(folder)

    def _is_script_folder(self, folder: Parts) -> bool:
        if folder not in self._known:
            files = self._files(folder)
            self._known[folder] = (
                bool(folder)
                and not any(file.endswith("__init__.py") for file in files)
                and any(self._names_beside(file, folder) for file in files)
                and not self._is_package(folder)
                and not any(_PATH.search(text) for text in (*map(self._text, files), *texts_above(folder, _STARTERS)))
            )
        return self._known[folder]

    def _names_beside(self, file: str, folder: Parts) -> bool:
        """Return whether a file imports another one of its folder by its bare name."""
        return any((*folder, name) in self._every.at for name in _BARE.findall(self._text(file)))

    def _is_package(self, folder: Parts) -> bool:
        """Return whether somebody imports its modules by the name of the folder, or adds that to Python's path."""
        named = re.compile(rf"^[ \t]*(?:from|import)[ \t]+[\w.]*\b{re.escape(folder[-1])}\b", re.M)
        return any(named.search(text) or _PATH.search(text) for _, text in self._naming(folder[-1]))

    def _files(self, folder: Parts) -> list[str]:
        if self._in_folder is None:
            self._in_folder = {}
            for file in self._every.at.values():
                self._in_folder.setdefault(folder_of(file), []).append(file)
        return self._in_folder.get(folder, [])
