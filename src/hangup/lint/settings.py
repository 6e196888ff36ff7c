"""Reads `[tool.hangup.lint]` from the pyproject.toml nearest to the linted files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

from hangup.errors import ConfigError
from hangup.lint.check import DEFAULT, OTHERS, RUNNING
from hangup.lint.finding import Certainty
from hangup.lint.rule import RULES

EXCLUDED = (
    ".git",
    ".venv",
    "venv",
    ".tox",
    ".nox",
    "__pycache__",
    "node_modules",
    "build",
    "dist",
    ".mypy_cache",
    "site-packages",
    ".hangup_cache",
)
# Folders and files that serve nobody, so nothing in them can leak: left out unless `include-tests` is set.
NOT_SERVED = re.compile(
    r"(tests?|testing|examples?|samples?|docs?|benchmarks?|benches|notebooks|cookbook|tutorials?|evals?)$"
    r"|test_\w*\.py$|\w*_test\.py$|conftest\.py$",
    re.I,
)
# Of these, what an application may be about: a package inside its own package is a part of it.
SUBJECTS = re.compile(r"(docs?|notebooks|cookbook|tutorials?)$", re.I)


@dataclass(frozen=True, slots=True)
class LintSettings:
    """Which rules and files to lint. `select` replaces the default rules, `extend_select` adds to them, `ignore` removes from
    them.
    """

    select: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    per_file_ignores: dict[str, tuple[str, ...]] = field(default_factory=dict)
    include_tests: bool = False
    certainty: Certainty = Certainty.CERTAIN  # the least that a finding must have to be reported
    target: tuple[int, int] = RUNNING
    baseline: Path | None = None
    root: Path = Path()
    in_project: bool = False  # `root` is that of a project: it has a pyproject.toml or a .git
    is_written: bool = False  # in a pyproject.toml, at `root`

    def codes(self) -> frozenset[str]:
        return _chosen(self.select, self.extend_select, self.ignore)

    def codes_for(self, path: Path) -> frozenset[str]:
        codes = self.codes()
        for pattern, ignored in self.per_file_ignores.items():
            if self._matches(path, pattern):
                codes -= expand(ignored)
        return codes

    def reports(self, certainty: Certainty) -> bool:
        return certainty is Certainty.CERTAIN or self.certainty is Certainty.LIKELY

    def excludes(self, path: Path) -> bool:
        return any(self._matches(path, pattern) for pattern in self.exclude)

    def _matches(self, path: Path, pattern: str) -> bool:
        try:
            name = path.resolve().relative_to(self.root.resolve()).as_posix()
        except ValueError:
            name = path.as_posix()
        names = (name,) if self.in_project else (name, path.as_posix())  # without a project, as it is seen from here
        folder = pattern.rstrip("/") + "/*"
        return fnmatch(path.name, pattern) or any(fnmatch(n, pattern) or fnmatch(n, folder) for n in names)


class SettingsTree:
    """The settings of each folder: those of the nearest pyproject.toml that has any, or of one file for all."""

    def __init__(self, fixed: LintSettings | None = None, change: Callable[[LintSettings], LintSettings] = lambda s: s) -> None:
        self.fixed = change(fixed) if fixed is not None else None
        self.change = change
        self.found: dict[Path, LintSettings] = {}
        self._nearest: dict[str, LintSettings] = {}  # resolved folder -> its settings, before they are changed

    def of(self, folder: Path, resolved: str = "") -> LintSettings:
        """Return the settings of a folder; `resolved` is its path without links, if that is known."""
        if self.fixed is not None:
            return self.fixed
        settings = self.found.get(folder)
        if settings is None:
            settings = self.found[folder] = self.change(self._find(resolved or os.path.realpath(folder)))
        return settings

    def _find(self, folder: str) -> LintSettings:
        """Return the settings of the nearest pyproject.toml, here or in a parent directory, that has any."""
        known = self._nearest.get(folder)
        if known is None:
            known = self._nearest[folder] = self._read(folder)
        return known

    def _read(self, folder: str) -> LintSettings:
        path = f"{folder}/pyproject.toml"
        is_root = os.path.isfile(path)  # noqa: PTH113 - called for every folder, and a fraction of the time of Path
        values = _values(Path(path)) if is_root else None
        if values is not None:
            return _settings(Path(path), values)
        is_root = is_root or os.path.exists(f"{folder}/.git")  # noqa: PTH110 - likewise
        parent = os.path.dirname(folder)  # noqa: PTH120 - likewise
        above = self._find(parent) if parent != folder else LintSettings()
        if above.is_written or (above.in_project and not is_root):
            return above
        return LintSettings(root=Path(folder), in_project=is_root)

    def for_file(self, path: Path) -> LintSettings:
        return self.of(path.parent)


RETIRED = {
    "HU006": "ruff's S113 reports requests without a timeout",
    "HU008": "flake8-async's ASYNC103 and ruff's E722 report swallowed cancellation",
    "HU014": "it reported no leak",
}


def expand(names: Iterable[str]) -> frozenset[str]:
    """Expand rule codes in either case, rule names, prefixes (`HU00`) and `ALL` to codes."""
    by_name = {r.name: c for c, r in RULES.items()} | {name: c for c, name in OTHERS.items()}
    every = {*RULES, *OTHERS}
    codes: set[str] = set()
    for name in names:
        upper = name.upper()
        fitting = every if upper == "ALL" else {c for c in every if upper.startswith("HU") and c.startswith(upper)}
        if name.lower() in by_name:
            fitting = {by_name[name.lower()]}
        if upper in RETIRED:
            raise ConfigError([f"the lint rule {upper} was retired: {RETIRED[upper]}"])
        if not fitting:
            raise ConfigError([f"unknown lint rule {name!r}; `hangup lint --list` lists the rules"])
        codes |= fitting
    return frozenset(codes)


@cache
def _chosen(select: tuple[str, ...], extend: tuple[str, ...], ignore: tuple[str, ...]) -> frozenset[str]:
    return ((expand(select) if select else DEFAULT) | expand(extend)) - expand(ignore)


def read_settings(path: Path) -> LintSettings:
    return _settings(path, _values(path) or {})


def _values(path: Path) -> dict[str, Any] | None:
    import tomllib  # noqa: PLC0415 - takes time to load, which without a pyproject.toml nobody needs

    try:
        found = tomllib.loads(path.read_text()).get("tool", {}).get("hangup", {}).get("lint")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: {error}"]) from None
    return found if isinstance(found, dict) else None


_LISTS = ("select", "extend-select", "ignore", "exclude")
_OTHER = ("per-file-ignores", "include-tests", "certainty", "target-version", "baseline")


def _settings(path: Path, values: dict[str, Any]) -> LintSettings:
    problems = [f"{path}: unknown setting {k!r} in [tool.hangup.lint]" for k in values if k not in (*_LISTS, *_OTHER)]
    problems += [
        f"{path}: [tool.hangup.lint] {k} must be a list of strings" for k in _LISTS if not _is_strings(values.get(k, []))
    ]
    per_file = values.get("per-file-ignores", {})
    if not isinstance(per_file, dict) or not all(_is_strings(v) for v in per_file.values()):
        problems.append(f"{path}: [tool.hangup.lint] per-file-ignores must be a table of lists of strings")
    if not isinstance(values.get("include-tests", False), bool):
        problems.append(f"{path}: [tool.hangup.lint] include-tests must be true or false")
    if values.get("certainty", Certainty.CERTAIN) not in set(Certainty):
        problems.append(f'{path}: [tool.hangup.lint] certainty must be "certain" or "likely"')
    if not isinstance(values.get("baseline", ""), str):
        problems.append(f"{path}: [tool.hangup.lint] baseline must be the path of a file")
    if problems:
        raise ConfigError(problems)
    settings = LintSettings(
        **{k.replace("-", "_"): tuple(values.get(k, ())) for k in _LISTS},
        per_file_ignores={k: tuple(v) for k, v in per_file.items()},
        include_tests=values.get("include-tests", False),
        certainty=Certainty(values.get("certainty", Certainty.CERTAIN)),
        target=target_version(values["target-version"]) if "target-version" in values else RUNNING,
        baseline=path.parent / values["baseline"] if values.get("baseline") else None,
        root=path.parent,
        in_project=True,
        is_written=True,
    )
    settings.codes()
    for ignored in settings.per_file_ignores.values():
        expand(ignored)
    return settings


def target_version(given: Any) -> tuple[int, int]:
    """Read "py312" or "3.12"."""
    match = re.fullmatch(r"(?:py)?3\.?(\d{1,2})", str(given))
    if match is None or int(match[1]) < 7:
        raise ConfigError([f"target-version must be like py312, from py37, not {given!r}"])
    return 3, int(match[1])


def _is_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) for v in value)
