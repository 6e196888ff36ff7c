"""Modules that cannot be imported: their handlers serve nobody.

Only what is certain counts: a constructor of the project that the module itself calls without a required argument, a name that
is imported from a module of the project whose text does not have it, and one that is defined nowhere; the latter two in the
file itself or in one that it imports.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from hangup.lint.facts import UNKNOWN
from hangup.lint.names import Names
from hangup.lint.source import Module
from hangup.lint.walking import walk

_FROM = re.compile(r"^from[ \t]+([.\w]+)[ \t]+import[ \t]+(?:\(([^)]*)\)|([^\n;(]+))", re.M)
_COMMENT = re.compile(r"#[^\n]*")


def made_at_import(module: Module) -> Iterator[tuple[str, int, list[str]]]:
    """Yield what a module calls whenever it is imported, if it looks like a class: `agent = Agent(llm)`."""
    for statement in module.tree.body:
        match statement:
            case ast.Assign(value=ast.Call(func=ast.Name(id=name)) as call) if name[:1].isupper():
                if not any(isinstance(a, ast.Starred) for a in call.args) and all(k.arg for k in call.keywords):
                    yield name, len(call.args), [k.arg for k in call.keywords if k.arg]


def required(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Return the parameters of a function that have no default, without the instance."""
    if node.decorator_list:
        return []  # which may give some of them
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    first = int(bool(positional) and positional[0].arg in {"self", "cls"})
    found = [p.arg for p in positional[first : len(positional) - len(given.defaults)]]
    return found + [p.arg for p, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is None]


def positional(node: ast.FunctionDef | ast.AsyncFunctionDef, *, is_method: bool) -> int:
    """Return how many parameters of a function can be given without their names, without the instance."""
    given = [*node.args.posonlyargs, *node.args.args]
    if node.args.vararg is not None or (is_method and not (given and given[0].arg in {"self", "cls"})):
        return UNKNOWN
    return len(given) - is_method


def raises_from(module: Module, node: ast.AST) -> int:
    """Return the line from which a function always raises: `"text" % name`, with no place for the name; 0 if it does not.

    Conditions, loops and `try` are not looked into.
    """
    if not module.has_no_place:
        return 0
    for statement in getattr(node, "body", ()) if not isinstance(node, ast.Lambda) else ():
        for inner in walk(statement) if isinstance(statement, (ast.Assign, ast.Expr, ast.Return)) else ():
            match inner:
                case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod(), right=ast.Name()) if "%" not in text:
                    return int(statement.end_lineno or statement.lineno)
    return 0


class Broken:
    def __init__(self, names: Names, text: Callable[[str], str]) -> None:
        self._names = names
        self._text = text
        self._known: dict[str, bool] = {}
        self._lacking: dict[str, bool] = {}
        self._imports: dict[str, list[tuple[str, str]]] = {}

    def is_broken(self, path: str) -> bool:
        """Return whether importing a file always raises."""
        if path not in self._known:
            imported = {path, *(module for module, _ in self._imported(path))}
            packages = {package for module in imported if (package := self._names.package_of(module))}
            files = imported | packages
            self._known[path] = (
                self._lacks_argument(path)
                or any(self._lacks_name(file) for file in files)
                or any(file in self._names.files and self._names.files[file].ending for file in files)
            )
        return self._known[path]

    def _lacks_argument(self, path: str) -> bool:
        names = self._names
        for ref, arguments, keywords in names.files[path].made:
            full = names.files[path].imports.get(ref, "")
            value = names.find(path, 0, ref) if not full or names.is_own(full.rpartition(".")[0]) else None
            if value is None or value.kind != "class" or names.files[value.path].functions[0].assigned.get(value.name):
                continue
            number = names.members[value.path].get((value.name, "__init__"))
            if number is None or (value.name, "__new__") in names.members[value.path]:
                continue
            wanted = names.files[value.path].functions[number].required
            if not set(wanted[arguments:]) <= set(keywords):
                return True
        return False

    def _lacks_name(self, path: str) -> bool:
        """Return whether an import of the project's own, outside of any block, names something that the module does not."""
        if path not in self._lacking:
            self._lacking[path] = any(self._names.lacks(module, name) for module, name in self._imported(path))
        return self._lacking[path]

    def _imported(self, path: str) -> list[tuple[str, str]]:
        """Return the files of the project that a file imports from, outside of any block, each with a name in it."""
        if path not in self._imports:
            self._imports[path] = list(self._read_imports(path))
        return self._imports[path]

    def _read_imports(self, path: str) -> Iterator[tuple[str, str]]:
        for match in _FROM.finditer(self._text(path)):
            module = match[1]
            if not self._names.is_own(module):
                continue
            for part in _COMMENT.sub("", match[2] or match[3]).replace("\\", " ").split(","):
                name = part.split()[0] if part.split() else ""
                if name.isidentifier() and (file := self._names.file_of(path, module, name)):
                    yield file, name
