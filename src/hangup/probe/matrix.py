"""A list of endpoints to probe side by side, from a TOML file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from hangup.errors import ConfigError


@dataclass(frozen=True, slots=True)
class MatrixEntry:
    """One `[[endpoint]]` of the file."""

    url: str
    name: str = ""
    model: str = ""
    api: str = ""
    api_key_env: str = ""
    engine_metrics: str = ""
    slots: int = 0
    command: str = ""  # how it was started, for the report


def read_matrix(path: Path) -> list[MatrixEntry]:
    """Read the file; raise `ConfigError` with every problem."""
    try:
        value = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror}"]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: {error}"]) from None
    rows = value.get("endpoint")
    if set(value) != {"endpoint"} or not isinstance(rows, list) or not rows:
        raise ConfigError([f"{path}: expected one or more [[endpoint]] tables, and nothing else"])
    problems = [f"{path}, endpoint {index}: {problem}" for index, row in enumerate(rows, 1) for problem in _problems(row)]
    if problems:
        raise ConfigError(problems)
    return [MatrixEntry(**row) for row in rows]


def _problems(row: object) -> list[str]:
    if not isinstance(row, dict):
        return ["expected a table"]
    kinds: dict[str, type] = {field.name: int if field.name == "slots" else str for field in fields(MatrixEntry)}
    problems = [f"unknown setting {name!r}; choose from {', '.join(kinds)}" for name in row if name not in kinds]
    problems += [
        f"{name}: must be of type {kinds[name].__name__}"
        for name in row
        if name in kinds and type(row[name]) is not kinds[name]
    ]
    return problems if "url" in row else [*problems, "url is missing"]
