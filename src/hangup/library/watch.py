"""Notices that the client is gone, through the server (ASGI's `http.disconnect`) and through the socket itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from hangup.core import reasons
from hangup.core.reasons import Reason
from hangup.library.sockets import SocketWatch, of_asgi, of_transport
from hangup.tasks import TASKS

Receive = Callable[[], Awaitable[Any]]
OnGone = Callable[[Reason], object]


_ANY = (Exception,)  # `receive` belongs to the server and may fail; the socket is watched as well


class ClientWatch:
    """Watches one client; may call `on_gone` more than once, since server and socket both report."""

    def __init__(self, receive: Receive | None, descriptor: int | None, client_silence_s: float | None) -> None:
        self._receive = receive
        self._socket = None if descriptor is None else SocketWatch(descriptor, client_silence_s)
        self._listener: asyncio.Task[None] | None = None

    @classmethod
    def over_asgi(cls, scope: Any, receive: Receive, client_silence_s: float | None) -> ClientWatch:
        return cls(receive, of_asgi(scope, receive), client_silence_s)

    @classmethod
    def over_transport(cls, transport: Any, client_silence_s: float | None) -> ClientWatch:
        return cls(None, of_transport(transport), client_silence_s)

    def start(self, on_gone: OnGone) -> None:
        if self._socket is not None:
            self._socket.start(on_gone)
        if self._receive is not None:
            listening = self._listen(self._receive, on_gone)
            self._listener = TASKS.start("library watch", listening, handled=_ANY, label="hangup watches the client")

    async def _listen(self, receive: Receive, on_gone: OnGone) -> None:
        """Read the rest of the body and drop it: the disconnect comes after it."""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                on_gone(reasons.CLIENT_FIN)
                return

    async def stop(self) -> None:
        if self._socket is not None:
            self._socket.stop()
        if self._listener is not None:
            self._listener.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._listener
