"""Text and bytes: what the application or an HTTP response sends goes out unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

from hangup.library.formats.base import ChunkFormat

EVENT_BYTES_MAX = 1 << 20  # a longer event is passed on in parts
_EVENT_END = re.compile(rb"(?<=\n\n)|(?<=\n\r\n)")
_DONE = b"[DONE]"
RAW_TYPES = (str, bytes, bytearray, memoryview)


class RawChunks(ChunkFormat):
    """Counts the events of a stream of server-sent events, or the chunks of any other.

    Only under a cap are events parsed: then tokens count, and a cut has the form of the events' own API.
    """

    is_raw = True

    def __init__(self, by_fields: Callable[[Any], ChunkFormat | None], capped: bool) -> None:
        self._by_fields = by_fields
        self._capped = capped
        self._inner: ChunkFormat | None = None

    def encode(self, chunk: Any) -> bytes:
        return chunk.encode() if isinstance(chunk, str) else bytes(chunk)

    def message(self, chunk: Any) -> bytes | str:
        return chunk if isinstance(chunk, str) else bytes(chunk)

    def ends_stream(self, chunk: Any) -> bool:
        return _DONE in self.encode(chunk)

    def tokens(self, chunk: Any, so_far: int) -> tuple[int, bool]:
        data = chunk.encode() if isinstance(chunk, str) else bytes(chunk)
        if not self._capped:
            count = _count(data)
            return count, count > 0
        tokens, has_text = 0, False
        for part in _EVENT_END.split(data):
            added, text = self._tokens_of_event(part, so_far + tokens)
            tokens, has_text = tokens + added, has_text or text
        return tokens, has_text

    def _tokens_of_event(self, data: bytes, so_far: int) -> tuple[int, bool]:
        payload = _payload(data)
        if payload is None:
            count = _count(data)
            return count, count > 0
        if payload == _DONE:
            return 0, False
        try:
            value = json.loads(payload)
        except ValueError:
            return 1, True
        if not isinstance(value, dict):
            return 1, True
        if self._inner is None:
            self._inner = self._by_fields(value) or ChunkFormat()
        return self._inner.tokens(value, so_far)

    def cut(self, tokens: int) -> list[dict[str, Any]] | None:
        return None if self._inner is None else self._inner.cut(tokens)

    def cut_done(self) -> bytes:
        return b"" if self._inner is None else self._inner.done

    def error(self, body: dict[str, Any]) -> dict[str, Any]:
        return body if self._inner is None else self._inner.error(body)

    def event(self, body: dict[str, Any]) -> bytes:
        return super().event(body) if self._inner is None else self._inner.event(body)


def _count(data: bytes) -> int:
    """Return the number of events, or 1 for text that is no event; comments, empty chunks and `[DONE]` are none."""
    events = data.count(b"data:")
    if events:
        return events - data.count(b"data: [DONE]")
    return 0 if not data.strip() or data.startswith((b":", b"event:")) else 1


def _payload(data: bytes) -> bytes | None:
    lines = [line[5:].strip() for line in data.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


async def whole_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Divide a stream of bytes into its events, so that it can be cut between two of them."""
    rest = b""
    async for chunk in chunks:
        *events, rest = _EVENT_END.split(rest + chunk)
        for data in events:
            yield data
        if len(rest) > EVENT_BYTES_MAX:
            yield rest
            rest = b""
    if rest:
        yield rest
