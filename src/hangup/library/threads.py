"""Runs blocking engines: each call gets its own thread, which computes one step per request and stops when its token is set."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

from hangup.library.ended import log
from hangup.library.token import Cancelled, CancelToken
from hangup.tasks import TASKS

THREADS_MAX = 128  # of one event loop; further calls wait for one to end
_numbers = itertools.count(1)
_threads_max = THREADS_MAX
_places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


def set_threads_max(threads: int) -> None:
    """Set how many threads each event loop may use for blocking engines at once; call it before the first one is used."""
    global _threads_max  # noqa: PLW0603 - one for the process, set at its start
    if not isinstance(threads, int) or threads < 1:
        raise ValueError(f"threads must be 1 or more; got {threads!r}")
    _threads_max = threads


async def _take_place() -> asyncio.Semaphore:
    """Wait until one more thread may run; the thread's end gives the place back, also if it is long after its call's end."""
    places = _places.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_threads_max))
    if places.locked():
        log.warning("all %d threads are busy: a call waits for one (hangup.set_threads_max)", _threads_max)
    await places.acquire()
    return places


class ThreadedIterator(AsyncIterator[Any]):
    """A blocking iterator as an async one. The thread computes a chunk only on request, never ahead.

    `open_source` runs in the thread too, because opening a blocking stream also blocks; `opened` is its result.
    """

    def __init__(self, open_source: Callable[[], Any], token: CancelToken, description: str, place: asyncio.Semaphore) -> None:
        self._place = place
        self._loop = asyncio.get_running_loop()
        self._open_source = open_source
        self._token = token
        self._chunk_requests = threading.Semaphore(0)
        self._next_chunk: asyncio.Future[tuple[bool, Any]] | None = None
        self.opened: asyncio.Future[Any] = self._loop.create_future()
        self._thread_ended = self._loop.create_future()
        self._dismissed = False
        self.name = f"hangup-thread-{next(_numbers)} ({description})"
        token.on_cancel(self._chunk_requests.release)
        context = contextvars.copy_context()  # tracing, log fields and the call's deadline
        TASKS.thread_once("library thread", lambda: context.run(self._run), label=self.name)

    async def __anext__(self) -> Any:
        if self._thread_ended.done():
            raise StopAsyncIteration
        self._next_chunk = self._loop.create_future()
        self._chunk_requests.release()
        more, value = await self._next_chunk
        if not more:
            raise StopAsyncIteration
        return value

    def dismiss(self) -> None:
        """End the thread, and leave its result to the caller to close."""
        self._dismissed = True
        self._chunk_requests.release()

    async def aclose(self) -> None:
        """Return when the thread has ended; it checks the token between two steps."""
        if not self._dismissed:
            self._token.cancel()
        await asyncio.shield(self._thread_ended)

    def _run(self) -> None:
        opened: Any = None
        iterator: Any = None
        try:
            opened = self._open_source()
            self._call_in_loop(self._set_opened, opened)
            while self._wait_for_request():
                if iterator is None:
                    iterator = iter(opened)
                self._deliver(True, next(iterator))
        except StopIteration:
            self._deliver(False, None)
        except Cancelled:
            pass
        except BaseException as error:
            self._call_in_loop(self._fail, error)
        finally:
            if not self._dismissed:
                self._close(iterator)
                self._close(opened)  # an SDK's stream has its own close; closing its iterator does not close it
            self._call_in_loop(self._on_thread_end)

    def _close(self, stream: Any) -> None:
        """Close a stream; if that fails, log it, since the call still waits for the thread's end."""
        close = getattr(stream, "close", None)
        if close is None:
            return
        try:
            close()
        except BaseException as error:
            log.warning("%s: closing the stream failed: %r", self.name, error)

    def _wait_for_request(self) -> bool:
        self._chunk_requests.acquire()
        return not self._token.cancelled and not self._dismissed

    def _deliver(self, more: bool, value: Any) -> None:
        self._call_in_loop(self._set_chunk, (more, value))

    def _call_in_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed: nobody waits any more
            self._token.cancel()

    def _set_chunk(self, answer: tuple[bool, Any]) -> None:
        if self._next_chunk is not None and not self._next_chunk.done():
            self._next_chunk.set_result(answer)

    def _set_opened(self, opened: Any) -> None:
        if not self.opened.done():
            self.opened.set_result(opened)

    def _fail(self, error: BaseException) -> None:
        future = self._next_chunk if self.opened.done() else self.opened
        if future is not None and not future.done():
            future.set_exception(error)

    def _on_thread_end(self) -> None:
        self._place.release()
        self._set_chunk((False, None))
        self.opened.cancel()
        if not self._thread_ended.done():
            self._thread_ended.set_result(None)


async def start_thread(open_source: Callable[[], Any], token: CancelToken, description: str) -> ThreadedIterator:
    """Wait for a place, and read a blocking source in a thread."""
    place = await _take_place()
    try:
        return ThreadedIterator(open_source, token, description, place)
    except BaseException:  # the system has no more threads, or no memory for one
        place.release()
        raise


async def start_function(function: Callable[[CancelToken], Any], token: CancelToken) -> ThreadedIterator:
    """Wait for a place, and run a blocking function in a thread; `result_of` is for its result."""

    def once() -> Iterable[Any]:
        yield function(token)

    return await start_thread(once, token, getattr(function, "__qualname__", repr(function)))


async def result_of(thread: ThreadedIterator) -> Any:
    try:
        return await anext(thread)
    finally:
        await thread.aclose()


async def call_in_thread(function: Callable[[CancelToken], Any], token: CancelToken, on_name: Callable[[str], None]) -> Any:
    """Run a blocking function in a thread, pass it the token, and return its result."""
    thread = await start_function(function, token)
    on_name(thread.name)
    return await result_of(thread)
