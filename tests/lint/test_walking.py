"""Walks over syntax trees see what `ast.walk` sees, in the same order, but for `ctx`."""

from __future__ import annotations

import ast
from pathlib import Path

from hangup.lint.walking import children, statements_in, walk

FILES = sorted(Path(__file__).parents[2].glob("src/hangup/**/*.py"))
MORE = """
async def f(a, /, b: int = 1, *c, d, e=None, **g) -> None:
    global h
    async with a as (i, *j), b:
        match a:
            case [1, *rest] | {"k": None, **others} | Point(x=0) if a: pass
            case None: raise ValueError from b
    try: del a[1:2, ...], b.c
    except* (A, B) as error: yield (await a, lambda n: not n, f"{a!r:>{b}}")
    return [x async for x in {**a, None: -b} if (y := 1) < 2 <= 3]
"""


def test_what_is_walked() -> None:
    for text in (MORE, *map(Path.read_text, FILES)):
        tree = ast.parse(text)
        assert list(walk(tree)) == [node for node in ast.walk(tree) if not isinstance(node, ast.expr_context)]
        for node in ast.walk(tree):
            assert list(children(node)) == [n for n in ast.iter_child_nodes(node) if not isinstance(n, ast.expr_context)]


def test_the_statements_of_a_function() -> None:
    """Those of functions and classes inside it are none of its own."""
    scopes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for text in (MORE, *map(Path.read_text, FILES)):
        for scope in (node for node in ast.walk(ast.parse(text)) if isinstance(node, scopes)):
            inside = {inner for node in ast.walk(scope) if isinstance(node, scopes) for inner in node.body if node is not scope}
            inside |= {inner for node in inside for inner in ast.walk(node) if isinstance(inner, ast.stmt)}
            own = {node for node in ast.walk(scope) if isinstance(node, ast.stmt)} - inside - {scope}
            found = list(statements_in(scope.body))
            assert set(found) == own and len(found) == len(own)
