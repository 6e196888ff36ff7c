"""Which framework calls a function for a request: by its decorator, its class, or by a call that registers it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection
from typing import Protocol

from hangup.lint.broken import Broken
from hangup.lint.facts import FileFacts, FunctionFacts
from hangup.lint.files import SourceFiles
from hangup.lint.handlers import WORDS_OF_REGISTRATION
from hangup.lint.included import Included
from hangup.lint.names import Key, Names

_MAKERS = {
    "FastAPI": "fastapi",
    "APIRouter": "fastapi",
    "Flask": "flask",
    "Blueprint": "flask",
    "Quart": "quart",
    "Sanic": "sanic",
    "Starlette": "starlette",
    "Litestar": "litestar",
    "Router": "fastapi",
    "NinjaAPI": "django",
    "RouteTableDef": "aiohttp",
}
_APPLICATIONS_MAX = 3  # that lead to a handler and are read to learn whether they can start
_INCLUDED = frozenset({"fastapi", "starlette", "flask", "websocket"})  # applications of these include their routers
_VIEWS = frozenset({"django", "django async"})  # classes of these are named where their routes are


class RegisteringProject(Protocol):
    """What is asked here about a project."""

    source: SourceFiles
    names: Names

    def function(self, key: Key) -> FunctionFacts: ...

    def read_users(self, function: FunctionFacts, *, beside: Collection[str] = ()) -> None: ...


class RegisteredHandlers:
    def __init__(self, project: RegisteringProject) -> None:
        self._project = project
        self.source = project.source
        self.names = project.names
        self._broken = Broken(project.names)
        self._included = Included(project.source.naming, project.source.text)
        self._registered: dict[str, list[tuple[str, int, str, str, str]]] = defaultdict(list)
        self._handlers: dict[Key, str] = {}

    def add(self, path: str, facts: FileFacts) -> None:
        """Take in what a file registers."""
        for ref, framework, number, route in facts.registered:
            given = facts.functions[number].assigned.get(ref, ())
            for name in {facts.imports.get(r, r).rpartition(".")[2] for r in (ref, *given)}:
                self._registered[name].append((path, number, ref, framework, route))

    def handler(self, key: Key) -> str:
        """Return the framework that calls this function for a request; "" if none does."""
        found = self._handlers.get(key)
        if found is None:
            found = self._own_handler(key) or self._registered_handler(key)
            if (found in _INCLUDED and self._is_unserved(key)) or (found in _VIEWS and self._is_unnamed(key)):
                found = ""
            self._handlers[key] = found
        return found

    def _is_unserved(self, key: Key) -> bool:
        """Return whether no application leads to a handler: to its file, or its router."""
        path, route = key[0], self._project.function(key).route
        if path in self.source.reach.orphans or self._broken.is_broken(path) or self._included.is_left_out(path, route):
            return True
        applications = self.source.reach.applications_of(path)
        if not 0 < len(applications) <= _APPLICATIONS_MAX:
            return False
        return all(self.source.has(file) and self._broken.is_broken(file) for file in sorted(applications))

    def _is_unnamed(self, key: Key) -> bool:
        """Return whether no table of routes names a handler's class, though one names others: `Chat.as_view()`."""
        name = self._project.function(key).class_name
        if not name or not any(True for _ in self.source.naming("as_view")):
            return False
        used = re.compile(rf"(?<!class )\b{name}\b")
        return not any(used.search(text) for _, text in self.source.naming(name))

    def _own_handler(self, key: Key) -> str:
        function = self._project.function(key)
        if function.handler or not function.route:
            return function.handler
        value = self.names.find(key[0], 0, function.route)
        made = value.name.split(".") if value is not None and value.kind == "made" else []
        return next((_MAKERS[part] for part in made if part in _MAKERS), "")

    def _registered_handler(self, key: Key) -> str:
        function = self._project.function(key)
        if not function.name:
            return ""
        self._project.read_users(function, beside=WORDS_OF_REGISTRATION)
        for path, number, ref, framework, route in sorted(self._registered.get(function.name, ())):
            value = self.names.find(path, number, ref)
            if value is not None and value.kind == "function" and (value.path, value.number) == key:
                kind = framework or "starlette"
                function.path = function.path or route
                return "django async" if kind == "django" and function.is_async else kind
        return ""
