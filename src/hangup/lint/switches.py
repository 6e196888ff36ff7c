"""Conditions that a setting decides, written down as text; `defaults` judges them once all files are known.

A line holds the condition; each further line a name in it and, after a tab, what it stands for.
"""

from __future__ import annotations

import ast
import re

from hangup.lint.source import Function, Module

_SETTINGS = re.compile(r"(^|_)(settings?|config|cfg|conf|flags|features?)$", re.I)
BINDINGS_MAX = 4


class Switches:
    """The conditions of one function."""

    def __init__(self, module: Module, scope: Function) -> None:
        self.module = module
        self.scope = scope
        self.owner = next((f.class_name for f in scope.around() if f.class_name), "")
        self._texts: dict[int, str] = {}

    def condition(self, test: ast.expr, *, holds: bool) -> str:
        """Return a condition that must hold, or must not, as text; "" if no setting is named in it."""
        text = self._texts.get(id(test))
        if text is None:
            text = self._texts[id(test)] = self._text(test)
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
        for inner in ast.walk(node):
            match inner:
                case ast.Name(id=name):
                    values = self.scope.assigned.get(name, ())
                case ast.Attribute(value=ast.Name(id="self"), attr=attr):
                    name, values = f"self.{attr}", self.module.fields.get((self.owner, attr), ())
                case _:
                    continue
            if len(values) == 1 and name not in bindings and len(bindings) < BINDINGS_MAX and _names_setting(values[0]):
                bindings[name] = ast.unparse(values[0])
                self._bind(values[0], bindings)


def _names_setting(node: ast.expr, *, condition: bool = False) -> bool:
    """Return whether an expression names a constant, a setting or the environment; a condition may also ask a function."""
    for inner in ast.walk(node):
        match inner:
            case ast.Name(id=name) if name.isupper() and len(name) > 1:
                return True
            case ast.Attribute(attr=name, value=owner) if name.isupper() or is_settings(owner):
                return True
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if (
                name == "getenv" or is_environment(inner) or (condition and not inner.args and not inner.keywords)
            ):
                return True
    return False


def is_environment(call: ast.Call) -> bool:
    """Return whether a call reads a variable that is named in it: os.environ.get("MODE"), env_flag("USE_MODEL", False)."""
    match call.args:
        case [ast.Constant(value=str(name)), *_]:
            return name.isupper() and len(name) > 1
    return False


def is_settings(node: ast.expr) -> bool:
    while True:
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) if _SETTINGS.search(name):
                return True
            case ast.Attribute(value=inner) | ast.Call(func=inner):
                node = inner
            case _:
                return False
