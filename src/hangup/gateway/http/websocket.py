"""WebSocket (RFC 6455) as far as a relay needs it: detects handshakes, finds the ends of frames, and builds Close frames."""

from __future__ import annotations

from typing import Final

from hangup.gateway.http.head import RequestHead

_CLOSE: Final = 0x8
_FINAL, _OPCODE, _MASKED, _LENGTH = 0x80, 0x0F, 0x80, 0x7F
_REASON_BYTES_MAX: Final = 123

GOING_AWAY, POLICY, INTERNAL_ERROR = 1001, 1008, 1011


def is_handshake(head: RequestHead) -> bool:
    """Return True if the client requests a WebSocket on this connection."""
    fields = head.fields
    return (
        fields.get(b"upgrade", b"").lower() == b"websocket"
        and head.method == "GET"
        and head.http11
        and b"upgrade" in head.connection_options()
        and b"sec-websocket-key" in fields
        and not head.chunked
        and not head.content_length
    )


def close_frame(code: int, reason: str) -> bytes:
    """Build a server's Close frame."""
    payload = code.to_bytes(2, "big") + reason.encode("utf-8", "replace")[:_REASON_BYTES_MAX]
    return bytes((_FINAL | _CLOSE, len(payload))) + payload


class Frames:
    """Tracks the frames of one direction: where they end, and whether one was a Close. It neither stores nor validates them."""

    __slots__ = ("_header", "_remaining", "closed")

    def __init__(self) -> None:
        self.closed = False
        self._header = b""  # the beginning of an incomplete frame header
        self._remaining = 0  # missing bytes of the current frame's payload

    @property
    def between(self) -> bool:
        """True if the next byte begins a frame: only here can a frame of ours be inserted."""
        return not self._remaining and not self._header

    def feed(self, data: bytes) -> None:
        at, end = 0, len(data)
        if self._remaining:
            at = min(self._remaining, end)
            self._remaining -= at
        while at < end:
            header = self._header + data[at : at + 14 - len(self._header)]
            size = _header_size(header)
            if not size or len(header) < size:
                self._header = header
                return
            at += size - len(self._header)
            self._header = b""
            length = header[1] & _LENGTH
            if length >= 126:
                length = int.from_bytes(header[2:4] if length == 126 else header[2:10], "big")
            if header[0] & _OPCODE == _CLOSE:
                self.closed = True
            step = min(length, end - at)
            at += step
            self._remaining = length - step


def _header_size(header: bytes) -> int:
    """Return the length of a frame's header; 0 if it is not known yet."""
    if len(header) < 2:
        return 0
    length = header[1] & _LENGTH
    return 2 + (8 if length == 127 else 2 if length == 126 else 0) + (4 if header[1] & _MASKED else 0)
