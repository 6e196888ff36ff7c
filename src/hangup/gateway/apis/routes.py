"""Maps paths to APIs. A path that is not among them does not exist for clients.

An API declares its own paths (`Api.paths`), and this module finds every API in the package. It lists only the paths whose API
depends on the body, and adds those that the gateway passes on unchanged (`engine_paths`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from pkgutil import iter_modules
from typing import Final
from urllib.parse import unquote, unquote_to_bytes

from hangup.config import RouteSettings
from hangup.config.schema import APIS
from hangup.gateway import apis
from hangup.gateway.apis.base import Api, Json
from hangup.gateway.apis.engine_paths import PASSED, PlainApi
from hangup.gateway.apis.openai_chat import OpenAIChat
from hangup.gateway.apis.openai_completions import OpenAICompletions
from hangup.gateway.apis.resources import EmbeddingsApi, JobsApi
from hangup.gateway.apis.sglang import SglangGenerate
from hangup.gateway.apis.tgi import TgiGenerate


class PassThroughApi(Api):
    """A path that the configuration allows and about which nothing is known."""

    name = "pass_through"


class GenerateApi(TgiGenerate):
    """/generate belongs to TGI and to SGLang; the body decides (see `Route.api_for`)."""


class InvocationsApi(OpenAIChat):
    """SageMaker's single path for everything that a model does; the body decides (see `Route.api_for`)."""


UNKNOWN: Final = Api()  # for errors before the path is known: in OpenAI's format, which most clients can read
_SGLANG: Final = SglangGenerate()
_CHAT, _COMPLETIONS, _INVOCATION = OpenAIChat(), OpenAICompletions(), PlainApi("invocations")


@dataclass(frozen=True, slots=True)
class Route:
    path: str
    methods: tuple[str, ...]
    api: Api
    websocket: bool = False  # clients may open one here

    def api_for(self, value: Json) -> Api:
        if type(self.api) is GenerateApi and "inputs" not in value:
            return _SGLANG
        if type(self.api) is InvocationsApi:
            return _CHAT if "messages" in value else _COMPLETIONS if "prompt" in value else _INVOCATION
        return self.api


def discovered() -> list[Route]:
    """Return a route for each path that an API in a module of this package declares."""
    found = []
    for module in iter_modules(apis.__path__, f"{apis.__name__}."):
        if module.name == __name__:
            continue
        for api in vars(import_module(module.name)).values():
            if isinstance(api, type) and issubclass(api, Api) and api.__module__ == module.name:
                found += [Route(path, methods, api()) for path, methods in vars(api).get("paths", {}).items()]
    families = [*APIS, ""]
    return sorted(found, key=lambda route: (route.api.about_jobs, families.index(route.api.family)))


BUILT_IN: dict[str, Route] = {
    route.path: route
    for route in (
        *discovered(),
        Route("/generate", ("POST", "PUT"), GenerateApi()),
        Route("/invocations", ("POST",), InvocationsApi()),
        Route("/v1/realtime", ("GET",), PlainApi("openai.realtime", question=True), websocket=True),
    )
} | {path: Route(path, methods, api) for path, (methods, api) in PASSED.items()}

# The routes if a hosted API has the jobs: all its paths are passed on, and we have none of our own.
AT_PROVIDER: dict[str, Route] = {
    path: replace(route, methods=("GET", "POST", "DELETE")) if route.api.about_jobs else route
    for path, route in BUILT_IN.items()
    if not isinstance(route.api, JobsApi)
}


class Router:
    """The built-in routes and those of the configuration; `provider`: a hosted API handles the routes about jobs."""

    def __init__(self, extra: tuple[RouteSettings, ...] = (), *, provider: bool = False) -> None:
        built_in = AT_PROVIDER if provider else BUILT_IN
        self._exact = {path: route for path, route in built_in.items() if not path.endswith("*")}
        self._prefixes = [route for path, route in built_in.items() if path.endswith("*")]
        for row in extra:
            if row.path in built_in:
                continue
            route = Route(row.path, tuple(m.upper() for m in row.methods), PassThroughApi(), row.websocket)
            if row.path.endswith("*"):
                self._prefixes.append(route)
            else:
                self._exact[row.path] = route

    def answering(self) -> list[str]:
        """Return the paths that a batch's items may request from an engine."""
        return [path for path, route in self._exact.items() if route.api.generates or isinstance(route.api, EmbeddingsApi)]

    def find(self, path: str) -> Route | None:
        """Return the route of a path. Many engines decode paths: one that would lead elsewhere then has no route."""
        route = self._exact.get(path) or self._find(path)
        return route if route is None or "%" not in path or self._find(unquote(path)) is route else None

    def _find(self, path: str) -> Route | None:
        route = self._exact.get(path)
        if route is not None:
            return route
        for route in self._prefixes:
            stem = route.path[:-1]
            if path.startswith(stem) and len(path) > len(stem) and _is_plain(path):
                return route
        return None


def _is_plain(path: str) -> bool:
    """Return True if no segment of the path could lead an engine to another path."""
    decoded = unquote_to_bytes(path)
    if any(byte < 0x21 or byte > 0x7E for byte in decoded) or any(c in decoded for c in b"\\%?#;"):
        return False
    return all(segment not in (b"", b".", b"..") for segment in decoded.split(b"/")[1:])
