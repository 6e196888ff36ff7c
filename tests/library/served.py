"""An application with a counting engine, under a server of choice: `python served.py SERVER`.

Prints `serving PORT` and runs until it is killed. Every call has an id, under which the engine keeps its count. (No postponed
annotations here: FastAPI and Litestar could not resolve those of handlers that are defined in functions.)
"""

import asyncio
import os
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import hangup

FILLER = b"x" * 16384
NO_HOLD = (1 << 30, 0.0)  # after how many tokens the engine takes how many seconds for each


@dataclass
class Work:
    """What the engine computed for one call, and how the call ended."""

    computed: int = 0
    running: bool = False
    aborted: int = 0
    ended: list[dict[str, Any]] = field(default_factory=list)


class CountingEngine:
    def __init__(self) -> None:
        self.works: dict[str, Work] = {}
        self._aborted: dict[str, threading.Event] = {}

    def aborted(self, id: str) -> threading.Event:
        """Return what is set when the library aborts the call."""
        return self._aborted.setdefault(id, threading.Event())

    def work(self, id: str) -> Work:
        return self.works.setdefault(id, Work())

    async def tokens(
        self, id: str, pace_s: float, size: int = 0, count: int = 1000, hold: tuple[int, float] = NO_HOLD
    ) -> AsyncIterator[bytes]:
        work = self.work(id)
        work.running = True
        try:
            for _ in range(count):
                await asyncio.sleep(hold[1] if work.computed >= hold[0] else pace_s)
                work.computed += 1
                yield FILLER if size else b"data: token\n\n"
        finally:
            work.running = False

    async def whole(self, *asked: Any) -> str:
        return b"".join([token async for token in self.tokens(*asked)]).decode()

    def blocking(
        self, id: str, pace_s: float, size: int = 0, count: int = 1000, hold: tuple[int, float] = NO_HOLD
    ) -> Iterator[bytes]:
        """Generate like llama-cpp-python: a plain generator that blocks its thread. A token for which it takes long is ready
        when the call is aborted: how long that takes is the machine's business."""
        work = self.work(id)
        work.running = True
        try:
            for _ in range(count):
                if work.computed >= hold[0]:
                    self.aborted(id).wait(hold[1])
                else:
                    time.sleep(pace_s)
                work.computed += 1
                yield FILLER if size else b"data: token\n\n"
        finally:
            work.running = False

    def blocking_whole(self, token: hangup.CancelToken, *asked: Any) -> str:
        return "".join(chunk.decode() for chunk in iter_until(self.blocking(*asked), token))


def iter_until(chunks: Iterator[bytes], token: hangup.CancelToken) -> Iterator[bytes]:
    for chunk in chunks:
        if token.cancelled:
            break
        yield chunk


ENGINE = CountingEngine()


def limits(q: dict[str, str]) -> dict[str, Any]:
    work = ENGINE.work(q["id"])

    def abort() -> None:
        work.aborted += 1
        ENGINE.aborted(q["id"]).set()

    return {
        "client_silence_s": float(q.get("silence_s", "30")),
        "abort": abort,
        "on_end": lambda ended: work.ended.append(asdict(ended)),
        "total_s": float(q.get("total_s", "60")),
    }


def stream_limits(q: dict[str, str]) -> dict[str, Any]:
    names = ("first_token_s", "gap_s", "write_stall_s")
    given: dict[str, Any] = {name: float(q[name]) for name in names if name in q}
    if "max_tokens" in q:
        given["max_tokens"] = int(q["max_tokens"])
    return limits(q) | given


def read_query(q: dict[str, str]) -> tuple[str, float, int, int, tuple[int, float]]:
    hold = (int(q["hold_after"]), float(q["hold_s"])) if "hold_s" in q else NO_HOLD
    return q["id"], float(q["pace_s"]), int(q.get("size", "0")), int(q.get("count", "1000")), hold


def streamed(request: Any, q: dict[str, str]) -> Any:
    return hangup.stream(request, ENGINE.tokens(*read_query(q)), **stream_limits(q))


def threaded(request: Any, q: dict[str, str]) -> Any:
    return hangup.stream(request, ENGINE.blocking(*read_query(q)), **stream_limits(q))


