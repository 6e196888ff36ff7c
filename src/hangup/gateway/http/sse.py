"""Splits a stream of bytes into server-sent events or lines of newline-delimited JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hangup.errors import EventTooLarge


@dataclass(frozen=True, slots=True)
class Format:
    """A stream's event format."""

    end: bytes
    content_type: bytes
    data_prefix: bytes  # precedes the JSON on its line

    def data(self, event: bytes) -> bytes | None:
        """Return the JSON text of an event; None if it has none (a comment, a bare event name)."""
        if not self.data_prefix:
            return event.strip() or None
        if event.startswith(b"data: ") and b"\n" not in event:
            return event[6:]
        lines = [line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
        return b"\n".join(lines) if lines else None

    def encode(self, data: bytes, name: bytes = b"") -> bytes:
        prefix = b"event: " + name + b"\n" if name else b""
        return prefix + self.data_prefix + data + self.end


SSE: Final = Format(b"\n\n", b"text/event-stream", b"data: ")
NDJSON: Final = Format(b"\n", b"application/x-ndjson", b"")


_LINES: Final = {
    b"%x\r" % (size + len(SSE.end)): size for size in range(1, 2048)
}  # a chunk's size line, and the size of its event


def events_in_chunks(data: bytes) -> list[bytes] | None:
    """Return the events in whole chunks that have one event of one line each; None if anything in `data` differs from that.
    It is an open question then, and no error."""
    *parts, rest = data.split(b"\n")
    count, more = divmod(len(parts), 4)
    if rest or more or parts[3::4] != [b"\r"] * count or parts[2::4] != [b""] * count:
        return None
    events = parts[1::4]
    if [*map(_LINES.get, parts[::4])] != [*map(len, events)] or b"\r" in b"".join(events):  # to count all would take longer
        return None
    return events


class Splitter:
    """Buffers a stream and returns its complete events."""

    __slots__ = ("_bytes_max", "_end", "_kept", "_return")

    def __init__(self, format: Format, bytes_max: int) -> None:
        self._end = format.end
        self._bytes_max = bytes_max
        self._kept = b""
        self._return = False  # the last byte was a CR; its meaning depends on the next one

    @property
    def between_events(self) -> bool:
        """True if no part of an event is kept."""
        return not self._kept and not self._return

    def feed(self, payload: bytes) -> list[bytes]:
        """Return the events that `payload` completes, without their terminators."""
        if self._return:
            payload, self._return = b"\r" + payload, False
        if b"\r" in payload:  # SSE's other line end; each byte is examined once, however the stream is cut
            if payload.endswith(b"\r"):
                payload, self._return = payload[:-1], True
            payload = payload.replace(b"\r\n", b"\n")
        text = self._kept + payload if self._kept else payload
        *events, self._kept = text.split(self._end)
        if len(text) > self._bytes_max and any(len(event) > self._bytes_max for event in (*events, self._kept)):
            raise EventTooLarge
        return events
