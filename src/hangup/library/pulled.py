"""Answers for frameworks that fetch a response's body themselves (Django, Quart): the call runs in a task beside the response.

The handler awaits the head, so that an early failure has a status of its own. After that the framework takes one part of the
body at a time, and the engine is asked for no more than was taken. The framework's end of the body ends the call, and so does
its cancellation of the handler: these frameworks cancel when the client leaves.
"""

from __future__ import annotations

import asyncio
from typing import Any

from hangup.library.stream import Headers, StreamCall
from hangup.library.watch import ClientWatch
from hangup.tasks import TASKS

_HANDLED = (Exception,)  # `head` and the body's reader get them


class PulledAnswer:
    """One answer, as the call's client and as the framework's body. Only one part of it waits to be taken."""

    def __init__(self, call: StreamCall, watch: ClientWatch) -> None:
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[tuple[int, Headers]] = self._loop.create_future()
        self._part: asyncio.Future[bytes | None] = self._loop.create_future()  # None is the end
        self._taken = asyncio.Event()
        self._task = TASKS.start("library call", call.run(watch, self), handled=_HANDLED, label="hangup answers")

    async def head(self) -> tuple[int, Headers]:
        """Wait for the answer's status and headers; if the handler is cancelled meanwhile, end the call."""
        try:
            waited: set[asyncio.Future[Any]] = {self._started, self._task}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._cancel()
            raise
        if self._started.done():
            return self._started.result()
        self._task.result()  # raises
        raise ConnectionResetError("the call ended without an answer")

    # The framework's side

    def __aiter__(self) -> PulledAnswer:
        return self

    async def __anext__(self) -> bytes:
        try:
            part = await self._part
        except asyncio.CancelledError:
            await self._cancel()
            raise
        if part is None:
            raise StopAsyncIteration
        self._part = self._loop.create_future()
        self._taken.set()
        return part

    async def aclose(self) -> None:
        await self._cancel()

    def close_soon(self) -> None:
        """End the call from any thread, if the framework drops the response without reading it."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._task.cancel)

    async def _cancel(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    # The call's side

    async def start(self, status: int, headers: Headers) -> None:
        if not self._started.done():
            self._started.set_result((status, headers))

    async def write(self, data: Any) -> None:
        self._taken.clear()
        self._part.set_result(data)
        await self._taken.wait()

    async def finish(self) -> None:
        if not self._part.done():
            self._part.set_result(None)

    async def break_off(self) -> None:
        """Fail the framework's next read: the body must not look complete."""
        if not self._part.done():
            self._part.set_exception(ConnectionResetError("the call ended before its answer was complete"))
            self._part.exception()  # nobody may be left to read it

    async def abandon(self) -> None:
        await self.finish()

    def answers(self, error: Exception) -> bool:
        return False


async def pull(call: StreamCall, watch: ClientWatch) -> tuple[int, Headers, PulledAnswer]:
    answer = PulledAnswer(call, watch)
    status, headers = await answer.head()
    return status, headers, answer
