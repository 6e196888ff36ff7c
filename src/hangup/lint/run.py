"""Finds the files to lint, reads them on all of the machine's cores, and judges them together."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from hangup.errors import ConfigError
from hangup.lint import scan
from hangup.lint.cache import Cache, FileEntry, Stamp, stamp_of
from hangup.lint.check import RUNNING, SYNTAX, Unreadable, lint_facts, read_facts, unreadable
from hangup.lint.facts import from_json, to_json
from hangup.lint.finding import Finding
from hangup.lint.settings import EXCLUDED, NOT_SERVED, LintSettings, SettingsTree

PARALLEL_FROM_FILES = 64  # with fewer files, the work is done before a second process has started
FILES_PER_TASK = 32
CONTEXT_FILES_MAX = 5000  # a named file is judged with the rest of its project, unless that is larger

Version = tuple[int, int]
_Work = Callable[[list[str], Version], "list[tuple[str, FileEntry]]"]


@dataclass(slots=True)
class Report:
    findings: list[Finding]
    files: int
    parsed: int = 0  # the others name no inference and import nothing that does
    cached: int = 0
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
        entries, cached = _read_all(sorted(wanted | context), target, cache, {str(path) for path in named} & wanted, given)
        cache.save()
        files = {path: from_json(json.loads(entry.facts)) for path, entry in entries.items() if entry.facts}
        found = lint_facts(files, lambda path: tree.for_file(Path(path)).codes_for(Path(path)), wanted)
    report = Report(found, len(wanted), len(files), cached)
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


def _read_all(
    paths: list[str], target: Version, cache: Cache, named: Collection[str] = (), given: tuple[Path, bytes] | None = None
) -> tuple[dict[str, FileEntry], int]:
    """Return what is known of each file, and how many the cache knew; parse what is worth it or was named."""
    entries = {path: entry for path in paths if (entry := cache.get(path)) is not None}
    known = len(entries)
    if given is not None:
        entries[str(given[0])] = _read(given[1], str(given[0]), (0, 0), target, parse=True)
    missing = [path for path in paths if path not in entries]
    with _pool(len(missing)) as spread:
        for path, entry in spread(_scan_some, missing, target):
            entries[path] = entry
            cache.put(path, entry)
        said = {path: entry.says for path, entry in entries.items()}
        chosen = scan.worth_parsing(said, {path: entry.imports for path, entry in entries.items()})
        unparsed = [path for path in sorted({*chosen, *named}) if not entries[path].facts and entries[path].error is None]
        for path, entry in spread(_parse_some, unparsed, target):
            entries[path] = entry
            cache.put(path, entry)
    return entries, known


@contextmanager
def _pool(work: int) -> Iterator[_Spread]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores == 1 or work < PARALLEL_FROM_FILES:
        yield _Spread(None)
        return
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        yield _Spread(pool)


class _Spread:
    """Runs a function over many files, in the processes of a pool or here."""

    def __init__(self, pool: ProcessPoolExecutor | None) -> None:
        self.pool = pool

    def __call__(self, function: _Work, paths: list[str], target: Version) -> Iterator[tuple[str, FileEntry]]:
        if self.pool is None or len(paths) < PARALLEL_FROM_FILES:
            yield from function(paths, target)
            return
        parts = [paths[i : i + FILES_PER_TASK] for i in range(0, len(paths), FILES_PER_TASK)]
        for rows in self.pool.map(function, parts, [target] * len(parts)):
            yield from rows


def _scan_some(paths: list[str], target: Version) -> list[tuple[str, FileEntry]]:
    """Read files without parsing them: most are not worth it."""
    with _collector_off():
        return [(path, _scan(path, target)) for path in paths]


def _parse_some(paths: list[str], target: Version) -> list[tuple[str, FileEntry]]:
    with _collector_off():
        return [(path, _scan(path, target, parse=True)) for path in paths]


def _scan(path: str, target: Version, *, parse: bool = False) -> FileEntry:
    stamp = stamp_of(path)
    return _read(Path(path).read_bytes(), path, stamp, target, parse=parse)


def _read(data: bytes, path: str, stamp: Stamp, target: Version, *, parse: bool) -> FileEntry:
    entry = FileEntry(stamp, scan.says(data), scan.imports(data, path))
    if parse:
        try:
            entry.facts = json.dumps(to_json(read_facts(data, target)), separators=(",", ":"))
        except Unreadable as error:
            entry.error = (error.place[0], error.place[1], error.reason)
    return entry


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
    for place, folders, names in os.walk(folder):
        settings = tree.of(Path(place))
        folders[:] = sorted(f for f in folders if not _is_left_out(f, settings) and not settings.excludes(Path(place, f)))
        for name in sorted(names):
            path = Path(place, name)
            if name.endswith(".py") and not _is_left_out(name, settings) and not settings.excludes(path) and path.is_file():
                yield path


def _is_left_out(name: str, settings: LintSettings) -> bool:
    if name in EXCLUDED:
        return True
    return not settings.include_tests and NOT_SERVED.match(name) is not None
