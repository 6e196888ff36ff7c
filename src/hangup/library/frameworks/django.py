"""The Django adapter, for async views under ASGI. Django cancels a view whose client leaves; hangup watches the socket too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse

from hangup.core.reasons import Reason
from hangup.library.ended import CallEnded
from hangup.library.limits import Limits
from hangup.library.pulled import PulledAnswer, pull
from hangup.library.sockets import descriptor_of_asgi
from hangup.library.stream import StreamCall
from hangup.library.watch import ClientWatch


class DjangoStreamResponse(StreamingHttpResponse):  # type: ignore[misc] # Django has no types
    """A response that streams a call; closing it ends the call."""

    def __init__(self, status: int, headers: dict[str, str], answer: PulledAnswer) -> None:
        super().__init__(answer, status=status, headers=headers)
        self._answer = answer

    def close(self) -> None:
        self._answer.close_soon()
        super().close()


class Django:
    call_class = StreamCall

    def watch(self, request: Any, limits: Limits) -> ClientWatch:
        return ClientWatch(None, self.descriptor(request), limits.client_silence_s)

    def descriptor(self, request: Any) -> int | None:
        return descriptor_of_asgi(request.scope, None)

    async def response(self, request: Any, call: StreamCall) -> HttpResponseBase:
        status, headers, answer = await pull(call, self.watch(request, call.limits))
        return DjangoStreamResponse(status, dict(headers), answer)

    def error(self, ended: CallEnded, reason: Reason) -> Exception:
        return ended


class CallEndedMiddleware:
    """Answers `hangup.CallEnded` with its status. Django has no exception that carries one."""

    async_capable = True
    sync_capable = False

    def __init__(self, get_response: Callable[[HttpRequest], Awaitable[HttpResponseBase]]) -> None:
        from asgiref.sync import markcoroutinefunction  # noqa: PLC0415 - Django's own

        self._get_response = get_response
        markcoroutinefunction(self)

    async def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return await self._get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if not isinstance(exception, CallEnded):
            return None
        return HttpResponse(str(exception), status=exception.ended.status, headers=exception.answer_headers)


ADAPTER = Django()
