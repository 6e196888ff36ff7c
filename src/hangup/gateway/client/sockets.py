"""Socket options that make the kernel report a vanished client, and what the kernel knows about a stalled one.

Accepted sockets inherit the options of the listening socket, so they cost nothing per connection.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import sys
from asyncio.trsock import TransportSocket

# Linux: unsent bytes beyond this stay in our buffer, where we see a stall, and not in the kernel's (otherwise 3 MB).
NOT_SENT_BYTES_MAX = 4096
BACKLOG = 4096
_TCP_NOTSENT_LOWAT = 25
_LAST_ACK_RECV_OFFSET = 56  # of tcpi_last_ack_recv (milliseconds) in Linux's struct tcp_info
_RETRANSMITS_OFFSET = 2  # of tcpi_retransmits there
_ESTABLISHED, _CLOSE_WAIT = 1, 8  # of tcpi_state
_LINGER_RESET = struct.pack("ii", 1, 0)

Sock = socket.socket | TransportSocket  # as asyncio hands it out


def listen(host: str, port: int, client_silence_s: float, *, reuse_port: bool = False) -> socket.socket:
    """Return a listening socket whose connections notice a vanished peer within `client_silence_s`. With `reuse_port`, several
    such sockets share the port, and the kernel spreads new connections over them."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError:  # a part of the name is empty or too long
        raise OSError(errno.EINVAL, "not a valid host name") from None
    family, kind, proto, _, address = found[0]
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address)
        return adopt(sock, client_silence_s)
    except OSError:
        sock.close()
        raise


def adopt(sock: socket.socket, client_silence_s: float) -> socket.socket:
    """Set the options, and listen; also for a socket that somebody else has opened."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _watch_silence(sock, client_silence_s)
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, NOT_SENT_BYTES_MAX)
    sock.listen(BACKLOG)
    sock.setblocking(False)
    return sock


def _watch_silence(sock: socket.socket, seconds: float) -> None:
    """Set keep-alive probes, which work while we are silent, and TCP_USER_TIMEOUT, which works while we write; neither is
    enough alone."""
    probes = 3
    interval = max(1, int(seconds / (probes + 2)))
    idle = max(1, int(seconds) - probes * interval)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", idle), ("TCP_KEEPINTVL", interval), ("TCP_KEEPCNT", probes)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    set_user_timeout(sock, seconds)


def set_user_timeout(sock: Sock, seconds: float) -> None:
    """Limit how long the kernel lets written data go unacknowledged, or unread behind a closed window."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        with contextlib.suppress(OSError):  # the peer may be gone already; the transport reports that
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))


def seconds_since_ack(sock: Sock | None) -> float | None:
    """Return how long ago the peer's host last acknowledged anything: the host of a stalled reader still does, a vanished one
    does not."""
    if sys.platform != "linux" or sock is None:
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    except (OSError, ValueError):
        return None
    (milliseconds,) = struct.unpack_from("=I", info, _LAST_ACK_RECV_OFFSET)
    return float(milliseconds) / 1000


def retransmits(sock: Sock | None) -> bool:
    """Return True if sent data has gone unacknowledged for so long that the kernel sent it again."""
    if sys.platform != "linux" or sock is None:
        return False
    try:
        return bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[_RETRANSMITS_OFFSET])
    except (OSError, ValueError):
        return False


def peer_left(sock: Sock | None, half_close_is_hangup: bool) -> bool:
    """Return True if the kernel already knows that the peer has gone, although the event loop has not reported it yet."""
    if sys.platform != "linux" or sock is None:
        return False
    try:
        state = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except (OSError, ValueError):  # ValueError: the socket is closed
        return True
    return state not in (_ESTABLISHED, _CLOSE_WAIT) or (state == _CLOSE_WAIT and half_close_is_hangup)


def reset_on_close(sock: Sock | None) -> None:
    """Make the next close an RST: the only way to break off an answer that its framing would call complete."""
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
