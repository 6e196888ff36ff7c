"""Walks over syntax trees: as `ast.walk`, in the same order, in less time.

They leave out `ctx`, which a third of all nodes are and no rule reads.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

_NO_NODES: Final = frozenset(
    {"ctx", "id", "attr", "arg", "name", "asname", "module", "level", "kind", "type_comment", "conversion"}
)
_CHILDREN: Final[dict[type, tuple[str, ...]]] = {
    kind: () if kind in {ast.Constant, ast.Global, ast.Nonlocal} else tuple(f for f in kind._fields if f not in _NO_NODES)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all below it, level by level."""
    nodes = [node]
    for found in nodes:  # which grows meanwhile
        yield found
        nodes += children(found)


def children(node: ast.AST) -> list[ast.AST]:
    """Return the nodes directly below a node."""
    found: list[ast.AST] = []
    for name in _CHILDREN[node.__class__]:
        value = getattr(node, name, None)
        if value.__class__ is list:
            found += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found
