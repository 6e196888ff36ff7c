"""A WebSocket client that is only a socket, so that a test decides how it disconnects."""

from __future__ import annotations

import base64
import json
import os
import struct
from typing import Any

from support.raw import Client

TEXT, BINARY, CLOSE = 1, 2, 8


class RawWebSocket(Client):
    def __init__(self, address: tuple[str, int], path: str) -> None:
        super().__init__(address)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [f"GET {path} HTTP/1.1", "Host: test", "Upgrade: websocket", "Connection: Upgrade"]
        lines += [f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13"]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n")
        status, _ = self.read_head()
        assert status == 101

    def __enter__(self) -> RawWebSocket:
        return self

    def send_frame(self, code: int, payload: bytes) -> None:
        assert len(payload) < 126
        mask = os.urandom(4)
        masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))
        self.send(struct.pack("BB", 0x80 | code, 0x80 | len(payload)) + mask + masked)

    def say(self, **message: Any) -> None:
        self.send_frame(TEXT, json.dumps(message).encode())

    def goodbye(self) -> None:
        """Close as a browser does, and wait for the end of the connection."""
        self.send_frame(CLOSE, struct.pack("!H", 1000))

    def read_frame(self) -> tuple[int, bytes]:
        first, length = self._take(2)
        if length == 126:
            (length,) = struct.unpack("!H", self._take(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", self._take(8))
        return first & 15, self._take(length)

    def read_json(self) -> Any:
        code, payload = self.read_frame()
        assert code == TEXT, (code, payload)
        return json.loads(payload)

    def _take(self, count: int) -> bytes:
        while len(self.buffer) < count:
            assert self.read_some(), "closed inside a frame"
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return taken
