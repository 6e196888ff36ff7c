"""Which path is which API. Whatever is not in these tables does not exist from outside."""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import unquote_to_bytes

from hangup.apis.anthropic import AnthropicCountTokens, AnthropicErrors, AnthropicMessages
from hangup.apis.base import Api, Json
from hangup.apis.engine_paths import PASSED, Plain
from hangup.apis.llamacpp import LlamaCppCompletion
from hangup.apis.ollama import OllamaChat, OllamaGenerate
from hangup.apis.openai_chat import OpenAIChat
from hangup.apis.openai_completions import OpenAICompletions
from hangup.apis.openai_responses import OpenAIResponses
from hangup.apis.sglang import SglangGenerate
from hangup.apis.tgi import TgiGenerate
from hangup.config import RouteSettings


class Embeddings(Api):
    name = "openai.embeddings"
    sized = True


class Models(Api):
    name = "openai.models"
    question = True


class AnthropicModels(AnthropicErrors):
    """The same path, asked as Anthropic's clients ask."""

    name = "anthropic.models"


class Files(Api):
    name = "openai.files"
    about_jobs = True


class Batches(Api):
    name = "openai.batches"
    about_jobs = True


class StoredResponses(Api):
    name = "openai.responses.stored"
    about_jobs = True
    engine_may_have = True


class MessageBatches(AnthropicErrors):
    name = "anthropic.batches"
    about_jobs = True


class Jobs(Api):
    name = "hangup.jobs"
    about_jobs = True


class PassThrough(Api):
    """A path that the configuration allows and that we know nothing about."""

    name = "pass_through"


class Generate(TgiGenerate):
    """/generate belongs to TGI and to SGLang; the body tells which (see `Route.api_for`)."""


class Invocations(OpenAIChat):
    """SageMaker's one path for all that a model does; the body tells what it is (see `Route.api_for`)."""


UNKNOWN = Api()  # for errors before the path is known: OpenAI's shape, which most clients read
_SGLANG = SglangGenerate()
_CHAT, _COMPLETIONS, _INVOCATION = OpenAIChat(), OpenAICompletions(), Plain("invocations")
ANTHROPIC_MODELS = AnthropicModels()


@dataclass(frozen=True, slots=True)
class Route:
    path: str
    methods: tuple[str, ...]
    api: Api
    websocket: bool = False  # whether one may be opened here

    def api_for(self, value: Json) -> Api:
        if type(self.api) is Generate and "inputs" not in value:
            return _SGLANG
        if type(self.api) is Invocations:
            return _CHAT if "messages" in value else _COMPLETIONS if "prompt" in value else _INVOCATION
        return self.api


BUILT_IN: dict[str, Route] = {
    route.path: route
    for route in (
        Route("/v1/chat/completions", ("POST",), OpenAIChat()),
        Route("/v1/completions", ("POST",), OpenAICompletions()),
        Route("/v1/responses", ("POST",), OpenAIResponses()),
        Route("/v1/embeddings", ("POST",), Embeddings()),
        Route("/v1/models", ("GET",), Models()),
        Route("/v1/models/*", ("GET",), Models()),
        Route("/v1/messages", ("POST",), AnthropicMessages()),
        Route("/v1/messages/count_tokens", ("POST",), AnthropicCountTokens()),
        Route("/completion", ("POST",), LlamaCppCompletion()),
        Route("/generate", ("POST", "PUT"), Generate()),
        Route("/generate_stream", ("POST",), TgiGenerate()),
        Route("/api/chat", ("POST",), OllamaChat()),
        Route("/api/generate", ("POST",), OllamaGenerate()),
        Route("/v1/realtime", ("GET",), Plain("openai.realtime", question=True), websocket=True),
        Route("/invocations", ("POST",), Invocations()),
        Route("/v1/files", ("GET", "POST"), Files()),
        Route("/v1/files/*", ("GET", "DELETE"), Files()),
        Route("/v1/batches", ("GET", "POST"), Batches()),
        Route("/v1/batches/*", ("GET", "POST"), Batches()),
        Route("/v1/responses/*", ("GET", "POST", "DELETE"), StoredResponses()),
        Route("/v1/messages/batches", ("GET", "POST"), MessageBatches()),
        Route("/v1/messages/batches/*", ("GET", "POST", "DELETE"), MessageBatches()),
        Route("/v1/jobs", ("GET",), Jobs()),
        Route("/v1/jobs/*", ("GET", "DELETE"), Jobs()),
    )
} | {path: Route(path, methods, api) for path, (methods, api) in PASSED.items()}

# Where jobs are a hosted API's, its paths are all passed, and there are none of our own.
AT_PROVIDER: dict[str, Route] = {
    path: replace(route, methods=("GET", "POST", "DELETE")) if route.api.about_jobs else route
    for path, route in BUILT_IN.items()
    if not isinstance(route.api, Jobs)
}


class Router:
    """The built-in routes and those that the configuration adds; `provider`: those about jobs are a hosted API's."""

    def __init__(self, extra: tuple[RouteSettings, ...] = (), *, provider: bool = False) -> None:
        built_in = AT_PROVIDER if provider else BUILT_IN
        self._exact = {path: route for path, route in built_in.items() if not path.endswith("*")}
        self._prefixes = [route for path, route in built_in.items() if path.endswith("*")]
        for row in extra:
            if row.path in built_in:
                continue
            route = Route(row.path, tuple(m.upper() for m in row.methods), PassThrough(), row.websocket)
            if row.path.endswith("*"):
                self._prefixes.append(route)
            else:
                self._exact[row.path] = route

    def answering(self) -> list[str]:
        """The paths on which an engine is asked something that may be a batch's item."""
        return [path for path, route in self._exact.items() if route.api.generates or isinstance(route.api, Embeddings)]

    def find(self, path: str) -> Route | None:
        route = self._exact.get(path)
        if route is not None:
            return route
        for route in self._prefixes:
            stem = route.path[:-1]
            if path.startswith(stem) and len(path) > len(stem) and _is_plain(path):
                return route
        return None


def _is_plain(path: str) -> bool:
    """No segment that an engine could read as a way to another path."""
    decoded = unquote_to_bytes(path)
    if any(byte < 0x21 or byte > 0x7E for byte in decoded) or any(c in decoded for c in b"\\%?#;"):
        return False
    return all(segment not in (b"", b".", b"..") for segment in decoded.split(b"/")[1:])
