"""Formats findings as text, JSON, SARIF 2.1.0 and GitHub annotations."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hangup import __version__
from hangup.lint.check import OTHERS
from hangup.lint.finding import Certainty, Finding
from hangup.lint.rule import RULES

_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_DOCS = "https://github.com/hangup-dev/hangup/blob/main/docs/lint.md"


def as_text(findings: list[Finding]) -> str:
    lines = []
    for f in findings:
        likely = ", likely" if f.certainty is Certainty.LIKELY else ""
        lines.append(f"{f.path}:{f.line}:{f.column}: {f.code} {f.message} [{f.name}{likely}]")
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
        "certainty": f.certainty.value,
        "message": f.message,
        "hint": f.hint,
        "path": f.path,
        "line": f.line,
        "column": f.column,
        "end_line": f.end_line,
    }


def as_github(findings: list[Finding]) -> str:
    return "\n".join(
        f"::{_level(f, 'notice')} file={_property(f.path)},line={f.line},col={f.column},endLine={f.end_line},"
        f"title={_property(f'{f.code} {f.name}')}::{_data(f'{f.message}; {f.hint}' if f.hint else f.message)}"
        for f in findings
    )


def _level(f: Finding, likely: str) -> str:
    """Return the finding's severity, or the format's word for less than a warning if it is only likely."""
    return f.severity.value if f.certainty is Certainty.CERTAIN else likely


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def as_sarif(findings: list[Finding]) -> str:
    run = {
        "tool": {"driver": {"name": "hangup lint", "version": __version__, "informationUri": _DOCS, "rules": _sarif_rules()}},
        "originalUriBaseIds": {"%SRCROOT%": {"description": {"text": "the folder in which hangup ran"}}},
        "results": [_sarif_result(f) for f in findings],
    }
    return json.dumps({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _sarif_rules() -> list[dict[str, Any]]:
    rules = [
        {
            "id": rule.code,
            "name": rule.name,
            "shortDescription": {"text": rule.summary},
            "fullDescription": {"text": rule.why},
            "help": {"text": rule.hint},
            "helpUri": f"{_DOCS}#{rule.code.lower()}-{rule.name}",
            "defaultConfiguration": {"level": rule.severity.value, "enabled": rule.default},
        }
        for rule in RULES.values()
    ]
    return rules + [
        {"id": code, "name": name, "shortDescription": {"text": name.replace("-", " ")}, "helpUri": _DOCS}
        for code, name in OTHERS.items()
    ]


def _sarif_result(f: Finding) -> dict[str, Any]:
    """Return a result with its path from the repository's root, without which code scanning shows no place."""
    path = _relative(f.path)  # absolute outside of the folder, and then it has no base
    file = {"uri": path} if path.startswith("file:") else {"uri": quote(path), "uriBaseId": "%SRCROOT%"}
    region = {"startLine": f.line, "startColumn": f.column, "endLine": f.end_line}
    return {
        "ruleId": f.code,
        "level": _level(f, "note"),
        "message": {"text": f"{f.message}; {f.hint}" if f.hint else f.message},
        "locations": [{"physicalLocation": {"artifactLocation": file, "region": region}}],
        "partialFingerprints": {"hangup/v1": _fingerprint(f)},
        "properties": {"certainty": f.certainty.value},
    }


def _relative(path: str) -> str:
    place = Path(path)
    if place.is_absolute() and place.is_relative_to(Path.cwd()):
        place = place.relative_to(Path.cwd())
    return place.as_posix() if not place.is_absolute() else place.as_uri()


def _fingerprint(f: Finding) -> str:
    """Return what names a finding when its line moves."""
    return hashlib.sha256(f"{_relative(f.path)} {f.code} {re.sub(r'[0-9]+', '', f.message)}".encode()).hexdigest()[:32]


FORMATS: dict[str, Callable[[list[Finding]], str]] = {"text": as_text, "json": as_json, "sarif": as_sarif, "github": as_github}
