"""The Litestar adapter."""

from __future__ import annotations

from typing import Any

from litestar.exceptions import HTTPException, WebSocketDisconnect, WebSocketException
from litestar.response import Response

from hangup.core.reasons import Outcome, Reason
from hangup.library.ended import CallEnded, Ended
from hangup.library.frameworks.asgi import OverAsgi, StreamApp, WebSocketOverAsgi
from hangup.library.stream import StreamCall
from hangup.library.websockets import GONE, TIMED_OUT, WebSocketClient


class LitestarStreamResponse(Response[None]):
    """A response that streams a call; annotate the handler with `litestar.Response`."""

    def __init__(self, call: StreamCall) -> None:
        super().__init__(None, status_code=call.status, media_type=call.media_type)
        self.call = call

    def to_asgi_response(self, *_: Any, **__: Any) -> Any:
        return StreamApp(self.call, (HTTPException,))


class LitestarCallEnded(CallEnded, HTTPException):  # this order: Litestar passes its arguments on to the next base class
    def __init__(self, ended: CallEnded, reason: Reason) -> None:
        HTTPException.__init__(self, detail=str(ended), status_code=reason.status, headers=ended.answer_headers)
        self.ended, self.retry_after_s = ended.ended, ended.retry_after_s


class Litestar(OverAsgi):
    def response(self, request: Any, call: StreamCall) -> LitestarStreamResponse:
        return LitestarStreamResponse(call)

    def error(self, ended: CallEnded, reason: Reason) -> Exception:
        return LitestarCallEnded(ended, reason)


class LitestarWebSocketLeft(CallEnded, WebSocketDisconnect):
    def __init__(self, ended: CallEnded) -> None:
        WebSocketDisconnect.__init__(self, detail=str(ended), code=GONE)
        self.ended, self.retry_after_s = ended.ended, ended.retry_after_s


class LitestarWebSocketEnded(CallEnded, WebSocketException):
    def __init__(self, ended: CallEnded) -> None:
        WebSocketException.__init__(self, detail=str(ended), code=TIMED_OUT)
        self.ended, self.retry_after_s = ended.ended, ended.retry_after_s


class LitestarWebSocket(WebSocketOverAsgi):
    receive_name = "receive"

    async def response(self, request: Any, call: StreamCall) -> Ended:
        async def send(data: bytes | str) -> None:
            await (request.send_text(data) if isinstance(data, str) else request.send_bytes(data))

        return await call.run(self.watch(request, call.limits), WebSocketClient(send))

    def error(self, ended: CallEnded, reason: Reason) -> Exception:
        return (LitestarWebSocketLeft if reason.outcome is Outcome.CLIENT_GONE else LitestarWebSocketEnded)(ended)


ADAPTER = Litestar()
WEBSOCKET = LitestarWebSocket()
