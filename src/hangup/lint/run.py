"""Finds the files to lint, reads them on all of the machine's cores, and judges them together."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache as cache_results
from pathlib import Path

from hangup.errors import ConfigError
from hangup.lint import scan
from hangup.lint.cache import Cache, FileEntry, Stamp, stamp_of
from hangup.lint.check import RUNNING, SYNTAX, Unreadable, lint_facts, read_facts, unreadable
from hangup.lint.facts import FileFacts, from_json, to_json
from hangup.lint.files import SourceFiles, as_words
from hangup.lint.finding import Finding
from hangup.lint.hints import IGNORES
from hangup.lint.reach import ImportedFiles
from hangup.lint.settings import EXCLUDED, NOT_SERVED, SUBJECTS, LintSettings, SettingsTree
from hangup.lint.workers import Workers

CONTEXT_FILES_MAX = 5000  # a named file is judged with the rest of its project, unless that is larger

Version = tuple[int, int]
Error = tuple[int, int, str]  # line, column and reason
Parsed = tuple[str, Error | None]  # facts as JSON, or the error


@dataclass(slots=True)
class Report:
    findings: list[Finding]
    files: int
    parsed: int = 0  # the others name no inference and import nothing that does
    cached: int = 0
    likely: int = 0  # findings that are not reported, because they are only likely
    too_new: list[str] = field(default_factory=list)  # files whose syntax is newer than the Python that runs the linter


def lint_paths(
    paths: Sequence[Path],
    tree: SettingsTree | None = None,
    cache_folder: Path | None = None,
    given: tuple[Path, bytes] | None = None,
) -> Report:
    """Lint files and folders, and `given` as if its file had that content.

    The other files of a named file's project are read as well, but not reported.
    """
    tree = tree or SettingsTree()
    wanted = {str(path) for path in find_files(paths, tree)}
    named = [path for path in paths if path.is_file()] + ([given[0]] if given is not None else [])
    context = {str(path) for path in _context(named, tree)}
    if given is not None and not tree.for_file(given[0]).excludes(given[0]):
        wanted.add(str(given[0]))
    target = tree.of(paths[0] if paths and paths[0].is_dir() else (paths or named)[0].parent).target
    cache = Cache(cache_folder, "py" + "".join(map(str, target)))
    with _collector_off():
        return _lint(sorted(wanted | context), wanted, {str(path) for path in named} & wanted, tree, target, cache, given)


def _lint(
    paths: list[str],
    wanted: set[str],
    named: set[str],
    tree: SettingsTree,
    target: Version,
    cache: Cache,
    given: tuple[Path, bytes] | None,
) -> Report:
    """Read what is worth it of `paths`, or was named, and judge what is wanted."""
    with Workers() as workers:
        entries, cached = _scan_all(paths, cache, given, workers)
        files = _files(entries, wanted, named, target, cache, given, workers)
        all_found = lint_facts(files, lambda path: tree.for_file(Path(path)).codes_for(Path(path)), wanted)
    cache.save()
    found = [f for f in all_found if tree.for_file(Path(f.path)).reports(f.certainty)]
    report = Report(found, len(wanted), len(files.read), cached, len(all_found) - len(found))
    for path in sorted(wanted):
        error = entries[path].error
        if error is None or SYNTAX not in tree.for_file(Path(path)).codes_for(Path(path)):
            continue
        if target > RUNNING:
            report.too_new.append(path)
        else:
            found.append(unreadable(path, Unreadable(*error)))
    found.sort()
    return report


def _scan_all(
    paths: list[str], cache: Cache, given: tuple[Path, bytes] | None, workers: Workers
) -> tuple[dict[str, FileEntry], int]:
    """Return what is known of each file without parsing it, and how many the cache knew."""
    entries = {path: entry for path in paths if (entry := cache.get(path)) is not None}
    known = len(entries)
    if given is not None:
        entries[str(given[0])] = _entry(given[1], str(given[0]), (0, 0))
    missing = [path for path in paths if path not in entries]
    for path, entry in workers.map(_scan_some, missing):
        entries[path] = entry
        cache.put(path, entry)
    return entries, known


def _files(
    entries: dict[str, FileEntry],
    wanted: set[str],
    named: set[str],
    target: Version,
    cache: Cache,
    given: tuple[Path, bytes] | None,
    workers: Workers,
) -> SourceFiles:
    """Return the files that matter; those that may hold inference are read at once."""
    said = {path: entry.says for path, entry in entries.items()}
    choice = scan.choose(said, {path: entry.imports for path, entry in entries.items()})
    ignoring = {path for path in wanted if said[path] & IGNORES}
    first = sorted(choice.first(said) | named | ignoring)
    contents = {str(given[0]): given[1]} if given is not None else {}
    defined = frozenset(name for path in choice.matter.union(first) for name in entries[path].defines.split())

    def read_ahead(paths: list[str]) -> None:
        unparsed = [path for path in paths if not entries[path].facts and entries[path].error is None and path not in contents]
        if workers.are_worth(len(unparsed)):
            for path, parsed in workers.map(_parse_some, unparsed, target, defined):
                entries[path].facts, entries[path].error = parsed
                cache.changed = True

    def reader(path: str) -> FileFacts | None:
        entry = entries[path]
        if entry.facts:
            facts = from_json(json.loads(entry.facts))
            if defined.isdisjoint(facts.passed_over):  # which depends on other files
                return facts
        if entry.error is not None:
            return None
        found, entry.error = _facts(contents.get(path) or _bytes(path), target, defined)
        if cache.file is not None and found is not None and path not in contents:
            entry.facts = _as_json(found)  # before the project adds to them what it knows from other files
        cache.changed = True
        return found

    read_ahead(first)
    read = {path: facts for path in first if (facts := reader(path)) is not None}
    unread = choice.matter.difference(first)
    harmless = entries.keys() - choice.matter - read.keys()
    text = cache_results(lambda path: contents[path] if path in contents else _bytes(path))
    together = read_ahead if workers.are_several else None
    return SourceFiles(read, entries, unread, reader, text, choice.below, harmless, ImportedFiles(entries, text), together)


def _scan_some(paths: list[str]) -> list[tuple[str, FileEntry]]:
    """Read files without parsing them: most are not worth it."""
    with _collector_off():
        return [(path, _scan(path)) for path in paths]


def _parse_some(paths: list[str], target: Version, defined: frozenset[str]) -> list[tuple[str, Parsed]]:
    with _collector_off():
        return [(path, _parsed(path, target, defined)) for path in paths]


def _scan(path: str) -> FileEntry:
    stamp = stamp_of(path)
    return _entry(_bytes(path), path, stamp)


def _bytes(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - called for every file, and half the time of Path.read_bytes
        return file.read()


def _entry(data: bytes, path: str, stamp: Stamp) -> FileEntry:
    words = scan.words_of(data)
    imported, roots = scan.imports(data, path)
    return FileEntry(stamp, scan.says(data, words, roots), imported, as_words(words), " ".join(scan.defined_in(data)))


def _parsed(path: str, target: Version, defined: frozenset[str]) -> Parsed:
    """Return the facts of a file as JSON, or why it cannot be parsed."""
    facts, error = _facts(_bytes(path), target, defined)
    return _as_json(facts) if facts is not None else "", error


def _facts(data: bytes, target: Version, defined: frozenset[str]) -> tuple[FileFacts | None, Error | None]:
    try:
        return read_facts(data, target, defined), None
    except Unreadable as error:
        return None, (error.place[0], error.place[1], error.reason)


def _as_json(facts: FileFacts) -> str:
    return json.dumps(to_json(facts), separators=(",", ":"))


@contextmanager
def _collector_off() -> Iterator[None]:
    """Run without the cycle collector: trees are big, acyclic and short-lived, and it took two thirds of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def find_files(paths: Sequence[Path], tree: SettingsTree) -> Iterator[Path]:
    """Yield the Python files at and below `paths`. What settings exclude stays out even if it is named itself."""
    for path in paths:
        if path.is_file():
            if not tree.for_file(path).excludes(path):
                yield path
        elif path.is_dir():
            yield from _walk(path, tree)
        else:
            raise ConfigError([f"{path}: no such file or directory"])


