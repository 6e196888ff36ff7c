"""What must be given for a call to be made: `if provider is not None: ...`, `if not summarize: return`.

A function that runs inference only if a parameter is true runs none for a caller that leaves it out, or gives False or None.
Conditions that a setting decides are in `switches`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from hangup.lint.facts import UNKNOWN, CallFacts, FunctionFacts
from hangup.lint.source import Function, Module, Site
from hangup.lint.switches import CONSTRUCTED, Switches
from hangup.lint.text import reference
from hangup.lint.walking import walk

Needs = frozenset[frozenset[str]]  # sets of parameters, of which one must be given; none: nothing is needed
ALWAYS: Needs = frozenset()
ALTERNATIVES_MAX = 8
CHOICES_MIN = 8  # above which a function is one that hands out work of many kinds
_ACCEPTS = frozenset({"is_valid", "validate_on_submit"})  # of forms and serializers
_BRANCHES = (ast.If, ast.ExceptHandler, ast.Match)
_ANY = "*"
_FALSE = "0"
_TRUE = "1"
_NOT = "!"
_SETTING = "?"  # before a condition
_TEXT = '"'  # before a word
_EQUALS = "="  # between a parameter and the words that it may be, with `|` between them
_WORD = re.compile(r"[\w-]{1,40}")


class Guards:
    """The conditions in one function."""

    def __init__(self, module: Module, scope: Function) -> None:
        self.parameters = {p.arg for p in scope.parameters} - scope.assigned.keys()
        self.switches = Switches(module, scope)
        self._asked: dict[tuple[int, bool], list[str]] = {}
        self._called: dict[int, set[str]] = {}  # id of a branch's first statement -> the last parts of what it calls
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
                in_body = frame.part == "body"
                if frame.part == "orelse" and _is_constant(frame.node.test):
                    call.instead = [frame.node.body[0].lineno, frame.node.body[-1].end_lineno or 0]
                if not self._is_in_both(frame.node, site, in_body=in_body):
                    tests.append((frame.node.test, in_body))
                elif CONSTRUCTED in (switch := self.switches.condition(frame.node.test, holds=in_body)):
                    call.switches.append(switch)  # which the other branch does not undo
            elif isinstance(frame.node, (ast.For, ast.AsyncFor)) and (test := self._filling(frame.node.iter)) is not None:
                tests.append((test, True))
            call.branches += isinstance(frame.node, _BRANCHES)
            call.last |= frame.part == "finalbody"
        call.maybe |= call.branches > 0
        call.decided = call.branches > 0 and is_decided(site)
        for test, holds in tests:
            call.needs += [wanted for wanted in self._wanted(test, holds=holds) if wanted not in call.needs]
            if (switch := self.switches.condition(test, holds=holds)) and switch not in call.switches:
                call.switches.append(switch)
        node = site.node
        if node.args or node.keywords:
            call.given = [self._argument(a) for a in node.args]
            call.given += [f"{k.arg or '**'}={self._argument(k.value)}" for k in node.keywords]

    def _wanted(self, test: ast.expr, *, holds: bool) -> list[str]:
        """Return which parameters, and attributes of them, a condition asks for; computed once, since calls share it."""
        found = self._asked.get((id(test), holds))
        if found is None:
            found = [wanted for wanted in _wanted(test, holds=holds) if _owner(wanted) in self.parameters]
            self._asked[id(test), holds] = found
        return found

    def _is_in_both(self, node: ast.If, site: Site, *, in_body: bool) -> bool:
        """Return whether the other branch makes the same call: then the condition decides how, not whether."""
        other = node.orelse if in_body else node.body
        if not other or not self._wanted(node.test, holds=in_body):
            return False
        if id(other[0]) not in self._called:
            always = (statement.test if isinstance(statement, ast.If) else statement for statement in other)
            self._called[id(other[0])] = {_last(n.func) for part in always for n in walk(part) if isinstance(n, ast.Call)}
        return _last(site.node.func) in self._called[id(other[0])]

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
            if isinstance(node.value, str) and _WORD.fullmatch(node.value):
                return _TEXT + node.value
            return _TRUE if node.value is True else _ANY if node.value else _FALSE
        if isinstance(node, ast.Name) and node.id in self.parameters:
            return node.id
        if isinstance(node, (ast.Name, ast.Attribute)) and (setting := self.switches.condition(node, holds=True)):
            return _SETTING + setting
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in self.parameters:
            return f"{node.value.id}.{node.attr}"
        return _ANY


def _is_constant(test: ast.expr) -> bool:
    """Return whether a condition is whether a constant is true: `USE_NEW_SDK`, `USE_NEW_SDK and client`."""
    first = test.values[0] if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else test
    return isinstance(first, ast.Name) and first.id.isupper()


def is_decided(site: Site) -> bool:
    """Return whether a branch decides if a call is made, other than those that every view has for what it accepts."""
    return any(
        isinstance(frame.node, _BRANCHES) and not (isinstance(frame.node, ast.If) and _accepts(frame.node.test))
        for frame in site.frame.outward()
    )


def _accepts(test: ast.expr) -> bool:
    """Return whether a condition is on the request's method, or on whether its form is valid."""
    match test:
        case ast.UnaryOp(op=ast.Not()):
            return _accepts(test.operand)
        case ast.BoolOp():
            return all(_accepts(value) for value in test.values)
        case ast.Compare(left=ast.Attribute(attr="method")):
            return True
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in _ACCEPTS
    return False


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
    return [name for name, default in _written(node) if isinstance(default, ast.Constant) and not default.value]


def flags(node: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, bool]:
    """Return the parameters that are True or False unless they are given, also by `Query(False)`."""
    return {name: value for name, value in _constants(node) if isinstance(value, bool)}


