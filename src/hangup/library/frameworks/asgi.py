"""The plain ASGI adapter, and what the Starlette and Litestar adapters share with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from hangup.core.reasons import Reason
from hangup.library.ended import CallEnded
from hangup.library.limits import Limits
from hangup.library.sockets import descriptor_of_asgi
from hangup.library.stream import Headers, StreamCall
from hangup.library.watch import ClientWatch, Receive

Send = Callable[[Any], Awaitable[None]]


class AsgiClient:
    """Sends an answer as ASGI messages."""

    def __init__(self, send: Send, answered: tuple[type[Exception], ...] = ()) -> None:
        self._send = send
        self._answered = answered  # the framework's own errors

    async def start(self, status: int, headers: Headers) -> None:
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})

    async def write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def break_off(self) -> None:
        """Do nothing: the app returns without its last message, so the server closes the connection without the last chunk."""

    def answers(self, error: Exception) -> bool:
        return isinstance(error, self._answered)


async def send_stream(
    call: StreamCall, scope: Any, receive: Receive, send: Send, answered: tuple[type[Exception], ...] = ()
) -> None:
    watch = ClientWatch.for_asgi(scope, receive, call.limits.client_silence_s)
    await call.run(watch, AsgiClient(send, answered))


class StreamApp:
    """A response that is itself an ASGI application."""

    def __init__(self, call: StreamCall, answered: tuple[type[Exception], ...] = ()) -> None:
        self.call = call
        self._answered = answered

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await send_stream(self.call, scope, receive, send, self._answered)


class OverAsgi:
    """Shared part of the adapters whose requests have ASGI's `scope` and `receive`."""

    def watch(self, request: Any, limits: Limits) -> ClientWatch:
        return ClientWatch.for_asgi(request.scope, request.receive, limits.client_silence_s)

    def descriptor(self, request: Any) -> int | None:
        return descriptor_of_asgi(request.scope, request.receive)


class Asgi:
    def watch(self, request: Any, limits: Limits) -> ClientWatch:
        scope, receive = request
        return ClientWatch.for_asgi(scope, receive, limits.client_silence_s)

    def descriptor(self, request: Any) -> int | None:
        return descriptor_of_asgi(*request)

    def response(self, request: Any, call: StreamCall) -> StreamApp:
        return StreamApp(call)

    def error(self, ended: CallEnded, reason: Reason) -> Exception:
        return ended


ADAPTER = Asgi()
