"""The API that a stream's chunks belong to: how a chunk is sent, how many tokens it has, and how the stream ends.

One object per call, chosen by the first chunk. OpenAI's and Anthropic's chunks are recognised by their fields, whether they
come as an SDK's models or as dicts, so that no SDK is imported.
"""

from __future__ import annotations

from typing import Any

from hangup.library.formats.base import ChunkFormat, field
from hangup.library.formats.raw import RAW_TYPES, RawChunks

__all__ = ["RAW_TYPES", "ChunkFormat", "choose_format"]


def choose_format(chunk: Any, capped: bool) -> ChunkFormat:
    """Return the format of a stream by its first chunk; `capped` says that its tokens are limited."""
    if isinstance(chunk, RAW_TYPES):
        return RawChunks(_by_fields, capped)
    return _by_fields(chunk) or ChunkFormat()


def _by_fields(chunk: Any) -> ChunkFormat | None:
    kind = field(chunk, "type")
    if isinstance(kind, str):
        if kind.startswith(("message_", "content_block_")) or kind == "ping":
            from hangup.library.formats.anthropic import AnthropicEvents  # noqa: PLC0415 - only what is needed

            return AnthropicEvents()
        if kind.startswith("response."):
            from hangup.library.formats.responses import ResponseEvents  # noqa: PLC0415

            return ResponseEvents()
        if type(chunk).__module__.startswith("openai.lib.streaming.chat"):
            from hangup.library.formats.openai import OpenAIChatEvents  # noqa: PLC0415

            return OpenAIChatEvents()
    if field(chunk, "choices") is not None and field(chunk, "object") in {"chat.completion.chunk", "text_completion"}:
        from hangup.library.formats.openai import OpenAIChunks  # noqa: PLC0415

        return OpenAIChunks()
    return None
