"""The Sanic adapter. Sanic cancels a handler whose client leaves; hangup watches the socket as well."""

from __future__ import annotations

from typing import Any

from sanic.exceptions import SanicException

from hangup.core.reasons import Reason
from hangup.library.ended import CallEnded
from hangup.library.limits import Limits
from hangup.library.sockets import descriptor_of_asgi, descriptor_of_transport
from hangup.library.stream import Headers, StreamCall
from hangup.library.watch import ClientWatch


class _SanicClient:
    def __init__(self, request: Any) -> None:
        self._request = request
        self._response: Any = None

    async def start(self, status: int, headers: Headers) -> None:
        fields = {name: value for name, value in headers if name != "content-type"}
        kind = dict(headers).get("content-type")
        self._response = await self._request.respond(status=status, headers=fields, content_type=kind)

    async def write(self, data: Any) -> None:
        await self._response.send(data)

    async def finish(self) -> None:
        await self._response.eof()

    async def break_off(self) -> None:
        abort = getattr(self._request.transport, "abort", None)
        if abort is None:  # under ASGI only an error keeps Sanic from ending the answer properly
            raise ConnectionResetError("the call ended before its response was complete")
        abort()

    async def abandon(self) -> None:
        await self.break_off()

    def answers(self, error: Exception) -> bool:
        return isinstance(error, SanicException)


class SanicCallEnded(CallEnded, SanicException):  # type: ignore[misc] # this order: Sanic passes its arguments on to the next base class
    def __init__(self, ended: CallEnded, reason: Reason) -> None:
        SanicException.__init__(self, str(ended), reason.status, quiet=True, headers=ended.answer_headers)
        self.ended, self.retry_after_s = ended.ended, ended.retry_after_s


class Sanic:
    call_class = StreamCall

    def watch(self, request: Any, limits: Limits) -> ClientWatch:
        return ClientWatch(None, self.descriptor(request), limits.client_silence_s)

    def descriptor(self, request: Any) -> int | None:
        scope = getattr(request.transport, "scope", None)  # under ASGI, where the transport is none
        return descriptor_of_transport(request.transport) if scope is None else descriptor_of_asgi(scope, None)

    async def response(self, request: Any, call: StreamCall) -> None:
        await call.run(self.watch(request, call.limits), _SanicClient(request))

    def error(self, ended: CallEnded, reason: Reason) -> Exception:
        return SanicCallEnded(ended, reason)


ADAPTER = Sanic()
