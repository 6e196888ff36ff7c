"""Which files no application leads to: handlers in a router that nothing includes serve nobody."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cache, cached_property
from pathlib import PurePath

from hangup.lint.cache import FileEntry
from hangup.lint.hints import APPLICATION, SERVING
from hangup.lint.scan import closure, pair_of, words_of

LOADERS = ("import_module", "__import__", "spec_from_file_location", "load_module")
INCLUDING = ("include_router", "register_blueprint", "add_routes", "mount", "routers", "blueprints")
_FINDERS = ("iter_modules", "walk_packages", "glob", "rglob", "listdir", "iterdir", "scandir", "find_modules")


class ImportedFiles:
    """Which files the applications of a project import, through any number of others."""

    def __init__(self, entries: Mapping[str, FileEntry], text: Callable[[str], bytes]) -> None:
        self._entries = entries
        self._text = text
        self._modules: dict[str, list[tuple[str, str]]] = defaultdict(list)
        self._packages: dict[str, str] = {}  # folder -> its __init__.py
        self._importers: dict[str, list[str]] = defaultdict(list)
        self._applications = {path for path, entry in entries.items() if entry.says & APPLICATION}

    @cached_property
    def orphans(self) -> frozenset[str]:
        """Return the files that no application imports; none where that says little."""
        return frozenset(self._entries.keys() - self._reached) if self._reached else frozenset()

    def applications_of(self, path: str) -> set[str]:
        """Return the applications that import a file; none where that says little."""
        return closure([path], lambda file: self._importers[file]) & self._applications if self._reached else set()

    @cached_property
    def _reached(self) -> set[str]:
        """Return the files that an application imports.

        Nothing is returned where that says little: without an application that imports others that serve, or where modules
        are looked for in folders.
        """
        entries, applications = self._entries, self._applications
        if not applications:
            return set()
        for path in entries:
            parent, name = pair_of(path)
            self._modules[name].append((parent, path))
            if path.endswith("__init__.py"):
                self._packages[os.path.dirname(path)] = path  # noqa: PTH120 - called for every file, as below
        reached = closure(applications, self._imported)
        if not any(entries[path].says & SERVING for path in reached - applications):
            return set()
        if any(_loads_routers(words := entries[path].words) and _has(words, _FINDERS) for path in reached):
            return set()
        return reached

    def _imported(self, path: str) -> Iterable[str]:
        for file in self._used(path):
            self._importers[file].append(path)
            yield file

    def _used(self, path: str) -> Iterable[str]:
        entries, modules, packages = self._entries, self._modules, self._packages
        words = f" {entries[path].words} "
        for above, name in entries[path].imports:
            found = [file for parent, file in modules.get(name, ()) if above in {"", parent}]
            if len(found) > 1:
                found = [file for file in found if _may_mean(file, path, words)]
            yield from _own_or_named(found, path, above, self._text) if above and len(found) > 1 else found
        folder = path
        while folder and (folder := os.path.dirname(folder)) in packages:  # noqa: PTH120
            yield packages[folder]
            if folder == os.path.dirname(folder):  # noqa: PTH120 - the root of the file system
                return
        if _loads_routers(entries[path].words):  # names of modules are in its strings
            yield from (file for word in _words(self._text(path)) for _, file in modules.get(word, ()))


def _may_mean(file: str, importer: str, words: str) -> bool:
    """Return whether an import can mean this one of several files of that name: one elsewhere is named with its folder."""
    own, folders = _folders(importer), _folders(file)
    other = next((folder for index, folder in enumerate(folders) if own[index : index + 1] != (folder,)), "")
    return not other or f" {other} " in words


def _own_or_named(files: list[str], importer: str, folder: str, text: Callable[[str], bytes]) -> list[str]:
    """Return those of several files in a folder of that name that an import can mean.

    If the importer finds one in a folder above its own, it has to name others together with what their folder is in.
    """
    own = _folders(importer)
    above = {file: _folders(file)[: -2 if file.endswith("__init__.py") else -1] for file in files}
    near = {file for file in files if own[: len(above[file])] == above[file]}
    if not near or len(near) == len(files):
        return files
    written = text(importer)
    return [file for file in files if file in near or f"{above[file][-1]}.{folder}".encode() in written]


@cache
def _folders(path: str) -> tuple[str, ...]:
    return PurePath(path).parent.parts


def _loads_routers(words: str) -> bool:
    return _has(words, LOADERS) and _has(words, INCLUDING)


def _has(words: str, wanted: Iterable[str]) -> bool:
    padded = f" {words} "
    return any(f" {word} " in padded for word in wanted)


def _words(data: bytes) -> Iterable[str]:
    """Return the words of a file without those of its comments."""
    lines = (line for line in data.split(b"\n") if not line.lstrip().startswith(b"#"))
    return (word.decode("latin-1") for word in words_of(b"\n".join(lines)))
