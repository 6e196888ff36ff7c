"""Requests that the gateway answers itself: those about jobs and files, and `OPTIONS *`.

Each is a call like any other, with a log line and an outcome, but without an engine. If it must wait for the store, it has a
task, which is cancelled when the call ends for any reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from hangup.core import reasons
from hangup.core.call import UNLIMITED, Call, CallTimeLimits, Phase
from hangup.core.reasons import Reason
from hangup.errors import Refusal
from hangup.gateway import answers
from hangup.gateway.call_flow import CallFlow
from hangup.gateway.client.connection import ClientConnection
from hangup.gateway.client_request import ClientRequest, FlowPorts
from hangup.gateway.engine_request import GenerationRequest
from hangup.gateway.jobs.api import JobApi
from hangup.gateway.jobs.calls import EVENT_STREAM
from hangup.gateway.jobs.http_messages import JobHttpRequest, JobHttpResponse, parse_query
from hangup.gateway.kinds.question import ResponseQuestion
from hangup.gateway.request_policy import IncomingRequest
from hangup.gateway.store.worker_thread import StoreFailed
from hangup.tasks import TASKS

_FORM_BYTES_MAX: Final = 64 * 1024  # of a form, apart from its file
_ALLOWED_SOMEWHERE: Final = b"GET, HEAD, POST, DELETE, OPTIONS"


class ServerOptions(ClientRequest):
    """`OPTIONS *`: the methods of the whole server (RFC 9110, 9.3.7); some clients use it as a health check."""

    __slots__ = ()

    def body_arrived(self, body: bytes) -> None:
        self.call.received(time.monotonic())
        answers.own_answer(self, 200, b"text/plain", [(b"allow", _ALLOWED_SOMEWHERE)], b"")
        self.end(reasons.COMPLETED)


class LocalRequest(ClientRequest):
    """A request about jobs or files, answered by a task of its own."""

    __slots__ = ("_body", "_connection", "_head_only", "_job_api", "_job_request", "_writable")

    def __init__(
        self, ports: FlowPorts, connection: ClientConnection, call: Call, request: IncomingRequest, job_api: JobApi
    ) -> None:
        super().__init__(ports, connection, call, request)
        head = request.head
        self._connection = connection
        self._job_api = job_api
        self._body: asyncio.Future[bytes] = ports.loop.create_future()
        self._writable = asyncio.Event()
        if not connection.stalled:
            self._writable.set()
        host = head.fields.get(b"host", b"").decode("latin-1")
        secure = ports.policy.settings.tls_cert or head.fields.get(b"x-forwarded-proto") == b"https"
        self._head_only = head.method == "HEAD"
        self._job_request = JobHttpRequest(
            "GET" if self._head_only else head.method,
            head.path,
            parse_query(head.query),
            head.fields,
            call.tenant,
            self.limits,
            f"{'https' if secure else 'http'}://{host}",
        )

    def start(self) -> None:
        """Start the task that answers; raise a `Refusal` for an invalid upload before its body is read."""
        request, limits = self._job_request, self.limits
        request.upload = self._job_api.upload(request, self._pause)
        if request.upload is not None:
            self.body_bytes_max = limits.file_bytes_max + _FORM_BYTES_MAX
            self.body_s = limits.upload_s
        self.call.clock = CallTimeLimits(total_s=self.body_s + limits.total_s)
        self.task = TASKS.start("job request", self._run(partial(self._job_api.answer, request)))

    @classmethod
    def take_over(cls, flow: CallFlow, job_api: JobApi, generation: GenerationRequest) -> None:
        """Take over a generation call whose client does not wait, and make it a job."""
        connection = flow.client
        assert isinstance(connection, ClientConnection)
        request = cls(flow.ports, connection, flow.call, flow.request, job_api)
        request._body.set_result(generation.body)
        request.call.clock = CallTimeLimits(total_s=request.limits.total_s)
        flow.hand_over(connection, request)
        answer = partial(job_api.defer, request._job_request, generation.ask, generation.value)
        request.task = TASKS.start("job request", request._run(answer))

    # Called by the connection

    def body_piece(self, piece: bytes) -> bool:
        upload = self._job_request.upload
        if upload is None:
            return False
        try:
            upload.feed(piece)
        except (Refusal, StoreFailed) as error:
            self.end(*_reason(error))
        return True

    def body_arrived(self, body: bytes) -> None:
        if self._job_request.upload is not None and body:
            self.body_piece(body)
        if not self.call.ended:
            self.call.received(time.monotonic())
            self.reset_timer()
            self._body.set_result(body)

    def refuse(self, reason: Reason, detail: str = "") -> None:
        self.end(reason, detail)

    def pause_engine(self) -> None:
        self._writable.clear()

    def resume_engine(self) -> None:
        self._writable.set()

    def _pause(self, on: bool) -> None:
        """Pause or resume reading an upload that arrives faster than it can be stored.

        Only this and a WebSocket whose engine does not read ever stop the reading from a client.
        """
        transport = self._connection.transport
        if transport.is_closing() or (on and self.call.ended):
            return
        with contextlib.suppress(RuntimeError):  # already paused, or already reading
            if on:
                transport.pause_reading()
            else:
                transport.resume_reading()

    # The answer

    async def _run(self, make_answer: Callable[[], Awaitable[JobHttpResponse]]) -> None:
        request = self._job_request
        try:
            request.body = await self._body
            await self._give(await make_answer())
        except (Refusal, StoreFailed) as error:
            self.task = None  # `end` must not cancel the task that calls it
            self._refused(error)
        except Exception as error:
            self.task = None
            self.fault(error)

    def _drop_references(self) -> None:
        super()._drop_references()
        if self._job_request.upload is not None:  # not in the task, which may be cancelled before it starts
            self._job_request.upload.close()

    def _refused(self, error: Refusal | StoreFailed) -> None:
        try:
            request = self._ask_engine(error)
        except Exception as fault:
            self.fault(fault)
        else:
            if not request:
                self.end(*_reason(error))

    def _ask_engine(self, error: Refusal | StoreFailed) -> bool:
        """Ask an engine for an object that the gateway does not have; return False if no engine can have it."""
        missing = isinstance(error, Refusal) and error.reason is reasons.NOT_FOUND
        if not missing or not self.api.engine_may_have:
            return False
        try:
            question = ResponseQuestion(self.ports, self._connection, self.call, self.request)
        except Refusal:
            return False
        self.hand_over(self._connection, question)
        question.ask(self._job_request.body)
        return True

    async def _give(self, answer: JobHttpResponse) -> None:
        if answer.pieces is None:
            answers.own_answer(self, answer.status, answer.content_type, answer.headers, answer.body)
        else:
            self.ends_on_drain = answer.content_type == EVENT_STREAM
            self.call.clock = UNLIMITED if self.ends_on_drain else self.call.clock
            self.reset_timer()
            self.call.stream = self.ends_on_drain
            answers.begin_own_answer(self, answer.status, answer.content_type, answer.headers)
            self._connection.flush()
            if not self._head_only:
                async for piece in answer.pieces:
                    await self._writable.wait()
                    self._connection.send(piece)
            self.call.client_has_all = True
        self.task = None
        self.end(reasons.COMPLETED)

    def waits_for(self) -> str:
        return "the job store" if self.call.phase is Phase.WAITING else super().waits_for()


def _reason(error: Refusal | StoreFailed) -> tuple[Reason, str]:
    return (error.reason, error.detail) if isinstance(error, Refusal) else (reasons.JOBS_UNAVAILABLE, str(error))
