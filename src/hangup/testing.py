"""For the tests of an application: an engine that counts what it computes, and a client that hangs up.

The test clients of the frameworks (Starlette's, httpx's ASGITransport) have no socket: they wait for the answer and cannot hang
up. So here the application runs on a real one.

    with CountingEngine() as engine, serve(make_app(engine.url)) as url, call(f"{url}/chat") as client:
        client.wait_for_data()
        client.hang_up()
        engine.wait_idle()
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import urlsplit

from hangup.tasks import TASKS

PATIENCE_S = 30.0  # how long a test waits for what should come at once
_LOOK_S = 0.02  # how often the engine looks whether it has been closed
_CHAT, _MESSAGES = "/v1/chat/completions", "/v1/messages"


class CountingEngine:
    """An engine at `url` that speaks OpenAI's chat completions and Anthropic's messages, and notices when its client closes.

    It computes `tokens` tokens of `token_s` each, after a prefill of `first_token_s`: by default longer than any test takes.
    """

    def __init__(self, *, tokens: int = 10_000, token_s: float = 0.02, first_token_s: float = 0.0) -> None:
        self.tokens_per_answer, self.token_s, self.first_token_s = tokens, token_s, first_token_s
        self.started = 0  # calls
        self.finished = 0  # calls that were computed to their end
        self.stopped = 0  # calls whose client left before
        self.tokens = 0  # of all calls
        self._changed = threading.Condition()
        self._closed = threading.Event()
        handler = type("Handler", (_Handler,), {"engine": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def running(self) -> int:
        return self.started - self.finished - self.stopped

    def wait_started(self, calls: int = 1) -> None:
        """Wait until so many calls have reached the engine."""
        self._wait(lambda: self.started >= calls, PATIENCE_S, lambda: f"the engine got {self.started} of {calls} calls")

    def wait_tokens(self, tokens: int) -> None:
        """Wait until the engine has computed so many tokens."""
        self._wait(lambda: self.tokens >= tokens, PATIENCE_S, lambda: f"the engine computed {self.tokens} of {tokens} tokens")

    def wait_idle(self, within_s: float = 5.0) -> None:
        """Fail unless the engine stops computing within this time."""
        self._wait(
            lambda: not self.running,
            within_s,
            lambda: f"the engine still computes {self.running} calls after {within_s:g} s: they were not stopped",
        )

    def _wait(self, condition: Callable[[], bool], within_s: float, message: Callable[[], str]) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, within_s):
                raise AssertionError(message())

    def count(self, name: str) -> None:
        with self._changed:
            setattr(self, name, getattr(self, name) + 1)
            self._changed.notify_all()

    def compute(self, client: socket.socket) -> Iterator[str]:
        """Yield the words of an answer at their times; end early when the client is gone."""
        for number in range(self.tokens_per_answer):
            if not self._sleep(client, self.token_s if number else self.token_s + self.first_token_s):
                return
            self.count("tokens")
            yield "word "

    def _sleep(self, client: socket.socket, seconds: float) -> bool:
        """Return whether the client is still there."""
        until = time.monotonic() + seconds
        while True:
            if self._closed.is_set() or _is_gone(client):
                return False
            left = until - time.monotonic()
            if left <= 0:
                return True
            self._closed.wait(min(left, _LOOK_S))

    def __enter__(self) -> CountingEngine:
        TASKS.thread_once("test engine", self._server.serve_forever, label="hangup.testing engine")
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that leaves is what this engine is for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: CountingEngine

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the test reports."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
        if self.path not in (_CHAT, _MESSAGES):
            known = f"hangup.testing.CountingEngine has {_CHAT} and {_MESSAGES}, not {self.path}"
            self._send_whole(404, {"error": {"message": known, "type": "not_found_error"}})
            return
        self.engine.count("started")
        outcome = "stopped"
        try:
            if self._answer(_Chat() if self.path == _CHAT else _Messages(), body.get("stream", False)):
                outcome = "finished"
        finally:
            self.engine.count(outcome)

    def _answer(self, api: _Chat | _Messages, in_stream: bool) -> bool:
        """Return whether the answer was computed to its end."""
        words: list[str] = []
        if in_stream:
            self._send_head(200, [("content-type", "text/event-stream"), ("transfer-encoding", "chunked")])
        for word in self.engine.compute(self.connection):
            if in_stream:
                self._send_events([*api.begin(), *api.word(word)] if not words else api.word(word))
            words.append(word)
        if len(words) < self.engine.tokens_per_answer:
            self.close_connection = True
            return False
        if in_stream:
            self._send_events(api.end(len(words)))
            self.wfile.write(b"0\r\n\r\n")
        else:
            self._send_whole(200, api.whole("".join(words), len(words)))
        return True

    def _send_head(self, status: int, headers: list[tuple[str, str]]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()

    def _send_whole(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self._send_head(status, [("content-type", "application/json"), ("content-length", str(len(data)))])
        self.wfile.write(data)

    def _send_events(self, events: list[Any]) -> None:
        data = b""
        for event in events:
            name = f"event: {event['type']}\n" if isinstance(event, dict) and "type" in event else ""
            data += f"{name}data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


class _Chat:
    """OpenAI's chat completions."""

    _HEAD: Mapping[str, Any] = {"id": "chatcmpl-fake", "object": "chat.completion.chunk", "created": 0, "model": "fake"}

    def _chunk(self, delta: dict[str, str], finish_reason: str | None = None) -> dict[str, Any]:
        return {**self._HEAD, "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}

    def begin(self) -> list[Any]:
        return [self._chunk({"role": "assistant", "content": ""})]

    def word(self, word: str) -> list[Any]:
        return [self._chunk({"content": word})]

    def end(self, tokens: int) -> list[Any]:
        return [self._chunk({}, "length"), "[DONE]"]

    def whole(self, text: str, tokens: int) -> dict[str, Any]:
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"}
        usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}
        return {**self._HEAD, "object": "chat.completion", "choices": [choice], "usage": usage}


