"""The aiohttp adapter. aiohttp has a transport but no `receive`."""

from __future__ import annotations

from typing import Any

from aiohttp import WSMsgType, web
from aiohttp.abc import AbstractStreamWriter

from hangup.core.reasons import Reason
from hangup.library.ended import CallEnded, Ended
from hangup.library.limits import Limits
from hangup.library.sockets import descriptor_of_socket, descriptor_of_transport
from hangup.library.stream import Headers, StreamCall
from hangup.library.watch import ClientWatch
from hangup.library.websockets import HeldMessages, MessageCall, WebSocketClient


class AiohttpStreamResponse(web.StreamResponse):
    """A response that streams a call: `prepare` sends all of it."""

    def __init__(self, call: StreamCall) -> None:
        super().__init__()
        self.call = call

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        if not self.prepared:
            watch = ClientWatch.for_transport(request.transport, self.call.limits.client_silence_s)
            await self.call.run(watch, _AiohttpClient(self, request))
        return await super().prepare(request)


class _AiohttpClient:
    def __init__(self, response: AiohttpStreamResponse, request: web.BaseRequest) -> None:
        self._response = response
        self._request = request

    async def start(self, status: int, headers: Headers) -> None:
        self._response.set_status(status)
        for name, value in headers:
            self._response.headers[name] = value
        await web.StreamResponse.prepare(self._response, self._request)

    async def write(self, data: bytes) -> None:
        await self._response.write(data)

    async def finish(self) -> None:
        await self._response.write_eof()

    async def break_off(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()
        raise ConnectionResetError("the call ended before its response was complete")

    async def abandon(self) -> None:
        await self.break_off()

    def answers(self, error: Exception) -> bool:
        return False  # aiohttp does not answer an error that is raised while a response is prepared


class AiohttpCallEnded(web.HTTPException, CallEnded):
    def __init__(self, ended: CallEnded, reason: Reason) -> None:
        self.status_code = reason.status
        web.HTTPException.__init__(self, headers=ended.answer_headers, reason=reason.code, text=str(ended))
        self.ended, self.retry_after_s = ended.ended, ended.retry_after_s


class Aiohttp:
    call_class = StreamCall

    def watch(self, request: Any, limits: Limits) -> ClientWatch:
        return ClientWatch.for_transport(request.transport, limits.client_silence_s)

    def descriptor(self, request: Any) -> int | None:
        return descriptor_of_transport(request.transport)

    def response(self, request: Any, call: StreamCall) -> AiohttpStreamResponse:
        return AiohttpStreamResponse(call)

    def error(self, ended: CallEnded, reason: Reason) -> Exception:
        return AiohttpCallEnded(ended, reason)


class AiohttpWebSocket:
    """aiohttp's `WebSocketResponse`, once it is prepared."""

    call_class = MessageCall
    _closes = (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR)

    def watch(self, request: Any, limits: Limits) -> ClientWatch:
        return ClientWatch(self._held(request).until_closed, self.descriptor(request), limits.client_silence_s)

    def descriptor(self, request: Any) -> int | None:
        sock = request.get_extra_info("socket")
        return descriptor_of_socket(sock)

    def _held(self, request: Any) -> HeldMessages:
        held: HeldMessages | None = getattr(request.receive, "__self__", None)
        if not isinstance(held, HeldMessages):
            held = HeldMessages(request.receive, lambda message: message.type in self._closes)
            request.receive = held.receive
        return held

    async def response(self, request: Any, call: StreamCall) -> Ended:
        async def send(data: bytes | str) -> None:
            await (request.send_str(data) if isinstance(data, str) else request.send_bytes(data))

        return await call.run(self.watch(request, call.limits), WebSocketClient(send))

    def error(self, ended: CallEnded, reason: Reason) -> Exception:
        return ended


ADAPTER = Aiohttp()
WEBSOCKET = AiohttpWebSocket()