def texts(node: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, str]:
    """Return the parameters that are a word unless they are given, also by `Query("local")`."""
    return {name: value for name, value in _constants(node) if isinstance(value, str) and _WORD.fullmatch(value)}


def _constants(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, object]]:
    """Yield parameters with the constants that they are unless they are given, also by `Query(False)`."""
    for name, default in _written(node):
        value: ast.expr | None = default
        if isinstance(default, ast.Call):
            given = next((k.value for k in default.keywords if k.arg == "default"), None)
            value = given or (default.args[0] if default.args else None)
        if isinstance(value, ast.Constant):
            yield name, value.value


def _written(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, ast.expr]]:
    """Yield parameters with their defaults as they are written."""
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    pairs = (
        *zip(reversed(positional), reversed(given.defaults), strict=False),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    )
    yield from ((parameter.arg, default) for parameter, default in pairs if default is not None)


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
        asked = {_asked(name, given, callee, is_off) for name in wanted}
        if None not in asked:
            found.add(own | {name for name in asked if name and _owner(name) in caller.parameters})
    if not found:
        return None
    return ALWAYS if frozenset() in found else frozenset(found)


def fits(call: CallFacts, callee: FunctionFacts) -> bool:
    """Return whether a call gives all that a function needs; one that does not raises."""
    given = _given(call, callee) if callee.required else None
    return given is None or all(name in given for name in callee.required)


def takes(call: CallFacts, callee: FunctionFacts) -> bool:
    """Return whether a function takes all that a call gives; one that does not raises."""
    if callee.decorated or not call.given:
        return True
    keywords: list[str] = []
    for value in call.given:
        name, equals, _ = value.partition("=") if value[0] != _SETTING else (value, "", "")
        if name == "**":
            return True
        if equals:
            keywords.append(name)
    if not callee.any_keyword and not callee.parameters.keys() >= set(keywords):
        return False
    if callee.positional == UNKNOWN:
        return True
    count = len(call.given) - len(keywords)
    return count <= callee.positional and not set(_names(callee)[:count]) & set(keywords)


def _asked(wanted: str, given: dict[str, str], callee: FunctionFacts, is_off: Callable[[str], bool]) -> str | None:
    """Return what a caller must be given for its argument to be as wanted; "" for nothing, None if it is not."""
    if _EQUALS in wanted:
        return _asked_text(wanted, given, callee)
    sign = _NOT if wanted[0] == _NOT else ""
    name, dot, attribute = wanted.removeprefix(_NOT).partition(".")
    default = _FALSE if name in callee.without else _TRUE if callee.flags.get(name) else _ANY
    value = given.get(name, default)
    if value == _FALSE:
        return "" if sign or dot else None
    if value == _TRUE or value[0] == _TEXT:
        return ""  # also where it must be false: for a stream and without one, functions often send the same request
    if value[0] == _SETTING:
        return None if not sign and not dot and is_off(value[1:]) else ""
    return "" if value == _ANY or (dot and "." in value) else f"{sign}{value}{dot}{attribute}"


def _asked_text(wanted: str, given: dict[str, str], callee: FunctionFacts) -> str | None:
    """Return the same for a parameter, or an attribute of one, that must be one of some words."""
    path, _, words = wanted.partition(_EQUALS)
    name, dot, attribute = path.partition(".")
    value = given.get(name, _TEXT + callee.texts[name] if name in callee.texts else _ANY)
    if value in {_TRUE, _FALSE}:
        return None
    if value[0] == _TEXT:
        return "" if dot or value[1:] in words.split("|") else None
    return "" if value == _ANY or value[0] == _SETTING or (dot and "." in value) else f"{value}{dot}{attribute}={words}"


def _last(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""


def _owner(wanted: str) -> str:
    return wanted.removeprefix(_NOT).partition(_EQUALS)[0].partition(".")[0]


def either(one: Needs, other: Needs) -> Needs:
    """Return what is needed where one of two calls will do."""
    both = one | other
    return both if one and other and len(both) <= ALTERNATIVES_MAX else ALWAYS


def _names(callee: FunctionFacts) -> list[str]:
    """Return the parameters of a function, without the instance."""
    names = list(callee.parameters)
    return names[1:] if callee.class_name and names[:1] in (["self"], ["cls"]) else names


def _given(call: CallFacts, callee: FunctionFacts) -> dict[str, str] | None:
    """Return the arguments of a call by the names of the parameters; None if they are not all written there."""
    names = _names(callee)
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


def _wanted(test: ast.expr, *, holds: bool) -> Iterator[str]:
    """Yield what must be true for a condition to hold, or not to hold: names, attributes of them; after `!`, what must not."""
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
                yield name.id
        case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq() | ast.In() | ast.NotIn() as op], comparators=[right]):
            words = _words(right)
            if words and isinstance(op, (ast.Eq, ast.In)) == holds and (asked := _parameter(left)):
                yield f"{asked}={words}"
        case ast.Name(id=name):
            yield name if holds else _NOT + name
        case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name not in {"self", "cls"}:
            yield f"{'' if holds else _NOT}{name}.{attribute}"


def _parameter(node: ast.expr) -> str:
    """Return `provider` for a name, `request.provider` for an attribute of one, or "" for anything else."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name not in {"self", "cls"}:
            return f"{name}.{attribute}"
    return ""


def _words(node: ast.expr) -> str:
    """Return the words that something is compared with, with `|` between them; "" if they are not written there."""
    items = node.elts if isinstance(node, (ast.List, ast.Tuple, ast.Set)) else [node]
    words = [item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    return "|".join(words) if len(words) == len(items) and all(_WORD.fullmatch(word) for word in words) else ""
