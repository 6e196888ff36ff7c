"""The engine's HTTP server: its connections, its calls by id, and the pages about the engine itself."""

from __future__ import annotations

import asyncio
import math
import re
import secrets
from collections.abc import Callable

import orjson

from hangup.config import TrafficLimits
from hangup.core import reasons
from hangup.core.reasons import Reason
from hangup.engine.options import EngineOptions
from hangup.engine.runner import EngineRunner
from hangup.engine.serving import metrics
from hangup.engine.serving.answers import AnswerShape, Json, error
from hangup.engine.serving.call import EngineCall, respond
from hangup.engine.serving.embeddings import EmbeddingsCall
from hangup.engine.serving.generation import ChatCall, CompletionCall
from hangup.engine.serving.messages import CountTokensCall, MessageAnswer, MessagesCall
from hangup.engine.serving.responses import ResponsesCall
from hangup.errors import HangupError
from hangup.gateway.backends import memory
from hangup.gateway.backends.connection import EngineConnection
from hangup.gateway.client import sockets
from hangup.gateway.client.connection import ClientConnection
from hangup.gateway.client.end_queue import EndQueue
from hangup.gateway.client.handlers import RequestHandler
from hangup.gateway.http.head import RequestHead

_SECONDS = re.compile(rb"[0-9]{1,7}(?:\.[0-9]{1,9})?")
_ID = re.compile(r"[\x21-\x7e]{1,200}")
_CALLS: dict[str, type[EngineCall]] = {
    "/v1/chat/completions": ChatCall,
    "/v1/completions": CompletionCall,
    "/v1/messages": MessagesCall,
    "/v1/messages/count_tokens": CountTokensCall,
    "/v1/responses": ResponsesCall,
    "/v1/embeddings": EmbeddingsCall,
}
_CANCEL = "/v1/cancel/"


class EngineServer:
    """Owns the connections, routes requests and serves the pages."""

    half_close_is_hangup = True

    def __init__(self, runner: EngineRunner, limits: TrafficLimits) -> None:
        self.runner = runner
        self.options: EngineOptions = runner.options
        self.limits = limits
        self.connections: set[ClientConnection] = set()
        self.body_bytes = 0
        self.ends = EndQueue(self.connections)
        self._calls: dict[str, set[EngineCall]] = {}
        self._pages: dict[str, Callable[[], tuple[int, bytes, bytes]]] = {
            "/health": self._health,
            "/slots": lambda: (200, b"application/json", orjson.dumps(self.runner.status())),
            "/calls": self._all_calls,
            "/metrics": lambda: (200, b"text/plain; version=0.0.4; charset=utf-8", metrics.render(self.runner.counters())),
            "/v1/models": self._models,
        }

    # Connections

    def connected(self, connection: ClientConnection) -> bool:
        if len(self.connections) >= self.limits.connections_max:
            return False
        self.connections.add(connection)
        return True

    def keep_to_refuse(self, connection: ClientConnection) -> bool:
        return False

    def disconnected(self, connection: ClientConnection) -> None:
        self.connections.discard(connection)

    def open(self, connection: ClientConnection, head: RequestHead) -> RequestHandler | None:
        given = head.fields.get(b"x-request-id", b"").decode("latin-1")
        id = given if _ID.fullmatch(given) else secrets.token_hex(12)
        kind = _CALLS.get(head.path)
        if kind is not None and head.method == "POST":
            given_s = head.fields.get(b"x-request-timeout", b"")
            return kind(self, connection, id, float(given_s) if _SECONDS.fullmatch(given_s) else math.inf)
        return _Page(self, connection, head.method, head.path, id)

    def refuse_unreadable(self, connection: ClientConnection, reason: Reason, detail: str) -> None:
        body = orjson.dumps(error(reason.status, reason.code, detail or reason.message))
        respond(connection, reason.status, body, secrets.token_hex(12))

    # Calls, by the id that the client sent or the server generated

    def add_call(self, call: EngineCall) -> None:
        self._calls.setdefault(call.id, set()).add(call)

    def remove_call(self, call: EngineCall) -> None:
        calls = self._calls.get(call.id)
        if calls is not None:
            calls.discard(call)
            if not calls:
                del self._calls[call.id]

    # Pages

    def page(self, method: str, path: str) -> tuple[int, bytes, bytes]:
        """Return status, content type and body."""
        if path.startswith(_CANCEL) and method == "POST":
            calls = self._calls.get(path.removeprefix(_CANCEL), set())
            for call in calls:
                call.cancel()
            return (200 if calls else 404), b"application/json", orjson.dumps({"cancelled": len(calls)})
        render = self._pages.get(path)
        reason = reasons.METHOD_NOT_ALLOWED if render or path in _CALLS or path.startswith(_CANCEL) else reasons.NOT_FOUND
        if render is None or method not in ("GET", "HEAD"):
            return reason.status, b"application/json", orjson.dumps(_error(path, reason))
        return render()

    def _health(self) -> tuple[int, bytes, bytes]:
        alive = self.runner.alive
        return (
            (200 if alive else 503),
            b"application/json",
            orjson.dumps({"status": "ok" if alive else "the engine has stopped"}),
        )

    def _all_calls(self) -> tuple[int, bytes, bytes]:
        now = self.runner.counters()
        counts = {name: now[name] for name in ("running", "waiting", "tokens")}
        return 200, b"application/json", orjson.dumps({**counts, "calls": self.runner.calls(), "cut": self.runner.cut()})

    def _models(self) -> tuple[int, bytes, bytes]:
        model = self.runner.model
        row = {"id": model.name, "object": "model", "created": 0, "owned_by": "hangup", "max_model_len": model.context}
        return 200, b"application/json", orjson.dumps({"object": "list", "data": [row]})


