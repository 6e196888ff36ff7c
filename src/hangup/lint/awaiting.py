"""Which calls make something that their function awaits later: by its name, or together with others in a list."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator, Mapping, Sequence

from hangup.lint.walking import walk

WAITING = frozenset({"gather", "wait_for", "wait", "shield", "as_completed"})  # who is awaited awaits what they are given
_ADDING = frozenset({"append", "add"})
_SAME_ITEMS = frozenset({"list", "tuple", "reversed", "enumerate", "zip"})
Taken = tuple[ast.expr, ast.expr]  # the target of a loop or a comprehension, and what it goes over


def awaited_names(value: ast.expr) -> Iterator[str]:
    """Yield the names that are awaited: `await answer`, `await answers[0]`, `await asyncio.gather(notes, *scripts)`."""
    if isinstance(value, (ast.Name, ast.Subscript)):
        yield from _holders(value)
    elif isinstance(value, ast.Call) and waits_for_all(value):
        for item in (item for argument in value.args for item in _items(argument)):
            yield from awaited_names(item) if waits_for_all(item) else _holders(item)


def waits_for_all(call: ast.expr) -> bool:
    """Return whether a call is one of `asyncio.gather(...)`, `as_completed(...)` and the like."""
    if not isinstance(call, ast.Call):
        return False
    function = call.func
    return (function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")) in WAITING


def add_holders(awaited: set[str], assigned: Mapping[str, Sequence[ast.expr]], taken: Sequence[Taken]) -> None:
    """Add the names of what these were taken from: of `pairs` for `[answer for _, answer in pairs]`, or a loop over it."""
    fresh = awaited
    while fresh:
        found = {name for value in fresh for made in assigned.get(value, ()) for name in _holders(made)}
        for target, source in (pair for pairs in taken for pair in _pairs(*pairs)):
            if any(isinstance(node, ast.Name) and node.id in fresh for node in walk(target)):
                found.update(_holders(source))
        fresh = found - awaited
        awaited |= fresh


def _pairs(target: ast.expr, source: ast.expr) -> Iterator[Taken]:
    """Yield which part of a target gets its values from where: `for name, answer in zip(names, answers)`."""
    match target, source:
        case ast.Tuple(elts=targets), ast.Call(func=ast.Name(id="zip"), args=sources) if len(targets) == len(sources):
            yield from zip(targets, sources, strict=True)
        case ast.Tuple(elts=[_, inner]), ast.Call(func=ast.Name(id="enumerate"), args=[given, *_]):
            yield from _pairs(inner, given)
        case _:
            yield target, source


def added_to(call: ast.Call, awaited: Container[str]) -> list[str]:
    """Return the names of what is put into a list that is awaited: `answers.append(answer)`."""
    match call:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=verb), args=[added]) if verb in _ADDING:
            return [made.id for made in _made_in(added) if isinstance(made, ast.Name)] if name in awaited else []
    return []


def is_awaited_later(call: ast.Call, statement: ast.AST, awaited: Container[str]) -> bool:
    """Return whether a call makes what its function awaits by name: `notes = ask()`, `notes = [ask(t) for t in texts]`.

    Or what is put into such a list: `notes.append(ask())`, `notes.append((name, ask()))`, `notes[name] = ask()`.
    """
    match statement:
        case (
            ast.Assign(targets=[ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name)), *_], value=value)
            | ast.AnnAssign(target=ast.Name(id=name), value=value)
        ):
            return name in awaited and value is not None and any(made is call for made in _made_in(value))
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=verb), args=[added])) if verb in _ADDING:
            return name in awaited and any(made is call for made in _made_in(added))
    return False


def _made_in(value: ast.expr) -> Iterator[ast.expr]:
    """Yield what a value is, or what it holds: the elements of a list and of pairs in it, or what a comprehension makes."""
    if isinstance(value, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):
        yield from _made_in(value.elt)
    elif isinstance(value, ast.DictComp):
        yield from (*_made_in(value.key), *_made_in(value.value))  # `{pool.submit(ask, text): text for text in texts}`
    elif isinstance(value, ast.Dict):
        for item in value.values:
            yield from _made_in(item)
    elif isinstance(value, (ast.List, ast.Tuple, ast.Set)):
        for item in value.elts:
            yield from _made_in(item)
    else:
        yield value


def _items(argument: ast.expr) -> list[ast.expr]:
    return argument.elts if isinstance(argument, (ast.List, ast.Tuple, ast.Set)) else [argument]


def _holders(node: ast.expr) -> Iterator[str]:
    """Yield the names of what an expression is, or takes its items from: `notes`, `*notes.values()`, `[n[1] for n in notes]`.

    For the last it is `n`, which is taken from `notes`.
    """
    match node:
        case ast.Name(id=name):
            yield name
        case ast.Starred(value=inner) | ast.Subscript(value=inner):
            yield from _holders(inner)
        case ast.ListComp(elt=inner) | ast.GeneratorExp(elt=inner) | ast.SetComp(elt=inner):
            yield from _holders(inner)
        case ast.Call(func=ast.Attribute(value=inner, attr="values" | "items")):
            yield from _holders(inner)
        case ast.Call(func=ast.Name(id=name), args=given) if name in _SAME_ITEMS:
            for inner in given:
                yield from _holders(inner)
