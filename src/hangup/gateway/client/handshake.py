"""Accepts TLS connections: each counts, and has `header_s`, from the moment it is accepted and not from the end of its
handshake.

asyncio's own TLS servers report a connection only after its handshake, and give the handshake its own timeout. So this module
accepts the sockets itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Final, Protocol

from hangup.gateway.client.connection import ClientConnection
from hangup.gateway.client.handlers import RequestRouter
from hangup.tasks import Tasks

_ACCEPTED_PER_TURN: Final = 64  # then other tasks run
_RETRY_S: Final = 0.5  # after a failed accept, as when no file descriptors are left


class TlsOwner(RequestRouter[ClientConnection], Protocol):
    tls: ssl.SSLContext | None  # for new connections: a renewed certificate is a new context
    handshakes: int  # number in progress

    def has_room(self) -> bool:
        """Return True if there is room for one more connection."""

    def count_refused(self) -> None: ...


class TlsListener:
    """Accepts connections until it is closed; owns the handshakes, each of which is a task."""

    def __init__(self, owner: TlsOwner, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self._owner = owner
        self._loop = loop
        self._sock = sock
        self._handshakes = Tasks("handshake")
        self._retry: asyncio.TimerHandle | None = None
        self._listen()

    def close(self) -> None:
        self.stop_accepting()
        self._handshakes.cancel()

    def stop_accepting(self) -> None:
        """Accept no more connections; handshakes that have begun go on."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()

    def _listen(self) -> None:
        self._retry = None
        self._loop.add_reader(self._sock.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_PER_TURN):
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._loop.remove_reader(self._sock.fileno())
                self._retry = self._loop.call_later(_RETRY_S, self._listen)
                return
            sock.setblocking(False)
            if not self._owner.has_room():
                self._owner.count_refused()
                sock.close()  # without a handshake, no reason can be sent
                continue
            self._owner.handshakes += 1
            self._handshakes.start(self._shake_hands(sock))

    async def _shake_hands(self, sock: socket.socket) -> None:
        owner, context = self._owner, self._owner.tls
        assert context is not None
        connection = SecuredConnection(owner, self._loop)
        try:
            with contextlib.suppress(OSError):  # not TLS, too slow, or gone
                await self._loop.connect_accepted_socket(
                    lambda: connection, sock, ssl=context, ssl_handshake_timeout=owner.limits.header_s
                )
        finally:
            connection.handshake_is_over()
            if not connection.began:
                sock.close()


class SecuredConnection(ClientConnection):
    """A client's connection that counts as a handshake until the handshake is complete."""

    __slots__ = ("_counted", "_tls_owner", "began")

    def __init__(self, owner: TlsOwner, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(owner, loop)
        self._tls_owner = owner
        self._counted = True
        self.began = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.began = True
        self.handshake_is_over()
        super().connection_made(transport)

    def handshake_is_over(self) -> None:
        if self._counted:
            self._counted = False
            self._tls_owner.handshakes -= 1