async def awaited(request: Any, q: dict[str, str]) -> dict[str, Any]:
    return {"text": await hangup.run(request, ENGINE.whole(*read_query(q)), **limits(q))}


async def threaded_whole(request: Any, q: dict[str, str]) -> dict[str, Any]:
    def work(token: hangup.CancelToken) -> str:
        return ENGINE.blocking_whole(token, *read_query(q))

    return {"text": await hangup.run(request, work, **limits(q))}


def state() -> dict[str, Any]:
    """Return the engine's counts, and what the library still holds in the process."""
    tasks = [t.get_name() for t in asyncio.all_tasks() if t.get_name().startswith("hangup")]
    threads = [t.name for t in threading.enumerate() if t.name.startswith("hangup")]
    return {"works": {id: asdict(work) for id, work in ENGINE.works.items()}, "tasks": tasks, "threads": threads}


# The same application for each framework


def starlette_app(middleware: bool = True) -> Any:
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    class Plain(BaseHTTPMiddleware):
        async def dispatch(self, request: Any, call_next: Any) -> Any:
            return await call_next(request)

    def route(answer: Callable[[Any, dict[str, str]], Any]) -> Any:
        async def handler(request: Any) -> Any:
            await request.body()
            result = answer(request, dict(request.query_params))
            return JSONResponse(await result) if asyncio.iscoroutine(result) else result

        return handler

    async def show(_: Any) -> Any:
        return JSONResponse(state())

    routes = [Route(f"/{name}", route(answer), methods=["POST"]) for name, answer in ANSWERS.items()] + [Route("/state", show)]
    return Starlette(routes=routes, middleware=[Middleware(Plain)] if middleware else [])


def fastapi_app() -> Any:
    from fastapi import FastAPI, Request

    app = FastAPI()

    def route(answer: Callable[[Any, dict[str, str]], Any]) -> Any:
        async def handler(request: Request) -> Any:
            result = answer(request, dict(request.query_params))
            return await result if asyncio.iscoroutine(result) else result

        return handler

    for name, answer in ANSWERS.items():
        app.post(f"/{name}")(route(answer))

    @app.post("/tethered")
    @hangup.tethered(total_s=60)
    async def run(id: str, pace_s: float) -> dict[str, str]:
        return {"text": await ENGINE.whole(id, pace_s)}

    @app.get("/state")
    async def show() -> Any:
        return state()

    return app


def gated_app() -> Any:
    """Build an application with a gate for each way through it. Work behind a gate stays until it is released."""
    from fastapi import Depends, FastAPI, Request

    app = FastAPI()
    gates = {way: hangup.Gate(slots=2, queue=4, max_wait_s=20) for way in ("dependency", "context", "middleware")}
    gates["brief"] = hangup.Gate(slots=1, queue=4, max_wait_s=0.3)
    ran: dict[str, list[str]] = {way: [] for way in gates}
    most = dict.fromkeys(gates, 0)
    released = {way: asyncio.Event() for way in gates}

    async def stay(way: str, id: str) -> str:
        ran[way].append(id)
        most[way] = max(most[way], gates[way].running)
        await released[way].wait()
        return id

    @app.post("/dependency", dependencies=[Depends(gates["dependency"])])
    async def dependency(id: str) -> str:
        return await stay("dependency", id)

    @app.post("/context")
    async def context(request: Request, id: str) -> str:
        async with gates["context"].enter(request):
            return await stay("context", id)

    @app.post("/middleware")
    async def behind(id: str) -> str:
        return await stay("middleware", id)

    @app.post("/brief")
    async def brief(request: Request, id: str) -> str:
        async with gates["brief"].enter(request):
            return await stay("brief", id)

    @app.post("/release-{way}")
    async def release(way: str) -> None:
        released[way].set()

    @app.get("/state")
    async def show() -> Any:
        rows = {
            way: {"running": gate.running, "waiting": gate.waiting, "refused": gate.refused, "ran": ran[way], "most": most[way]}
            for way, gate in gates.items()
        }
        return {"gates": rows} | state()

    app.add_middleware(gates["middleware"].middleware, paths=("/middleware",))
    return app


