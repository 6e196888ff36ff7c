"""Routers that an application imports and forgets: it includes others, and nothing uses this one's name.

Only texts are read. Whatever may be a use counts as one: a word in a string, a package that passes the name on, a lookup of
names at run time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePath

from hangup.lint.reach import INCLUDING, LOADERS

_FROM = re.compile(r"^[ \t]*from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|(?:[^\n;\\]|\\\n)+)", re.M)
_IMPORT = re.compile(r"^[ \t]*import[ \t]+([^\n;]+)", re.M)
_COMMENT = re.compile(r"^[ \t]*#[^\n]*", re.M)
_EXPORTS = re.compile(r"^__all__[ \t]*\+?=[ \t]*[\[(][^\])]*[\])]", re.M)
_TRAILING = re.compile(r"#[^\n]*")
_INCLUDES = re.compile(r"\.\s*(?:include_router|register_blueprint|mount|add_routes)\s*\(")
_LOOKS_UP = re.compile(r"\b(?:globals|locals|vars|dir|eval|exec|getattr|import_module|__import__)\s*\(|sys\.modules")
_INIT = "__init__"
DEPTH = 4  # of modules that pass a name on
_INCLUDING = ("include_router", "register_blueprint", "mount", "add_routes")
_Bound = tuple[str, bool]  # a name, and whether it stands for a module
_Import = tuple[str, str, str]  # the last part of the module, or "" for a module itself; its name, and as what
Naming = Callable[[str], Iterable[tuple[str, str]]]


class Included:
    def __init__(self, naming: Naming, text: Callable[[str], str]) -> None:
        """`naming` returns the files that have a word, with their texts."""
        self._naming = naming
        self._text = text
        self._includers: dict[str, str] | None = None
        self._known: dict[tuple[str, str], bool] = {}
        self._codes: dict[str, tuple[str, list[_Import]]] = {}
        self._loads: bool | None = None

    def is_left_out(self, path: str, router: str) -> bool:
        """Return whether nothing includes the router with this name in a file, though an application imports it."""
        key = (path, router)
        if key not in self._known:
            self._known[key] = router.isidentifier() and PurePath(path).stem != _INIT and self._is_left_out(path, router)
        return self._known[key]

    def _is_left_out(self, path: str, router: str) -> bool:
        if not self._is_forgotten(path, router):
            return False  # as nearly all: few files have to be looked at
        own = self._text(path)
        made = re.compile(rf"^{router}[ \t]*(?::[^=\n]+)?=[ \t]*(?:\w+\.)?(?:APIRouter|Blueprint)\(", re.M)
        rest, _ = self._code(path, own)
        if len(made.findall(rest)) != 1 or len(_words(router, rest)) != 1 + len(re.findall(rf"@{router}\s*\.", rest)):
            return False
        return not self._is_used(path, router, DEPTH) and not self._loads_routers()

    def _including_files(self) -> dict[str, str]:
        """Return the files that include routers, with their texts."""
        if self._includers is None:
            files = {where: text for word in _INCLUDING for where, text in self._naming(word)}
            self._includers = {where: text for where, text in files.items() if _INCLUDES.search(text)}
        return self._includers

    def _is_forgotten(self, path: str, router: str) -> bool:
        """Return whether a file that includes routers, or its own package, imports this one, and none of them uses it."""
        forgotten = False
        stem, package = _module_name(path), str(PurePath(path).with_name(f"{_INIT}.py"))
        packages = {where: text for where, text in self._naming(stem) if where == package}
        for where, text in {**self._including_files(), **packages}.items():
            if where != path and stem in text:
                rest, imports = self._code(where, text)
                bound = list(_bound(imports, path, router))
                if any(_uses(b, router, rest) for b in bound):
                    return False
                forgotten = forgotten or bool(bound)
        return forgotten

    def _is_used(self, path: str, name: str, depth: int) -> bool:
        """Return whether another file may use a name of this one."""
        stem = _module_name(path)
        for where, text in self._naming(stem):
            if where == path:
                continue
            rest, imports = self._code(where, text)
            bound = list(_bound(imports, path, name))
            if re.search(rf"\b{re.escape(stem)}\s*[.:]\s*{name}\b|\.{re.escape(stem)}[\"']", rest):
                return True
            if any(_uses(b, name, rest) for b in bound):
                return True
            passed_on = [alias for alias, module in bound if not module]
            if not bound:
                continue
            if depth <= 0 or "*" in passed_on or _LOOKS_UP.search(rest):
                return True
            if any(self._is_used(where, alias, depth - 1) for alias in passed_on):
                return True
        return False

    def _code(self, path: str, text: str) -> tuple[str, list[_Import]]:
        """Return a file's text without lines of comments and imports, and what it imports."""
        if path not in self._codes:
            code = _EXPORTS.sub("", _COMMENT.sub("", text))
            self._codes[path] = _IMPORT.sub("", _FROM.sub("", code)), list(_imports(code))
        return self._codes[path]

    def _loads_routers(self) -> bool:
        """Return whether modules are loaded by their names somewhere, and routers included there."""
        if self._loads is None:
            texts = (text for loader in LOADERS for _, text in self._naming(loader))
            self._loads = any(word in text for text in texts for word in INCLUDING)
        return self._loads


def _imports(code: str) -> Iterator[_Import]:
    for match in _FROM.finditer(code):
        yield from ((match[1].rpartition(".")[2], imported, alias) for imported, alias in _imported(match[2]))
    for match in _IMPORT.finditer(code):
        yield from (("", imported.rpartition(".")[2], alias.rpartition(".")[2]) for imported, alias in _imported(match[1]))


def _module_name(path: str) -> str:
    """Return the last part of the name of a file's module: that of the folder for a package."""
    file = PurePath(path)
    return file.parent.name if file.stem == _INIT else file.stem


def _bound(imports: Iterable[_Import], path: str, name: str) -> Iterator[_Bound]:
    """Yield the names by which a file may know the module of another, or a name of it; `*` for all of them."""
    stem = _module_name(path)
    for module, imported, alias in imports:
        if module == stem and imported in {name, "*"}:
            yield alias, False
        elif imported == stem:
            yield alias, True


def _uses(bound: _Bound, name: str, text: str) -> bool:
    """Return whether a text uses what is bound; of a module, this name of it, or the module for anything."""
    alias, module = bound
    if not module:
        return bool(_words(alias, text))
    word = re.escape(alias)
    return re.search(rf"(?<![-\w./]){word}(?![-\w/]|\s*\.)|\b{word}\s*\.\s*{name}\b", text) is not None


def _imported(text: str) -> Iterator[tuple[str, str]]:
    """Yield what an import names, and as what."""
    for part in _TRAILING.sub("", text).replace("\\", " ").strip("() \t").split(","):
        match part.split():
            case [imported] | [imported, "as"]:
                yield imported, imported
            case [imported, "as", alias, *_]:
                yield imported, alias


def _words(name: str, text: str) -> list[str]:
    return re.findall(rf"\b{re.escape(name)}\b", text)
