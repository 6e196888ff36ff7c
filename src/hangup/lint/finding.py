"""A finding of the linter and its place in the source."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    ERROR = "error"  # work continues for a client that disconnected
    WARNING = "warning"  # nothing bounds the work, or nothing would notice


class Certainty(StrEnum):
    CERTAIN = "certain"  # there is positive evidence: see `evidence`
    LIKELY = "likely"  # nothing speaks against it


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    path: str
    line: int
    column: int  # starts at 1, as in editors
    code: str
    name: str
    message: str
    severity: Severity
    hint: str
    end_line: int
    certainty: Certainty = Certainty.CERTAIN
