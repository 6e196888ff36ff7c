"""Which calls of a function are lost in it: their results have no part in what it returns, yields or hands to others.

Whether a client waits for a generated text shows only step by step, from the model to the handler: each function on the way
has to pass the text on. Names are followed backwards from what leaves the function, without regard to the order of statements.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from hangup.lint.source import Function
from hangup.lint.walking import statements_in, walk

# Methods by which something is put into what somebody else holds: out.append(text), await socket.send_json(answer).
_HANDS_OVER = frozenset(
    "append appendleft extend update put put_nowait setdefault write send send_json send_text set_result emit".split()
)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def lost_calls(scope: Function, names: Mapping[int, set[str]], *, walrus: bool = True) -> set[int]:
    """Return the ids of the calls in a function whose results it keeps to itself.

    `names` are those in each statement, by its id; `walrus`: whether the file has any `:=`.
    """
    if not isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef)) or not scope.calls:
        return set()
    live = {parameter.arg for parameter in scope.parameters}
    waiting: list[tuple[int, set[str]]] = []  # ids of statements, and what they change
    passing: set[int] = set()
    for statement in statements_in(scope.node.body):
        kind = statement.__class__
        if kind is ast.Return:
            live |= names[id(statement)]
        elif changed := _changes(statement, walrus=walrus):
            if any(name.startswith("self.") for name in changed):
                passing.add(id(statement))
                live |= names[id(statement)]
            else:
                waiting.append((id(statement), changed))
        if scope.yields and (kind is ast.Expr or kind is ast.Assign):
            live |= _yielded(statement)
    while waiting:
        left = []
        for number, changed in waiting:
            if not changed.isdisjoint(live):
                passing.add(number)
                live |= names[number]
            else:
                left.append((number, changed))
        if len(left) == len(waiting):
            break
        waiting = left
    kept = [site for site in scope.calls if id(site.statement) not in passing]
    return {id(site.node) for site in kept if not _is_leaving(site.statement)}


def _is_leaving(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Return) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, (ast.Yield, ast.YieldFrom))
    )


def _changes(statement: ast.stmt, *, walrus: bool) -> set[str]:
    """Return the names that a statement changes."""
    found: set[str] = set()
    kind = statement.__class__
    if kind is ast.Expr:
        called = statement.value  # type: ignore[attr-defined]
        call = called.value if isinstance(called, ast.Await) else called
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _HANDS_OVER:
            found.update(_changed(call.func.value))
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            found.update(_changed(target))
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
        if statement.value is not None:
            found.update(_changed(statement.target))
    elif isinstance(statement, (ast.For, ast.AsyncFor)):
        found.update(_changed(statement.target))
    elif isinstance(statement, (ast.With, ast.AsyncWith)):
        for item in statement.items:
            if item.optional_vars is not None:
                found.update(_changed(item.optional_vars))
    if walrus and not isinstance(statement, _SCOPES):
        found.update(n.target.id for n in walk(statement) if isinstance(n, ast.NamedExpr))
    return found


def _yielded(statement: ast.stmt) -> set[str]:
    """Return the names in what a statement yields."""
    values = (n.value for n in walk(statement) if isinstance(n, (ast.Yield, ast.YieldFrom)) and n.value)
    return set[str]().union(*map(_names, values))


def _changed(target: ast.expr) -> Iterator[str]:
    """Yield the names that an assignment changes: `out` for out["text"], `self.text` for self.text.value."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for item in target.elts:
            yield from _changed(item)
        return
    while isinstance(target, (ast.Attribute, ast.Subscript, ast.Starred)):
        if isinstance(target, ast.Attribute) and (name := _of_instance(target)):
            yield name
            return
        target = target.value
    if isinstance(target, ast.Name):
        yield target.id


def _names(value: ast.expr) -> set[str]:
    """Return the names in an expression, and attributes of the instance, but not the instance."""
    found: set[str] = set()
    for node in walk(value):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and (name := _of_instance(node)):
            found.add(name)
    return found - {"self"}


def _of_instance(node: ast.Attribute) -> str:
    return f"self.{node.attr}" if isinstance(node.value, ast.Name) and node.value.id == "self" else ""
