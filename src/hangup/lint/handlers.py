"""Which functions a web framework or a gRPC server calls for a request, and which of those it cancels by itself."""

from __future__ import annotations

import ast

from hangup.lint.source import Function, Module, Site

# These cancel a handler when its client disconnects: Quart, Sanic, Django's async views, gRPC's asyncio servers.
CANCELLING = frozenset({"quart", "sanic", "django async", "grpc async"})
# These cannot see a disconnect before they write.
BLIND = frozenset({"flask", "django", "http.server", "grpc", "bottle", "socketio"})

_ROUTES = frozenset("get post put patch api_route route websocket websocket_route view action".split())
_PACKAGES = (
    "fastapi",
    "starlette",
    "litestar",
    "quart",
    "sanic",
    "flask",
    "ninja",
    "rest_framework",
    "django",
    "tornado",
    "bottle",
)
# What a route says besides its path and methods, which does not tell it from another one.
_SAME_ROUTE = frozenset(
    "response_model tags summary description status_code name operation_id dependencies responses response_class".split()
)
_AS = {"ninja": "django", "rest_framework": "django", "starlette": "starlette"}
_VERBS = frozenset("get post put patch dispatch create list retrieve update partial_update form_valid".split())
_HTTP_SERVER = frozenset({"BaseHTTPRequestHandler", "SimpleHTTPRequestHandler", "CGIHTTPRequestHandler"})
_SOCKETIO = frozenset({"flask_socketio", "socketio"})
_CONSUMING = frozenset({"receive", "receive_json", "websocket_receive"})
_REGISTER = {
    "add_api_route": 1,
    "add_api_websocket_route": 1,
    "add_websocket_route": 1,
    "add_route": 1,
    "add_post": 1,
    "add_get": 1,
    "add_put": 1,
    "add_url_rule": 2,
    "Route": 1,
    "WebSocketRoute": 1,
    "APIRoute": 1,
    "path": 1,
    "re_path": 1,
    "url": 1,
}
REGISTERING = frozenset({*_REGISTER, "post", "get"})  # the last part of a call that may register a handler
# A file that registers handlers has one of these words. (Django's `path` is too common a word; `urlpatterns` is beside it.)
WORDS_OF_REGISTRATION = frozenset(_REGISTER) - {"path", "re_path", "url"} | {"urlpatterns", "web"}


def framework_of(module: Module) -> str:
    """Return the web framework that a file imports; "" if it imports none."""
    packages = module.packages
    found = next((name for name in _PACKAGES if name in packages), "")
    if not found and "aiohttp" in packages and any(n.startswith("aiohttp.web") for n in module.imports.values()):
        return "aiohttp"
    return _AS.get(found, found)


def handler(module: Module, function: Function, framework: str, bases: dict[str, list[str]]) -> tuple[str, str]:
    """Return the framework that calls this function for requests, if it is known, and the object whose decorator says so."""
    for decorator in function.decorators:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = module.dotted(called)
        head, _, verb = name.rpartition(".")
        if name == "functions_framework.http":
            return "flask", ""
        if verb == "entrypoint" and "bedrock_agentcore" in module.packages:  # its application is one of Starlette
            return "starlette", ""
        if verb == "route" and "azure" in module.packages and isinstance(decorator, ast.Call) and _route(decorator) is not None:
            return "starlette" if function.is_async else "flask", ""
        if verb == "api_view" or (verb == "action" and framework == "django"):
            return _with_async("django", function), ""
        if verb in {"on", "event"} and module.packages & _SOCKETIO and _is_of_socket(function, decorator, head):
            return "socketio", ""
        if not isinstance(decorator, ast.Call) or verb not in _ROUTES or not _takes_path(decorator):
            continue
        if head.partition(".")[0] in {"mock", "patch", "requests", "httpx", "respx", "responses"} or (
            not head and framework != "litestar"
        ):
            continue
        kind = _with_async(framework, function)
        if "websocket" in verb or _takes_websocket(function):
            kind = "websocket" if kind in {"", "fastapi", "starlette"} else kind
        return kind, head
    if function.class_name and function.outer is not None and not function.outer.class_name:
        above = bases.get(function.class_name, [])
        if "a2a" in module.packages and function.name == "execute" and any(b.endswith("AgentExecutor") for b in above):
            return "a2a", ""
        found = _method(function, above, framework)
        if found:
            return found, ""
    if any("web.Request" in module.dotted(p.annotation) for p in function.parameters if p.annotation is not None):
        return ("aiohttp", "") if function.name != "middleware" and len(function.parameters) <= 2 else ("", "")
    return "", ""


def _is_of_socket(function: Function, decorator: ast.expr, owner: str) -> bool:
    """Return whether a function is called for each event of a client of Socket.IO: `@socketio.on("message")`, `@sio.event`."""
    given = decorator.args[0] if isinstance(decorator, ast.Call) and decorator.args else None
    event = given.value if isinstance(given, ast.Constant) else function.name
    return ("socket" in owner.lower() or "sio" in owner.lower()) and event not in {"connect", "disconnect"}


