"""Watches the client's socket behind the server's back, to notice a FIN even while the server does not read.

Our own epoll reports hang-ups only (EPOLLRDHUP), so we take no bytes from the server, and unread bytes of a pipelined request
do not hide the FIN behind them. Linux only; on other systems only the server can report a disconnect.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import socket
import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from hangup.core import reasons
from hangup.core.reasons import Reason

SUPPORTED = sys.platform == "linux"
DESCRIPTORS_MAX = 2048  # with more open files, skip the search for the socket: it would take milliseconds per call
NOT_SENT_BYTES_MAX = 4096  # further unsent bytes wait in the server's buffer, where its flow control counts them
_TCP_NOTSENT_LOWAT = 25
_WRAPPERS_MAX = 32

OnDisconnect = Callable[[Reason], object]


class Hangups:
    """All sockets that one event loop watches; its epoll is closed with the last of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watched: dict[int, OnDisconnect] = {}
        self._epoll: select.epoll | None = None

    def add(self, descriptor: int, on_disconnect: OnDisconnect) -> None:
        """Watch a socket. Raises `OSError` if the system is short of file descriptors or memory; then nothing is watched."""
        if self._epoll is None:
            self._open()
        assert self._epoll is not None
        try:
            self._epoll.register(descriptor, select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR)
        except OSError:
            self._close_if_unused()
            raise
        self._watched[descriptor] = on_disconnect

    def _open(self) -> None:
        epoll = select.epoll()
        try:
            self._loop.add_reader(epoll.fileno(), self._on_events)
        except OSError:
            epoll.close()
            raise
        self._epoll = epoll

    def remove(self, descriptor: int) -> None:
        if self._watched.pop(descriptor, None) is None or self._epoll is None:
            return
        self._epoll.unregister(descriptor)
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if not self._watched and self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def _on_events(self) -> None:
        if self._epoll is None:
            return
        for descriptor, events in self._epoll.poll(0):
            on_disconnect = self._watched.get(descriptor)
            if on_disconnect is not None:
                # Report once. A level-triggered event would keep the loop awake, and a reset is reported whatever is asked for.
                self.remove(descriptor)
                on_disconnect(_reason(descriptor, events))
            if self._epoll is None:
                return


def _reason(descriptor: int, events: int) -> Reason:
    if not events & (select.EPOLLERR | select.EPOLLHUP):
        return reasons.CLIENT_FIN
    code = _query(descriptor, lambda sock: sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    if code in (errno.ETIMEDOUT, errno.EHOSTUNREACH):
        return reasons.CLIENT_SILENT
    return reasons.CLIENT_RESET if code or events & select.EPOLLERR else reasons.CLIENT_FIN


_hangups_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Hangups] = WeakKeyDictionary()


class SocketWatch:
    """Watches one client's socket through a duplicate of its descriptor."""

    def __init__(self, descriptor: int, client_silence_s: float | None) -> None:
        self._server_descriptor = descriptor
        self._descriptor = -1
        self._hangups: Hangups | None = None
        self._client_silence_s = client_silence_s

    def start(self, on_disconnect: OnDisconnect) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._descriptor = os.dup(self._server_descriptor)
        except OSError as error:
            if error.errno == errno.EBADF:  # the server has already closed it
                on_disconnect(reasons.CLIENT_FIN)
            return  # without a free descriptor the client is not watched here; the server still reports a disconnect
        if self._client_silence_s is not None:
            seconds = self._client_silence_s
            _query(self._descriptor, lambda sock: set_socket_options(sock, seconds))
        hangups = _hangups_of_loop.setdefault(loop, Hangups(loop))
        try:
            hangups.add(self._descriptor, on_disconnect)
        except OSError:  # the same
            self.stop()
        else:
            self._hangups = hangups

    def disconnect_reason(self) -> Reason | None:
        return disconnect_reason(self._descriptor) if self._descriptor >= 0 else None

    def stop(self) -> None:
        if self._hangups is not None:
            self._hangups.remove(self._descriptor)
            self._hangups = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def disconnect_reason(descriptor: int) -> Reason | None:
    """Return why the client of this socket is gone, or None if it is still there."""
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)  # poll always reports hang-ups and errors
    events = next((events for _, events in poll.poll(0)), 0)
    return _reason(descriptor, events) if events else None


