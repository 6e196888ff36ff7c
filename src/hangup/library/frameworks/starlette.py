"""The Starlette and FastAPI adapter."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from hangup.core.reasons import Reason
from hangup.library.ended import CallEnded
from hangup.library.frameworks.asgi import OverAsgi, Send, send_stream
from hangup.library.stream import StreamCall
from hangup.library.watch import Receive


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


ADAPTER = Starlette()
