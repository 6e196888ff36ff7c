"""The chunks that these sources yield: OpenAI's, so that any OpenAI client reads the application's streams."""

from __future__ import annotations

import time
import uuid
from typing import Any

from hangup.library.formats.openai import CountedChunk


class ChatChunks:
    """Makes the chunks of one answer."""

    def __init__(self, model: str = "", id: str = "") -> None:
        id = id or f"chatcmpl-{uuid.uuid4().hex}"
        self._head = {"id": id, "object": "chat.completion.chunk", "created": int(time.time()), "model": model}

    def delta(self, text: str, tokens: int | None = None, finish_reason: str | None = None, index: int = 0) -> CountedChunk:
        """Return a chunk of text; `tokens` is how many it has, if the engine says so."""
        choice: dict[str, Any] = {"index": index, "delta": {"content": text} if text else {}, "finish_reason": finish_reason}
        return CountedChunk({**self._head, "choices": [choice]}, tokens)
