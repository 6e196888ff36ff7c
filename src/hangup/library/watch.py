"""Notices that the client is gone, through the server (ASGI's `http.disconnect`) and through the socket itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from hangup.core import reasons
from hangup.core.reasons import Reason
from hangup.library.sockets import SocketWatch, descriptor_of_asgi, descriptor_of_transport
from hangup.tasks import TASKS

Receive = Callable[[], Awaitable[Any]]
OnDisconnect = Callable[[Reason], object]


_HANDLED = (Exception,)  # `receive` belongs to the server and may fail; the socket is watched as well


class ClientWatch:
    """Watches one client; may call `on_disconnect` more than once, since server and socket both report."""

    def __init__(self, receive: Receive | None, descriptor: int | None, client_silence_s: float | None) -> None:
        self._receive = receive
        self._socket = None if descriptor is None else SocketWatch(descriptor, client_silence_s)
        self._listener: asyncio.Task[None] | None = None

    @classmethod
    def for_asgi(cls, scope: Any, receive: Receive, client_silence_s: float | None, send: Any = None) -> ClientWatch:
        return cls(receive, descriptor_of_asgi(scope, receive, send), client_silence_s)

    @classmethod
    def for_transport(cls, transport: Any, client_silence_s: float | None) -> ClientWatch:
        return cls(None, descriptor_of_transport(transport), client_silence_s)

    def start(self, on_disconnect: OnDisconnect) -> None:
        if self._socket is not None:
            self._socket.start(on_disconnect)
        if self._receive is not None:
            listening = self._listen(self._receive, on_disconnect)
            self._listener = TASKS.start("library watch", listening, handled=_HANDLED, label="hangup watches the client")

    async def _listen(self, receive: Receive, on_disconnect: OnDisconnect) -> None:
        """Read the rest of the body and drop it: the disconnect comes after it."""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                on_disconnect(reasons.CLIENT_FIN)
                return

    def disconnect_reason(self) -> Reason | None:
        """Return why the client is gone; None if it is still there, or if only the server could know."""
        return None if self._socket is None else self._socket.disconnect_reason()

    async def stop(self) -> None:
        if self._socket is not None:
            self._socket.stop()
        if self._listener is not None:
            self._listener.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._listener
