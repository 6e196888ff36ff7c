"""What must be given for a call to be made: `if provider is not None: ...`, `if not summarize: return`.

A function that runs inference only if a parameter is true runs none for a caller that leaves it out, or gives False or None.
Conditions that a setting decides are in `switches`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from hangup.lint.facts import CallFacts, FunctionFacts
from hangup.lint.source import Function, Module, Site
from hangup.lint.switches import Switches
from hangup.lint.text import reference

Needs = frozenset[frozenset[str]]  # sets of parameters, of which one must be given; none: nothing is needed
ALWAYS: Needs = frozenset()
ALTERNATIVES_MAX = 8
CHOICES_MIN = 8  # above which a function is one that hands out work of many kinds
_ANY = "*"
_FALSE = "0"
_SETTING = "?"  # before a condition


class Guards:
    """The conditions in one function."""

    def __init__(self, module: Module, scope: Function) -> None:
        self.parameters = {p.arg for p in scope.parameters} - scope.assigned.keys()
        self.switches = Switches(module, scope)
        body = scope.node.body if isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef)) else []
        self.choices = _choices(scope, self.parameters)
        self.exits = list(_exits(body, body[-1].end_lineno or 0)) if body else []

    def note(self, call: CallFacts, site: Site) -> None:
        """Note what a call needs, and what it gives."""
        line = site.node.lineno
        tests: list[tuple[ast.expr, bool]] = []
        for exit_, last in self.exits:
            if (exit_.end_lineno or exit_.lineno) < line <= last:
                tests.append((exit_.test, False))
                call.maybe |= _answers(exit_)
        for frame in site.frame.outward():
            if isinstance(frame.node, ast.If):
                call.chosen |= self.choices > 0 and frame.part == "body" and _chooses(frame.node.test, self.parameters) != ""
                tests.append((frame.node.test, frame.part == "body"))
            elif isinstance(frame.node, (ast.For, ast.AsyncFor)) and (test := self._filling(frame.node.iter)) is not None:
                tests.append((test, True))
            call.maybe |= isinstance(frame.node, (ast.If, ast.ExceptHandler, ast.Match))
            call.last |= frame.part == "finalbody"
        for test, holds in tests:
            for wanted in _wanted(test, holds=holds):
                if wanted.id in self.parameters and wanted.id not in call.needs:
                    call.needs.append(wanted.id)
            if (switch := self.switches.condition(test, holds=holds)) and switch not in call.switches:
                call.switches.append(switch)
        node = site.node
        if node.args or node.keywords:
            call.given = [self._argument(a) for a in node.args]
            call.given += [f"{k.arg or '**'}={self._argument(k.value)}" for k in node.keywords]

    def _filling(self, iterated: ast.expr) -> ast.expr | None:
        """Return the condition without which a loop has nothing to do: `models = candidates() if real else []`."""
        values = self.switches.scope.assigned.get(iterated.id, ()) if isinstance(iterated, ast.Name) else ()
        match values:
            case [ast.IfExp(test=test, orelse=ast.List(elts=[]) | ast.Tuple(elts=[]))]:
                return test
        return None

    def _argument(self, node: ast.expr) -> str:
        if isinstance(node, ast.Starred):
            return "**"
        if isinstance(node, ast.Constant):
            return _ANY if node.value else _FALSE
        if isinstance(node, ast.Name) and node.id in self.parameters:
            return node.id
        if isinstance(node, (ast.Name, ast.Attribute)) and (setting := self.switches.condition(node, holds=True)):
            return _SETTING + setting
        return _ANY


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


def needed(
    call: CallFacts, caller: FunctionFacts, callee: FunctionFacts, needs: Needs, is_off: Callable[[str], bool]
) -> Needs | None:
    """Return what the caller in turn must be given for this call to run what needs these; None if it gives none of them.

    `is_off` returns whether a setting that is given is off by default.
    """
    own = frozenset(call.needs)
    if not needs:
        return frozenset({own}) if own else ALWAYS
    given = _given(call, callee)
    if given is None:
        return ALWAYS
    found: set[frozenset[str]] = set()
    for wanted in needs:
        values = {given.get(name, _FALSE if name in callee.without else _ANY) for name in wanted}
        if _FALSE not in values and not any(value[0] == _SETTING and is_off(value[1:]) for value in values):
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
        name, equals, rest = value.partition("=") if value[0] != _SETTING else (value, "", "")
        if name == "**" or value == "**":
            return None
        given[name if equals else names[index] if index < len(names) else ""] = rest if equals else value
    return given


def _exits(body: list[ast.stmt], last: int) -> Iterator[tuple[ast.If, int]]:
    """Yield the conditions that end a function early, each with the last line that they decide about."""
    for statement in body:
        match statement:
            case ast.If(orelse=[]) if isinstance(statement.body[-1], (ast.Return, ast.Raise)):
                yield statement, last
            case ast.Try() | ast.With() | ast.AsyncWith():
                yield from _exits(statement.body, statement.body[-1].end_lineno or 0)


def _answers(statement: ast.If) -> bool:
    """Return whether an early end returns what something computed: `if self.provider: return self.provider.ask(text)`."""
    end = statement.body[-1]
    return isinstance(end, ast.Return) and end.value is not None and not isinstance(end.value, ast.Constant)


def _wanted(test: ast.expr, *, holds: bool) -> Iterator[ast.Name]:
    """Yield the names that must be true for a condition to hold, or not to hold."""
    match test:
        case ast.UnaryOp(op=ast.Not()):
            yield from _wanted(test.operand, holds=not holds)
        case ast.BoolOp(op=ast.And()) if holds:
            for value in test.values:
                yield from _wanted(value, holds=True)
        case ast.BoolOp(op=ast.Or()) if not holds:
            for value in test.values:
                yield from _wanted(value, holds=False)
        case ast.Compare(left=ast.Name() as name, ops=[ast.Is() | ast.IsNot() as op], comparators=[ast.Constant(value=None)]):
            if isinstance(op, ast.IsNot) == holds:
                yield name
        case ast.Name() if holds:
            yield test
