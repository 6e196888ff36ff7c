"""The registry of rules: each with its code, its reasons and its two examples, which docs/lint.md is generated from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from textwrap import dedent

from hangup.lint.facts import Place
from hangup.lint.finding import Severity
from hangup.lint.project import Project


@dataclass(frozen=True, slots=True)
class Hit:
    path: str
    place: Place
    message: str
    hint: str = ""  # instead of the rule's own
    certain: bool = True  # there is positive evidence for it: see `evidence`


Check = Callable[[Project], Iterator[Hit]]


@dataclass(frozen=True, slots=True)
class Rule:
    code: str
    name: str
    severity: Severity
    summary: str
    why: str
    hint: str
    bad: str
    good: str
    check: Check
    default: bool = True


RULES: dict[str, Rule] = {}


def rule(
    code: str, name: str, severity: Severity, *, summary: str, why: str, hint: str, bad: str, good: str, default: bool = True
) -> Callable[[Check], Check]:
    """Register a check as a rule."""

    def register(check: Check) -> Check:
        assert code not in RULES
        RULES[code] = Rule(
            code,
            name,
            severity,
            summary,
            _flow(why),
            hint,
            dedent(bad).strip() + "\n",
            dedent(good).strip() + "\n",
            check,
            default,
        )
        return check

    return register


def _flow(text: str) -> str:
    return " ".join(text.split())
