"""The two sides of a relay without sockets, and the events that an engine sends it."""

from __future__ import annotations

import json
from typing import Any

from hangup.config import LimitSettings
from hangup.core.call import Call
from hangup.core.reasons import Reason
from hangup.gateway.apis.base import Json
from hangup.gateway.http.body import Chunked
from hangup.gateway.http.head import ResponseHead
from support.raw_engine import chunk


class Side:
    """Both sides of a relay, without sockets."""

    http11 = True
    limits = LimitSettings(event_bytes_max=1 << 20, answer_bytes_max=1 << 20)

    def __init__(self) -> None:
        self.call = Call("c", 0.0)
        self.client: Any = self
        self.received = bytearray()
        self.reason: Reason | None = None
        self.answer: Json = {}
        self._decoder = Chunked()

    def write(self, data: bytes) -> None:
        self.received += self._decoder.feed(data)

    def send(self, payload: bytes) -> None:
        self.write(chunk(payload))

    def end(self, reason: Reason, detail: str = "") -> None:
        self.reason = self.reason or reason

    def first_token(self) -> None: ...

    def answer_whole(self, status: int, answer: Json, head: ResponseHead) -> None:
        self.answer = answer

    def fault(self, error: Exception) -> None:
        raise error


def sse(value: Any, name: str = "") -> bytes:
    text = json.dumps(value, separators=(",", ":"))
    return (f"event: {name}\n" if name else "").encode() + b"data: " + text.encode() + b"\n\n"


def chat(delta: Json, finish: str | None = None, **more: Any) -> bytes:
    frame = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return sse({**frame, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, **more}]})


def spaced(event: bytes) -> bytes:
    """Encode as Python's json does."""
    return b"data: " + json.dumps(json.loads(event[6:])).encode() + b"\n\n"


def block(kind: str, field: str, text: str) -> bytes:
    delta = {"type": kind, field: text}
    return sse({"type": "content_block_delta", "index": 0, "delta": delta}, "content_block_delta")