class _Page:
    """Answers a request for a page as soon as the request is complete."""

    body_bytes_max = 64 * 1024

    def __init__(self, server: EngineServer, client: ClientConnection, method: str, path: str, id: str) -> None:
        self.body_s = server.limits.body_s
        self._server, self._client, self._method, self._path, self._id = server, client, method, path, id

    def body_piece(self, piece: bytes) -> bool:
        return False

    def body_arrived(self, body: bytes) -> None:
        status, kind, answer = self._server.page(self._method, self._path)
        respond(self._client, status, answer, self._id, kind)

    def refuse(self, reason: Reason, detail: str = "") -> None:
        answer = orjson.dumps(_error(self._path, reason, detail))
        respond(self._client, reason.status, answer, self._id)

    def fault(self, error: Exception) -> None:
        self.refuse(reasons.INTERNAL)
        raise error  # the event loop's handler logs it

    def on_due(self) -> None: ...

    def stop_engine(self, reason: Reason) -> None: ...

    def client_left(self, reason: Reason) -> None: ...

    def pause_engine(self) -> None: ...

    def resume_engine(self) -> None: ...


def _error(path: str, reason: Reason, detail: str = "") -> Json:
    """Return an error in the shape of the API that the path belongs to."""
    shape = MessageAnswer if path.startswith("/v1/messages") else AnswerShape
    return shape.error(reason.status, reason.code, detail or reason.message)


class Serving:
    """A running engine, with or without its own port. `close` ends every call and the engine's thread."""

    def __init__(self, server: EngineServer, loop: asyncio.AbstractEventLoop) -> None:
        self.server = server
        self.port = 0
        self._loop = loop
        self._listener: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> None:
        try:
            sock = sockets.listen(host, port, self.server.limits.client_silence_s)
        except OSError as failure:
            raise HangupError(f"cannot listen on {host}:{port}: {failure.strerror or failure}") from None
        self._listener = await self._loop.create_server(self._connection, sock=sock, backlog=sockets.BACKLOG)
        self.port = self._listener.sockets[0].getsockname()[1]

    def dial(self, make_connection: Callable[[], EngineConnection]) -> EngineConnection:
        """Connect from within the process, without a socket: a hangup is a function call."""
        return memory.connect(self._loop, make_connection, self._connection)

    def _connection(self) -> ClientConnection:
        return ClientConnection(self.server, self._loop)

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        await asyncio.to_thread(self.server.runner.stop)
        for connection in list(self.server.connections):
            connection.close_after_this()
        await asyncio.sleep(0)  # let the engine's last events arrive
        for connection in list(self.server.connections):
            connection.transport.abort()


def embed(options: EngineOptions, limits: TrafficLimits | None = None) -> Serving:
    """Start the engine in this process without a port; `Serving.dial` connects to it."""
    loop = asyncio.get_running_loop()
    runner = EngineRunner(options, loop)
    runner.start()
    return Serving(EngineServer(runner, limits or TrafficLimits()), loop)


async def start(options: EngineOptions, host: str = "127.0.0.1", port: int = 0, limits: TrafficLimits | None = None) -> Serving:
    """Start the engine with its own port."""
    serving = embed(options, limits)
    try:
        await serving.listen(host, port)
    except HangupError:
        await serving.close()
        raise
    return serving
