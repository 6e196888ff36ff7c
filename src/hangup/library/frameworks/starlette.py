"""The Starlette and FastAPI adapter."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException, WebSocketException
from starlette.responses import Response
from starlette.websockets import WebSocketDisconnect

from hangup.core.reasons import Outcome, Reason
from hangup.library.ended import CallEnded, Ended
from hangup.library.frameworks.asgi import OverAsgi, Send, WebSocketOverAsgi, send_stream
from hangup.library.stream import StreamCall
from hangup.library.watch import Receive
from hangup.library.websockets import GONE, TIMED_OUT, WebSocketClient


class StarletteStreamResponse(Response):
    """A response that streams a call. Its `background` runs as with any response, after the call has ended completely."""

    def __init__(self, call: StreamCall) -> None:
        super().__init__(None, call.status, media_type=call.media_type)
        self.call = call
        for name in ("content-length", "content-type"):
            if name in self.headers:
                del self.headers[name]

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        self.call.headers |= {name: value for name, value in self.headers.items() if name not in self.call.headers}
        await send_stream(self.call, scope, receive, send, (HTTPException,))
        if self.background is not None:
            await self.background()


class StarletteCallEnded(HTTPException, CallEnded):
    def __init__(self, ended: CallEnded, reason: Reason) -> None:
        self.ended, self.retry_after_s = ended.ended, ended.retry_after_s
        HTTPException.__init__(self, reason.status, str(ended), ended.answer_headers)


class Starlette(OverAsgi):
    def response(self, request: Any, call: StreamCall) -> StarletteStreamResponse:
        return StarletteStreamResponse(call)

    def error(self, ended: CallEnded, reason: Reason) -> Exception:
        return StarletteCallEnded(ended, reason)


class StarletteWebSocketLeft(WebSocketDisconnect, CallEnded):
    def __init__(self, ended: CallEnded) -> None:
        WebSocketDisconnect.__init__(self, GONE, str(ended))
        self.ended, self.retry_after_s = ended.ended, ended.retry_after_s


class StarletteWebSocketEnded(WebSocketException, CallEnded):
    def __init__(self, ended: CallEnded) -> None:
        WebSocketException.__init__(self, TIMED_OUT, str(ended))
        self.ended, self.retry_after_s = ended.ended, ended.retry_after_s


class StarletteWebSocket(WebSocketOverAsgi):
    receive_name = "_receive"

    async def response(self, request: Any, call: StreamCall) -> Ended:
        async def send(data: bytes | str) -> None:
            await (request.send_text(data) if isinstance(data, str) else request.send_bytes(data))

        return await call.run(self.watch(request, call.limits), WebSocketClient(send))

    def error(self, ended: CallEnded, reason: Reason) -> Exception:
        return (StarletteWebSocketLeft if reason.outcome is Outcome.CLIENT_GONE else StarletteWebSocketEnded)(ended)


ADAPTER = Starlette()
WEBSOCKET = StarletteWebSocket()
