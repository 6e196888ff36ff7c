"""Reads files without parsing them, and chooses those that matter: between a handler and inference, along the imports.

A file matters if something that serves requests imports it, through any number of others, and if it imports in the same way, or
holds, a call to inference. Parsing is nearly all of the linter's work, so of these files only those that may call inference by
themselves are parsed at once; the others when something names them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from unicodedata import normalize

from hangup.lint import hints
from hangup.lint.hints import APPLICATION, BASES, FORWARDS, IGNORES, INFERENCE, MAKES, ROUTES, SERVING, USES

Pair = tuple[str, str]  # a module's parent and its own name; the parent is "" if the import does not name it

_FROM = re.compile(rb"from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n;#]+)")
_IMPORT = re.compile(rb"import[ \t]+([^\n;#]+)")
_NAME = re.compile(rb"[A-Za-z_]\w*(?=\s*(?:,|\)|$|\s+as\s))", re.M)
_SERVING = frozenset(
    b"fastapi starlette litestar flask flask_restful flask_restx quart sanic django rest_framework ninja tornado bottle"
    b" BaseHTTPRequestHandler SimpleHTTPRequestHandler functions_framework bedrock_agentcore".split()
)
_SERVING_PACKAGES = frozenset({"a2a", "flask_socketio", "socketio"})
# A file that makes an application, or gives it routers.
_APPLICATION = re.compile(
    rb"\b(?:FastAPI|Flask|Starlette|Litestar|Quart|Sanic|OpenAPI|APIFlask|BedrockAgentCoreApp)\(|@functions_framework\.http\b"
    rb"|app(?:lication)?\s*\.\s*(?:include_routers?|register_blueprints?|mount|add_routes)\("
)
_APPLYING = frozenset(
    b"FastAPI Flask Starlette Litestar Quart Sanic OpenAPI APIFlask include_router include_routers register_blueprint"
    b" register_blueprints mount add_routes BedrockAgentCoreApp functions_framework".split()
)
_BASES = frozenset({b"abstractmethod", b"NotImplementedError", b"ABC", b"Protocol"})
_ROUTE = re.compile(
    rb"@[\w.]+\(\s*(?:\w+\s*=\s*)?f?[\"'][^\"'\n]*(?:completions?|/(?:messages|responses|generate\w*|chat|infer|inference)"
    rb"|generateContent[^\"'\n]*|worker_generate\w*)/?[\"']",
    re.I,
)
_DEF = re.compile(rb"(?:def[\s\\]+|class[ \t]+(?=\w+\())([\w\x80-\xff]+)")
_IDENTIFIERS = bytes(c if c >= 128 or chr(c).isalnum() or c == ord("_") else 32 for c in range(256))


def words_of(data: bytes) -> frozenset[bytes]:
    """Return all names in a file, with the words of its comments and strings."""
    return frozenset(data.translate(_IDENTIFIERS).split())


def defined_in(data: bytes) -> Iterable[str]:
    """Return the names of all functions in a file, of its classes that have a base, and maybe others."""
    names = set(_DEF.findall(data))
    return (name.decode() if name.isascii() else normalize("NFKC", name.decode("utf-8", "replace")) for name in names)


def says(data: bytes, words: frozenset[bytes], roots: frozenset[str]) -> int:
    """Return what a file says, as bits, from its text, its words and the packages that it imports."""
    found = hints.of(data, words, roots)
    if (
        words & _SERVING
        or (b"aiohttp" in words and b"web" in words)
        or b"Servicer" in data
        or ("azure" in roots and b"route" in words)
        or not roots.isdisjoint(_SERVING_PACKAGES)
    ):
        found |= SERVING
        if _ROUTE.search(data):
            found |= ROUTES
        if not words.isdisjoint(_APPLYING) and _APPLICATION.search(data):
            found |= APPLICATION
    if words & _BASES:
        found |= BASES
    return found | IGNORES if b"hangup:" in data else found


def imports(data: bytes, path: str) -> tuple[list[Pair], frozenset[str]]:
    """Return the modules that a file may import, read from its text, and the packages that they are in."""
    found: set[Pair] = set()
    roots: set[str] = set()
    for match in _IMPORT.finditer(data):
        if _begins_line(data, match.start()):
            for name in match[1].decode("ascii", "ignore").split(","):
                words = name.split()
                if words:
                    parts = words[0].split(".")
                    roots.add(parts[0])
                    found.add((parts[-2] if len(parts) > 1 else "", parts[-1]))
    for match in _FROM.finditer(data):
        if not _begins_line(data, match.start()):
            continue
        module = match[1].decode("ascii", "ignore")
        parts = module.strip(".").split(".") if module.strip(".") else []
        if module.startswith("."):
            folder = _above(path, module)
            above = folder.name
            if not parts:
                found.add((folder.parent.name, above))  # the package itself, which may pass on what it imports
        else:
            above = ""
            roots.add(parts[0])
        chain = [above, *parts]
        if len(chain) > 1:
            found.add((chain[-2], chain[-1]))
        for name in _NAME.findall(match[2]):
            found.add((chain[-1], name.decode("ascii", "ignore")))
    return sorted(found), frozenset(roots)


def _begins_line(data: bytes, place: int) -> bool:
    return not data[data.rfind(b"\n", 0, place) + 1 : place].strip()


def _above(path: str, module: str) -> PurePath:
    """Return the folder in which a relative import begins."""
    folder = PurePath(path).parent
    for _ in range(len(module) - len(module.lstrip(".")) - 1):
        folder = folder.parent
    return folder


def pair_of(path: str) -> Pair:
    place = PurePath(path)
    if place.name == "__init__.py":
        return place.parent.parent.name, place.parent.name
    return place.parent.name, place.stem


def choose(said: Mapping[str, int], imported: Mapping[str, list[Pair]]) -> Selection:
    """Return the files between those that serve and those that name inference, with base classes and what completes them."""
    importers: dict[str, list[tuple[str, str]]] = defaultdict(list)
    modules: dict[str, list[tuple[str, str]]] = defaultdict(list)
    pairs = {path: pair_of(path) for path in imported}
    for path, wanted in imported.items():
        parent, name = pairs[path]
        modules[name].append((parent, path))
        for above, module in wanted:
            importers[module].append((above, path))

    def users(path: str) -> Iterable[str]:
        parent, name = pairs[path]
        return (user for above, user in importers.get(name, ()) if above in {"", parent})

    def used(path: str) -> Iterable[str]:
        return (f for above, name in imported[path] for parent, f in modules.get(name, ()) if above in {"", parent})

    computing = INFERENCE | MAKES | FORWARDS
    reached = closure((path for path, what in said.items() if what & SERVING), used)
    bases = {path for path in reached if said[path] & BASES}
    bases |= {user for path in bases for user in users(path) if user.endswith("__init__.py")}  # which pass them on
    plugged = {user for path in bases for user in users(path) if said[user] & computing}
    reached = closure(reached | plugged, used)
    relevant = {path for path in reached if said[path] & computing}
    relevant |= {base for path in relevant for base in used(path) if said[base] & BASES}
    leading = closure(relevant, users) & reached
    wired = closure(leading, used) & reached  # what an application puts together with inference, maybe behind a protocol
    matter = closure(leading | {path for path in wired if said[path] & BASES}, users) & reached
    below = closure((path for path in leading if said[path] & ROUTES), used)
    return Selection(matter, below & leading, leading)


@dataclass(frozen=True, slots=True)
class Selection:
    """The files that matter, those below a handler whose path is one of inference, and those that lead to inference by
    their imports."""

    matter: set[str]
    below: set[str]
    leading: set[str]

    def first(self, said: Mapping[str, int]) -> set[str]:
        """Return the files in which the linter begins: those that may call inference by themselves."""
        wanted = INFERENCE | ROUTES
        if any(said[path] & MAKES for path in self.leading):
            wanted |= USES
        found = {path for path in self.leading if said[path] & wanted}
        return found | {path for path in self.below if said[path] & FORWARDS}


def closure(start: Iterable[str], step: Callable[[str], Iterable[str]]) -> set[str]:
    found = set(start)
    todo = list(found)
    while todo:
        for path in step(todo.pop()):
            if path not in found:
                found.add(path)
                todo.append(path)
    return found
