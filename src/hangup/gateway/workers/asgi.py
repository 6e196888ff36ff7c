"""Calls an ASGI application without a server: the worker's admin API answers the supervisor this way."""

from __future__ import annotations

from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Scope

from hangup.gateway.admin.guard import CSRF_HEADER

HOST = "localhost"


async def ask_app(app: ASGIApp, method: str, target: str) -> tuple[int, bytes]:
    """Return the status and the body of the answer to a request without a body."""
    path, _, query = target.partition("?")
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", HOST.encode()), (CSRF_HEADER.encode(), b"1")],
        "client": None,
        "server": (HOST, 0),
    }
    status, parts = 500, list[bytes]()

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return status, b"".join(parts)
