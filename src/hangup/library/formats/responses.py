"""OpenAI's responses API: named events, and no `[DONE]`."""

from __future__ import annotations

import json
from typing import Any

from hangup.library.formats.base import ChunkFormat, field, to_json, tokens_of

_DELTAS = (".delta",)  # `response.output_text.delta`, `response.function_call_arguments.delta`, …
_LAST = ("response.completed", "response.incomplete", "response.failed")
_PARSED = {"response": {"output": {"__all__": {"content": {"__all__": {"parsed"}}, "parsed_arguments": True}}}}


class ResponseEvents(ChunkFormat):
    """Events with a `type`. The snapshots that the SDK's `responses.stream(...)` adds to them are not sent."""

    def __init__(self) -> None:
        self._number = 0
        self._response: Any = None
        self._texts: dict[tuple[str, int], list[str]] = {}

    def message(self, chunk: Any) -> bytes:
        return _json(chunk, field(chunk, "type"))

    def name(self, chunk: Any) -> str:
        return field(chunk, "type") or ""

    def tokens(self, chunk: Any, so_far: int) -> tuple[int, bool]:
        kind = field(chunk, "type") or ""
        self._number = field(chunk, "sequence_number") or self._number
        if kind.endswith(_DELTAS):
            delta = field(chunk, "delta")
            if not isinstance(delta, str) or not delta:
                return 0, False
            if kind == "response.output_text.delta":
                place = (field(chunk, "item_id") or "", field(chunk, "output_index") or 0)
                self._texts.setdefault(place, []).append(delta)
            return tokens_of(delta), True
        if kind == "response.created":
            self._response = field(chunk, "response")
        elif kind in _LAST:
            reported = field(field(field(chunk, "response"), "usage"), "output_tokens")
            return (reported - so_far if isinstance(reported, int) and reported > 0 else 0), False
        return 0, False

    def cut(self, tokens: int) -> list[dict[str, Any]] | None:
        """Return `response.incomplete`, with the text that was sent."""
        if self._response is None:
            return None
        output = [
            {
                "id": id,
                "type": "message",
                "role": "assistant",
                "status": "incomplete",
                "content": [{"type": "output_text", "text": "".join(texts), "annotations": []}],
            }
            for (id, _), texts in sorted(self._texts.items(), key=lambda row: row[0][1])
        ]
        response = json.loads(to_json(self._response)) | {
            "status": "incomplete",
            "incomplete_details": {"reason": "max_output_tokens"},
            "output": output,
        }
        return [{"type": "response.incomplete", "sequence_number": self._number + 1, "response": response}]

    def error(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"type": "error", "sequence_number": self._number + 1, **body}


def _json(chunk: Any, kind: str) -> bytes:
    if not type(chunk).__module__.startswith("openai.lib."):
        return to_json(chunk)
    exclude: Any = _PARSED if kind in _LAST else {"snapshot", "parsed"}
    text: str = chunk.model_dump_json(exclude_unset=True, exclude=exclude, warnings=False)  # of its own generic types
    return text.encode()
