"""Conditions that a setting decides, written down as text; `defaults` judges them once all files are known.

A line holds the condition; each further line a name in it and, after a tab, what it stands for.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hangup.lint.source import Function, Module

_SETTINGS = re.compile(r"(^|_)(settings?|config|cfg|conf|flags|features?)$", re.I)
BINDINGS_MAX = 4
CONSTRUCTED = "__constructed__"  # stands for what a class, an attribute and a parameter of its constructor come to


class Switches:
    """The conditions of one function."""

    def __init__(self, module: Module, scope: Function) -> None:
        self.module = module
        self.scope = scope
        self.owner = next((f.class_name for f in scope.around() if f.class_name), "")
        self._texts: dict[int | str, str] = {}

    def condition(self, test: ast.expr, *, holds: bool) -> str:
        """Return a condition that must hold, or must not, as text; "" if no setting is named in it."""
        if isinstance(test, ast.Name) and test.id not in self.scope.assigned and not test.id.isupper():
            return ""  # as most arguments
        key = test.id if isinstance(test, ast.Name) else id(test)
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = self._text(test)
        if holds or not text:
            return text
        head, line, rest = text.partition("\n")
        return f"not ({head}){line}{rest}"

    def _text(self, test: ast.expr) -> str:
        bindings: dict[str, str] = {}
        self._bind(test, bindings)
        if not bindings and not _names_setting(test, condition=True):
            return ""
        return "\n".join([ast.unparse(test), *(f"{name}\t{value}" for name, value in bindings.items())])

    def _bind(self, node: ast.expr, bindings: dict[str, str]) -> None:
        """Note what names stand for, if it is a setting: `mode = os.getenv("MODE", "rules")`, also on the instance."""
        for inner in _parts(node):
            if isinstance(inner, ast.Name):
                name, values = inner.id, self.scope.assigned.get(inner.id, ())
            elif isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id == "self":
                name, values = f"self.{inner.attr}", self.module.fields.get((self.owner, inner.attr), ())
            else:
                continue
            if len(values) != 1 or name in bindings or len(bindings) >= BINDINGS_MAX:
                continue
            value = values[0]
            if _names_setting(value):
                bindings[name] = ast.unparse(value)
                self._bind(value, bindings)
            elif isinstance(inner, ast.Attribute) and isinstance(value, ast.Name) and self._is_given(value.id):
                bindings[name] = f"{CONSTRUCTED}({self.owner!r}, {inner.attr!r}, {value.id!r})"

    def _is_given(self, name: str) -> bool:
        """Return whether the constructor of the class has a parameter with this name."""
        return (self.owner, name) in self.module.given_to_constructors


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the parts of a condition; ast.walk takes several times as long."""
    todo = [node]
    while todo:
        inner = todo.pop()
        yield inner
        kind = inner.__class__
        if kind is ast.Name or kind is ast.Constant:
            continue
        if isinstance(inner, ast.Attribute):
            todo.append(inner.value)
        elif isinstance(inner, ast.Call):
            todo.append(inner.func)
            todo += inner.args
        elif isinstance(inner, ast.Compare):
            todo.append(inner.left)
            todo += inner.comparators
        elif isinstance(inner, ast.BoolOp):
            todo += inner.values
        elif isinstance(inner, ast.UnaryOp):
            todo.append(inner.operand)


def _names_setting(node: ast.expr, *, condition: bool = False) -> bool:
    """Return whether an expression names a constant, a setting or the environment; a condition may also ask a function."""
    for inner in _parts(node):
        if isinstance(inner, ast.Name):
            if inner.id.isupper() and len(inner.id) > 1:
                return True
        elif isinstance(inner, ast.Attribute):
            if inner.attr.isupper() or is_settings(inner.value):
                return True
        elif isinstance(inner, ast.Call) and (is_environment(inner) or (condition and _asks(inner))):
            return True
    return False


def _asks(call: ast.Call) -> bool:
    """Return whether a function of the project may be asked for a setting: enabled(), self.enabled()."""
    function = call.func
    if isinstance(function, ast.Attribute) and (not isinstance(function.value, ast.Name) or function.value.id != "self"):
        return False
    return not call.args and not call.keywords


def is_environment(call: ast.Call) -> bool:
    """Return whether a call reads a variable that is named in it: os.environ.get("MODE"), env_flag("USE_MODEL", False)."""
    first = call.args[0] if call.args else None
    return isinstance(first, ast.Constant) and isinstance(first.value, str) and first.value.isupper() and len(first.value) > 1


def is_settings(node: ast.expr) -> bool:
    while True:
        if isinstance(node, ast.Attribute):
            if _SETTINGS.search(node.attr):
                return True
            node = node.value
        elif isinstance(node, ast.Call):
            node = node.func
        else:
            return isinstance(node, ast.Name) and _SETTINGS.search(node.id) is not None
