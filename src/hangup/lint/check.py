"""Runs the rules over the facts of a project's files."""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Callable, Collection
from pathlib import Path

from hangup.lint import rules
from hangup.lint.extract import extract
from hangup.lint.facts import FileFacts, Place
from hangup.lint.files import SourceFiles
from hangup.lint.finding import Certainty, Finding, Severity
from hangup.lint.newer_syntax import NEWER, as_older
from hangup.lint.project import Project
from hangup.lint.rule import RULES
from hangup.lint.source import Module
from hangup.lint.suppress import Ignores, read_ignores

assert rules.__all__  # importing the package fills the registry

SYNTAX = "HU000"
UNUSED = "HU100"
OTHERS = {SYNTAX: "syntax-error", UNUSED: "unused-ignore"}  # findings about the file itself, which no rule makes
DEFAULT = frozenset({code for code, rule in RULES.items() if rule.default} | set(OTHERS))
RUNNING = sys.version_info[:2]


class Unreadable(Exception):
    """The file cannot be parsed."""

    def __init__(self, line: int, column: int, reason: str) -> None:
        super().__init__(reason)
        self.place: Place = (line, column, line, line)
        self.reason = reason


def read_facts(source: str | bytes, target: tuple[int, int] = RUNNING, defined: Collection[str] | None = None) -> FileFacts:
    """Return the facts of a file; raises Unreadable. `defined` are the names of all functions of the project, if known."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about the user's literals are not our business
            text = source if isinstance(source, str) else source.decode("utf-8-sig", "replace")
            tree, text = _parsed(source, text, min(target, RUNNING))
            module = Module(text, tree)
            facts = extract(module, defined)
            module.release()
    except (SyntaxError, ValueError, RecursionError) as error:
        line, column = getattr(error, "lineno", 1) or 1, getattr(error, "offset", 1) or 1
        raise Unreadable(line, column, f"cannot parse the file: {getattr(error, 'msg', error)}") from None
    facts.ignores = read_ignores(text)
    return facts


def _parsed(source: str | bytes, text: str, version: tuple[int, int]) -> tuple[ast.Module, str]:
    """Return the tree of a source, and the text that it is of, which may be without what only a newer Python can parse."""
    try:
        return ast.parse(source, feature_version=version), text
    except SyntaxError:
        older = as_older(text) if RUNNING < NEWER else None
        if older is None:
            raise
        return ast.parse(older, feature_version=version), older


def lint_file(path: Path, codes: Collection[str] = DEFAULT) -> list[Finding]:
    return lint_source(path.read_bytes(), str(path), codes)


def lint_source(source: str | bytes, path: str = "<string>", codes: Collection[str] = DEFAULT) -> list[Finding]:
    """Return the findings of the chosen rules in one file, in line order, without those that the source ignores."""
    try:
        facts = read_facts(source)
    except Unreadable as error:
        return [unreadable(path, error)] if SYNTAX in codes else []
    text = source if isinstance(source, bytes) else source.encode("utf-8", "surrogatepass")
    return lint_facts(SourceFiles({path: facts}, text=lambda _: text), lambda _: codes)


def unreadable(path: str, error: Unreadable) -> Finding:
    line, column, *_ = error.place
    return Finding(path, line, column, SYNTAX, OTHERS[SYNTAX], error.reason, Severity.ERROR, "", line)


def lint_facts(
    files: SourceFiles,
    codes_for: Callable[[str], Collection[str]],
    reported: Collection[str] | None = None,
) -> list[Finding]:
    """Return the findings in the `reported` files (all, if None), judged with the facts of all files."""
    project = Project(files)
    chosen = {path: codes_for(path) for path in (files.paths() if reported is None else reported)}
    hits = {
        code: list(RULES[code].check(project))
        for code in sorted({code for codes in chosen.values() for code in codes if code in RULES})
    }
    files.close()
    project.release()
    chosen = {path: codes for path, codes in chosen.items() if path in files.read}  # rules may read further files
    ignores = {path: Ignores(files.read[path].ignores) for path in chosen}
    found: dict[tuple[str, int, int, str], Finding] = {}
    for code in sorted(hits):
        rule = RULES[code]
        for hit in hits[code]:
            if code not in chosen.get(hit.path, ()) or ignores[hit.path].covers(code, hit.place[0], hit.place[3]):
                continue
            line, column, last, _ = hit.place
            certainty = Certainty.CERTAIN if hit.certain else Certainty.LIKELY
            hint = hit.hint or rule.hint
            finding = Finding(hit.path, line, column, code, rule.name, hit.message, rule.severity, hint, last, certainty)
            found.setdefault((hit.path, line, column, code), finding)
    unused = [f for path, codes in chosen.items() if UNUSED in codes for f in _unused(path, ignores[path], codes)]
    return sorted([*found.values(), *unused])


def _unused(path: str, ignores: Ignores, codes: Collection[str]) -> list[Finding]:
    """Return a finding for each ignore comment that ignores nothing; `codes` are the rules that ran."""
    return [
        Finding(path, line, 1, UNUSED, OTHERS[UNUSED], message, Severity.WARNING, "remove it: `hangup lint --fix`", line)
        for line, message in ignores.unused(codes)
    ]
