"""Chunks of no known API, and what all formats share."""

from __future__ import annotations

import json
from typing import Any

from hangup.library.faults import ApplicationFault


class ChunkFormat:
    """Chunks of no known API: models, dicts and lists are sent as server-sent events, one token each."""

    def encode(self, chunk: Any) -> bytes:
        """Return what is sent for a chunk; nothing for one that is not part of the API."""
        return to_bytes(chunk)

    def tokens(self, chunk: Any, so_far: int) -> tuple[int, bool]:
        """Return how many tokens a chunk adds to those `so_far`, and whether it carries any of the answer."""
        return 1, True

    def end(self) -> bytes:
        """Return what follows the last chunk of a complete stream."""
        return b""

    def cut(self, tokens: int) -> bytes | None:
        """Return the end of a stream that was cut after so many tokens, in the API's own words; None if it has none."""
        return None

    def error(self, body: dict[str, Any]) -> bytes:
        """Return the event that tells the client of an error inside the stream."""
        return event(body, "error")


def field(value: Any, name: str) -> Any:
    """Return a field of a dict or a model, or None."""
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


def tokens_of(text: str) -> int:
    """Return the least number of tokens in a text: engines often send several in one chunk, and few span two words."""
    return max(1, len(text.split()))


def event(data: Any, name: str = "") -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def to_json(chunk: Any) -> bytes:
    if hasattr(chunk, "model_dump_json"):
        text: str = chunk.model_dump_json(exclude_unset=True)
        return text.encode()
    return json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode()


def to_bytes(chunk: Any) -> bytes:
    """Return bytes and text unchanged; encode models, dicts and lists as server-sent events."""
    if isinstance(chunk, (bytes, bytearray, memoryview)):
        return bytes(chunk)
    if isinstance(chunk, str):
        return chunk.encode()
    if hasattr(chunk, "model_dump_json") or isinstance(chunk, (dict, list)):
        return b"data: " + to_json(chunk) + b"\n\n"
    raise ApplicationFault(f"hangup cannot encode a chunk of type {type(chunk).__name__}; pass encode=")
