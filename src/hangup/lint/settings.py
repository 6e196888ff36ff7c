"""Reads `[tool.hangup.lint]` from the pyproject.toml nearest to the linted files."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from hangup.errors import ConfigError
from hangup.lint.check import DEFAULT
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
)


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
    root: Path = Path()

    def codes(self) -> frozenset[str]:
        chosen = expand(self.select) if self.select else DEFAULT
        return (chosen | expand(self.extend_select)) - expand(self.ignore)

    def codes_for(self, path: Path) -> frozenset[str]:
        codes = self.codes()
        for pattern, ignored in self.per_file_ignores.items():
            if self._matches(path, pattern):
                codes -= expand(ignored)
        return codes

    def excludes(self, path: Path) -> bool:
        return any(self._matches(path, pattern) for pattern in self.exclude)

    def _matches(self, path: Path, pattern: str) -> bool:
        try:
            name = path.resolve().relative_to(self.root.resolve()).as_posix()
        except ValueError:
            name = path.as_posix()
        return fnmatch(name, pattern) or fnmatch(path.name, pattern) or fnmatch(name, pattern.rstrip("/") + "/*")


def expand(names: Iterable[str]) -> frozenset[str]:
    """Expand rule codes, rule names, prefixes (`HU00`) and `ALL` to codes."""
    codes: set[str] = set()
    for name in names:
        fitting = {c for c, r in RULES.items() if name in {"ALL", r.name} or (name.startswith("HU") and c.startswith(name))}
        if not fitting:
            raise ConfigError([f"unknown lint rule {name!r}; `hangup lint --list` lists the rules"])
        codes |= fitting
    return frozenset(codes)


def find_settings(start: Path) -> LintSettings:
    """Return the settings of the nearest pyproject.toml, here or in a parent directory, that has any."""
    here = start.resolve()
    for folder in [here, *here.parents]:
        path = folder / "pyproject.toml"
        if path.is_file():
            return read_settings(path)
    return LintSettings()


def read_settings(path: Path) -> LintSettings:
    try:
        values = tomllib.loads(path.read_text()).get("tool", {}).get("hangup", {}).get("lint", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: {error}"]) from None
    return _settings(path, values)


def _settings(path: Path, values: dict[str, Any]) -> LintSettings:
    lists = ("select", "extend-select", "ignore", "exclude")
    problems = [f"{path}: unknown setting {k!r} in [tool.hangup.lint]" for k in values if k not in (*lists, "per-file-ignores")]
    problems += [
        f"{path}: [tool.hangup.lint] {k} must be a list of strings" for k in lists if not _is_strings(values.get(k, []))
    ]
    per_file = values.get("per-file-ignores", {})
    if not isinstance(per_file, dict) or not all(_is_strings(v) for v in per_file.values()):
        problems.append(f"{path}: [tool.hangup.lint] per-file-ignores must be a table of lists of strings")
    if problems:
        raise ConfigError(problems)
    chosen = {k.replace("-", "_"): tuple(values.get(k, ())) for k in lists}
    settings = LintSettings(**chosen, per_file_ignores={k: tuple(v) for k, v in per_file.items()}, root=path.parent)
    settings.codes()
    for ignored in settings.per_file_ignores.values():
        expand(ignored)
    return settings


def _is_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) for v in value)
