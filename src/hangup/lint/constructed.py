"""What all constructions of a class in a project give to a parameter, if it is certain and always the same constant.

`Agent(use_tools=False)` rules out `if self.use_tools`, if it is the only Agent and nobody sets the attribute elsewhere. Files
that name the class or the attribute are parsed for it; whatever else may make an instance, or change it, leaves it unknown.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hangup.lint.walking import children, walk

UNKNOWN: Any = object()
_CHANGES = re.compile(r"\bsetattr\b|__dict__|\bvars\(|__setstate__|__class__|\btype\(self\)|\bcls\(|\bDepends\(\s*\)")
_PLAIN = frozenset({"object", "ABC"})
_CHECKS = frozenset({"isinstance", "issubclass"})
Naming = Callable[[str], Iterable[tuple[str, str]]]


class Constructed:
    def __init__(self, naming: Naming) -> None:
        """`naming` returns the files that have a word, with their texts."""
        self._naming = naming
        self._trees: dict[str, ast.Module | None] = {}
        self._known: dict[tuple[str, str, bool], list[ast.Call] | None] = {}

    def value(self, owner: str, attribute: str, parameter: str, path: str) -> Any:
        """Return the constant that an attribute of a class always has, which its constructor sets to a parameter."""
        if not self._may_be_set_once(attribute):
            return UNKNOWN  # as most; the texts tell it without parsing
        calls = self.calls(owner, path)
        init = _init(self._trees.get(path), owner) if calls else None
        if not calls or init is None or not _sets(init, attribute, parameter) or not self._is_set_once(attribute):
            return UNKNOWN
        values = [_given(call, init, parameter) for call in calls]
        first = values[0]
        same = all(value is not UNKNOWN and type(value) is type(first) and value == first for value in values)
        return first if same else UNKNOWN

    def calls(self, owner: str, path: str, *, any_base: bool = False) -> list[ast.Call] | None:
        """Return the calls that make all instances of a class; None if there may be others.

        A framework may make instances of a class with a base; with `any_base`, it is known that none does.
        """
        key = (owner, path, any_base)
        if key not in self._known:
            self._known[key] = self._all_calls(*key)
        return self._known[key]

    def _all_calls(self, owner: str, path: str, any_base: bool) -> list[ast.Call] | None:
        found: list[ast.Call] = []
        texts = list(self._naming(owner))
        if any(_CHANGES.search(text) for _, text in texts):
            return None
        for where, text in texts:
            tree = self._tree(where, text)
            if tree is None:
                return None
            calls = list(_constructions(tree, owner, own=where == path, any_base=any_base))
            if None in calls:
                return None
            found += [call for call in calls if call is not None]
        return found

    def _may_be_set_once(self, attribute: str) -> bool:
        texts = [text for _, text in self._naming(attribute)]
        if any("setattr" in text for text in texts):
            return False
        assigned = re.compile(rf"\.{attribute}[ \t]*(?::[^=\n]+)?=(?!=)")
        return sum(len(assigned.findall(text)) for text in texts) == 1

    def _is_set_once(self, attribute: str) -> bool:
        """Return whether only one statement of the project sets an attribute with this name."""
        stores = 0
        for where, text in self._naming(attribute):
            tree = self._tree(where, text)
            if tree is None:
                return False
            for node in walk(tree):
                if isinstance(node, ast.Attribute) and node.attr == attribute and not isinstance(node.ctx, ast.Load):
                    stores += 1
        return stores == 1

    def _tree(self, path: str, text: str) -> ast.Module | None:
        if path not in self._trees:
            try:
                self._trees[path] = ast.parse(text)
            except (SyntaxError, ValueError, RecursionError):
                self._trees[path] = None
        return self._trees[path]


def _constructions(tree: ast.Module, owner: str, *, own: bool, any_base: bool) -> Iterator[ast.Call | None]:
    """Yield the calls that make an instance; None for what may lead to others: a subclass, an alias, a name in a text."""
    fine: set[int] = set()
    defined = 0
    uses: list[ast.AST] = []
    for node in walk(tree):
        if isinstance(node, ast.Call):
            if _last(node.func) == owner:
                fine.add(id(node.func))
                yield node
            elif _last(node.func) in _CHECKS:
                fine.update(id(inner) for argument in node.args[1:] for inner in _of_type(argument))
        elif isinstance(node, (ast.arg, ast.AnnAssign)):
            fine.update(id(inner) for inner in _of_type(node.annotation))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            fine.update(id(inner) for inner in _of_type(node.returns))
        elif isinstance(node, ast.ClassDef) and node.name == owner:
            defined += 1
            plain = any_base or {_last(base) for base in node.bases} <= _PLAIN
            if node.decorator_list or node.keywords or not plain:
                yield None  # a framework may make instances
        elif isinstance(node, ast.Assign) and _last(node.targets[0]) == "__all__":
            fine.update(id(inner) for inner in walk(node.value))
        elif isinstance(node, ast.alias):
            if node.name.rpartition(".")[2] == owner and node.asname not in {None, owner}:
                yield None
        elif isinstance(node, (ast.Name, ast.Attribute)):
            if _last(node) == owner:
                uses.append(node)
        elif isinstance(node, ast.Constant) and _names_class(node.value, owner):
            uses.append(node)
    if defined != int(own) or any(id(use) not in fine for use in uses):
        yield None


def _names_class(value: object, owner: str) -> bool:
    return isinstance(value, str) and value.endswith(owner) and value[-len(owner) - 1 : -len(owner)] in {"", ".", ":", "/"}


def _of_type(annotation: ast.expr | None) -> Iterator[ast.AST]:
    """Yield the parts of an annotation, without those of calls: Depends(Agent) makes one."""
    todo: list[ast.AST] = [annotation] if annotation is not None else []
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, ast.Call):
            todo.extend(children(node))


def _init(tree: ast.Module | None, owner: str) -> ast.FunctionDef | None:
    """Return the constructor of a class, if nothing is special about it."""
    classes = [node for node in walk(tree) if isinstance(node, ast.ClassDef) and node.name == owner] if tree else []
    if len(classes) != 1:
        return None
    methods = [node for node in classes[0].body if isinstance(node, ast.FunctionDef)]
    found = [node for node in methods if node.name == "__init__"]
    if len(found) != 1 or found[0].decorator_list or any(node.name in {"__new__", "__setattr__"} for node in methods):
        return None
    return found[0]


def _sets(init: ast.FunctionDef, attribute: str, parameter: str) -> bool:
    """Return whether a constructor always sets an attribute to what it is given, and not to something else."""
    if any(isinstance(n, ast.Name) and n.id == parameter and not isinstance(n.ctx, ast.Load) for n in walk(init)):
        return False
    for statement in init.body:
        match statement:
            case (
                ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)], value=ast.Name(id=given))
                | ast.AnnAssign(target=ast.Attribute(value=ast.Name(id="self"), attr=name), value=ast.Name(id=given))
            ) if (name, given) == (attribute, parameter):
                return True
    return False


def _given(call: ast.Call, init: ast.FunctionDef, parameter: str) -> Any:
    """Return the constant that a call gives to a parameter, or its default."""
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        return UNKNOWN
    arguments = init.args
    positional = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    given: dict[str, ast.expr | None] = {
        **dict(zip(reversed(positional), reversed(arguments.defaults), strict=False)),
        **dict(zip([a.arg for a in arguments.kwonlyargs], arguments.kw_defaults, strict=True)),
        **dict(zip(positional[1:], call.args, strict=False)),
        **{k.arg: k.value for k in call.keywords if k.arg},
    }
    value = given.get(parameter)
    return value.value if isinstance(value, ast.Constant) else UNKNOWN


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
