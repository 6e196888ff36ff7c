"""Fixes what can be fixed without changing what healthy code does: shields around a generation, and unused ignore comments."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from hangup.lint.check import UNUSED
from hangup.lint.finding import Finding
from hangup.lint.suppress import COMMENT, codes_of

FIXABLE = frozenset({"HU009", UNUSED})


def fix_files(findings: Iterable[Finding]) -> set[Finding]:
    """Fix what can be fixed in the files, and return the findings that this removes."""
    by_path: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        if finding.code in FIXABLE:
            by_path[finding.path].append(finding)
    fixed: set[Finding] = set()
    for path, found in by_path.items():
        data = Path(path).read_bytes()
        try:
            text = data.decode()
        except UnicodeDecodeError:
            continue
        changed, done = fix_text(text, found)
        if done:
            Path(path).write_bytes(changed.encode())
            fixed |= done
    return fixed


def fix_text(text: str, findings: Iterable[Finding]) -> tuple[str, set[Finding]]:
    """Return the text with its fixable findings fixed, and these."""
    lines = text.splitlines(keepends=True)
    done: set[Finding] = set()
    shields = {(f.line, f.column): f for f in findings if f.code == "HU009"}
    for node in _shields(text) if shields else ():
        finding = shields.get((node.lineno, node.col_offset + 1))
        if finding is not None and _unwrap(lines, node):
            done.add(finding)
    for finding in findings:
        if finding.code == UNUSED and _drop_comment(lines, finding):
            done.add(finding)
    return "".join(lines), done


def _shields(text: str) -> list[ast.Call]:
    """Return the shields that are awaited where they stand, the last one first, so that places stay right."""
    awaits = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Await))
    found = [node for node in awaits if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords]
    return sorted(found, key=lambda node: (node.lineno, node.col_offset), reverse=True)


def _unwrap(lines: list[str], node: ast.Call) -> bool:
    """Replace `shield(work)` by `work`, if both are on one line: `await work` does the same until somebody cancels it."""
    inner = node.args[0]
    if node.lineno != node.end_lineno or not isinstance(inner, ast.Call) or _is_task(inner):
        return False
    line = lines[node.lineno - 1].encode()
    kept = line[inner.col_offset : inner.end_col_offset]
    lines[node.lineno - 1] = (line[: node.col_offset] + kept + line[node.end_col_offset :]).decode()
    return True


def _is_task(node: ast.Call) -> bool:
    return getattr(node.func, "attr", getattr(node.func, "id", "")) in {"create_task", "ensure_future"}


def _drop_comment(lines: list[str], finding: Finding) -> bool:
    """Remove an ignore comment, or of several codes the one that ignores nothing."""
    line = lines[finding.line - 1]
    match = COMMENT.search(line)
    if match is None:
        return False
    code = re.search(r"`([\w-]+)` is no rule|for (HU\d+)$", finding.message)
    keep: list[str] = []
    if code is not None and match["codes"] is not None:
        names = [name.strip() for name in match["codes"].split(",") if name.strip()]
        unused = (code[1] or code[2]).upper()
        keep = [name for name in names if codes_of(name) != [unused]]
    rest = line[match.end() :]
    head = line[: match.start()]
    if keep:
        lines[finding.line - 1] = f"{head}# hangup: ignore{match['file'] or ''}[{', '.join(keep)}]{rest}"
    elif rest.strip():
        lines[finding.line - 1] = f"{head}# {rest.strip().lstrip('#').strip()}\n"
    else:
        lines[finding.line - 1] = f"{head.rstrip()}\n" if head.strip() else ""
    return True
