"""Runs blocking engines: each call gets its own thread, which computes one step per request and stops when its token is set."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from hangup.library.ended import log
from hangup.library.token import Cancelled, CancelToken
from hangup.tasks import TASKS

_numbers = itertools.count(1)


class ThreadedIterator(AsyncIterator[Any]):
    """A blocking iterator as an async one. The thread computes a chunk only on request, never ahead.

    `make` runs in the thread too, because opening a blocking stream also blocks; `made` is its result.
    """

    def __init__(self, make: Callable[[], Any], token: CancelToken, what: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._make = make
        self._token = token
        self._wanted = threading.Semaphore(0)
        self._answer: asyncio.Future[tuple[bool, Any]] | None = None
        self.made: asyncio.Future[Any] = self._loop.create_future()
        self._gone = self._loop.create_future()
        self._dismissed = False
        self.name = f"hangup-thread-{next(_numbers)} ({what})"
        token.on_cancel(self._wanted.release)
        TASKS.thread_once("library thread", self._run, label=self.name)

    async def __anext__(self) -> Any:
        if self._gone.done():
            raise StopAsyncIteration
        self._answer = self._loop.create_future()
        self._wanted.release()
        more, value = await self._answer
        if not more:
            raise StopAsyncIteration
        return value

    def dismiss(self) -> None:
        """End the thread, and leave its result to the caller to close."""
        self._dismissed = True
        self._wanted.release()

    async def aclose(self) -> None:
        """Return when the thread has ended; it checks the token between two steps."""
        if not self._dismissed:
            self._token.cancel()
        await asyncio.shield(self._gone)

    def _run(self) -> None:
        made: Any = None
        iterator: Any = None
        try:
            made = self._make()
            self._call(self._set_made, made)
            while self._may_go_on():
                if iterator is None:
                    iterator = iter(made)
                self._tell(True, next(iterator))
        except StopIteration:
            self._tell(False, None)
        except Cancelled:
            pass
        except BaseException as error:
            self._call(self._fail, error)
        finally:
            if not self._dismissed:
                self._close(iterator)
                self._close(made)  # an SDK's stream has its own close; closing its iterator does not close it
            self._call(self._over)

    def _close(self, stream: Any) -> None:
        """Close a stream; if that fails, log it, since the call still waits for the thread's end."""
        close = getattr(stream, "close", None)
        if close is None:
            return
        try:
            close()
        except BaseException as error:
            log.warning("%s: closing the stream failed: %r", self.name, error)

    def _may_go_on(self) -> bool:
        self._wanted.acquire()
        return not self._token.cancelled and not self._dismissed

    def _tell(self, more: bool, value: Any) -> None:
        self._call(self._set, (more, value))

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed: nobody waits any more
            self._token.cancel()

    def _set(self, answer: tuple[bool, Any]) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def _set_made(self, made: Any) -> None:
        if not self.made.done():
            self.made.set_result(made)

    def _fail(self, error: BaseException) -> None:
        waiting = self._answer if self.made.done() else self.made
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)

    def _over(self) -> None:
        self._set((False, None))
        self.made.cancel()
        if not self._gone.done():
            self._gone.set_result(None)


async def call_in_thread(function: Callable[[CancelToken], Any], token: CancelToken, named: Callable[[str], None]) -> Any:
    """Run a blocking function in a thread, pass it the token, and return its result."""

    def once() -> Iterable[Any]:
        yield function(token)

    steps = ThreadedIterator(once, token, getattr(function, "__qualname__", repr(function)))
    named(steps.name)
    try:
        return await anext(steps)
    finally:
        await steps.aclose()
