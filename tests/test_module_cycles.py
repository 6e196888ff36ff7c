"""No two modules import each other, not even for types: you can read one without knowing the other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"


def modules() -> dict[str, Path]:
    """Return all modules of the package, by name."""
    found = {}
    for path in sorted((SOURCE / "hangup").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run, or that a type checker reads, when a module is loaded: none inside functions."""
    for statement in body:
        yield statement
        for block in ("body", "orelse", "finalbody"):
            if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from statements(getattr(statement, block, []))


def imports(tree: ast.Module, known: set[str]) -> set[str]:
    """Return the modules of the package that a module imports, under TYPE_CHECKING or not."""
    found = set()
    for statement in statements(tree.body):
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom) and statement.module is not None:
            assert not statement.level, "relative imports are not followed here"
            names = {f"{statement.module}.{alias.name}" for alias in statement.names}
            found |= names & known or {statement.module}
    return found & known


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that reach each other (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph[node]):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1 or node in graph[node]:
                found.append(sorted(group))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def test_no_two_modules_import_each_other() -> None:
    known = modules()
    graph = {name: imports(ast.parse(path.read_text("utf-8")), set(known)) for name, path in known.items()}
    assert len(graph) > 200 and graph["hangup.gateway.gateway"]
    assert cycles(graph) == []


def test_a_cycle_would_be_found() -> None:
    """Also a cycle that exists only for type checkers."""
    tree = ast.parse("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a.b import Thing\nimport c\n")
    assert imports(tree, {"a.b", "c"}) == {"a.b", "c"}
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert cycles({"a": {"b"}, "b": set()}) == []
