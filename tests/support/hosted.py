"""A hosted provider with OpenAI's files, batches and background responses, and Anthropic's message batches.

Its jobs run until they are cancelled, unless `runs_s` says otherwise. A cancel takes `cancel_takes_s`, or never ends if that is
None; the next `cancel_failures` cancels are answered with 500.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.waiting import wait_until


@dataclass
class Seen:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes
    at: float = field(default_factory=time.monotonic)

    @property
    def ours(self) -> bool:
        """Return whether the gateway itself sent the request."""
        return self.headers.get("user-agent") == "hangup"


@dataclass
class Work:
    id: str
    kind: str  # "batch", "response", "message_batch"
    request: dict[str, Any]
    began: float = field(default_factory=time.monotonic)
    cancelled: float | None = None


class Hosted:
    def __init__(self) -> None:
        self.runs_s = 3600.0
        self.cancel_takes_s: float | None = 0.0
        self.cancel_failures = 0
        self.cancel_drops = 0  # this many cancels get no answer at all
        self.may_answer = threading.Event()  # while cleared, creations get no answer
        self.may_answer.set()
        self.works: dict[str, Work] = {}
        self.files: dict[str, bytes] = {}
        self.seen: list[Seen] = []
        self._lock = threading.Lock()
        self._server = _Server(self)
        self.port: int = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Hosted:
        return self

    def __exit__(self, *_: object) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def requests_to(self, method: str, path: str) -> list[Seen]:
        with self._lock:
            return [seen for seen in self.seen if (seen.method, seen.path) == (method, path)]

    def wait_for_requests(self, method: str, path: str, count: int = 1) -> list[Seen]:
        return (
            wait_until(lambda: len(found := self.requests_to(method, path)) >= count and found, what=f"{method} {path}") or []
        )

    # Called by the request handler

    def note(self, seen: Seen) -> None:
        with self._lock:
            self.seen.append(seen)

    def create(self, kind: str, request: dict[str, Any]) -> Work:
        prefix = {"batch": "batch_", "response": "resp_", "message_batch": "msgbatch_"}[kind]
        with self._lock:
            work = Work(f"{prefix}{len(self.works):04d}", kind, request)
            self.works[work.id] = work
        return work

    def fails_to_cancel(self) -> str:
        with self._lock:
            if self.cancel_drops:
                self.cancel_drops -= 1
                return "drop"
            if self.cancel_failures:
                self.cancel_failures -= 1
                return "500"
        return ""

    def state(self, work: Work) -> str:
        now = time.monotonic()
        if work.cancelled is not None:
            takes = self.cancel_takes_s
            return "cancelled" if takes is not None and now >= work.cancelled + takes else "cancelling"
        return "completed" if now >= work.began + self.runs_s else "in_progress"

    def shown(self, work: Work) -> dict[str, Any]:
        state = self.state(work)
        if work.kind == "batch":
            done = 2 if state == "completed" else 1
            return {
                "id": work.id,
                "object": "batch",
                "endpoint": work.request.get("endpoint"),
                "input_file_id": work.request.get("input_file_id"),
                "completion_window": "24h",
                "created_at": 1,
                "expires_at": int(time.time()) + 86_400,
                "status": state,
                "request_counts": {"total": 2, "completed": done, "failed": 0},
            }
        if work.kind == "response":
            return {
                "id": work.id,
                "object": "response",
                "created_at": 1,
                "model": work.request["model"],
                "background": True,
                "status": "in_progress" if state == "cancelling" else state,
                "output": [],
                "parallel_tool_calls": True,
                "tool_choice": "auto",
                "tools": [],
            }
        ended = state in ("cancelled", "completed")
        count = len(work.request["requests"])
        counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
        counts[{"cancelled": "canceled", "completed": "succeeded"}.get(state, "processing")] = count
        moment = datetime.now(UTC).isoformat()
        return {
            "id": work.id,
            "type": "message_batch",
            "processing_status": "ended" if ended else "canceling" if state == "cancelling" else "in_progress",
            "request_counts": counts,
            "created_at": moment,
            "expires_at": moment,
            "ended_at": moment if ended else None,
            "cancel_initiated_at": None if work.cancelled is None else moment,
            "archived_at": None,
            "results_url": None,
        }


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hosted: Hosted) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hosted = hosted

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def _answer(self, method: str) -> None:
        hosted = self.server.hosted
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        parts = urlsplit(self.path)
        hosted.note(Seen(method, parts.path, parse_qs(parts.query), {k.lower(): v for k, v in self.headers.items()}, body))
        segments = parts.path.removeprefix("/v1/").split("/")
        match (method, *segments):
            case ("POST", "files"):
                hosted.files[id := f"file-{len(hosted.files)}"] = body
                self._json(
                    {"id": id, "object": "file", "bytes": len(body), "created_at": 1, "filename": "f", "purpose": "batch"}
                )
            case ("GET", "files", id, "content"):
                self._send(200, hosted.files[id], "application/octet-stream")
            case ("DELETE", "files", id):
                del hosted.files[id]
                self._json({"id": id, "object": "file", "deleted": True})
            case ("POST", "batches"):
                self._create("batch", body)
            case ("POST", "responses"):
                self._create("response", body)
            case ("POST", "messages", "batches"):
                self._create("message_batch", body)
            case ("GET", "batches"):
                rows = [hosted.shown(work) for work in hosted.works.values() if work.kind == "batch"]
                self._json({"object": "list", "data": rows, "has_more": False})
            case ("POST", *_, id, "cancel"):
                self._cancel(id)
            case ("GET", "responses", id) if "stream" in parse_qs(parts.query):
                self._stream(hosted.works[id])
            case ("DELETE", "responses", id):
                del hosted.works[id]
                self._json({"id": id, "object": "response", "deleted": True})
            case ("GET", "batches" | "responses", id) | ("GET", "messages", "batches", id) if id in hosted.works:
                self._json(hosted.shown(hosted.works[id]))
            case ("POST", "chat", "completions"):
                self._json({"id": "chat", "object": "chat.completion", "choices": [], "usage": {}})
            case ("GET", "models"):
                self._json({"object": "list", "data": []})
            case _:
                self._json({"error": {"message": "no such object", "type": "invalid_request_error"}}, 404)

    def _create(self, kind: str, body: bytes) -> None:
        hosted = self.server.hosted
        request = json.loads(body)
        work = hosted.create(kind, request)
        hosted.may_answer.wait(30)
        if request.get("stream"):
            self._stream(work)
        else:
            self._json(hosted.shown(work))

    def _cancel(self, id: str) -> None:
        hosted = self.server.hosted
        match hosted.fails_to_cancel():
            case "drop":
                self.close_connection = True
                return
            case "500":
                self._json({"error": {"message": "try again", "type": "server_error"}}, 500)
                return
        work = hosted.works[id]
        if hosted.state(work) == "in_progress":
            work.cancelled = time.monotonic()
        self._json(hosted.shown(work))

    def _stream(self, work: Work) -> None:
        """Send events until the response has ended."""
        hosted = self.server.hosted
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self._event({"type": "response.created", "sequence_number": 0, "response": hosted.shown(work)})
        number = 1
        while hosted.state(work) in ("in_progress", "cancelling"):
            self._event({"type": "response.in_progress", "sequence_number": number, "response": hosted.shown(work)})
            number += 1
            time.sleep(0.05)
        kind = "response.completed" if hosted.state(work) == "completed" else "response.cancelled"
        self._event({"type": kind, "sequence_number": number, "response": hosted.shown(work)})
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, value: dict[str, Any]) -> None:
        text = f"event: {value['type']}\ndata: {json.dumps(value)}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(text), text))
        self.wfile.flush()

    def _json(self, value: dict[str, Any], status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
