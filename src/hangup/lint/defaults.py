"""What a condition comes to if nobody sets anything: with the defaults of settings, constants and the environment.

Nothing is run. A value is a constant as it is written, UNSET for a text that nobody gave (a key, an address: who runs the
program will give it, so whether there is one is not known, but it is not any other text), or UNKNOWN.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from textwrap import dedent
from typing import Any

from hangup.lint import constructed
from hangup.lint.switches import CONSTRUCTED, is_environment, is_settings
from hangup.lint.walking import walk

DEPTH = 12  # of names and functions that are followed
LINES_MAX = 12  # of a declaration
DECLARATIONS_MAX = 8
UNKNOWN: Any = object()
UNSET: Any = object()
_TEXT_METHODS = frozenset("lower upper strip lstrip rstrip casefold title".split())
_CONVERSIONS: dict[str, Callable[[Any], Any]] = {"bool": bool, "int": int, "float": float, "str": str}
_COLLECTIONS = frozenset({"set", "list", "tuple", "frozenset", "dict"})
_DECLARED = frozenset({"Field", "field", "SettingsField"})
_ASSIGNED = re.compile(r"[ \t]*(?::[^=\n]+)?=(?!=)[ \t]*")
_SETTINGS_FILE = re.compile(r"(^|/)(\w+_)?(settings?|config|conf)(/|\.py$)")
_FILLED = re.compile(r"\[[^\]\n]*\][ \t]*=(?!=)|\.(append|add|insert|extend|update|setdefault)\(")  # a table that starts empty
_ON = re.compile(r"[\"']?\s*(?::\s*bool\s*)?[=:]\s*True\b")
Values = Mapping[str, ast.expr]


class Defaults:
    def __init__(
        self,
        naming: Callable[[str], Iterable[tuple[str, str]]],
        defining: Callable[[str], Mapping[str, str]],
        inside: Callable[[str], str],
    ) -> None:
        """`naming` returns the files that have a word, with their texts; `defining` those that define a function; `inside` a
        path without what is above the project."""
        self._naming = naming
        self._inside = inside
        self._defining = defining
        self._constructed = constructed.Constructed(naming)
        self._conditions: dict[tuple[str, str], bool] = {}
        self._names: dict[tuple[str, str, bool], Any] = {}

    def rules_out(self, condition: str, path: str) -> bool:
        """Return whether a condition, as `switches` writes it, is false by default."""
        key = (condition, path)
        if key not in self._conditions:
            self._conditions[key] = False  # one that leads to itself says nothing
            head, *lines = condition.split("\n")
            bound = {name: _parsed(value) for name, value in (line.split("\t", 1) for line in lines)}
            test = _parsed(head)
            here = _Scope(self, path, {name: value for name, value in bound.items() if value is not None}, DEPTH)
            self._conditions[key] = test is not None and here.truth(test) is False
        return self._conditions[key]

    def constructed(self, given: list[ast.expr], path: str) -> Any:
        """Return what an attribute is in all instances that the project makes, as `switches` asks for it."""
        owner, attribute, parameter = (str(ast.literal_eval(part)) for part in given)
        found = self._constructed.value(owner, attribute, parameter, path)
        return UNKNOWN if found is constructed.UNKNOWN else UNSET if found is None or found == "" else found

    def named(self, name: str, path: str, depth: int, *, setting: bool = False) -> Any:
        """Return the value with which a name is declared: in this file, else wherever it is; a setting's by the settings."""
        key = (name, path, setting)
        if depth <= 0:
            return UNKNOWN
        if key not in self._names:
            self._names[key] = UNKNOWN
            self._names[key] = self._declared(name, path, depth, setting=setting)
        return self._names[key]

    def _declared(self, name: str, path: str, depth: int, *, setting: bool) -> Any:
        found: list[Any] = []
        on = own = False
        texts = sorted(self._naming(name), key=lambda file: file[0] != path)
        # Requests and tables may have fields of that name as well.
        settings = {where for where, text in texts if _declares(name, self._inside(where), text)} if setting else set()
        for where, text in texts:
            for place in _places(name, text):
                end = place + len(name)
                on = on or _ON.match(text, end) is not None or _FILLED.match(text, end) is not None
                declared = _ASSIGNED.match(text, end)
                line = text[text.rfind("\n", 0, place) + 1 : place]
                if declared is None or own or line.strip() not in {"", "self."} or (settings and where not in settings):
                    continue
                written = _expression(text, declared.end())
                if written is None or _last_name(written) == name:
                    continue  # it is passed on: self.expand = settings.expand
                found.append(_Scope(self, where, {}, depth - 1).value(written))
                if found[-1] is UNKNOWN or len(found) > DECLARATIONS_MAX:
                    return UNKNOWN
            own = own or (where == path and bool(found))  # then others of that name do not count
        if not found or any(value is not found[0] and value != found[0] for value in found):
            return UNKNOWN
        return UNKNOWN if on and found[0] is not True else found[0]

    def returned(self, name: str, path: str, depth: int) -> Any:
        """Return what a function of the project returns, if there is one with this name."""
        if depth <= 0 or name.startswith("__"):
            return UNKNOWN
        mark, defining = f"def {name}(", self._defining(name)
        chosen = path if path in defining else next(iter(defining)) if len(defining) == 1 else ""
        if not chosen or defining[chosen].count(mark) != 1:
            return UNKNOWN
        result = _Scope(self, chosen, {}, depth - 1).run(_body(defining[chosen], defining[chosen].find(mark)))
        return UNKNOWN if result is None else result[0]


