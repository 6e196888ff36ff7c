"""Formats findings as text, JSON, SARIF 2.1.0 and GitHub annotations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hangup import __version__
from hangup.lint.finding import Finding
from hangup.lint.rule import RULES

_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_text(findings: list[Finding]) -> str:
    lines = []
    for f in findings:
        lines.append(f"{f.path}:{f.line}:{f.column}: {f.code} {f.message} [{f.name}]")
        if f.hint:
            lines.append(f"  hint: {f.hint}")
    return "\n".join(lines)


def as_json(findings: list[Finding]) -> str:
    return json.dumps([_row(f) for f in findings], indent=2)


def _row(f: Finding) -> dict[str, Any]:
    return {
        "code": f.code,
        "name": f.name,
        "severity": f.severity.value,
        "message": f.message,
        "hint": f.hint,
        "path": f.path,
        "line": f.line,
        "column": f.column,
        "end_line": f.end_line,
    }


def as_github(findings: list[Finding]) -> str:
    return "\n".join(
        f"::{f.severity.value} file={_property(f.path)},line={f.line},col={f.column},endLine={f.end_line},"
        f"title={_property(f'{f.code} {f.name}')}::{_data(f'{f.message}; {f.hint}' if f.hint else f.message)}"
        for f in findings
    )


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def as_sarif(findings: list[Finding]) -> str:
    rules = [
        {
            "id": rule.code,
            "name": rule.name,
            "shortDescription": {"text": rule.summary},
            "fullDescription": {"text": rule.why},
            "help": {"text": rule.hint},
            "defaultConfiguration": {"level": rule.severity.value, "enabled": rule.default},
        }
        for rule in RULES.values()
    ]
    results = [
        {
            "ruleId": f.code,
            "level": f.severity.value,
            "message": {"text": f.message},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": Path(f.path).as_posix()},
                        "region": {"startLine": f.line, "startColumn": f.column, "endLine": f.end_line},
                    }
                }
            ],
        }
        for f in findings
    ]
    driver = {"name": "hangup lint", "version": __version__, "rules": rules}
    return json.dumps(
        {"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}, indent=2
    )


FORMATS: dict[str, Callable[[list[Finding]], str]] = {"text": as_text, "json": as_json, "sarif": as_sarif, "github": as_github}
