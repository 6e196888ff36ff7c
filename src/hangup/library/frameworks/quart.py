"""The Quart adapter. Quart cancels a handler whose client leaves; hangup watches the socket as well."""

from __future__ import annotations

import asyncio
from typing import Any

from quart import Response
from werkzeug.exceptions import HTTPException

from hangup.core.reasons import Reason
from hangup.library.ended import CallEnded
from hangup.library.limits import Limits
from hangup.library.pulled import pull
from hangup.library.sockets import descriptor_of_asgi
from hangup.library.stream import StreamCall
from hangup.library.watch import ClientWatch


class QuartCallEnded(CallEnded, HTTPException):  # this order: werkzeug passes its arguments on to the next base class
    def __init__(self, ended: CallEnded, reason: Reason) -> None:
        self.code = reason.status
        HTTPException.__init__(self, str(ended), Response(str(ended), reason.status, ended.answer_headers))
        self.ended, self.retry_after_s = ended.ended, ended.retry_after_s


class Quart:
    call_class = StreamCall

    def watch(self, request: Any, limits: Limits) -> ClientWatch:
        return ClientWatch(None, self.descriptor(request), limits.client_silence_s)

    def descriptor(self, request: Any) -> int | None:
        return descriptor_of_asgi(request.scope, None)

    async def response(self, request: Any, call: StreamCall) -> Response:
        # For a client that left, the response ends like one that Quart cancels: another error would be in the server's log.
        status, headers, answer = await pull(call, self.watch(request, call.limits), asyncio.CancelledError)
        response = Response(answer, status, dict(headers))
        response.timeout = None  # hangup's limits apply; Quart's would cut every stream after a minute
        return response

    def error(self, ended: CallEnded, reason: Reason) -> Exception:
        return QuartCallEnded(ended, reason)


ADAPTER = Quart()
