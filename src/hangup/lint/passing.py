"""Which calls of a function are lost in it: their results have no part in what it returns, yields or hands to others.

Whether a client waits for a generated text shows only step by step, from the model to the handler: each function on the way
has to pass the text on. Names are followed backwards from what leaves the function, without regard to the order of statements.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hangup.lint.source import Function
from hangup.lint.walking import walk

# Methods by which something is put into what somebody else holds: out.append(text), await socket.send_json(answer).
_HANDS_OVER = frozenset(
    "append appendleft extend update put put_nowait setdefault write send send_json send_text set_result emit".split()
)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_Link = tuple[set[str], list[ast.expr]]  # names that a statement changes, and from what


def lost_calls(scope: Function, *, walrus: bool = True) -> set[int]:
    """Return the ids of the calls in a function whose results it keeps to itself; `walrus`: whether the file has any `:=`."""
    if not isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef)) or not scope.calls:
        return set()
    links: dict[int, list[_Link]] = {}  # id of a statement -> what it changes
    leaving: list[ast.expr] = list(scope.returns)
    for statement in _statements(scope.node.body):
        if found := list(_links(statement, walrus=walrus)):
            links[id(statement)] = found
        if scope.yields and isinstance(statement, (ast.Expr, ast.Assign)):
            leaving += [n.value for n in walk(statement) if isinstance(n, (ast.Yield, ast.YieldFrom)) and n.value]
    live = {parameter.arg for parameter in scope.parameters}.union(*map(_names, leaving))
    passing: set[int] = set()
    waiting = [(number, link) for number, found in links.items() for link in found]
    while waiting:
        left = []
        for number, link in waiting:
            if not link[0].isdisjoint(live) or any(name.startswith("self.") for name in link[0]):
                passing.add(number)
                live = live.union(*map(_names, link[1]))
            else:
                left.append((number, link))
        if len(left) == len(waiting):
            break
        waiting = left
    return {id(site.node) for site in scope.calls if id(site.statement) not in passing and not _is_leaving(site.statement)}


def _is_leaving(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Return) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, (ast.Yield, ast.YieldFrom))
    )


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a function, without those of functions inside it."""
    todo: list[ast.stmt] = list(body)
    while todo:
        node = todo.pop()
        yield node
        match node:
            case ast.If() | ast.For() | ast.AsyncFor() | ast.While():
                todo += node.body
                todo += node.orelse
            case ast.Try() | ast.TryStar():
                todo += node.body
                todo += node.orelse
                todo += node.finalbody
                for handler in node.handlers:
                    todo += handler.body
            case ast.With() | ast.AsyncWith():
                todo += node.body
            case ast.Match():
                for case in node.cases:
                    todo += case.body


def _links(statement: ast.stmt, *, walrus: bool) -> Iterator[_Link]:
    """Yield the names that a statement changes, and from what."""
    match statement:
        case ast.Assign():
            yield {name for target in statement.targets for name in _changed(target)}, [statement.value]
        case ast.AnnAssign() | ast.AugAssign() if statement.value is not None:
            yield set(_changed(statement.target)), [statement.value]
        case ast.For() | ast.AsyncFor():
            yield set(_changed(statement.target)), [statement.iter]
        case ast.With() | ast.AsyncWith():
            for item in statement.items:
                if item.optional_vars is not None:
                    yield set(_changed(item.optional_vars)), [item.context_expr]
        case ast.Expr(value=ast.Call() as call) | ast.Expr(value=ast.Await(value=ast.Call() as call)):
            if isinstance(call.func, ast.Attribute) and call.func.attr in _HANDS_OVER:
                yield set(_changed(call.func.value)), [*call.args, *(keyword.value for keyword in call.keywords)]
    if walrus and not isinstance(statement, _SCOPES):
        yield from (({n.target.id}, [n.value]) for n in walk(statement) if isinstance(n, ast.NamedExpr))


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
