"""What inference looks like in Python: the calls that make an engine compute, and the names that frameworks use around them.

A syntax tree holds only names, so this module prefers to miss a call over a false alarm: a call counts as inference when its
name, its receiver or its address is one that the common SDKs, engines and HTTP APIs use.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hangup.lint.source import Function, Module, Site

FRAMEWORKS = frozenset({"fastapi", "starlette", "litestar", "sse_starlette", "sanic", "quart", "flask", "robyn", "blacksheep"})

_SDK_TAILS = (
    "chat.completions.create",
    "chat.completions.parse",
    "chat.completions.stream",
    "completions.create",
    "responses.create",
    "responses.stream",
    "responses.parse",
    "models.generate_content",
    "models.generate_content_stream",
    "generate_content_async",
    "ChatCompletion.create",
    "ChatCompletion.acreate",
    "Completion.acreate",
    "create_chat_completion",
)
_FUNCTIONS = frozenset(
    {
        *(f"litellm.{name}" for name in ("completion", "acompletion", "text_completion", "atext_completion", "aresponses")),
        "ollama.chat",
        "ollama.generate",
        "openai.Completion.create",
    }
)
_CHAIN_VERBS = frozenset({"ainvoke", "astream", "astream_events", "astream_log", "invoke", "agenerate", "apredict", "arun"})
_CHAIN_NAMES = frozenset({"llm", "chain", "model", "agent", "graph", "chat", "runnable", "executor"})
_INDEX_VERBS = frozenset({"achat", "astream_chat", "acomplete", "astream_complete"})
_ENGINE_VERBS = frozenset(
    {"generate", "async_generate", "generate_async", "generate_stream", "stream_generate", "generate_request"}
)
_ENGINE_NAMES = frozenset({"engine", "llm", "model", "llama"})
_HTTP_VERBS = frozenset({"post", "stream", "request", "send", "build_request"})
_PATH = re.compile(
    r"/(chat/completions|v1/completions|completions?|v1/messages|v1/responses|api/chat|api/generate|generate|generate_stream"
    r"|worker_generate\w*|infer)/?(\?.*)?$"
)
_STREAM_CLASSES = ("StreamingResponse", "EventSourceResponse", "hangup.stream", "ServerSentEvent", "Stream")
_STREAM_VERBS = frozenset(
    {"stream", "astream", "astream_events", "astream_chat", "astream_complete", "generate_content_stream"}
)
_ROUTES = frozenset({"get", "post", "put", "patch", "api_route", "route"})


def is_inference(module: Module, site: Site) -> bool:
    """Return whether this call makes an engine compute."""
    return (_is_sdk_call(module, site) or _is_engine_call(site) or _is_http_call(site)) and not _is_mock(site)


def _is_mock(site: Site) -> bool:
    return site.keyword("mock_response") is not None


def _is_sdk_call(module: Module, site: Site) -> bool:
    name = site.name
    if name in _FUNCTIONS or (name.endswith(_SDK_TAILS) and "." in name):
        return True
    if name.endswith(("messages.create", "messages.stream")):
        return "threads" not in name and ("anthropic" in module.packages or "anthropic" in name)
    return False


def _is_engine_call(site: Site) -> bool:
    receiver, _, verb = site.name.rpartition(".")
    if verb in _INDEX_VERBS:
        return bool(receiver)
    words = set(receiver.rpartition(".")[2].lower().strip("_").split("_"))
    if verb in _CHAIN_VERBS:
        return bool(words & _CHAIN_NAMES)
    return verb in _ENGINE_VERBS and bool(words & _ENGINE_NAMES)


def _is_http_call(site: Site) -> bool:
    if site.name.rpartition(".")[2] not in _HTTP_VERBS:
        return False
    addresses = [*site.node.args[:2], site.keyword("url")]
    return any(_PATH.search(text) for node in addresses if (text := _tail_text(node)))


def _tail_text(node: ast.expr | None) -> str:
    """Return the constant text that an expression ends with: "/generate" for f"{url}/generate" and for url + "/generate"."""
    if isinstance(node, ast.JoinedStr) and node.values:
        node = node.values[-1]
    if isinstance(node, ast.BinOp):
        node = node.right
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def streams(site: Site) -> bool | None:
    """Return whether an inference call asks for a stream; None if the call does not show it."""
    if site.name.rpartition(".")[2] in _STREAM_VERBS:
        return True
    stream_argument = site.keyword("stream")
    if isinstance(stream_argument, ast.Constant):
        return bool(stream_argument.value)
    return None if stream_argument is not None or site.has_double_star else False


class Inference:
    """The inference calls of a module: direct ones, and calls of the module's own functions that make them."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.direct = {id(site.node): site for site in module.calls() if is_inference(module, site)}
        self._makers: dict[str, Function] = {}
        self._spread()

    @classmethod
    def of(cls, module: Module) -> Inference:
        """Return the instance for `module`, which is computed once."""
        found = module.facts.get(cls)
        if not isinstance(found, Inference):
            found = module.facts[cls] = cls(module)
        return found

    def __bool__(self) -> bool:
        return bool(self.direct)

    def _spread(self) -> None:
        """Mark every function that calls inference as inference by its name, transitively."""
        own = {f.name: f for f in self.module.functions if f.name and not f.name.startswith("__")}
        grew = bool(self.direct)
        while grew:
            grew = False
            for name, function in own.items():
                if name not in self._makers and any(self.has(site) for site in function.calls):
                    self._makers[name] = function
                    grew = True

    def has(self, site: Site) -> bool:
        return id(site.node) in self.direct or self.maker(site.node.func) is not None

    def maker(self, node: ast.AST | None) -> Function | None:
        """Return the module's own function that `node` names (`f`, `self.f`), if it makes inference calls."""
        if isinstance(node, ast.Name):
            return self._makers.get(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}:
            return self._makers.get(node.attr)
        return None

    def within(self, root: ast.AST) -> Iterator[Site]:
        """Yield the inference calls anywhere below `root`."""
        for node in ast.walk(root):
            site = self.module.site(node)
            if site is not None and self.has(site):
                yield site

    def source(self, site: Site, depth: int = 8) -> Site:
        """Return the inference call behind a call, followed through at most `depth` of the module's own functions."""
        while depth and id(site.node) not in self.direct:
            function = self.maker(site.node.func)
            assert function is not None
            site = next(inner for inner in function.calls if self.has(inner))
            depth -= 1
        return site


