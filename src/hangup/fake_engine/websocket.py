"""A WebSocket of the fake engine: it sends every text back, and counts the connections that are open."""

from __future__ import annotations

import asyncio
import base64
import hashlib

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3
_TEXT, _CLOSE, _PING, _PONG = 0x1, 0x8, 0x9, 0xA


def accepted(key: str) -> bytes:
    """Return the head that accepts a handshake."""
    proof = base64.b64encode(hashlib.sha1(key.encode() + _GUID).digest())  # noqa: S324 - the protocol's own
    return b"HTTP/1.1 101 X\r\nupgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-accept: %b\r\n\r\n" % proof


class FakeWebSocket:
    """The engine's side of one WebSocket; frames are as clients send them: masked, and in one piece."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._buffer = b""

    def feed(self, data: bytes) -> None:
        self._buffer += data
        while (frame := self._take()) is not None:
            opcode, payload = frame
            if opcode == _CLOSE:
                self._send(_CLOSE, payload)
                self._transport.close()
                return
            if opcode in (_TEXT, _PING):
                self._send(_TEXT if opcode == _TEXT else _PONG, payload)

    def _take(self) -> tuple[int, bytes] | None:
        """Return the next whole frame: its kind and its payload."""
        data = self._buffer
        if len(data) < 2:
            return None
        length, at = data[1] & 0x7F, 2
        if length >= 126:
            at += 2 if length == 126 else 8
            length = int.from_bytes(data[2:at], "big")
        if len(data) < at + 4 + length:
            return None
        mask, payload = data[at : at + 4], data[at + 4 : at + 4 + length]
        self._buffer = data[at + 4 + length :]
        return data[0] & 0x0F, bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))

    def _send(self, opcode: int, payload: bytes) -> None:
        size = len(payload)
        length = bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2, "big")
        self._transport.write(bytes([0x80 | opcode]) + length + payload)
