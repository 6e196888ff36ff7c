"""Chunks of no known API, and what all formats share."""

from __future__ import annotations

import json
from typing import Any

from hangup.library.faults import ApplicationFault


class ChunkFormat:
    """Chunks of no known API: models, dicts and lists are sent as JSON in server-sent events, one token each."""

    done = b""  # what follows the last event of a stream
    is_raw = False  # whether chunks are text and bytes

    def encode(self, chunk: Any) -> bytes:
        """Return what is sent for a chunk; nothing for one that is not part of the API."""
        data = self.message(chunk)
        if not data:
            return b""
        assert isinstance(data, bytes)
        name = self.name(chunk)
        return (f"event: {name}\n".encode() if name else b"") + b"data: " + data + b"\n\n"

    def message(self, chunk: Any) -> bytes | str:
        """Return a chunk as one message of a WebSocket, or nothing."""
        return to_json(chunk)

    def name(self, chunk: Any) -> str:
        """Return the name of a chunk's event; most have none."""
        return ""

    def tokens(self, chunk: Any, so_far: int) -> tuple[int, bool]:
        """Return how many tokens a chunk adds to those `so_far`, and whether it carries any of the answer."""
        return 1, True

    def ends_stream(self, chunk: Any) -> bool:
        """Return whether a chunk is itself the end of a stream, `[DONE]`."""
        return False

    def cut(self, tokens: int) -> list[dict[str, Any]] | None:
        """Return the last events of a stream that was cut after so many tokens; None if the API has none for that."""
        return None

    def cut_done(self) -> bytes:
        """Return what follows the events of `cut`."""
        return self.done

    def error(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return an error inside the stream as the API has it."""
        return body

    def event(self, body: dict[str, Any]) -> bytes:
        """Return one of our own events, as it is sent."""
        return event(body, "error" if "error" in body else self.name(body))


def field(value: Any, name: str) -> Any:
    """Return a field of a dict or a model, or None."""
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


def tokens_of(text: str) -> int:
    """Return the least number of tokens in a text: engines often send several in one chunk, and few span two words."""
    return len(text.split()) or 1


def event(data: Any, name: str = "") -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def to_json(chunk: Any) -> bytes:
    if hasattr(chunk, "model_dump_json"):
        text: str = chunk.model_dump_json(exclude_unset=True)
        return text.encode()
    if isinstance(chunk, (dict, list)):
        return json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode()
    raise ApplicationFault(f"hangup cannot encode a chunk of type {type(chunk).__name__}; pass encode=")
