"""A client that is only a socket, so that a test controls every byte and every way to disconnect."""

from __future__ import annotations

import contextlib
import ctypes
import json
import socket
import ssl
import struct
import time
from dataclasses import dataclass
from typing import Any

from support.linux import need_linux
from support.waiting import PATIENCE_S

_SO_ATTACH_FILTER = 26


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool  # the framing ended as it should

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    def __init__(self, address: tuple[str, int], tls: ssl.SSLContext | None = None, receive_buffer: int = 0) -> None:
        self.sock: socket.socket = socket.socket()
        if receive_buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(address)
        if tls is not None:
            self.sock = tls.wrap_socket(self.sock, server_hostname=address[0])
        self.buffer = b""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    # Sending

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def post(self, path: str, value: Any, headers: dict[str, str] | None = None, version: str = "1.1") -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        lines = [f"POST {path} HTTP/{version}", "Host: test", "Content-Type: application/json", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {text}" for name, text in (headers or {}).items()]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def chat(self, headers: dict[str, str] | None = None, **fields: Any) -> None:
        self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}], **fields}, headers)

    # Receiving

    def read_some(self) -> bytes:
        data = self.sock.recv(65536)
        self.buffer += data
        return data

    def read_until(self, mark: bytes) -> bytes:
        """Read up to and including `mark`; fail if the connection ends before."""
        while mark not in self.buffer:
            assert self.read_some(), f"closed before {mark!r}; got {self.buffer!r}"
        cut = self.buffer.index(mark) + len(mark)
        head, self.buffer = self.buffer[:cut], self.buffer[cut:]
        return head

    def read_head(self) -> tuple[int, dict[str, str]]:
        lines = self.read_until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines[1:] if line)
        return int(lines[0].split(" ")[1]), {name.lower(): value.strip() for name, _, value in pairs}

    def read_answer(self) -> Answer:
        """Read a whole answer by its framing, or as much of it as came."""
        status, headers = self.read_head()
        while status == 100:
            status, headers = self.read_head()
        if "content-length" in headers:
            length = int(headers["content-length"])
            while len(self.buffer) < length and self._more():
                pass
            body, self.buffer = self.buffer[:length], self.buffer[length:]
            return Answer(status, headers, body, len(body) == length)
        if headers.get("transfer-encoding") == "chunked":
            body, complete = self._read_chunks()
            return Answer(status, headers, body, complete)
        if status in (204, 304):
            return Answer(status, headers, b"", True)
        while self._more():
            pass
        return Answer(status, headers, self.buffer, True)

    def _more(self) -> bool:
        try:
            return bool(self.read_some())
        except ConnectionError:
            return False

    def _read_chunks(self) -> tuple[bytes, bool]:
        body = b""
        while True:
            while b"\r\n" not in self.buffer:
                if not self._more():
                    return body, False
            line, _, rest = self.buffer.partition(b"\r\n")
            size = int(line, 16)
            while len(rest) < size + 2:
                self.buffer = line + b"\r\n" + rest
                if not self._more():
                    return body + rest[:size], False
                rest = self.buffer.partition(b"\r\n")[2]
            assert rest[size : size + 2] == b"\r\n", "bad chunk framing"
            body, self.buffer = body + rest[:size], rest[size + 2 :]
            if size == 0:
                return body, True

    def closed_within(self, timeout_s: float = PATIENCE_S) -> bool:
        """Return whether the other side closes in time; read and drop what it still sends."""
        self.sock.settimeout(timeout_s)
        deadline = time.monotonic() + timeout_s
        try:
            while time.monotonic() < deadline:
                if not self.sock.recv(65536):
                    return True
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        return False

    # Disconnecting

    def fin(self) -> None:
        """Close as most clients do. What was not read by then would make the kernel reset the connection instead."""
        with contextlib.suppress(OSError):
            self.sock.setblocking(False)
            while self.sock.recv(65536):
                pass
        self.sock.close()

    def half_close(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def vanish(self) -> None:
        """Vanish like a host that lost power: from now on the kernel drops all incoming packets, unanswered."""
        need_linux("packet filters")
        instruction = struct.pack("HBBI", 0x06, 0, 0, 0)  # BPF: return 0 bytes
        buffer = ctypes.create_string_buffer(instruction)
        program = struct.pack("HL", 1, ctypes.addressof(buffer))
        self.sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def events(body: bytes) -> list[Any]:
    """Return the JSON events of an SSE body."""
    rows = [line[5:].strip() for line in body.split(b"\n") if line.startswith(b"data:")]
    return [json.loads(row) for row in rows if row != b"[DONE]"]


def ask(address: tuple[str, int], path: str, value: Any, headers: dict[str, str] | None = None) -> Answer:
    with Client(address) as client:
        client.post(path, value, headers)
        return client.read_answer()