def set_socket_options(sock: socket.socket, client_silence_s: float) -> None:
    """Make the kernel notice a vanished host, and buffer few unsent bytes."""
    probes = 3
    interval_s = max(1, int(client_silence_s / (probes + 2)))
    options = [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(client_silence_s) - probes * interval_s)),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(client_silence_s * 1000)),
        (socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, NOT_SENT_BYTES_MAX),
    ]
    for level, option, value in options:
        sock.setsockopt(level, option, value)


def _query(descriptor: int, query: Callable[[socket.socket], Any]) -> Any:
    """Query a descriptor that is not ours to close; None if the query fails."""
    try:
        sock = socket.socket(fileno=descriptor)
    except OSError:
        return None
    try:
        return query(sock)
    except OSError:
        return None
    finally:
        sock.detach()


# Finding the socket


def descriptor_of_transport(transport: Any) -> int | None:
    """Return the descriptor under an asyncio transport."""
    if not SUPPORTED or transport is None or not hasattr(transport, "get_extra_info"):
        return None
    return descriptor_of_socket(transport.get_extra_info("socket"))


def descriptor_of_socket(sock: Any) -> int | None:
    if not SUPPORTED:
        return None
    with contextlib.suppress(OSError, AttributeError):
        descriptor = int(sock.fileno())
        return descriptor if descriptor >= 0 else None
    return None


def descriptor_of_asgi(scope: Any, receive: Any, send: Any = None) -> int | None:
    """Return the descriptor under an ASGI call: from the transport behind `receive` or `send`, else by the two addresses."""
    if not SUPPORTED:
        return None
    transport = _transport_of(receive, "receive") or _transport_of(send, "send")
    return descriptor_of_transport(transport) or _find_connection(scope.get("server"), scope.get("client"))


def transport_behind(receive: Any) -> Any:
    """Return the transport under an ASGI call, if its server is uvicorn."""
    return _transport_of(receive, "receive")


def _transport_of(function: Any, word: str) -> Any:
    """Return the transport behind `receive` or `send`.

    The server's own is a method of an object that has the transport (uvicorn) or leads to it (hypercorn). Middlewares wrap it
    in methods and functions of their own, which keep what they wrap under a name with `word` in it. Only such names are
    followed: any other transport would be of some other connection.
    """
    for _ in range(_WRAPPERS_MAX):
        owner = getattr(function, "__self__", None)
        if owner is None:
            function = _wrapped_by(function, word)
        else:
            transport = getattr(owner, "transport", None) or getattr(getattr(owner, "writer", None), "transport", None)
            if transport is not None:
                return transport
            function = getattr(owner, f"_{word}", None) or getattr(owner, word, None)
        if function is None:
            return None
    return None


def _wrapped_by(function: Any, word: str) -> Any:
    """Return the function that a closure wraps, if exactly one of its names has `word` in it."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = dict(zip(names, getattr(function, "__closure__", None) or (), strict=False))
    found = []
    for name, cell in cells.items():
        if word in name:
            with contextlib.suppress(ValueError):  # not set yet
                found.append(cell.cell_contents)
    callables = [value for value in found if callable(value) and value is not function]
    return callables[0] if len(callables) == 1 else None


def _find_connection(server: Any, client: Any) -> int | None:
    """Return the one socket of this process that connects `server` to `client`."""
    if not server or not client or server[1] is None:
        return None
    try:
        names = os.listdir("/proc/self/fd")  # noqa: PTH208 - only names are needed, and every call passes here
    except OSError:
        return None
    if len(names) > DESCRIPTORS_MAX:
        return None
    for name in reversed(names):  # the newest usually have the highest numbers
        if _connects(int(name), int(server[1]), client[0], int(client[1])):  # granian passes ports as text
            return int(name)
    return None


def _connects(descriptor: int, port: int, client: str, client_port: int) -> bool:
    """Return whether a descriptor, of whatever kind, is the socket that connects the two."""
    try:
        # With family and type given, Python does not query the descriptor for them.
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=descriptor)
    except OSError:
        return False
    try:
        peer = sock.getpeername()
        if not isinstance(peer, tuple) or peer[1] != client_port or peer[0].removeprefix("::ffff:") != client:
            return False
        return bool(sock.getsockname()[1] == port)
    except OSError:  # not a socket, or not connected
        return False
    finally:
        sock.detach()
