"""Modules that cannot be imported: their handlers serve nobody.

Only what is certain counts: a constructor of the project that the module itself calls without a required argument, a name that
is imported from a module of the project whose text does not have it, a module that the project's package does not have, a name
that is defined nowhere, and, where Python is new enough to tell, what is no Python; in the file itself or in one that it
imports, through any number of others.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import PurePath
from typing import NamedTuple

from hangup.lint.facts import UNKNOWN
from hangup.lint.missing import Missing
from hangup.lint.names import Names
from hangup.lint.script_folders import ScriptFolders
from hangup.lint.source import Module
from hangup.lint.walking import walk

_FROM = re.compile(r"^from[ \t]+([.\w]+)[ \t]+import[ \t]+(?:\(([^)]*)\)|([^\n;(]+))", re.M)
KNOWS_SYNTAX = sys.version_info >= (3, 12)  # since when hardly anything is new: what is no syntax here is none anywhere
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


class Imported(NamedTuple):
    """What a file imports from a module, outside of any block, with the file that has it; "" if the project has none."""

    module: str
    name: str
    file: str
    is_module: bool  # the name is that of a module itself


class Broken:
    def __init__(self, names: Names) -> None:
        self._names = names
        self._text = names.source.text
        self._known: dict[str, bool] = {}
        self._raising: dict[str, bool] = {}
        self._imports: dict[str, list[Imported]] = {}

    @cached_property
    def _missing(self) -> Missing:
        return Missing(self._names.roots.every)

    @cached_property
    def _scripts(self) -> ScriptFolders:
        return ScriptFolders(self._names.roots.every, self._text, self._names.source.naming)

    def is_broken(self, path: str) -> bool:
        """Return whether importing a file always raises: in the file itself, or in one that it imports."""
        if path not in self._known:
            seen, todo = {path}, [path]
            while todo:
                here = todo.pop()
                if self._known.get(here) or self._raises(here):
                    self._known[path] = True
                    return True
                if here not in self._known:
                    files = {imported.file for imported in self._imported(here)} | {self._names.package_of(here)}
                    todo += sorted(files - seen - {""})
                    seen |= files
            self._known.update(dict.fromkeys(seen, False))
        return self._known[path]

    def _raises(self, path: str) -> bool:
        """Return whether a file raises by itself."""
        if path not in self._raising:
            facts = self._names.files.get(path)
            if facts is None:
                by_itself = KNOWS_SYNTAX and self._names.source.is_no_python(path)
            else:
                by_itself = bool(facts.ending) or self._lacks_argument(path)
            self._raising[path] = by_itself or self._imports_nothing(path)
        return self._raising[path]

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

    def _imports_nothing(self, path: str) -> bool:
        """Return whether a file imports something of the project that is not there."""
        imports = self._imported(path)
        own = {_package(imported.module) for imported in imports if imported.file}
        inside = {_package(i.module) for i in imports if _parent(i.file, _package(i.module)) in own}
        found = [i for i in imports if _package(i.module) not in inside and self._is_absent(path, i, own - inside)]
        return bool(found) and not written_at_import(self._text(path)).isdisjoint((i.module, i.name) for i in found)

    def _is_absent(self, path: str, imported: Imported, own: set[str]) -> bool:
        """Return whether it is not there; a folder called `azure`, from which nothing else comes, is not the package."""
        if imported.file:
            return not imported.is_module and self._names.lacks(imported.file, imported.name)
        if "." not in imported.module:
            return self._scripts.is_out_of_reach(path, imported.module)
        return _package(imported.module) in own | {""} and self._missing.is_missing(imported.module, path)

    def _imported(self, path: str) -> list[Imported]:
        if path not in self._imports:
            self._imports[path] = list(self._read_imports(path))
        return self._imports[path]

    def _read_imports(self, path: str) -> Iterator[Imported]:
        for match in _FROM.finditer(self._text(path)):
            module = match[1]
            is_own = self._names.is_own(module)
            beside = "" if is_own or "." in module else self._scripts.beside(path, module)
            for part in _COMMENT.sub("", match[2] or match[3]).replace("\\", " ").split(","):
                name = part.split()[0] if part.split() else ""
                if not name.isidentifier():
                    continue
                inner = self._names.inner_module(path, module, name) if is_own else ""
                file = inner or (self._names.file_of(path, module, name) if is_own else beside)
                yield Imported(module, name, file, bool(inner))


def _package(module: str) -> str:
    """Return the package that a module is in; "" for one that is named from the importer's own."""
    return module.partition(".")[0]


def _parent(file: str, package: str) -> str | None:
    """Return the folder that a package's folder is in: where that is imported as a package, too, the other is from outside.

    As `mcp` in adapters/mcp/server.py, which has `from adapters.db import ...` and `from mcp.types import ...`.
    """
    folders = PurePath(file).parts
    return folders[folders.index(package) - 1] if package and package in folders[1:] else None


def written_at_import(text: str) -> set[tuple[str, str]]:
    """Return the modules and names that a file imports outside of any block; a docstring may show others."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return set()
    imports = (statement for statement in tree.body if isinstance(statement, ast.ImportFrom))
    return {("." * i.level + (i.module or ""), alias.name) for i in imports for alias in i.names}
