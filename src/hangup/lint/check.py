"""Runs the rules over one file."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Collection
from pathlib import Path

from hangup.lint import rules
from hangup.lint.finding import Finding, Severity
from hangup.lint.rule import RULES
from hangup.lint.source import Module
from hangup.lint.suppress import suppressions

assert rules.__all__  # importing the package fills the registry

DEFAULT = frozenset(code for code, rule in RULES.items() if rule.default)
SYNTAX = "HU000"  # the file cannot be parsed; this is not a rule and cannot be switched off

# Every rule needs a coroutine or a web application. A file that names neither, as most files do, is not parsed.
_WORTH_PARSING = re.compile(
    rb"async\s+def|BackgroundTask|\b(?:fastapi|starlette|litestar|flask|quart|sanic|tenacity|backoff)\b|Queue\(|requests\.post"
    rb"|timeout\s*=\s*None|Timeout\("
)


def lint_file(path: Path, codes: Collection[str] = DEFAULT, shown_as: str = "") -> list[Finding]:
    name = shown_as or str(path)
    data = path.read_bytes()
    if not _WORTH_PARSING.search(data):
        return []
    return lint_source(data, name, codes)


def lint_source(source: str | bytes, path: str = "<string>", codes: Collection[str] = DEFAULT) -> list[Finding]:
    """Return the findings of the chosen rules in line order, without those that the source suppresses."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about the user's literals are not our business
            tree = ast.parse(source)
            text = source if isinstance(source, str) else source.decode("utf-8-sig", "replace")
            module = Module(text, tree)
    except (SyntaxError, ValueError, RecursionError) as error:
        line, column = getattr(error, "lineno", 1) or 1, getattr(error, "offset", 1) or 1
        message = f"cannot parse the file: {getattr(error, 'msg', error)}"
        return [Finding(path, line, column, SYNTAX, "syntax-error", message, Severity.ERROR, "", line)]
    ignored = suppressions(text)
    found: dict[tuple[int, int, str], Finding] = {}
    for code in codes:
        rule = RULES[code]
        for node, message in rule.check(module):
            if not ignored.covers(code, node.lineno, _last_line_of_head(node)):
                finding = Finding(
                    path,
                    node.lineno,
                    node.col_offset + 1,
                    code,
                    rule.name,
                    message,
                    rule.severity,
                    rule.hint,
                    node.end_lineno or node.lineno,
                )
                found[node.lineno, node.col_offset, code] = finding
    return sorted(found.values())


def _last_line_of_head(node: ast.expr | ast.stmt | ast.excepthandler) -> int:
    """Return the last line where a comment on the node counts: for a block, the line before its body; else the last line."""
    body = getattr(node, "body", None)
    if isinstance(body, list) and body:
        return max(node.lineno, int(body[0].lineno) - 1)
    return node.end_lineno or node.lineno