class _Messages:
    """Anthropic's messages."""

    def begin(self) -> list[Any]:
        block = {"type": "text", "text": ""}
        message = self.whole("", 0) | {"content": [], "stop_reason": None}
        return [
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": block},
        ]

    def word(self, word: str) -> list[Any]:
        return [{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}]

    def end(self, tokens: int) -> list[Any]:
        delta = {"stop_reason": "max_tokens", "stop_sequence": None}
        return [
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": delta, "usage": {"output_tokens": tokens}},
            {"type": "message_stop"},
        ]

    def whole(self, text: str, tokens: int) -> dict[str, Any]:
        about = {"id": "msg_fake", "type": "message", "role": "assistant", "model": "fake", "stop_sequence": None}
        usage = {"input_tokens": 1, "output_tokens": tokens}
        return {**about, "content": [{"type": "text", "text": text}], "stop_reason": "max_tokens", "usage": usage}


class Client:
    """A client of one request, which it sends at once, and which hangs up when the test wants."""

    def __init__(self, url: str, method: str, json_body: Any, headers: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"the client speaks plain HTTP, so the URL must begin with http://; got {url!r}")
        data = b"" if json_body is None else json.dumps(json_body).encode()
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [f"{method} {target} HTTP/1.1", f"Host: {parts.netloc}", f"Content-Length: {len(data)}"]
        lines += ["Content-Type: application/json"] if data else []
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.received = b""  # of the answer, its head included
        self._socket = socket.create_connection((parts.hostname, parts.port or 80), PATIENCE_S)
        self._socket.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + data)

    def wait_for_data(self, text: str | bytes = b"") -> bytes:
        """Wait until the answer's body has begun, or contains `text`; return what has been received of it."""
        sought = text.encode() if isinstance(text, str) else text
        while True:
            _, _, body = self.received.partition(b"\r\n\r\n")
            if body and sought in body:
                return body
            data = self._socket.recv(65536)
            if not data:
                raise AssertionError(f"the answer ended before {sought or 'its body'!r}: {self.received[:2000]!r}")
            self.received += data

    def hang_up(self, how: Literal["close", "reset", "half_close"] = "close") -> None:
        """Leave: `close` as a client does that is cancelled, `reset` as one that crashes, `half_close` without closing."""
        if how == "half_close":
            self._socket.shutdown(socket.SHUT_WR)
            return
        if how == "reset":
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def call(url: str, *, method: str = "POST", json: Any = None, headers: Mapping[str, str] | None = None) -> Client:
    """Send a request and return its client, to be used in a `with` statement."""
    return Client(url, method, json, headers or {})


@contextlib.contextmanager
def serve(app: Any) -> Iterator[str]:
    """Serve an ASGI application with uvicorn, in a thread and on a free port; its URL is the value of the `with` statement."""
    import uvicorn  # noqa: PLC0415 - of the application's test environment

    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        done = threading.Event()

        def run() -> None:
            try:
                server.run(sockets=[listening])
            finally:
                done.set()

        TASKS.thread_once("test server", run, label="hangup.testing server")
        try:
            until = time.monotonic() + PATIENCE_S
            while not server.started:
                if done.wait(_LOOK_S) or time.monotonic() > until:
                    raise AssertionError("the application did not start; uvicorn's log says why")
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            done.wait(PATIENCE_S)


def _is_gone(client: socket.socket) -> bool:
    """Return whether the client has closed its end; for any descriptor, while `select.select` knows only those below 1024."""
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ)
            return bool(selector.select(0)) and client.recv(1, socket.MSG_PEEK) == b""
    except (OSError, ValueError):  # ValueError: it was closed here
        return True