def is_handler(module: Module, function: Function) -> bool:
    """Return whether a web framework calls this function for a request."""
    for decorator in function.decorators:
        if not isinstance(decorator, ast.Call):
            continue
        name = module.dotted(decorator.func)
        head, _, verb = name.rpartition(".")
        takes_path = bool(decorator.args) or any(k.arg == "path" for k in decorator.keywords)
        if verb in _ROUTES and takes_path and (head not in {"", "mock", "patch"} or "litestar" in name):
            return bool(module.packages & (FRAMEWORKS | {"aiohttp"})) or head.endswith(("app", "router", "api"))
    return any("web.Request" in module.dotted(p.annotation) for p in function.parameters if p.annotation is not None)


def serves(module: Module) -> bool:
    """Return whether the file has handlers of a web application."""
    return any(is_handler(module, function) for function in module.functions)


def is_streaming_response(name: str) -> bool:
    return name.rpartition(".")[2] in _STREAM_CLASSES or name == "hangup.stream"


def feeds_client(module: Module, function: Function) -> bool:
    """Return whether a streaming response sends what this async generator yields."""
    if any(is_handler(module, outer) for outer in function.around() if outer is not function):
        return True
    for site in module.calls():
        if is_streaming_response(site.name):
            for argument in (*site.node.args, *(k.value for k in site.node.keywords)):
                if any(isinstance(n, (ast.Name, ast.Attribute)) and _last(n) == function.name for n in ast.walk(argument)):
                    return True
    return False


def _last(node: ast.Name | ast.Attribute) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr


_WATCHES = re.compile(r"is_disconnected|listen_for_disconnect|with_cancellation|http\.disconnect|run_until_disconnect")


def watches_client(module: Module, function: Function) -> bool:
    """Return whether a function, or its decorator, watches the client, judged by its own text."""
    node = function.node
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    if any(site.name.startswith("hangup.") for site in function.calls):
        return True
    names = [module.dotted(d) for d in node.decorator_list]
    if any(re.search(r"cancel|disconnect|tether", name) for name in names):
        return True
    lines = module.text.split("\n")[node.lineno - 1 : node.end_lineno]
    return any(_WATCHES.search(line) for line in lines)