def litestar_app() -> Any:
    from litestar import Litestar, Request, Response, get, post

    def streaming(name: str) -> Any:
        @post(f"/{name}")
        async def handler(request: Request) -> Response:  # type: ignore[type-arg]
            response: Response[Any] = ANSWERS[name](request, dict(request.query_params))
            return response

        return handler

    def whole(name: str) -> Any:
        @post(f"/{name}")
        async def handler(request: Request) -> dict[str, Any]:  # type: ignore[type-arg]
            return dict(await ANSWERS[name](request, dict(request.query_params)))

        return handler

    @get("/state")
    async def show() -> dict[str, Any]:
        return state()

    return Litestar([streaming("stream"), streaming("thread"), whole("run"), whole("thread_run"), show])


def plain_app() -> Any:
    import json
    from urllib.parse import parse_qsl

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        q = dict(parse_qsl(scope["query_string"].decode()))
        status, headers, body = 200, {}, state()
        if scope["path"] != "/state":
            result = ANSWERS[scope["path"].removeprefix("/")]((scope, receive), q)
            if not asyncio.iscoroutine(result):
                await result(scope, receive, send)
                return
            try:
                body = await result
            except hangup.CallEnded as error:
                status, headers, body = error.ended.status, error.answer_headers, {"error": str(error)}
        fields = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})

    return app


def aiohttp_app() -> Any:
    from aiohttp import web

    def route(answer: Callable[[Any, dict[str, str]], Any]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handler(request: web.Request) -> web.StreamResponse:
            await request.read()
            result = answer(request, dict(request.query))
            return web.json_response(await result) if asyncio.iscoroutine(result) else result

        return handler

    async def show(_: web.Request) -> web.StreamResponse:
        return web.json_response(state())

    app = web.Application()
    app.add_routes([web.post(f"/{name}", route(answer)) for name, answer in ANSWERS.items()] + [web.get("/state", show)])
    return app


ANSWERS: dict[str, Callable[[Any, dict[str, str]], Any]] = {
    "stream": streamed,
    "run": awaited,
    "thread": threaded,
    "thread_run": threaded_whole,
}


# The servers


def listening() -> socket.socket:
    sock = socket.create_server(("127.0.0.1", 0), backlog=128)
    print(f"serving {sock.getsockname()[1]}", flush=True)
    return sock


def serve_uvicorn(app: Any, http: str, loop: str = "asyncio") -> None:
    import uvicorn

    config = uvicorn.Config(app, http=http, loop=loop, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listening()])


def serve_hypercorn(app: Any) -> None:
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    sock = listening()
    config = Config()
    config.bind = [f"fd://{sock.fileno()}"]
    config.errorlog = "-"
    asyncio.run(serve(app, config))


def serve_granian(app: Any) -> None:
    """Run granian, which starts workers that import the application by name, and takes no open socket."""
    from granian.constants import Interfaces
    from granian.server import Server

    with socket.socket() as held:  # so that nobody else is given this port before granian has it
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        print(f"serving {port}", flush=True)
        Server("served:APP", "127.0.0.1", port, interface=Interfaces.ASGI, log_access=False, log_enabled=False).serve()


def serve_aiohttp() -> None:
    from aiohttp import web

    web.run_app(aiohttp_app(), sock=listening(), print=lambda *_: None, handle_signals=True)


SERVERS: dict[str, Callable[[], None]] = {
    "uvicorn-httptools": lambda: serve_uvicorn(starlette_app(), "httptools"),
    "uvicorn-h11": lambda: serve_uvicorn(starlette_app(), "h11"),
    "uvicorn-uvloop": lambda: serve_uvicorn(starlette_app(middleware=False), "httptools", "uvloop"),
    "uvicorn-fastapi": lambda: serve_uvicorn(fastapi_app(), "httptools"),
    "uvicorn-gated": lambda: serve_uvicorn(gated_app(), "httptools"),
    "uvicorn-litestar": lambda: serve_uvicorn(litestar_app(), "httptools"),
    "uvicorn-plain": lambda: serve_uvicorn(plain_app(), "httptools"),
    "hypercorn": lambda: serve_hypercorn(starlette_app()),
    "granian": lambda: serve_granian(None),
    "aiohttp": serve_aiohttp,
}

APP = starlette_app() if os.environ.get("SERVED_BY_NAME") else None

if __name__ == "__main__":
    SERVERS[sys.argv[1]]()