def routes_of(function: Function) -> list[str]:
    """Return what the decorators of a handler register it for, as texts: of two that are the same, only the first serves."""
    return [
        f"{ast.unparse(decorator.func)} {ast.unparse(decorator.args[0])} "
        + " ".join(ast.unparse(k.value) for k in decorator.keywords if k.arg not in _SAME_ROUTE)
        for decorator in function.decorators
        if isinstance(decorator, ast.Call)
        and isinstance(decorator.func, ast.Attribute)
        and decorator.func.attr in _ROUTES
        and decorator.args
        and isinstance(decorator.args[0], ast.Constant)
    ]


def route_path(function: Function) -> str:
    """Return the path in a route's decorator, as far as it is written there."""
    for decorator in function.decorators:
        if isinstance(decorator, ast.Call):
            first = _route(decorator) or (decorator.args[0] if decorator.args else _keyword(decorator, "path", "rule"))
            if isinstance(first, ast.JoinedStr) and first.values:
                first = first.values[-1]
            if isinstance(first, ast.Constant) and isinstance(first.value, str) and ("/" in first.value or _route(decorator)):
                return first.value if "/" in first.value else f"/{first.value}"
    return ""


def _route(decorator: ast.Call) -> ast.expr | None:
    """Return the path of one of Azure's functions, which begins with no slash: `@app.route(route="query")`."""
    return _keyword(decorator, "route")


def _keyword(call: ast.Call, *names: str) -> ast.expr | None:
    return next((k.value for k in call.keywords if k.arg in names), None)


def _takes_path(decorator: ast.Call) -> bool:
    first = decorator.args[0] if decorator.args else _keyword(decorator, "path", "rule")
    if isinstance(first, ast.Constant):
        return isinstance(first.value, str) and (first.value.startswith("/") or first.value == "")
    return isinstance(first, (ast.JoinedStr, ast.Name, ast.Attribute, ast.BinOp))


def _takes_websocket(function: Function) -> bool:
    return any("socket" in p.arg.lower() or p.arg == "ws" for p in function.parameters)


def _with_async(framework: str, function: Function) -> str:
    return f"{framework} async" if framework == "django" and function.is_async else framework


def _method(function: Function, bases: list[str], framework: str) -> str:
    """Return the framework of a class whose methods are handlers, by the names of its bases."""
    for base in bases:
        last = base.rpartition(".")[2].removesuffix("[]")
        if last.endswith("Servicer") and not function.name.startswith("_"):
            return "grpc async" if function.is_async else "grpc"
        if last in _HTTP_SERVER and function.name in {"do_POST", "do_GET"}:
            return "http.server"
        if last.endswith("WebsocketConsumer") and function.name in _CONSUMING:
            return "websocket"  # of Channels: the next message waits for this one
        if function.name not in _VERBS:
            continue
        if last in {"APIView", "GenericAPIView", "ViewSet", "ModelViewSet", "GenericViewSet"} or (
            "aiohttp" not in base
            and "web." not in base
            and (last == "View" or (framework == "django" and last.endswith("View")))
        ):
            return _with_async("django", function)
        if last in {"MethodView", "Resource"}:
            return "flask"
        if last == "HTTPEndpoint":
            return "starlette"
        if last == "RequestHandler":
            return "tornado"
    return ""


def registration(module: Module, site: Site, framework: str) -> tuple[ast.expr | None, str]:
    """Return the function that a call such as `app.add_api_route("/chat", chat)` registers, and its framework."""
    verb = site.name.rpartition(".")[2]
    position = _REGISTER.get(verb)
    if position is None:
        if site.name in {"aiohttp.web.post", "aiohttp.web.get", "web.post", "web.get"}:
            position, framework = 1, "aiohttp"
        else:
            return None, ""
    if verb in {"path", "re_path", "url"} and framework != "django":
        return None, ""
    if verb in {"add_post", "add_get", "add_put"}:
        framework = "aiohttp"
    if verb == "add_route" and framework == "sanic":
        position = 0
    given = site.keyword("endpoint", "view_func", "handler", "view")
    if given is None and len(site.node.args) > position:
        given = site.node.args[position]
    if "websocket" in verb.lower():
        framework = "websocket"
    return given, framework


def registered_path(module: Module, site: Site) -> str:
    """Return the path in `Route("/chat", chat)`, or the first one in `[Route(path, chat) for path in PATHS]`."""
    given = site.keyword("path", "rule") or (site.node.args[0] if site.node.args else None)
    if isinstance(given, ast.Name):
        sources = [source for target, source in site.function.taken if isinstance(target, ast.Name) and target.id == given.id]
        lists = [value for source in sources for value in (source, *module.values_of(source, site.function))]
        given = next((value.elts[0] for value in lists if isinstance(value, (ast.Tuple, ast.List)) and value.elts), None)
    if not isinstance(given, ast.Constant) or not isinstance(given.value, str) or "/" not in given.value:
        return ""
    return given.value if given.value.startswith("/") else f"/{given.value}"
