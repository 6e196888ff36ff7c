"""Chooses the files that are worth parsing: those between a handler and inference, along the imports.

A file matters if something that serves requests imports it, through any number of others, and if it imports in the same way, or
holds, a call to inference. Most files of a project are neither, and parsing is nearly all of the linter's work.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath

# Words without which a file cannot hold a direct call to inference, or make what such a call uses.
_INFERENCE = (
    "ompletion .ainvoke .astream .invoke( .generate messages.create messages.stream responses.create responses.stream"
    " responses.parse litellm ollama .kickoff query_engine chat_engine invoke_model .converse text_generation stream_generate"
    " .acreate llm. llm( agent.run agent.arun Runner.run /generate generateContent chain( chain. pipeline( send_message OpenAI("
    " Anthropic( Groq( Chat from_pretrained agent( .aquery .post( .request( is_disconnected BaseHTTPMiddleware"
)
_SERVING = (
    "fastapi starlette litestar flask quart sanic django rest_framework ninja aiohttp.web tornado http.server Servicer bottle"
)
_INFERENCE_WORDS = tuple(_INFERENCE.encode().split())
_SERVING_WORDS = (*_SERVING.encode().split(), b"import web")
_BASES = (b"abstractmethod", b"NotImplementedError", b"ABC")
_IMPORT = re.compile(rb"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n;#]+)|import[ \t]+([^\n;#]+))", re.M)
_NAME = re.compile(rb"[A-Za-z_]\w*(?=\s*(?:,|\)|$|\s+as\s))", re.M)

Pair = tuple[str, str]  # a module's parent and its own name; the parent is "" if the import does not name it


INFERENCE, SERVING, BASES = 1, 2, 4


def says(data: bytes) -> int:
    """Return whether a file names inference, serves requests, or holds classes for others to complete, as bits."""
    found = INFERENCE if any(word in data for word in _INFERENCE_WORDS) else 0
    if any(word in data for word in _SERVING_WORDS):
        found |= SERVING
    return found | BASES if any(word in data for word in _BASES) else found


def imports(data: bytes, path: str) -> list[Pair]:
    """Return the modules that a file may import, read from its text."""
    found: set[Pair] = set()
    for match in _IMPORT.finditer(data):
        if match[3] is not None:
            for name in match[3].decode("ascii", "ignore").split(","):
                words = name.split()
                if words:
                    parts = words[0].split(".")
                    found.add((parts[-2] if len(parts) > 1 else "", parts[-1]))
            continue
        module = match[1].decode("ascii", "ignore")
        parts = module.strip(".").split(".") if module.strip(".") else []
        folder = PurePath(path).parent
        for _ in range(len(module) - len(module.lstrip(".")) - 1):
            folder = folder.parent
        above = folder.name if module.startswith(".") else ""
        chain = [above, *parts]
        if len(chain) > 1:
            found.add((chain[-2], chain[-1]))
        for name in _NAME.findall(match[2]):
            found.add((chain[-1], name.decode("ascii", "ignore")))
    return sorted(found)


def pair_of(path: str) -> Pair:
    place = PurePath(path)
    if place.name == "__init__.py":
        return place.parent.parent.name, place.parent.name
    return place.parent.name, place.stem


def worth_parsing(said: Mapping[str, int], imported: Mapping[str, list[Pair]]) -> list[str]:
    """Return the files between those that serve and those that name inference, with base classes and what completes them."""
    importers: dict[str, list[tuple[str, str]]] = defaultdict(list)
    modules: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for path, pairs in imported.items():
        parent, name = pair_of(path)
        modules[name].append((parent, path))
        for above, wanted in pairs:
            importers[wanted].append((above, path))

    def users(path: str) -> Iterable[str]:
        parent, name = pair_of(path)
        return (user for above, user in importers.get(name, ()) if above in {"", parent})

    def used(path: str) -> Iterable[str]:
        return (f for above, name in imported[path] for parent, f in modules.get(name, ()) if above in {"", parent})

    reached = _closure((path for path, what in said.items() if what & SERVING), used)
    bases = {path for path in reached if said[path] & BASES}
    bases |= {user for path in bases for user in users(path) if user.endswith("__init__.py")}  # which pass them on
    plugged = {user for path in bases for user in users(path) if said[user] & INFERENCE}
    reached = _closure(reached | plugged, used)
    relevant = {path for path in reached if said[path] & INFERENCE}
    relevant |= {base for path in relevant for base in used(path) if said[base] & BASES}
    return sorted(_closure(relevant, users) & reached)


def _closure(start: Iterable[str], step: Callable[[str], Iterable[str]]) -> set[str]:
    found = set(start)
    todo = list(found)
    while todo:
        for path in step(todo.pop()):
            if path not in found:
                found.add(path)
                todo.append(path)
    return found
