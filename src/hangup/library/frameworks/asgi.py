"""The plain ASGI adapter, and what the Starlette and Litestar adapters share with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from hangup.core.reasons import Reason
from hangup.library.ended import CallEnded
from hangup.library.limits import Limits
from hangup.library.sockets import descriptor_of_asgi, transport_behind
from hangup.library.stream import Headers, StreamCall
from hangup.library.watch import ClientWatch, Receive
from hangup.library.websockets import HeldMessages, MessageCall

Send = Callable[[Any], Awaitable[None]]


class AsgiClient:
    """Sends an answer as ASGI messages."""

    def __init__(self, send: Send, answered: tuple[type[Exception], ...] = (), transport: Any = None) -> None:
        self._send = send
        self._transport = transport  # uvicorn's
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

    async def abandon(self) -> None:
        """Cut the connection: uvicorn would otherwise log an answer that was not completed, also if its client left."""
        if self._transport is not None:
            self._transport.abort()
            await asyncio.sleep(0)  # for `connection_lost`

    def answers(self, error: Exception) -> bool:
        return isinstance(error, self._answered)


async def send_stream(
    call: StreamCall, scope: Any, receive: Receive, send: Send, answered: tuple[type[Exception], ...] = ()
) -> None:
    watch = ClientWatch.for_asgi(scope, receive, call.limits.client_silence_s, send)
    await call.run(watch, AsgiClient(send, answered, transport_behind(receive)))


class StreamApp:
    """A response that is itself an ASGI application."""

    def __init__(self, call: StreamCall, answered: tuple[type[Exception], ...] = ()) -> None:
        self.call = call
        self._answered = answered

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await send_stream(self.call, scope, receive, send, self._answered)


class OverAsgi:
    """Shared part of the adapters whose requests have ASGI's `scope` and `receive`."""

    call_class = StreamCall

    def watch(self, request: Any, limits: Limits) -> ClientWatch:
        return ClientWatch.for_asgi(request.scope, request.receive, limits.client_silence_s, _send_of(request))

    def descriptor(self, request: Any) -> int | None:
        return descriptor_of_asgi(request.scope, request.receive, _send_of(request))


def _send_of(request: Any) -> Any:
    return getattr(request, "_send", None) or getattr(request, "send", None)


class WebSocketOverAsgi:
    """Shared part of the adapters whose WebSockets have ASGI's `receive`, under the name `receive_name`."""

    call_class = MessageCall
    receive_name: str

    def watch(self, request: Any, limits: Limits) -> ClientWatch:
        descriptor = self.descriptor(request)  # first: `_held` hides the server's `receive`
        return ClientWatch(self._held(request).until_closed, descriptor, limits.client_silence_s)

    def descriptor(self, request: Any) -> int | None:
        held = request.scope.get(_HELD)
        receive = getattr(request, self.receive_name) if held is None else held.original
        return descriptor_of_asgi(request.scope, receive, _send_of(request))

    def _held(self, request: Any) -> HeldMessages:
        held: HeldMessages | None = request.scope.get(_HELD)
        if held is None:
            held = HeldMessages(getattr(request, self.receive_name), lambda message: message["type"] == "websocket.disconnect")
            request.scope[_HELD] = held
            setattr(request, self.receive_name, held.receive)
        return held


_HELD = "hangup.messages"


class Asgi:
    call_class = StreamCall

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
