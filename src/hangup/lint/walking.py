"""Walks over syntax trees: as `ast.walk`, in the same order, in less time.

They leave out `ctx`, which a third of all nodes are and no rule reads.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

_NO_NODES: Final = frozenset(
    {"ctx", "id", "attr", "arg", "name", "asname", "module", "level", "kind", "type_comment", "conversion"}
)
_CHILDREN: Final[dict[type, tuple[str, ...]]] = {
    kind: () if kind in {ast.Constant, ast.Global, ast.Nonlocal} else tuple(f for f in kind._fields if f not in _NO_NODES)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}
# What is below the most common nodes, whose fields always hold nodes or lists of them.
_BELOW: Final[dict[type, Callable[[Any], Sequence[ast.AST]]]] = {
    **{kind: lambda _: () for kind, names in _CHILDREN.items() if not names},
    ast.Attribute: lambda node: (node.value,),
    ast.Await: lambda node: (node.value,),
    ast.Expr: lambda node: (node.value,),
    ast.Starred: lambda node: (node.value,),
    ast.keyword: lambda node: (node.value,),
    ast.Assign: lambda node: (*node.targets, node.value),
    ast.BinOp: attrgetter("left", "op", "right"),
    ast.BoolOp: lambda node: (node.op, *node.values),
    ast.Call: lambda node: (node.func, *node.args, *node.keywords),
    ast.Compare: lambda node: (node.left, *node.ops, *node.comparators),
    ast.IfExp: attrgetter("test", "body", "orelse"),
    ast.JoinedStr: attrgetter("values"),
    ast.List: attrgetter("elts"),
    ast.Subscript: attrgetter("value", "slice"),
    ast.Tuple: attrgetter("elts"),
    ast.UnaryOp: attrgetter("op", "operand"),
}
_BLOCKS: Final[dict[type, tuple[str, ...]]] = {
    **dict.fromkeys((ast.If, ast.For, ast.AsyncFor, ast.While), ("body", "orelse")),
    **dict.fromkeys((ast.Try, ast.TryStar), ("body", "handlers", "orelse", "finalbody")),
    **dict.fromkeys((ast.With, ast.AsyncWith, ast.ExceptHandler, ast.match_case), ("body",)),
    ast.Match: ("cases",),
}


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all below it, level by level."""
    nodes = [node]
    for found in nodes:  # which grows meanwhile
        yield found
        nodes += children(found)


def children(node: ast.AST) -> Sequence[ast.AST]:
    """Return the nodes directly below a node."""
    below = _BELOW.get(node.__class__)
    if below is not None:
        return below(node)
    found: list[ast.AST] = []
    for name in _CHILDREN[node.__class__]:
        value = getattr(node, name, None)
        if value.__class__ is list:
            found += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def statements_in(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a function, from the last to the first, those of functions and classes inside it as one."""
    todo: list[Any] = list(body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.stmt):
            yield node
        for part in _BLOCKS.get(node.__class__, ()):
            todo += getattr(node, part)
