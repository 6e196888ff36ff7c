"""The fake engine's HTTP server: one call at a time per connection, no pipelining; control pages under /standin/."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import asdict
from typing import Any, cast
from urllib.parse import unquote

import httptools
import orjson

from hangup.fake_engine import websocket
from hangup.fake_engine.engine import EXTRA_USAGE_TOKENS, Behaviour, FakeEngine, FakeWork
from hangup.fake_engine.openai_responses import FakeResponses
from hangup.fake_engine.plain_responses import PATHS, FakePlain, read_form, tokenizer_answer
from hangup.fake_engine.profiles import PROFILES, EngineProfile
from hangup.fake_engine.response import FakeResponse
from hangup.fake_engine.responses import response_class
from hangup.fake_engine.websocket import FakeWebSocket
from hangup.tasks import TASKS

MODEL = "standin"
SEEN_MAX = 20_000  # requests to remember, for tests that check what reached the engine
SEEN_BODY_BYTES_MAX = 1024 * 1024
RESPONSES_MAX = 1000  # stored responses, as vLLM keeps them with VLLM_ENABLE_RESPONSES_API_STORE


class FakeEngineServer:
    """The fake engine and the state that its connections share."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.engine = FakeEngine(behaviour, crash=lambda: os.kill(os.getpid(), signal.SIGKILL))
        self.seen: list[dict[str, Any]] = []
        self.responses: dict[str, Any] = {}
        self.connections = 0
        self.websockets = 0
        self.calls = 0

    def remember(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        if len(self.seen) < SEEN_MAX:
            text = body[:SEEN_BODY_BYTES_MAX].decode("utf-8", "replace")
            self.seen.append({"method": method, "path": path, "headers": headers, "body": text, "bytes": len(body)})

    def store_response(self, response: Any) -> None:
        if len(self.responses) >= RESPONSES_MAX:
            del self.responses[next(iter(self.responses))]
        self.responses[response["id"]] = response


class FakeEngineConnection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, standin: FakeEngineServer) -> None:
        self._standin = standin
        self._engine = standin.engine
        self._work: FakeWork | None = None
        self._response: FakeResponse | None = None
        self._embedding_timer: asyncio.TimerHandle | None = None
        self._inputs = 0
        self._socket: FakeWebSocket | None = None
        self._reset()

    def _reset(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._standin.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self._standin.connections -= 1
        self._standin.websockets -= self._socket is not None
        if self._embedding_timer is not None and not self._engine.behaviour.deaf:
            self._embedding_timer.cancel()
            self._end_embedding(None)
        if self._work is not None:
            work, self._work = self._work, None
            self._profile.client_left(self._engine, work, self._response is not None and self._response.stream)

    def data_received(self, data: bytes) -> None:
        if self._socket is not None:
            self._socket.feed(data)
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._socket is not None:
                self._socket.feed(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._answer(400, {"error": {"message": str(error)}})
            self.transport.close()

    @property
    def _profile(self) -> EngineProfile:
        return PROFILES[self._engine.behaviour.like]

    # llhttp's callbacks

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode("ascii")
        path, _, query = self._target.decode("latin-1").partition("?")
        headers, body = self._headers, b"".join(self._body)
        self._reset()
        if not path.startswith("/standin/") and path not in ("/health", "/metrics"):
            self._standin.remember(method, path, headers, body)
        try:
            if path == "/v1/generation" and (page := self._profile.usage(query.removeprefix("id="), self._engine)):
                self._send(*page)
            else:
                self._handle(method, path, headers, body)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._answer(400, {"error": {"message": f"bad request: {error}", "type": "invalid_request_error"}})

    # Paths

    def _handle(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        if path.startswith("/standin/"):
            self._control(path, body)
        elif method == "OPTIONS" and self._engine.behaviour.cors and "access-control-request-method" in headers:
            self._send(200, b"text/plain", b"OK")
        elif path == "/health":
            self._answer(200, {"status": "ok"})
        elif path == "/v1/realtime" and "sec-websocket-key" in headers:
            self.transport.write(websocket.accepted(headers["sec-websocket-key"]))
            self._socket = FakeWebSocket(self.transport)
            self._standin.websockets += 1
        elif path == "/v1/models" or path.startswith("/v1/models/"):
            self._answer_models(path)
        elif method == "GET" and (page := self._profile.page(path, self._engine)) is not None:
            if self._profile.answers(path, self._engine):
                self._send(*page)
        elif method == "POST" and "abort" in path and (page := self._profile.abort(path, orjson.loads(body), self._engine)):
            self._send(*page)
        elif method == "POST" and (missing := self._missing_model(headers, body)):
            message = f"The model `{missing}` does not exist."
            self._answer(404, {"error": {"message": message, "type": "NotFoundError", "param": "model", "code": 404}})
        elif method == "POST" and path == "/v1/embeddings":
            self._embed(_embeddings_answer(orjson.loads(body)))
        elif method == "POST" and path == "/v1/messages/count_tokens":
            self._answer(200, {"input_tokens": len(body.split())})
        elif path.startswith("/v1/responses/"):
            self._answer_stored(method, path)
        elif method == "POST":
            is_form = headers.get("content-type", "").startswith("multipart/form-data")
            value = read_form(body) if is_form else orjson.loads(body)
            if (answer := tokenizer_answer(path, value)) is not None:
                self._answer(200, answer)
            else:
                self._generate(path, headers, value)
        else:
            self._answer(404, {"error": {"message": "not found", "type": "not_found_error"}})

    @property
    def _models(self) -> list[str]:
        """The only models that it accepts; empty if it accepts any name."""
        return [name for name in self._engine.behaviour.models.split(",") if name]

    def _answer_models(self, path: str) -> None:
        rows = {
            name: {"id": name, "object": "model", "created": 0, "owned_by": self._profile.owner}
            for name in self._models or [MODEL]
        }
        if self._models:
            rows = {name: row | {"root": name, "parent": None} for name, row in rows.items()}
        name = unquote(path.removeprefix("/v1/models").removeprefix("/"))
        if name and self._models and name not in rows:
            self._answer(404, {"error": {"message": f"The model `{name}` does not exist.", "type": "NotFoundError"}})
        else:
            row = rows.get(name) or next(iter(rows.values()))
            self._answer(200, row if name else {"object": "list", "data": list(rows.values())})

    def _missing_model(self, headers: dict[str, str], body: bytes) -> str:
        """Return the requested model's name if the engine does not have it, or an empty string."""
        if not self._models or not headers.get("content-type", "").startswith("application/json"):
            return ""
        value = orjson.loads(body)
        name = value.get("model") if isinstance(value, dict) else None
        return name if isinstance(name, str) and name not in self._models else ""

    def _control(self, path: str, body: bytes) -> None:
        standin = self._standin
        match path.removeprefix("/standin/"):
            case "stats":
                open_now = {"connections": standin.connections, "websockets": standin.websockets}
                self._answer(200, {**standin.engine.stats(), **open_now, "pid": os.getpid()})
            case "seen":
                self._answer(200, {"seen": standin.seen})
            case "past":
                self._answer(200, {"past": [asdict(past) for past in standin.engine.past]})
            case "behave":
                standin.engine.behaviour.change(orjson.loads(body or b"{}"))
                self._answer(200, asdict(standin.engine.behaviour))
            case "forget_peaks":
                standin.engine.reset_peaks()
                self._answer(200, {})
            case "abort":
                self._answer(200, {"tokens": standin.engine.abort(orjson.loads(body)["id"])})
            case _:
                self._answer(404, {"error": {"message": "unknown control"}})

    def _answer_stored(self, method: str, path: str) -> None:
        id, _, action = path.removeprefix("/v1/responses/").partition("/")
        response = self._standin.responses.get(id)
        if response is None or (method, action) not in (("GET", ""), ("POST", "cancel")):
            self._answer(404, {"error": {"message": f"unknown response {id}", "type": "not_found_error"}})
        else:
            self._answer(200, response)

    def _generate(self, path: str, headers: dict[str, str], request: dict[str, Any]) -> None:
        behaviour = self._engine.behaviour
        if behaviour.fail_status:
            self._answer(behaviour.fail_status, {"error": {"message": "configured to fail", "type": "server_error"}})
            return
        kind = FakePlain if path in PATHS and "messages" not in request else response_class(path, request)
        if kind is None:
            self._answer(404, {"error": {"message": "not found", "type": "not_found_error"}})
            return
        self._standin.calls += 1
        id = str(request.get(self._profile.id_field) or headers.get("x-request-id") or f"call-{self._standin.calls}")
        response = kind(request, id, MODEL)
        if response.stream and behaviour.refuse_stream:
            self._answer(400, {"error": {"message": "streaming is not supported", "type": "invalid_request_error"}})
            return
        response.stream = response.stream and not behaviour.ignore_stream
        response.set_length(behaviour.answer_tokens, behaviour.ignore_cap)
        response.extra_usage = EXTRA_USAGE_TOKENS if self._engine.lies("usage") else 0
        self._response = response
        work = FakeWork(id, response.prompt_tokens, response.length, response.choices, self._on_token, self._on_end)
        work.stream = response.stream
        work.wanted_slot = request.get("id_slot") if self._profile.name == "llamacpp" else None
        self._work = work
        if not self._engine.submit(work):
            self._work = None
            self._refuse()
        elif response.stream:
            head = b"HTTP/1.1 200 OK\r\nserver: %b\r\n%b%bcontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n"
            prefix = self._profile.id_prefix
            id_line = f"x-generation-id: {prefix}{id}\r\n".encode() if prefix else b""
            self.transport.write(head % (self._profile.server.encode(), self._cors(), id_line, response.content_type))

    def _refuse(self) -> None:
        status, retry_after_s = self._engine.behaviour.full_status, self._engine.behaviour.retry_after_s
        kind = "rate_limit_error" if status == 429 else "server_error"
        retry_after = b"retry-after: %d\r\n" % max(round(retry_after_s), 1) if retry_after_s else b""
        body = orjson.dumps({"error": {"message": "the queue is full", "type": kind}})
        self._send(status, b"application/json", body, retry_after)

    def _embed(self, answer: dict[str, Any]) -> None:
        """Answer an embeddings call after `embed_s`. It takes no slot; a hangup ends it."""
        if not self._engine.behaviour.embed_s:
            self._answer(200, answer)
            return
        self._inputs = len(answer["data"])
        self._engine.embedding += self._inputs
        loop = asyncio.get_running_loop()
        self._embedding_timer = loop.call_later(self._engine.behaviour.embed_s, self._end_embedding, answer)

    def _end_embedding(self, answer: dict[str, Any] | None) -> None:
        self._engine.embedding -= self._inputs
        self._embedding_timer = None
        if answer is not None and not self.transport.is_closing():
            self._answer(200, answer)

    # The engine's callbacks

    def _on_token(self, index: int) -> None:
        response = self._response
        assert response is not None
        if response.stream:
            events = response.opening() if index == 0 else []
            events += [response.token(choice, index) for choice in range(response.choices)]
            self.transport.write(b"".join([b"%x\r\n%b\r\n" % (len(event), event) for event in events]))

    def _on_end(self) -> None:
        response, work = self._response, self._work
        self._response = self._work = None
        assert response is not None and work is not None
        if work.computed < response.length and self._engine.behaviour.cut_after:
            self.transport.write(b"0\r\n\r\n")  # a truncated answer that looks complete to HTTP
        elif work.computed < response.length:
            self.transport.close()  # aborted by id
        elif response.stream:
            self._store_response(response, work.computed)
            events = response.closing(work.computed)
            self.transport.write(b"".join([b"%x\r\n%b\r\n" % (len(e), e) for e in events]) + b"0\r\n\r\n")
        else:
            self._store_response(response, work.computed)
            self._answer(200, response.whole(work.computed))

    def _store_response(self, response: FakeResponse, count: int) -> None:
        if isinstance(response, FakeResponses) and response.request.get("store", True):
            self._standin.store_response(response.whole(count))

    def _answer(self, status: int, value: Any) -> None:
        self._send(status, b"application/json", orjson.dumps(value))

    def _send(self, status: int, kind: bytes, body: bytes, extra_headers: bytes = b"") -> None:
        head = b"HTTP/1.1 %d X\r\nserver: %b\r\n%bcontent-type: %b\r\n%bcontent-length: %d\r\n\r\n"
        self.transport.write(
            head % (status, self._profile.server.encode(), self._cors(), kind, extra_headers, len(body)) + body
        )

    def _cors(self) -> bytes:
        """Return the CORS headers that vLLM and SGLang send by default."""
        if not self._engine.behaviour.cors:
            return b""
        return b"access-control-allow-origin: *\r\naccess-control-allow-methods: GET, POST\r\naccess-control-max-age: 600\r\n"


def _embeddings_answer(request: dict[str, Any]) -> dict[str, Any]:
    given = request.get("input", "")
    texts = given if isinstance(given, list) and given and not isinstance(given[0], int) else [given]
    rows = [{"object": "embedding", "index": i, "embedding": [0.5, -0.5, float(len(str(t)))]} for i, t in enumerate(texts)]
    usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
    return {"object": "list", "data": rows, "model": request.get("model") or MODEL, "usage": usage}


class Running:
    """A running fake engine; it serves until `close`."""

    def __init__(self, standin: FakeEngineServer, server: asyncio.Server, task: asyncio.Task[None]) -> None:
        self.standin = standin
        self.port: int = server.sockets[0].getsockname()[1]
        self._server = server
        self._task = task

    async def close(self) -> None:
        self._server.close()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def start(behaviour: Behaviour, host: str = "127.0.0.1", port: int = 0) -> Running:
    loop = asyncio.get_running_loop()
    standin = FakeEngineServer(behaviour)
    server = await loop.create_server(lambda: FakeEngineConnection(standin), host, port, backlog=4096)
    return Running(standin, server, TASKS.start("standin", standin.engine.run()))