class _Scope:
    """Judges expressions of one place."""

    def __init__(self, defaults: Defaults, path: str, bound: Values, depth: int) -> None:
        self.defaults = defaults
        self.path = path
        self.bound = dict(bound)
        self.depth = depth

    def run(self, body: list[ast.stmt]) -> tuple[Any] | None:
        """Return what statements return; None if they come to their end."""
        for index, statement in enumerate(body):
            match statement:
                case ast.Return(value=value):
                    return (None if value is None else self.value(value),)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.bound[name] = value
                case ast.If(test=test):
                    truth = self.truth(test)
                    if truth is None and any(isinstance(n, ast.Return) for n in walk(statement)):
                        both = [self.run([*part, *body[index + 1 :]]) for part in (statement.body, statement.orelse)]
                        return both[0] if both[0] is not None and both[0] == both[1] else (UNKNOWN,)
                    result = None if truth is None else self.run(statement.body if truth else statement.orelse)
                    if result is not None:
                        return result
                case ast.Try(body=inner):
                    if (result := self.run(inner)) is not None:
                        return result
                case ast.For() | ast.While() | ast.With() | ast.AsyncWith() | ast.AsyncFor() | ast.Match():
                    return (UNKNOWN,)
        return None

    def truth(self, node: ast.expr) -> bool | None:
        """Return whether a condition holds; None if that is not known."""
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                found = self.truth(inner)
                return None if found is None else not found
            case ast.BoolOp(op=op, values=values):
                decisive = isinstance(op, ast.Or)
                found_all = [self.truth(value) for value in values]
                return decisive if decisive in found_all else None if None in found_all else not decisive
        value = self.value(node)
        if value is UNKNOWN or value is UNSET or value is None or (isinstance(value, (frozenset, str)) and not value):
            return None  # a text or a list that is empty at first may be filled
        return bool(value)

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return UNSET if value is None or value == "" else value  # which are alike: nobody gave a text
            case ast.Name(id=name):
                if name in self.bound:
                    return self._bound(name)
                return self.defaults.named(name, self.path, self.depth - 1)
            case ast.Attribute(attr=name, value=owner):
                full = f"self.{name}" if isinstance(owner, ast.Name) and owner.id == "self" else ""
                if full in self.bound:
                    return self._bound(full)
                if not (full or name.isupper() or is_settings(owner)):
                    return UNKNOWN
                found = self.defaults.named(name, self.path, self.depth - 1, setting=is_settings(owner))
                return self.defaults.returned(name, self.path, self.depth - 1) if found is UNKNOWN else found
            case ast.UnaryOp(op=ast.Not()) | ast.BoolOp(op=ast.And()):
                truth = self.truth(node)
                return UNKNOWN if truth is None else truth
            case ast.BoolOp(op=ast.Or(), values=values):
                return self._first(values)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._compared(left, op, right)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                truth = self.truth(test)
                return UNKNOWN if truth is None else self.value(body if truth else orelse)
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                values = [self.value(item) for item in items]
                return UNKNOWN if UNKNOWN in values or UNSET in values else _collection(values)
            case ast.Dict(keys=[]):
                return frozenset()
            case ast.GeneratorExp() | ast.ListComp() | ast.SetComp():
                return frozenset() if self.value(node.generators[0].iter) == frozenset() else UNKNOWN
            case ast.Call():
                return self._called(node)
        return UNKNOWN

    def _bound(self, name: str) -> Any:
        return _Scope(self.defaults, self.path, {n: v for n, v in self.bound.items() if n != name}, self.depth).value(
            self.bound[name]
        )

    def _first(self, values: list[ast.expr]) -> Any:
        """Return what `a or b` gives."""
        value = UNKNOWN
        for node in values:
            value = self.value(node)
            if value is UNKNOWN or (value is not UNSET and value):
                return value
        return value

    def _compared(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Any:
        one, other = self.value(left), self.value(right)
        if isinstance(op, (ast.In, ast.NotIn)):
            if other == frozenset() and (_is_setting(right) or self._is_bound_setting(right)):
                return isinstance(op, ast.NotIn)  # a list of what is allowed, with nothing in it
            if one is UNKNOWN or not isinstance(other, (frozenset, str)):
                return UNKNOWN
            held = one is not UNSET and (
                one in other if isinstance(other, frozenset) else isinstance(one, str) and one in other
            )
            return held == isinstance(op, ast.In)
        if one is UNKNOWN or other is UNKNOWN or one is other is UNSET:
            return UNKNOWN
        if not isinstance(op, (ast.Eq, ast.NotEq)) and not (isinstance(op, (ast.Is, ast.IsNot)) and other is UNSET):
            return UNKNOWN
        return (one is not UNSET and other is not UNSET and one == other) == isinstance(op, (ast.Eq, ast.Is))

    def _is_bound_setting(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self.bound

    def _called(self, call: ast.Call) -> Any:
        func = call.func
        name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
        if name == CONSTRUCTED:
            return self.defaults.constructed(call.args, self.path)
        default = next((k.value for k in call.keywords if k.arg == "default"), None)
        if name in _DECLARED:
            default = default or (call.args[0] if call.args else None)
            return UNKNOWN if default is None else self.value(default)
        if is_environment(call):
            default = default or (call.args[1] if len(call.args) > 1 else None)
            plain = name == "getenv" or (
                name == "get" and isinstance(func, ast.Attribute) and "environ" in ast.unparse(func.value)
            )
            return self.value(default) if default is not None else UNSET if plain else UNKNOWN
        if isinstance(func, ast.Attribute):
            if name in _TEXT_METHODS or name == "split":
                text = self.value(func.value)
                if text is UNSET:
                    return frozenset() if name == "split" else UNSET
                return getattr(text, name)() if isinstance(text, str) and name != "split" and not call.args else UNKNOWN
            if name == "get" and is_settings(func.value) and call.args and isinstance(call.args[0], ast.Constant):
                if len(call.args) > 1:
                    return self.value(call.args[1])
                return self.defaults.named(str(call.args[0].value), self.path, self.depth - 1)
        if isinstance(func, ast.Name) and name in _CONVERSIONS and len(call.args) == 1:
            return _converted(_CONVERSIONS[name], self.value(call.args[0]))
        if isinstance(func, ast.Name) and name in _COLLECTIONS and len(call.args) < 2:
            value = self.value(call.args[0]) if call.args else frozenset()
            return value if isinstance(value, frozenset) else UNKNOWN
        asked = isinstance(func, ast.Name) or (
            isinstance(func, ast.Attribute) and (is_settings(func.value) or ast.unparse(func.value) == "self")
        )
        return self.defaults.returned(name, self.path, self.depth - 1) if asked else UNKNOWN


def is_settings_file(path: str) -> bool:
    return _SETTINGS_FILE.search(path) is not None


def _declares(name: str, path: str, text: str) -> bool:
    """Return whether a file that is for settings, or has a class for them, declares a name."""
    if not is_settings_file(path) and "BaseSettings" not in text:
        return False
    return re.search(rf"^[ \t]*(?:self\.)?{name}[ \t]*(?::[^=\n]+)?=(?!=)", text, re.M) is not None


def _is_setting(node: ast.expr) -> bool:
    match node:
        case ast.Name(id=name):
            return name.isupper()
        case ast.Attribute(attr=name, value=owner):
            return name.isupper() or is_settings(owner)
        case ast.Call(func=ast.Attribute(value=owner)):
            return is_settings(owner)
    return False


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _collection(values: list[Any]) -> Any:
    try:
        return frozenset(values)
    except TypeError:
        return UNKNOWN


def _converted(kind: Callable[[Any], Any], value: Any) -> Any:
    if value is UNKNOWN or value is UNSET:
        return value
    try:
        return kind(value)
    except (TypeError, ValueError):
        return UNKNOWN


def _places(name: str, text: str) -> Iterator[int]:
    """Yield where a text has a name as a whole word."""
    place = text.find(name)
    while place >= 0:
        before, after = text[place - 1 : place], text[place + len(name) : place + len(name) + 1]
        if not (before.isalnum() or before == "_" or after.isalnum() or after == "_"):
            yield place
        place = text.find(name, place + 1)


def _body(text: str, place: int) -> list[ast.stmt]:
    """Return the statements of the function that is defined here; the rest of the file is not parsed."""
    lines = text[text.rfind("\n", 0, place) + 1 :].split("\n")
    indent = len(lines[0]) - len(lines[0].lstrip())
    last = next(
        (
            i
            for i, s in enumerate(lines)
            if i and s.strip() and len(s) - len(s.lstrip()) <= indent and s.lstrip()[0] not in ")#"
        ),
        len(lines),
    )
    try:
        (function,) = ast.parse(dedent("\n".join(lines[:last]))).body
    except (SyntaxError, ValueError, RecursionError):
        return []
    return function.body if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) else []


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        return None


def _expression(text: str, start: int) -> ast.expr | None:
    """Return the expression that begins here: what a name is assigned, or is given as an argument on a line of its own."""
    end = start
    for _ in range(LINES_MAX):
        end = text.find("\n", end + 1)
        written = text[start : end if end >= 0 else len(text)].strip()
        found = _parsed(f"({written}\n)") if written else None
        if found is not None:
            return (
                found.elts[0]
                if isinstance(found, ast.Tuple) and written.split("#")[0].rstrip().endswith(",") and found.elts
                else found
            )
        if end < 0:
            return None
    return None
