"""`hangup.Gate`: limits the calls that run at once, the calls that wait, and how long they wait.

Use it as a context manager (`async with gate.enter(request)`), as a FastAPI dependency (`Depends(gate)`) or as ASGI middleware
(`app.add_middleware(gate.middleware)`). A client that disconnects while it waits leaves the queue at once, and its handler
never runs. Nor does the handler of a client that had disconnected before it reached the gate.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import json
import math
import random
import warnings
from collections import Counter, deque
from collections.abc import AsyncIterator
from typing import Any

from hangup.config.limits import AdmissionLimits
from hangup.core import reasons
from hangup.core.admission import Action, Admission, BackendLoad, Ticket
from hangup.core.call import Call
from hangup.core.reasons import Outcome, Reason
from hangup.library.encode import error_body
from hangup.library.ended import CallEnded, describe, report_end
from hangup.library.frameworks import adapter_for
from hangup.library.limits import CLIENT_SILENCE_S
from hangup.library.sockets import SocketWatch, disconnect_reason

_numbers = itertools.count(1)
_Admitted = asyncio.Future[Reason | None]  # done when the call's wait is over: None if it may start, else the reason why not


class _GateAdmission:
    """The gate's decisions, made by the gateway's own `Admission` with one backend that has all the slots."""

    def __init__(self, slots: int, queue: int, max_wait_s: float) -> None:
        self._load = BackendLoad("gate", slots=slots)
        self._max_wait_s = max_wait_s
        limits = AdmissionLimits(queue_depth_max=queue, queue_s=max_wait_s)
        self._admission: Admission[_Admitted] = Admission(limits, [self._load], random.random)

    @property
    def running(self) -> int:
        return self._load.in_flight

    @property
    def waiting(self) -> int:
        return self._admission.queue.count

    def arrive(self, admitted: _Admitted, now: float) -> tuple[Ticket[_Admitted], list[Action[_Admitted]]]:
        ticket = Ticket(admitted, queue_by=now + self._max_wait_s)
        return ticket, self._admission.arrive(ticket, "", now)

    def end(self, ticket: Ticket[_Admitted], now: float) -> list[Action[_Admitted]]:
        """End a call, whether it waits or runs."""
        return self._admission.end(ticket, now)

    def retry_after_s(self, reason: Reason, now: float) -> int:
        return math.ceil(self._admission.retry_after_s("", reason, now))


class Gate:
    """Admission to an engine inside one process; create one per engine and keep it."""

    def __init__(self, slots: int, queue: int = 32, max_wait_s: float = 5.0) -> None:
        for name, value in {"slots": slots, "queue": queue, "max_wait_s": max_wait_s}.items():
            if isinstance(value, bool) or not isinstance(value, (int, float) if name == "max_wait_s" else int):
                raise TypeError(
                    f"{name} of a Gate must be a {'number' if name == 'max_wait_s' else 'whole number'}; got {value!r}"
                )
        if slots < 1 or queue < 0 or not max_wait_s > 0:
            raise ValueError("a Gate needs slots >= 1, queue >= 0 and max_wait_s > 0")
        self.max_wait_s = max_wait_s
        self.refused: Counter[str] = Counter()  # by cause
        self._admission = _GateAdmission(slots, queue, max_wait_s)

    def __repr__(self) -> str:
        return f"<Gate running={self.running} waiting={self.waiting} refused={self.refused.total()}>"

    @property
    def running(self) -> int:
        return self._admission.running

    @property
    def waiting(self) -> int:
        return self._admission.waiting

    @contextlib.asynccontextmanager
    async def enter(self, request: Any) -> AsyncIterator[None]:
        """Hold a slot while the block runs. Raises an error that the framework answers: 503 with Retry-After, or 499."""
        adapter = adapter_for(request)
        ticket, reason = await self._admit(adapter.descriptor(request))
        if reason is not None:
            raise adapter.error(self._refusal(reason), reason)
        try:
            yield
        finally:
            self._end(ticket)

    async def _admit(self, descriptor: int | None) -> tuple[Ticket[_Admitted], Reason | None]:
        """Return the call's ticket, and the reason why it got no slot (None if it got one). A disconnected client gets none."""
        admitted: _Admitted = asyncio.get_running_loop().create_future()
        ticket, actions = self._admission.arrive(admitted, asyncio.get_running_loop().time())
        self._apply(actions)
        try:
            if not admitted.done():
                reason = await self._wait(admitted, descriptor)
            else:
                reason = admitted.result() or (None if descriptor is None else disconnect_reason(descriptor))
        except BaseException:  # cancelled, perhaps in the same loop iteration in which it got its slot
            self._end(ticket)
            raise
        if reason is not None:
            self._end(ticket)
        return ticket, reason

    async def _wait(self, admitted: _Admitted, descriptor: int | None) -> Reason | None:
        watch = None if descriptor is None else SocketWatch(descriptor, CLIENT_SILENCE_S)
        timer = asyncio.get_running_loop().call_later(self.max_wait_s, _resolve, admitted, reasons.QUEUE_TIME)
        try:
            if watch is not None:
                watch.start(lambda reason: _resolve(admitted, reason))
            reason = await admitted
            return reason or (None if watch is None else watch.disconnect_reason())
        finally:
            timer.cancel()
            if watch is not None:
                watch.stop()

    def _end(self, ticket: Ticket[_Admitted]) -> None:
        self._apply(self._admission.end(ticket, asyncio.get_running_loop().time()))

    def _apply(self, actions: list[Action[_Admitted]]) -> None:
        """Wake the calls concerned; if the client of a call that gets a slot has just disconnected, the slot goes to the next
        call.
        """
        decided = deque(actions)  # not by recursion: a queue full of clients that left would be as deep as it is long
        while decided:
            action = decided.popleft()
            if not _resolve(action.ticket.key, action.reason) and action.reason is None:
                decided.extend(self._admission.end(action.ticket, asyncio.get_running_loop().time()))

    def _refusal(self, reason: Reason) -> CallEnded:
        now = asyncio.get_running_loop().time()
        self.refused[reason.code] += 1
        call = Call(f"hu-gate-{next(_numbers)}", now)
        call.end(reason, now)
        ended = describe(call)
        report_end(ended, None)
        retry_after_s = self._admission.retry_after_s(reason, now) if reason.outcome is Outcome.SHED else None
        return CallEnded(ended, reason.message, retry_after_s)

    # FastAPI: Depends(gate)

    async def __call__(self, request: Any) -> AsyncIterator[None]:
        async with self.enter(request):
            yield

    @property
    def __signature__(self) -> inspect.Signature:
        """Return a signature whose parameter is annotated with `Request`, which makes FastAPI pass the request."""
        if _ends_dependencies_early():
            warnings.warn(
                "FastAPI 0.106 to 0.117 end a dependency before the response is sent, so Depends(gate) releases the slot "
                "of a stream at its start; upgrade FastAPI, or use gate.middleware",
                stacklevel=2,
            )
        from starlette.requests import Request  # noqa: PLC0415 - only FastAPI asks

        return inspect.Signature([inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Request)])

    # ASGI

    def middleware(self, app: Any, paths: tuple[str, ...] = ("/",)) -> Any:
        """Return an ASGI application in front of `app`: calls whose path begins with one of `paths` pass the gate."""

        async def gated(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http" or not scope["path"].startswith(tuple(paths)):
                await app(scope, receive, send)
                return
            try:
                async with self.enter((scope, receive)):
                    await app(scope, receive, send)
            except CallEnded as error:
                if not error.ended.id.startswith("hu-gate-"):
                    raise
                await _refuse(error, send)

        return gated


def _ends_dependencies_early() -> bool:
    from importlib import metadata  # noqa: PLC0415 - this import takes half of the time that importing the library may take

    try:
        major, minor, *_ = metadata.version("fastapi").split(".")
    except metadata.PackageNotFoundError:
        return False
    return (0, 106) <= (int(major), int(minor)) < (0, 118)


def _resolve(admitted: asyncio.Future[Reason | None], reason: Reason | None) -> bool:
    if admitted.done():
        return False
    admitted.set_result(reason)
    return True


async def _refuse(error: CallEnded, send: Any) -> None:
    reason = reasons.REASONS[error.ended.cause]
    body = json.dumps(error_body(reason, error.ended.id)).encode()
    fields = {"content-type": "application/json", "content-length": str(len(body)), **error.answer_headers}
    headers = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": reason.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
