"""What the linter found, where."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    ERROR = "error"  # work goes on for a client who left
    WARNING = "warning"  # nothing bounds the work, or nobody would notice


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    path: str
    line: int
    column: int  # from 1, as editors count
    code: str
    name: str
    message: str
    severity: Severity
    hint: str
    end_line: int
