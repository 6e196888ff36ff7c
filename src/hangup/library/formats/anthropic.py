"""Anthropic's messages: every event has a name, and its SDK ignores those that have none."""

from __future__ import annotations

from typing import Any

from hangup.library.formats.base import ChunkFormat, field, to_json, tokens_of

_TEXTS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
_SNAPSHOTS = {"message_stop": ("type",), "content_block_stop": ("type", "index")}  # what the API itself sends of these


class AnthropicEvents(ChunkFormat):
    """The API's own events. Those that the SDK's `messages.stream(...)` adds repeat all text so far, and are not sent."""

    def __init__(self) -> None:
        self._open_block: int | None = None

    def message(self, chunk: Any) -> bytes:
        kind: str = field(chunk, "type") or ""
        if not _is_of_api(kind):
            return b""
        fields = _SNAPSHOTS.get(kind)
        if fields is not None:
            return to_json({name: field(chunk, name) for name in fields})
        return to_json(chunk)

    def name(self, chunk: Any) -> str:
        return field(chunk, "type") or ""

    def tokens(self, chunk: Any, so_far: int) -> tuple[int, bool]:
        kind = field(chunk, "type")
        if kind == "content_block_delta":
            delta = field(chunk, "delta")
            name = _TEXTS.get(field(delta, "type") or "")
            text = field(delta, name) if name else None
            return (tokens_of(text), True) if text else (0, False)
        if kind == "content_block_start":
            self._open_block = field(chunk, "index")
        elif kind == "content_block_stop":
            self._open_block = None
        elif kind == "message_delta":
            reported = field(field(chunk, "usage"), "output_tokens")
            return (reported - so_far if isinstance(reported, int) and reported > 0 else 0), False
        return 0, False

    def cut(self, tokens: int) -> list[dict[str, Any]]:
        """Return the end of a message that stops with `stop_reason: "max_tokens"`."""
        delta = {"stop_reason": "max_tokens", "stop_sequence": None}
        last = {"type": "message_delta", "delta": delta, "usage": {"output_tokens": tokens}}
        block = [] if self._open_block is None else [{"type": "content_block_stop", "index": self._open_block}]
        return [*block, last, {"type": "message_stop"}]

    def error(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"type": "error", **body}


def _is_of_api(kind: str) -> bool:
    return kind.startswith(("message_", "content_block_")) or kind in {"ping", "error"}
