"""Connects to an engine on this host without waiting for the event loop.

Over the loopback interface, the kernel completes a TCP handshake before `connect` returns. The event loop would report this
some turns later, and only then would the request go out. So hangup connects a socket of its own and sends the request on it at
once. The event loop takes the socket over while the engine reads the request; until then, an `OpeningTransport` stands in.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
import sys

SocketAddress = tuple[str, int] | tuple[str, int, int, int]  # of IPv4, of IPv6


def on_this_host(address: SocketAddress | None) -> SocketAddress | None:
    """Return the address of a connection's other end if the kernel connects to it at once, else None."""
    if sys.platform != "linux" or not address or not ipaddress.ip_address(address[0].partition("%")[0]).is_loopback:
        return None
    return address


def connect(address: SocketAddress) -> socket.socket | None:
    """Return a connected socket; None if nobody listens there, the backlog is full, or we have no descriptors or ports."""
    family = socket.AF_INET if len(address) == 2 else socket.AF_INET6
    try:
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except OSError:
        return None
    # The first call returns that it has begun, the second that it is done.
    if sock.connect_ex(address) == errno.EINPROGRESS and sock.connect_ex(address) == 0:
        return sock
    sock.close()
    return None


class OpeningTransport(asyncio.Transport):
    """Sends on a connected socket until the event loop's transport takes over, and leaves the rest to it."""

    __slots__ = ("_aborted", "_sock", "_unsent")

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._sock = sock
        self._unsent = b""
        self._aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        sent = 0
        if not self._unsent:
            with contextlib.suppress(OSError):  # it is full or broken; the next transport will meet the same, and report it
                sent = self._sock.send(data)
        if sent < len(data):
            self._unsent += bytes(data[sent:])

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def is_closing(self) -> bool:
        return self._aborted

    def abort(self) -> None:
        """Tell the engine at once. Only the next transport closes the socket, which it may already hold."""
        self._aborted = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def pause_reading(self) -> None:
        """Nothing is read before the next transport, which the connection then pauses."""

    def resume_reading(self) -> None: ...

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def hand_over(self, transport: asyncio.Transport) -> None:
        """Let the next transport send the rest."""
        if self._unsent and not self._aborted:
            transport.write(self._unsent)
        self._unsent = b""
