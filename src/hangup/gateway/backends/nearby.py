"""Connects to an engine on this machine at once.

Between two sockets of one machine, the handshake is over when the kernel returns from `connect`. To learn that from the event
loop takes a task and four of its turns, each of which serves others first. Only with uvloop, with which hangup serves.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Generator
from typing import cast

import uvloop

_CONNECTED = (0, errno.EISCONN)


def family_of(address: str, loop: asyncio.AbstractEventLoop) -> socket.AddressFamily | None:
    """Return the family of an IP address of this machine itself; None for any other address, for a name, and without uvloop."""
    if not isinstance(loop, uvloop.Loop):
        return None
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return None
    if not ip.is_loopback:
        return None
    return socket.AF_INET if ip.version == 4 else socket.AF_INET6


def connect(family: socket.AddressFamily, address: str, port: int, receive_bytes: int) -> socket.socket | None:
    """Return a connected socket, or None if nobody answers at once."""
    try:
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError:
        return None
    sock.setblocking(False)
    if receive_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    # The first call sends the SYN and never says more than "in progress"; the second one tells how it went.
    if sock.connect_ex((address, port)) in (0, errno.EINPROGRESS) and sock.connect_ex((address, port)) in _CONNECTED:
        return sock
    sock.close()
    return None


def make_transport(loop: asyncio.AbstractEventLoop, sock: socket.socket, connection: asyncio.Protocol) -> None:
    """Have uvloop make a transport over a connected socket, which tells its protocol in the next turn; raise OSError if it
    cannot."""
    steps = loop.create_connection(lambda: connection, sock=sock).__await__()
    _step(steps)
    # The transport has the descriptor now, but uvloop notes only in a later step that this object must not close it, too: by
    # then the connection may be lost, and the descriptor belong to another one.
    sock.detach()


def _step(steps: Generator[object, None, object]) -> None:
    """Run a coroutine up to where it waits, and the rest when what it waits for is there: an eager task without the task."""
    try:
        waits_for = cast("asyncio.Future[object]", next(steps))
    except StopIteration:
        return
    waits_for._asyncio_future_blocking = False  # noqa: SLF001 - as tasks do, to say that they have taken it
    waits_for.add_done_callback(lambda _: _step(steps))