def _context(named: Sequence[Path], tree: SettingsTree) -> list[Path]:
    """Return the files of the projects around files that are named themselves."""
    roots = {settings.root for path in named if (settings := tree.for_file(path)).in_project}
    found: list[Path] = []
    for root in sorted(roots):
        for path in _walk(_relative(root), tree):
            found.append(path)
            if len(found) > CONTEXT_FILES_MAX:
                return []
    return found


def _relative(folder: Path) -> Path:
    """Return a folder as it is seen from here, so that a file has one name whether it was named or found."""
    try:
        return folder.resolve().relative_to(Path().resolve())
    except ValueError:
        return folder


def _walk(folder: Path, tree: SettingsTree) -> Iterator[Path]:
    top, resolved = len(str(folder)), os.path.realpath(folder)
    for place, folders, names in os.walk(folder):  # which follows no links
        settings = tree.of(Path(place), resolved + place[top:])
        in_package = "__init__.py" in names
        kept = (f for f in folders if not _is_left_out(f, settings) or (in_package and _is_part(Path(place, f))))
        folders[:] = sorted(f for f in kept if not settings.exclude or not settings.excludes(Path(place, f)))
        for name in sorted(name for name in names if name.endswith(".py") and not _is_left_out(name, settings)):
            path = Path(place, name)
            if not settings.excludes(path) and path.is_file():
                yield path


def _is_part(folder: Path) -> bool:
    """Return whether a folder in a package is a part of the application: `app/notebooks` with an `__init__.py`."""
    return SUBJECTS.match(folder.name) is not None and Path(folder, "__init__.py").is_file()


def _is_left_out(name: str, settings: LintSettings) -> bool:
    if name in EXCLUDED:
        return True
    return not settings.include_tests and NOT_SERVED.match(name) is not None
