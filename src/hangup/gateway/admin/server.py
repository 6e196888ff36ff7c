"""The admin port's routes, and the server that runs them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from functools import partial
from importlib.resources import files

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from hangup.config import ClientLimits
from hangup.gateway.admin import api, metrics
from hangup.gateway.admin.connection import bounded
from hangup.gateway.admin.guard import PAGE_PATHS, Guard, Policy
from hangup.gateway.admin.view import GatewayView

_FILES = files("hangup.gateway.admin") / "page"
_PAGE = {  # what the page loads, which is nothing from elsewhere
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/uplot.css": ("uplot/uplot.css", "text/css"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript") for name in ("page", "parts", "graph")},
    "/uplot.js": ("uplot/uplot.js", "text/javascript"),
}
assert set(_PAGE) == PAGE_PATHS


async def page(file: str, kind: str, request: Request) -> Response:
    """Serve a file of the dashboard."""
    return Response((_FILES / file).read_bytes(), media_type=kind)


def page_routes() -> list[Route]:
    return [Route(path, partial(page, file, kind)) for path, (file, kind) in _PAGE.items()]


def make_app(view: GatewayView, policy: Policy) -> Starlette:
    collectors = metrics.registry(view)
    scraping = asyncio.Lock()  # one page at a time: each takes turns on the loop that carries the calls

    async def healthz(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        why_not = view.ready()
        lines = ["ready" if why_not is None else why_not, *(f"not running: {each}" for each in view.not_running())]
        return PlainTextResponse("\n".join(lines) + "\n", 200 if why_not is None else 503)

    async def metrics_page(request: Request) -> Response:
        async with scraping:
            body, kind = await metrics.render(collectors, request.headers.get("accept", ""))
        return Response(body, headers={"content-type": kind})

    async def fault(request: Request, error: Exception) -> Response:
        view.fault(error)
        return JSONResponse({"error": "internal gateway error; see the gateway log"}, 500)

    return Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics_page),
            *api.routes(view),
            *page_routes(),
        ],
        middleware=[Middleware(Guard, policy)],
        exception_handlers={Exception: fault},
    )


class AdminServer(uvicorn.Server):
    """Runs uvicorn on the gateway's socket, and leaves signals to the gateway."""

    def __init__(self, app: Starlette, sock: socket.socket, limits: ClientLimits) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=bounded(limits),
                ws="none",
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=1,
            )
        )
        self._sock = sock
        self._stopping = app.state.stopping = asyncio.Event()  # ends streams, which would never end by themselves

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def run_until_stopped(self) -> None:
        await self.serve(sockets=[self._sock])

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()
