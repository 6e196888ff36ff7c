"""The application of `library/served.py` for every framework, under every server: `python apps.py FRAMEWORK SERVER`.

Servers that import the application by name find it as `apps:APP`. (No postponed annotations: the frameworks could not resolve
those of handlers that are defined in functions.)
"""

import os
import sys
from collections.abc import Callable
from typing import Any

from library.served import (
    ANSWERS,
    aiohttp_app,
    fastapi_app,
    listening,
    litestar_app,
    plain_app,
    serve_hypercorn,
    serve_uvicorn,
    starlette_app,
    state,
)


def django_app() -> Any:
    import django
    from django.conf import settings
    from django.core.handlers.asgi import ASGIHandler
    from django.http import HttpRequest, JsonResponse
    from django.urls import path

    middleware = "hangup.library.frameworks.django.CallEndedMiddleware"
    settings.configure(
        ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="none", USE_TZ=True, MIDDLEWARE=[middleware], LOGGING_CONFIG=None
    )
    django.setup()

    def view(answer: Callable[[Any, dict[str, str]], Any]) -> Any:
        async def handler(request: HttpRequest) -> Any:
            result = await answer(request, request.GET.dict())
            return JsonResponse(result) if isinstance(result, dict) else result

        return handler

    async def show(request: HttpRequest) -> JsonResponse:
        return JsonResponse(state())

    routes = [path(name, view(answer)) for name, answer in ANSWERS.items()]
    globals()["urlpatterns"] = [*routes, path("state", show)]
    return ASGIHandler()


def quart_app() -> Any:
    from quart import Quart, request

    app = Quart("served")

    def view(answer: Callable[[Any, dict[str, str]], Any]) -> Any:
        async def handler() -> Any:
            await request.get_data()
            return await answer(request, request.args.to_dict())

        return handler

    for name, answer in ANSWERS.items():
        app.add_url_rule(f"/{name}", name, view(answer), methods=["POST"])

    @app.get("/state")
    async def show() -> Any:
        return state()

    return app


def sanic_app() -> Any:
    from sanic import Sanic
    from sanic.response import json

    app = Sanic("served", configure_logging=False)
    app.config.FALLBACK_ERROR_FORMAT = "json"

    def view(name: str, answer: Callable[[Any, dict[str, str]], Any]) -> Any:
        async def handler(request: Any) -> Any:
            result = await answer(request, dict(request.query_args))
            return json(result) if result is not None else None

        handler.__name__ = name
        return handler

    for name, answer in ANSWERS.items():
        app.add_route(view(name, answer), f"/{name}", methods=["POST"])

    async def show(_: Any) -> Any:
        return json(state())

    app.add_route(show, "/state")
    return app


FRAMEWORKS: dict[str, Callable[[], Any]] = {
    "starlette": starlette_app,  # behind BaseHTTPMiddleware
    "fastapi": fastapi_app,
    "litestar": litestar_app,
    "plain": plain_app,
    "django": django_app,
    "quart": quart_app,
    "sanic": sanic_app,
    "aiohttp": aiohttp_app,
}


def exec_server(framework: str, module: str, *arguments: str) -> None:
    """Replace this process with a server that imports the application by name and takes the open socket."""
    sock = listening()
    sock.set_inheritable(True)
    command = [sys.executable, "-X", "dev", "-m", module, *(word.format(fd=sock.fileno()) for word in arguments), "apps:APP"]
    os.environ["SERVED_FRAMEWORK"] = framework
    os.execv(sys.executable, command)


def exec_granian(framework: str) -> None:
    """Run granian, which takes no open socket: it gets a port that was free a moment ago."""
    sock = listening()
    port = sock.getsockname()[1]
    sock.close()
    os.environ["SERVED_FRAMEWORK"] = framework
    options = ["--interface", "asgi", "--host", "127.0.0.1", "--port", str(port), "--no-ws"]
    os.execv(sys.executable, [sys.executable, "-X", "dev", "-m", "granian", *options, "apps:APP"])


GUNICORN = ("--bind", "fd://{fd}", "--workers", "1", "--graceful-timeout", "1", "--log-level", "warning")


def serve_own(framework: str) -> None:
    """Run the server that comes with the framework."""
    app = FRAMEWORKS[framework]()
    if framework == "aiohttp":
        from aiohttp import web

        web.run_app(app, sock=listening(), print=lambda *_: None, handle_signals=True)
    else:
        app.run(sock=listening(), single_process=True, motd=False, access_log=False)


SERVERS: dict[str, Callable[[str], None]] = {
    "own": serve_own,
    "uvicorn": lambda name: serve_uvicorn(FRAMEWORKS[name](), "httptools"),
    "uvicorn-uvloop": lambda name: serve_uvicorn(FRAMEWORKS[name](), "httptools", "uvloop"),
    "uvicorn-h11": lambda name: serve_uvicorn(FRAMEWORKS[name](), "h11"),
    "hypercorn": lambda name: serve_hypercorn(FRAMEWORKS[name]()),
    "granian": exec_granian,
    "daphne": lambda name: exec_server(name, "daphne", "--fd", "{fd}", "-v", "0"),
    "gunicorn-uvicorn": lambda name: exec_server(name, "gunicorn", *GUNICORN, "-k", "uvicorn_worker.UvicornWorker"),
    "gunicorn-asgi": lambda name: exec_server(name, "gunicorn", *GUNICORN, "-k", "asgi"),
    "gunicorn-aiohttp": lambda name: exec_server(name, "gunicorn", *GUNICORN, "-k", "aiohttp.GunicornWebWorker"),
}

if os.environ.get("SERVED_FRAMEWORK"):
    APP = FRAMEWORKS[os.environ["SERVED_FRAMEWORK"]]()

if __name__ == "__main__":
    SERVERS[sys.argv[2]](sys.argv[1])
