"""`hangup.Gate`: so many calls at once, so many in line, and not for longer than they may wait.

As a context (`async with gate.enter(request)`), as a FastAPI dependency (`Depends(gate)`) and as an ASGI middleware
(`app.add_middleware(gate.middleware)`). A client that leaves while it waits is unlinked at once, and its handler never runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import json
import math
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from hangup.core import reasons
from hangup.core.call import Call
from hangup.core.placement import Placement, Seat
from hangup.core.reasons import Outcome, Reason
from hangup.library.encode import error_body
from hangup.library.ended import CallEnded, describe, tell
from hangup.library.frameworks import adapter_for
from hangup.library.limits import CLIENT_SILENCE_S
from hangup.library.sockets import SocketWatch

_numbers = itertools.count(1)


class _Line:
    """The gate's decisions: the gateway's own placement, with one backend that has all the slots."""

    def __init__(self, slots: int, queue: int) -> None:
        self._seat = Seat("gate", slots=slots)
        self._placement = Placement(queue_depth_max=queue, seats=[self._seat])

    @property
    def running(self) -> int:
        return self._seat.in_flight

    @property
    def waiting(self) -> int:
        return len(self._placement.line)

    def take(self) -> bool:
        """A slot, if one is free and nobody is in line for it."""
        if self.waiting or not self._seat.free:
            return False
        self._placement.take(self._seat)
        return True

    def wait(self, key: Any) -> bool:
        return self._placement.wait(key)

    def leave(self, key: Any) -> None:
        self._placement.leave(key)

    def release(self) -> list[Any]:
        """A call is over; those who may go now."""
        return [grant.key for grant in self._placement.release(self._seat)]


class Gate:
    """Admission to an engine inside one process; make one per engine and keep it."""

    def __init__(self, slots: int, queue: int = 32, max_wait_s: float = 5.0) -> None:
        if slots < 1 or queue < 0 or max_wait_s <= 0:
            raise ValueError("a Gate needs slots >= 1, queue >= 0 and max_wait_s > 0")
        self.max_wait_s = max_wait_s
        self.refused: Counter[str] = Counter()  # by cause
        self._line = _Line(slots, queue)

    def __repr__(self) -> str:
        return f"<Gate running={self.running} waiting={self.waiting} refused={self.refused.total()}>"

    @property
    def running(self) -> int:
        return self._line.running

    @property
    def waiting(self) -> int:
        return self._line.waiting

    @contextlib.asynccontextmanager
    async def enter(self, request: Any) -> AsyncIterator[None]:
        """A slot for as long as the block lasts. Raises, in a form that the framework answers: 503 with Retry-After, or 499."""
        adapter = adapter_for(request)
        refusal = await self._admit(adapter.descriptor(request))
        if refusal is not None:
            raise adapter.error(refusal[0], refusal[1])
        try:
            yield
        finally:
            self._release()

    async def _admit(self, descriptor: int | None) -> tuple[CallEnded, Reason] | None:
        """None when the call has a slot; else why it has none."""
        call = Call(f"hu-gate-{next(_numbers)}", asyncio.get_running_loop().time())
        if self._line.take():
            return None
        go = asyncio.get_running_loop().create_future()
        reason = await self._wait(go, descriptor) if self._line.wait(go) else reasons.QUEUE_FULL
        if reason is None:
            return None
        self.refused[reason.code] += 1
        call.end(reason, asyncio.get_running_loop().time())
        ended = describe(call)
        tell(ended, None)
        retry_after_s = math.ceil(self.max_wait_s) if reason.outcome is Outcome.SHED else None
        return CallEnded(ended, reason.message, retry_after_s), reason

    async def _wait(self, go: asyncio.Future[Reason | None], descriptor: int | None) -> Reason | None:
        watch = None if descriptor is None else SocketWatch(descriptor, CLIENT_SILENCE_S)
        timer = asyncio.get_running_loop().call_later(self.max_wait_s, _settle, go, reasons.QUEUE_TIME)
        try:
            if watch is not None:
                watch.start(lambda reason: _settle(go, reason))
            return await go
        except BaseException:
            if go.done() and not go.cancelled() and go.result() is None:
                self._release()  # the slot came in the same turn as the cancellation
            raise
        finally:
            self._line.leave(go)
            timer.cancel()
            if watch is not None:
                watch.stop()

    def _release(self) -> None:
        """Passes the slot on; one whose client left in this very turn passes it on again."""
        for go in self._line.release():
            if not _settle(go, None):
                self._release()

    # FastAPI: Depends(gate)

    async def __call__(self, request: Any) -> AsyncIterator[None]:
        async with self.enter(request):
            yield

    @property
    def __signature__(self) -> inspect.Signature:
        """FastAPI passes the request to a parameter that is annotated with its class."""
        from starlette.requests import Request  # noqa: PLC0415 - only FastAPI asks

        return inspect.Signature([inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Request)])

    # ASGI

    def middleware(self, app: Any, paths: tuple[str, ...] = ("/",)) -> Any:
        """An ASGI application in front of `app`: calls whose path begins with one of `paths` pass the gate."""

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


def _settle(go: asyncio.Future[Reason | None], reason: Reason | None) -> bool:
    if go.done():
        return False
    go.set_result(reason)
    return True


async def _refuse(error: CallEnded, send: Any) -> None:
    reason = reasons.REASONS[error.ended.cause]
    body = json.dumps(error_body(reason, error.ended.id)).encode()
    fields = {"content-type": "application/json", "content-length": str(len(body)), **error.answer_headers}
    headers = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": reason.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
