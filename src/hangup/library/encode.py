"""Encodes chunks and errors as bytes for the client."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hangup.core.reasons import Reason

Encode = Callable[[Any], bytes | str]
SSE = "text/event-stream"
SSE_DONE = b"data: [DONE]\n\n"


def to_bytes(chunk: Any) -> bytes:
    """Return bytes and text unchanged; encode SDK models, dicts and lists as server-sent events."""
    if isinstance(chunk, (bytes, bytearray, memoryview)):
        return bytes(chunk)
    if isinstance(chunk, str):
        return chunk.encode()
    if hasattr(chunk, "model_dump_json"):
        text: str = chunk.model_dump_json(exclude_unset=True)
        return b"data: " + text.encode() + b"\n\n"
    if isinstance(chunk, (dict, list)):
        return b"data: " + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
    raise TypeError(f"hangup cannot encode a chunk of type {type(chunk).__name__}; pass encode=")


def closing_event(chunk: Any) -> bytes:
    """Return the event that ends a stream in the API of the chunk's SDK."""
    return SSE_DONE if type(chunk).__module__.partition(".")[0] == "openai" else b""


def error_body(reason: Reason, id: str) -> dict[str, Any]:
    """Return the error that the client sees; details stay in the log."""
    return {"error": {"message": reason.message, "type": reason.outcome.value, "code": reason.code, "id": id}}


def error_event(reason: Reason, id: str) -> bytes:
    return b"event: error\ndata: " + json.dumps(error_body(reason, id)).encode() + b"\n\n"
