"""An engine that is only a script of bytes, for answers that no honest engine would give."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

Script = Callable[[socket.socket, bytes], None]


class RawEngine:
    """Listens on a free port; reads each request whole and passes it to the script with its socket."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.requests: list[bytes] = []
        self._open: set[socket.socket] = set()
        self._closing = False
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while not self._closing:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._open.add(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError), sock:  # a long run would use up the descriptors otherwise
            sock.settimeout(120)
            while request := _read_request(sock):
                if b" /health " in request.split(b"\r\n", 1)[0] + b" ":
                    sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                    continue
                if b"user-agent: hangup" in request:  # the gateway's own request, to recognise the engine
                    sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                    continue
                self.requests.append(request)
                self._script(sock, request)
        self._open.discard(sock)

    def close(self) -> None:
        self._closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._listener.close()
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self._thread.join(2)


def _read_request(sock: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        more = sock.recv(65536)
        if not more:
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    wanted = int(lengths[0]) if lengths else 0
    while len(body) < wanted:
        more = sock.recv(65536)
        if not more:  # the gateway gave up; without this, the thread would spin until the end of the process
            return b""
        body += more
    return head + b"\r\n\r\n" + body


@contextlib.contextmanager
def raw_engine(script: Script) -> Iterator[RawEngine]:
    engine = RawEngine(script)
    try:
        yield engine
    finally:
        engine.close()


def answer(data: bytes, close: bool = False) -> Script:
    """Always send the same bytes; then keep the connection open, or close it."""

    def script(sock: socket.socket, request: bytes) -> None:
        sock.sendall(data)
        if close:
            sock.close()

    return script


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(text: str, finish: str = "null") -> bytes:
    return (
        b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m",'
        b'"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":%b}]}\n\n' % (text.encode(), finish.encode())
    )


DONE = b"data: [DONE]\n\n"
LAST = b"0\r\n\r\n"
