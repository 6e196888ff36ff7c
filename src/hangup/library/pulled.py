"""Answers for frameworks that fetch a response's body themselves (Django, Quart): the call runs in a task beside the response.

The handler awaits the head, so that an early failure has a status of its own. After that the framework takes one part of the
body at a time, and the engine is asked for no more than was taken. The framework's end of the body ends the call, and so does
its cancellation of the handler: these frameworks cancel when the client leaves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from hangup.library.stream import Headers, StreamCall
from hangup.library.watch import ClientWatch
from hangup.tasks import TASKS

_HANDLED = (Exception,)  # `head` and the body's reader get them


def _broken_off() -> BaseException:
    return ConnectionResetError("the call ended before its answer was complete")


class PulledAnswer:
    """One answer, as the call's client and as the framework's body. Its end waits behind the parts that are not taken yet."""

    def __init__(self, call: StreamCall, watch: ClientWatch, abandoned: Callable[[], BaseException]) -> None:
        """`abandoned` makes what ends the body of a client that left, or that counts as gone."""
        self._abandoned = abandoned
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[tuple[int, Headers]] = self._loop.create_future()
        self._parts: deque[bytes] = deque()  # one, and those that tell a client that has not taken it how the call ended
        self._is_over = False  # no further parts will come
        self._interrupted = False  # the call ended while it waited for its client to take a part
        self._failure: BaseException | None = None  # what the framework gets after the last part, if the body is not complete
        self._readable = asyncio.Event()
        self._taken = asyncio.Event()
        self._task = TASKS.start("library call", call.run(watch, self), handled=_HANDLED, label="hangup answers")
        self._task.add_done_callback(self._on_call_end)

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
            await self._readable.wait()
        except asyncio.CancelledError:
            await self._cancel()
            raise
        if not self._parts:
            if self._failure is None:
                raise StopAsyncIteration
            raise self._failure
        part = self._parts.popleft()
        if not self._parts:
            self._taken.set()
            if not self._is_over:
                self._readable.clear()
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
        self._parts.append(data)
        self._readable.set()
        try:
            await self._taken.wait()
        except asyncio.CancelledError:
            self._interrupted = True
            raise

    async def finish(self) -> None:
        self._end(None)

    async def break_off(self) -> None:
        """Fail the framework's read after the last part: the body must not look complete."""
        self._end(_broken_off())

    async def abandon(self) -> None:
        if self._interrupted:  # a client that stalled may read on, or has done so by now
            self._end(self._abandoned())
        else:
            await self.finish()

    def _end(self, failure: BaseException | None) -> None:
        if not self._is_over:
            self._is_over, self._failure = True, failure
            self._readable.set()

    def _on_call_end(self, task: asyncio.Task[Any]) -> None:
        """End the body in any case: the framework must not wait for a call that is over."""
        error = self._abandoned() if task.cancelled() else task.exception()
        self._end(error or _broken_off())

    def answers(self, error: Exception) -> bool:
        return False


async def pull(
    call: StreamCall, watch: ClientWatch, abandoned: Callable[[], BaseException] = _broken_off
) -> tuple[int, Headers, PulledAnswer]:
    answer = PulledAnswer(call, watch, abandoned)
    status, headers = await answer.head()
    return status, headers, answer
