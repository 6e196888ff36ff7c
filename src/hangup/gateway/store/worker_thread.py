"""Runs work on a store, in order, with one thread. `database` puts SQLite behind it, `postgresql` a server."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from hangup.errors import HangupError
from hangup.tasks import TASKS

R = TypeVar("R")
T = TypeVar("T")
BATCH_MAX = 512  # pieces of work per transaction
CLOSE_S = 10.0  # for the work that is queued when a store is closed, unless the caller has less time
Outcomes = list[tuple["asyncio.Future[Any]", Any, BaseException | None]]  # for each piece of work its result or its error


class StoreFailed(HangupError):
    """The store cannot be reached or written, or its disk is full; none of the requested work took effect."""


class StoreLocked(StoreFailed):
    """Another process holds a lock, which says nothing about the disk or the server."""


class StoreDamaged(StoreFailed):
    """Part of the store is corrupt; a retry will not help."""


class Cursor(Protocol):
    """The rows that a statement returned."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """What the tables need of a database. Statements are SQLite's: values stand at `?` or `?1`."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Cursor: ...

    def executemany(self, statement: str, rows: list[tuple[Any, ...]], /) -> Cursor: ...


@dataclass(frozen=True, slots=True)
class GroupedWork(Generic[T, R]):
    """Work on one thing, which a server does in one go with the same work on other things that waits at that moment.

    It must wait for no row that another process holds, and may be run a second time if its transaction fails.
    """

    run_all: Callable[[list[T]], Sequence[R | Exception]]  # returns the result, or the refusal, of each
    one: T

    def __call__(self) -> R:
        (result,) = self.run_all([self.one])
        if isinstance(result, Exception):
            raise result
        return result


class Piece(NamedTuple):
    """A piece of work, and who waits for it."""

    work: Callable[[], Any]
    future: asyncio.Future[Any]


class StoreThread:
    """A queue of work and the thread that runs it; a subclass runs a batch of it in a transaction."""

    _hanging = "its disk does not answer"
    _left_open = False  # `close` gave the thread up: it closes the connection itself if it ever gets so far
    _began: float | None = None  # when the thread began the current transaction (monotonic)

    def __init__(self) -> None:
        self._work: deque[Piece] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._thread = TASKS.thread("store", self._run)

    async def do(self, work: Callable[[], R]) -> R:
        """Run `work` in the store's thread; return its result once everything it wrote is on disk."""
        if self._closing:
            raise StoreFailed("the store is closed")
        began = self._began
        if began is not None and time.monotonic() - began > TASKS.stall_s:
            # Nobody knows for how long this work would wait.
            raise StoreFailed(f"the store cannot be used: {self._hanging}")
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._work.append(Piece(work, future))
        self._wake.set()
        return await future

    def close(self, within_s: float = CLOSE_S) -> None:
        """Run the work that is still queued, then close the store; give up a thread that is not done within this time."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout=within_s)
        closed: BaseException | None = StoreFailed("the store is closed")
        # Queued while the thread was ending, or behind a disk that hangs: fail it, so that no caller waits forever; and the
        # thread must not do later what its caller takes for undone.
        for piece in self._take(len(self._work)):
            with contextlib.suppress(RuntimeError):
                piece.future.get_loop().call_soon_threadsafe(_resolve, [(piece.future, None, closed)])
        if self._thread.is_alive():  # it hangs with the connection, and closing that under the thread would crash
            self._left_open = True
        else:
            self._close_connection()

    def _take(self, most: int) -> list[Piece]:
        """Return up to `most` pieces of work, each of which then belongs to the caller alone; called in any thread."""
        taken: list[Piece] = []
        with contextlib.suppress(IndexError):
            while len(taken) < most:
                taken.append(self._work.popleft())
        return taken

    # In the store's thread

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._work:
                self._began = time.monotonic()
                batch = self._next_batch()
                if batch:  # otherwise `close` took it
                    with TASKS.working("store"):
                        self._run_and_answer(batch)
                self._began = None
            if self._closing:
                break
        if self._left_open:
            self._close_connection()

    def _run_and_answer(self, batch: list[Piece]) -> None:
        outcomes = self._run_batch(batch)
        with contextlib.suppress(RuntimeError):  # the event loop is closed, and so is every caller
            batch[0].future.get_loop().call_soon_threadsafe(_resolve, outcomes)

    def _next_batch(self) -> list[Piece]:
        return self._take(BATCH_MAX)

    def _run_batch(self, batch: list[Piece]) -> Outcomes:
        """Run the work in a transaction. Every piece gets an outcome, whatever happens, and the thread survives."""
        raise NotImplementedError

    def _close_connection(self) -> None:
        raise NotImplementedError


def _resolve(outcomes: Outcomes) -> None:
    for future, result, error in outcomes:
        if future.done():
            continue
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)
