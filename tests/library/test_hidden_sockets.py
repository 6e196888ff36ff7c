"""Clients whose socket is hard to find: on Unix sockets, behind a trusted proxy, behind middleware that wraps `receive`.

A pipelined request hides their FIN from the server, so that only the socket shows it.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from hypercorn.asyncio import serve
from hypercorn.config import Config
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import hangup
from hangup.library import sockets
from library.served import CountingEngine
from support.waiting import wait_until

ENGINE = CountingEngine()
BODY = b"POST /run?id=%s HTTP/1.1\r\nHost: test\r\n%sContent-Length: 0\r\n\r\n"
NEXT = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n"
pytestmark = pytest.mark.skipif(not sockets.SUPPORTED, reason="Linux only")


async def run(request: Request) -> JSONResponse:
    await request.body()
    work = ENGINE.work(request.query_params["id"])
    answer = ENGINE.whole(request.query_params["id"], 0.01, 0, 30, (1, 60.0))  # the second token takes a minute
    text = await hangup.run(request, answer, on_end=lambda ended: work.ended.append(asdict(ended)))
    return JSONResponse({"text": text})


class Plain(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: Any) -> Any:
        return await call_next(request)


def application(middlewares: int) -> Starlette:
    return Starlette(routes=[Route("/run", run, methods=["POST"])], middleware=[Middleware(Plain)] * middlewares)


@contextmanager
def on_uvicorn(app: Any, path: Path | None) -> Iterator[Any]:
    config = uvicorn.Config(
        app, uds=str(path) if path else None, port=0, log_level="error", lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started, what="uvicorn to start")
        yield str(path) if path else server.servers[0].sockets[0].getsockname()
    finally:
        server.should_exit = True
        thread.join(60)


@contextmanager
def on_hypercorn(app: Any, path: Path) -> Iterator[Any]:
    config = Config()
    config.bind = [f"unix:{path}"]
    config.graceful_timeout = 1
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    def main() -> None:
        loop.run_until_complete(serve(app, config, shutdown_trigger=stop.wait))
        loop.close()

    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    try:
        wait_until(path.exists, what="hypercorn to start")
        yield str(path)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)


def leave_behind_a_pipelined_request(address: Any, id: str, header: bytes = b"") -> None:
    with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as client:
        client.connect(address)
        client.sendall(BODY % (id.encode(), header) + NEXT)
        wait_until(lambda: ENGINE.work(id).computed == 1, what="the first token")
    work = wait_until(lambda: (w := ENGINE.work(id)).ended and w, what="the end of the call")
    assert work and work.ended[0]["outcome"] == "client_gone", work
    assert work.computed == 1


@pytest.mark.parametrize("middlewares", [0, 1, 3])
def test_uvicorn_on_a_unix_socket(tmp_path: Path, middlewares: int) -> None:
    with on_uvicorn(application(middlewares), tmp_path / "s") as address:
        leave_behind_a_pipelined_request(address, f"uvicorn-{middlewares}")


def test_uvicorn_behind_a_trusted_proxy() -> None:
    with on_uvicorn(application(1), None) as address:
        leave_behind_a_pipelined_request(address, "proxy", b"X-Forwarded-For: 203.0.113.9\r\n")


def test_hypercorn_on_a_unix_socket(tmp_path: Path) -> None:
    with on_hypercorn(application(0), tmp_path / "s") as address:
        leave_behind_a_pipelined_request(address, "hypercorn")


def test_only_what_is_named_like_it_is_followed() -> None:
    """The transport of another connection, such as a database's, must never be taken for the client's."""

    class Database:
        transport = object()

        async def fetch(self) -> None: ...

    fetch = Database().fetch

    def wrap() -> Any:
        async def receive() -> None:
            await fetch()

        return receive

    assert sockets._transport_of(wrap(), "receive") is None
