"""Which calls make something that their function awaits later: by its name, or together with others in a list."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator

WAITING = frozenset({"gather", "wait_for", "wait", "shield", "as_completed"})  # who is awaited awaits what they are given
_ADDING = frozenset({"append", "add"})


def awaited_names(value: ast.expr) -> Iterator[str]:
    """Yield the names that are awaited: `await answer`, `await asyncio.gather(notes, script)`, or of all in `*answers`."""
    if isinstance(value, ast.Name):
        yield value.id
    elif isinstance(value, ast.Call) and waits_for_all(value):
        for item in (item for argument in value.args for item in _items(argument)):
            yield from awaited_names(item) if waits_for_all(item) else (name for name in [_name(item)] if name)


def waits_for_all(call: ast.expr) -> bool:
    """Return whether a call is one of `asyncio.gather(...)`, `as_completed(...)` and the like."""
    if not isinstance(call, ast.Call):
        return False
    function = call.func
    return (function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")) in WAITING


def added_to(call: ast.Call, awaited: Container[str]) -> str:
    """Return the name of what is put into a list that is awaited: `answers.append(answer)`."""
    match call:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=verb), args=[ast.Name(id=added)]) if verb in _ADDING:
            return added if name in awaited else ""
    return ""


def is_awaited_later(call: ast.Call, statement: ast.AST, awaited: Container[str]) -> bool:
    """Return whether a call makes what its function awaits by name: `notes = ask()`, `notes = [ask(t) for t in texts]`.

    Or what is put into such a list: `notes.append(ask())`.
    """
    match statement:
        case ast.Assign(targets=[ast.Name(id=name), *_], value=value) | ast.AnnAssign(target=ast.Name(id=name), value=value):
            return name in awaited and value is not None and any(made is call for made in _made_in(value))
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=verb), args=[added])) if verb in _ADDING:
            return name in awaited and added is call
    return False


def _made_in(value: ast.expr) -> list[ast.expr]:
    """Return what a value is, or what it holds: the elements of a list, or what a comprehension makes."""
    if isinstance(value, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):
        return [value.elt]
    if isinstance(value, ast.DictComp):
        return [value.value]
    return [item for item in value.values if item is not None] if isinstance(value, ast.Dict) else _items(value)


def _items(argument: ast.expr) -> list[ast.expr]:
    return argument.elts if isinstance(argument, (ast.List, ast.Tuple, ast.Set)) else [argument]


def _name(item: ast.expr) -> str:
    """Return the name of an argument: of `notes`, of all in `*notes`, and in `*notes.values()`."""
    node = item.value if isinstance(item, ast.Starred) else item
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "values":
        node = node.func.value
    return node.id if isinstance(node, ast.Name) else ""
