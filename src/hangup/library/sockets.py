"""The client's socket, seen past the server: a FIN is noticed even when the server does not read.

An epoll of our own is told of hang-ups alone (EPOLLRDHUP), so nothing is read away from the server, and unread bytes
of a pipelined request do not stand in the way of the FIN behind them. Linux only; elsewhere the server's word is all there is.
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
DESCRIPTORS_MAX = 2048  # a process with more open files is not searched for a socket: it would cost milliseconds per call
NOT_SENT_BYTES_MAX = 4096  # unsent bytes beyond this wait in the server's buffer, where its flow control sees them
_TCP_NOTSENT_LOWAT = 25
_WRAPPERS_MAX = 8

OnGone = Callable[[Reason], object]


class Hangups:
    """All sockets that one event loop watches; closed with the last of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watched: dict[int, OnGone] = {}
        self._epoll: select.epoll | None = None

    def add(self, descriptor: int, on_gone: OnGone) -> None:
        if self._epoll is None:
            self._epoll = select.epoll()
            self._loop.add_reader(self._epoll.fileno(), self._ready)
        self._watched[descriptor] = on_gone
        self._epoll.register(descriptor, select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR)

    def remove(self, descriptor: int) -> None:
        if self._watched.pop(descriptor, None) is None or self._epoll is None:
            return
        self._epoll.unregister(descriptor)
        if not self._watched:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def _ready(self) -> None:
        if self._epoll is None:
            return
        for descriptor, events in self._epoll.poll(0):
            on_gone = self._watched.get(descriptor)
            if on_gone is not None:
                self._epoll.modify(descriptor, 0)  # heard once; a level-triggered event would keep the loop awake
                on_gone(_reason(descriptor, events))


def _reason(descriptor: int, events: int) -> Reason:
    if not events & (select.EPOLLERR | select.EPOLLHUP):
        return reasons.CLIENT_FIN
    code = _ask(descriptor, lambda sock: sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    if code in (errno.ETIMEDOUT, errno.EHOSTUNREACH):
        return reasons.CLIENT_SILENT
    return reasons.CLIENT_RESET if code or events & select.EPOLLERR else reasons.CLIENT_FIN


_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Hangups] = WeakKeyDictionary()


class SocketWatch:
    """The watch over one client's socket, through a descriptor of its own."""

    def __init__(self, descriptor: int, client_silence_s: float | None) -> None:
        self._servers = descriptor
        self._descriptor = -1
        self._hangups: Hangups | None = None
        self._client_silence_s = client_silence_s

    def start(self, on_gone: OnGone) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._descriptor = os.dup(self._servers)
        except OSError:  # the server has closed it already
            on_gone(reasons.CLIENT_FIN)
            return
        self._hangups = _loops.setdefault(loop, Hangups(loop))
        if self._client_silence_s is not None:
            seconds = self._client_silence_s
            _ask(self._descriptor, lambda sock: tune(sock, seconds))
        self._hangups.add(self._descriptor, on_gone)

    def departure(self) -> Reason | None:
        return departure(self._descriptor)

    def stop(self) -> None:
        if self._hangups is not None:
            self._hangups.remove(self._descriptor)
            self._hangups = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def departure(descriptor: int) -> Reason | None:
    """Why the client of this socket is gone, if it is gone already."""
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)  # hang-ups and errors are told anyway
    events = next((events for _, events in poll.poll(0)), 0)
    return _reason(descriptor, events) if events else None


def tune(sock: socket.socket, client_silence_s: float) -> None:
    """Lets the kernel notice a host that vanished, and keep little unsent."""
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


def _ask(descriptor: int, question: Callable[[socket.socket], Any]) -> Any:
    """Puts a question to a descriptor that is not ours to close; None if it cannot be answered."""
    try:
        sock = socket.socket(fileno=descriptor)
    except OSError:
        return None
    try:
        return question(sock)
    except OSError:
        return None
    finally:
        sock.detach()


# Finding it


def of_transport(transport: Any) -> int | None:
    """The descriptor under an asyncio transport."""
    if not SUPPORTED or transport is None or not hasattr(transport, "get_extra_info"):
        return None
    sock = transport.get_extra_info("socket")
    with contextlib.suppress(OSError, AttributeError):
        descriptor = int(sock.fileno())
        return descriptor if descriptor >= 0 else None
    return None


def of_asgi(scope: Any, receive: Any) -> int | None:
    """The descriptor under an ASGI call: of the transport that `receive` belongs to, else between the scope's two ends."""
    if not SUPPORTED:
        return None
    return of_transport(_transport_of(receive)) or _between(scope.get("server"), scope.get("client"))


def _transport_of(receive: Any) -> Any:
    """uvicorn's `receive` is a method of an object that has the transport; middlewares wrap it in methods of their own."""
    for _ in range(_WRAPPERS_MAX):
        owner = getattr(receive, "__self__", None)
        if owner is None:
            return None
        if getattr(owner, "transport", None) is not None:
            return owner.transport
        receive = getattr(owner, "_receive", None) or getattr(owner, "receive", None)
    return None


def _between(server: Any, client: Any) -> int | None:
    """The one socket of this process that leads from `server` to `client`."""
    if not server or not client or server[1] is None:
        return None
    try:
        names = os.listdir("/proc/self/fd")  # noqa: PTH208 - names are all that is needed, and this is on the way of a call
    except OSError:
        return None
    if len(names) > DESCRIPTORS_MAX:
        return None
    for name in reversed(names):  # the newest have the highest numbers, mostly
        if _leads(int(name), int(server[1]), client[0], int(client[1])):  # granian's ports are text
            return int(name)
    return None


def _leads(descriptor: int, port: int, client: str, client_port: int) -> bool:
    """Whether a descriptor, of whatever kind, is the socket between the two."""
    try:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=descriptor)  # as told: its kind is not asked for
    except OSError:
        return False
    try:
        peer = sock.getpeername()
        if not isinstance(peer, tuple) or peer[1] != client_port or peer[0].removeprefix("::ffff:") != client:
            return False
        return bool(sock.getsockname()[1] == port)
    except OSError:  # no socket, or not connected
        return False
    finally:
        sock.detach()
