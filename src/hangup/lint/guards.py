"""What must be given for a call to be made: `if provider is not None: ...`, `if not summarize: return`.

A function that runs inference only if a parameter is true runs none for a caller that leaves it out, or gives False or None.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hangup.lint.facts import CallFacts, FunctionFacts
from hangup.lint.source import Function, Site
from hangup.lint.text import reference

_SETTINGS = re.compile(r"(^|_)(settings?|config|cfg|conf|flags|features?)$", re.I)
Needs = frozenset[frozenset[str]]  # sets of parameters, of which one must be given; none: nothing is needed
ALWAYS: Needs = frozenset()
ALTERNATIVES_MAX = 8
CHOICES_MIN = 8  # above which a function is one that hands out work of many kinds
_ANY = "*"
_FALSE = "0"


class Guards:
    """The conditions in one function."""

    def __init__(self, scope: Function) -> None:
        self.parameters = {p.arg for p in scope.parameters} - scope.assigned.keys()
        body = scope.node.body if isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef)) else []
        self.choices = _choices(scope, self.parameters)
        self.exits = [(s.end_lineno or s.lineno, s.test) for s in body if isinstance(s, ast.If) and _leaves(s)]

    def note(self, call: CallFacts, site: Site) -> None:
        """Note what a call needs, and what it gives."""
        wanted = [w for line, test in self.exits if line < site.node.lineno for w in _wanted(test, holds=False)]
        for frame in site.frame.outward():
            if isinstance(frame.node, ast.If):
                call.chosen |= self.choices > 0 and frame.part == "body" and _chooses(frame.node.test, self.parameters) != ""
                wanted += _wanted(frame.node.test, holds=frame.part == "body")
        for node in wanted:
            if isinstance(node, ast.Name):
                if node.id in self.parameters and node.id not in call.needs:
                    call.needs.append(node.id)
            elif (switch := _switch(node)) and switch not in call.switches:
                call.switches.append(switch)
        node = site.node
        if node.args or node.keywords:
            call.given = [self._argument(a) for a in node.args]
            call.given += [f"{k.arg or '**'}={self._argument(k.value)}" for k in node.keywords]

    def _argument(self, node: ast.expr) -> str:
        if isinstance(node, ast.Starred):
            return "**"
        if isinstance(node, ast.Constant):
            return _ANY if node.value else _FALSE
        return node.id if isinstance(node, ast.Name) and node.id in self.parameters else _ANY


def _choices(scope: Function, parameters: set[str]) -> int:
    """Return how many values a function compares with a parameter, or an attribute of one; 0 if they are few."""
    if not parameters or len(scope.calls) < CHOICES_MIN:
        return 0
    seen = {frame.node.test for site in scope.calls for frame in site.frame.outward() if isinstance(frame.node, ast.If)}
    found = {value for test in seen if (value := _chooses(test, parameters))}
    return len(found) if len(found) >= CHOICES_MIN else 0


def _chooses(test: ast.expr, parameters: set[str]) -> str:
    """Return the text that a condition compares with a parameter: good_morning for intent.name == "good_morning"."""
    match test:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=str(text))]):
            return text if reference(left).partition(".")[0] in parameters else ""
    return ""


def defaults(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Return the parameters that are None or False unless they are given."""
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    pairs = [
        *zip(reversed(positional), reversed(given.defaults), strict=False),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    return [p.arg for p, default in pairs if isinstance(default, ast.Constant) and not default.value]


def needed(call: CallFacts, caller: FunctionFacts, callee: FunctionFacts, needs: Needs) -> Needs | None:
    """Return what the caller in turn must be given for this call to run what needs these; None if it gives none of them."""
    own = frozenset(call.needs)
    if not needs:
        return frozenset({own}) if own else ALWAYS
    given = _given(call, callee)
    if given is None:
        return ALWAYS
    found: set[frozenset[str]] = set()
    for wanted in needs:
        values = {given.get(name, _FALSE if name in callee.without else _ANY) for name in wanted}
        if _FALSE not in values:
            found.add(own | (values & caller.parameters.keys()))
    if not found:
        return None
    return ALWAYS if frozenset() in found else frozenset(found)


def either(one: Needs, other: Needs) -> Needs:
    """Return what is needed where one of two calls will do."""
    both = one | other
    return both if one and other and len(both) <= ALTERNATIVES_MAX else ALWAYS


def _given(call: CallFacts, callee: FunctionFacts) -> dict[str, str] | None:
    """Return the arguments of a call by the names of the parameters; None if they are not all written there."""
    names = list(callee.parameters)
    if callee.class_name and names[:1] in (["self"], ["cls"]):
        names = names[1:]
    given: dict[str, str] = {}
    for index, value in enumerate(call.given):
        name, equals, rest = value.partition("=")
        if name == "**" or value == "**":
            return None
        given[name if equals else names[index] if index < len(names) else ""] = rest if equals else value
    return given


def _leaves(statement: ast.If) -> bool:
    return not statement.orelse and isinstance(statement.body[-1], (ast.Return, ast.Raise))


def _wanted(test: ast.expr, *, holds: bool) -> Iterator[ast.expr]:
    """Yield what must be true for a condition to hold, or not to hold."""
    match test:
        case ast.UnaryOp(op=ast.Not()):
            yield from _wanted(test.operand, holds=not holds)
        case ast.BoolOp(op=ast.And()) if holds:
            for value in test.values:
                yield from _wanted(value, holds=True)
        case ast.BoolOp(op=ast.Or()) if not holds:
            for value in test.values:
                yield from _wanted(value, holds=False)
        case ast.Compare(ops=[ast.Is() | ast.IsNot() as op], comparators=[ast.Constant(value=None)]):
            if isinstance(op, ast.IsNot) == holds:
                yield test.left
        case ast.Name() | ast.Attribute() | ast.Call() if holds:
            yield test


def _switch(node: ast.expr) -> str:
    """Return the name of a setting: `rewrite` for settings.rewrite, self.config.rag.rewrite and settings.get("rewrite")."""
    match node:
        case ast.Call(func=ast.Attribute(attr="get", value=owner), args=[ast.Constant(value=str(name)), *_]):
            return name if _is_settings(owner) else ""
        case ast.Attribute(attr=name, value=owner):
            return name if _is_settings(owner) else ""
    return ""


def _is_settings(node: ast.expr) -> bool:
    while True:
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) if _SETTINGS.search(name):
                return True
            case ast.Attribute(value=inner) | ast.Call(func=inner):
                node = inner
            case _:
                return False
