"""Rules about watching the client while the engine computes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hangup.lint.finding import Severity
from hangup.lint.rule import Hit, rule
from hangup.lint.source import Module, Site
from hangup.lint.vocabulary import Inference, is_handler, is_streaming_response, streams, watches_client


@rule(
    "HU004",
    "nobody-watches-client",
    Severity.WARNING,
    summary="A handler awaits a generation while nothing watches the client.",
    why="""Starlette, FastAPI, Litestar and aiohttp do not cancel a handler when its client disconnects: the generation
    runs to its end and the answer is discarded.""",
    hint="`await hangup.run(request, ...)`, or `@hangup.tethered` on the handler",
    bad="""
        from fastapi import FastAPI
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI(timeout=60)

        @app.post("/chat")
        async def chat(messages: list):
            return await client.chat.completions.create(model="m", messages=messages, max_tokens=500)
        """,
    good="""
        import hangup
        from fastapi import FastAPI, Request
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI(timeout=60)

        @app.post("/chat")
        async def chat(request: Request, messages: list):
            call = client.chat.completions.create(model="m", messages=messages, max_tokens=500)
            return await hangup.run(request, call, total_s=60)
        """,
)
def nobody_watches_client(module: Module) -> Iterator[Hit]:
    inference = Inference.of(module)
    if not inference:
        return
    for function in module.functions:
        if not function.is_async or function.yields or not is_handler(module, function):
            continue
        if _is_websocket(function.parameters) or watches_client(module, function):
            continue
        for site in function.calls:
            if not site.awaited or not inference.has(site):
                continue
            maker = inference.maker(site.node.func)
            if maker is not None and (maker.yields or _returns_stream(maker.calls) or watches_client(module, maker)):
                continue
            if streams(inference.source(site)) is False and not site.has_double_star:
                yield site.node, f"`{site.name}` runs to its end even if the client disconnects"
                break


def _is_websocket(parameters: list[ast.arg]) -> bool:
    return any("socket" in p.arg.lower() for p in parameters)


def _returns_stream(calls: list[Site]) -> bool:
    return any(is_streaming_response(site.name) for site in calls)


@rule(
    "HU010",
    "middleware-hides-disconnect",
    Severity.WARNING,
    summary="`BaseHTTPMiddleware` (or `@app.middleware`) hides disconnects from the handlers behind it.",
    why="""Behind it, `request.is_disconnected()` always returns False (measured with Starlette 1.10), so a handler that
    polls it runs to its end. It also runs the handler in a separate task and passes the response through a queue, so a
    failed write never reaches the handler. A plain ASGI middleware does neither.""",
    hint="write it as a plain ASGI middleware: `async def __call__(self, scope, receive, send)`",
    bad="""
        from starlette.middleware.base import BaseHTTPMiddleware

        class Timing(BaseHTTPMiddleware):
            async def dispatch(self, request, call_next):
                return await call_next(request)
        """,
    good="""
        class Timing:
            def __init__(self, app):
                self.app = app

            async def __call__(self, scope, receive, send):
                await self.app(scope, receive, send)
        """,
)
def middleware_hides_disconnect(module: Module) -> Iterator[Hit]:
    for node in module.classes:
        if any(module.dotted(base).rpartition(".")[2] == "BaseHTTPMiddleware" for base in node.bases):
            yield node, f"`{node.name}` hides disconnects from the handlers behind it"
    for function in module.functions:
        for decorator in function.decorators:
            if isinstance(decorator, ast.Call) and _is_http_middleware(module, decorator):
                yield decorator, f"`{function.name}` becomes a BaseHTTPMiddleware and hides disconnects from the handlers"


def _is_http_middleware(module: Module, decorator: ast.Call) -> bool:
    if not module.dotted(decorator.func).endswith(".middleware") or not decorator.args:
        return False
    first = decorator.args[0]
    return isinstance(first, ast.Constant) and first.value == "http"
