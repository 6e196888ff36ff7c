"""Owns all tasks and threads of the process: each is named and counted, and none fails silently.

A watcher or a writer that dies silently takes down whatever it watched or wrote. So no code starts tasks or threads directly.
`keep` and `thread` run work that must go on: they report its failure and restart it after a pause. `start` and `thread_once`
own work that ends by itself. `Tasks` are those of one owner, which ends them together. A thread marks each piece of its work
with `working`, so that one that hangs, on a disk for example, is noticed. `/readyz` shows what should be running and is not,
or hangs; the metrics show how many run, how often they failed, and how long a thread has been at its current work.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

_LOG = logging.getLogger("hangup.tasks")
_PAUSE_S = (0.5, 30.0)  # before a restart: doubled by each failure that soon follows another
_STALL_S = 30.0  # for one piece of a thread's work, unless the configuration says otherwise
_STEADY_S = 60.0  # work that ran for this long did not fail because of how it started

_SLICE_S = 0.005  # of CPU time, in one turn of the event loop

R = TypeVar("R")
T = TypeVar("T")
Handled = tuple[type[Exception], ...]


class LongTask:
    """The count of the tasks or threads of one name."""

    __slots__ = ("began", "error", "expected", "failures", "marks_work", "name", "running")

    def __init__(self, name: str) -> None:
        self.name = name
        self.expected = 0  # how many should be running
        self.running = 0
        self.failures = 0
        self.error = ""  # the last error
        self.marks_work = False  # its threads use `LongTasks.working`
        self.began: dict[int, float] = {}  # when threads, by their identifiers, began what they are working on (monotonic)

    @property
    def busy_s(self) -> float:
        """How long a thread of this name has been at the same piece of work; 0 if none is working."""
        began = list(self.began.values())
        return time.monotonic() - min(began) if began else 0.0


class StuckThread(NamedTuple):
    """A thread that has been at the same piece of work for too long."""

    name: str
    thread: int  # its identifier
    began: float  # monotonic


class LongTasks:
    """All tasks and threads of a process."""

    def __init__(self, on_failure: Callable[[str, Exception], None] | None = None) -> None:
        """Report every failure to `on_failure`, which is called from any thread; without it, log them."""
        self.on_failure = on_failure
        self.stall_s = _STALL_S
        self._lock = threading.Lock()
        self._by_name: dict[str, LongTask] = {}
        self._tasks: set[asyncio.Task[object]] = set()

    def keep(self, name: str, make: Callable[[], Coroutine[object, object, None]]) -> asyncio.Task[None]:
        """Run `make()` until it returns or is cancelled; after a failure, call `make` again and run the result."""
        return self._own(asyncio.get_running_loop().create_task(self._keep(self._named(name), make)))

    def start(
        self,
        name: str,
        work: Coroutine[object, object, R],
        *,
        handled: Handled = (),
        label: str | None = None,
    ) -> asyncio.Task[R]:
        """Own a task until it is over. Report a failure, unless it is one of `handled`; code that awaits the task gets it
        either way."""
        task = asyncio.get_running_loop().create_task(work, name=label)
        self._tasks.add(task)
        long_task = self._named(name)
        self._count(long_task, expected=1, running=1)
        task.add_done_callback(partial(self._over, long_task, handled))
        return task

    def thread(self, name: str, run: Callable[[], None]) -> threading.Thread:
        """Run `run` in a thread until it returns; after a failure, run it again."""
        thread = threading.Thread(target=self._run, args=(self._named(name), run), name=f"hangup-{name}", daemon=True)
        thread.start()
        return thread

    def thread_once(self, name: str, run: Callable[[], None], *, label: str | None = None) -> threading.Thread:
        """Run `run` once in a thread, and report a failure. Code that waits for the thread must itself notice its end."""
        label = label or f"hangup-{name}"
        thread = threading.Thread(target=self._run_once, args=(self._named(name), run), name=label, daemon=True)
        thread.start()
        return thread

    @contextlib.contextmanager
    def working(self, name: str) -> Iterator[None]:
        """Mark a piece of this thread's work. A thread that takes longer than `stall_s` for it counts as stuck."""
        long_task, thread = self._named(name), threading.get_ident()
        long_task.marks_work = True
        long_task.began[thread] = time.monotonic()
        try:
            yield
        finally:
            del long_task.began[thread]

    def failed(self, name: str, error: Exception) -> None:
        """Count a failure and report it."""
        long_task = self._named(name)
        with self._lock:
            long_task.failures += 1
            long_task.error = type(error).__name__
        if self.on_failure is not None:
            self.on_failure(name, error)
        else:  # an engine or an application: without this line nothing at all would show it
            _LOG.error("%s failed", name, exc_info=error)

    # Reports

    def __iter__(self) -> Iterator[LongTask]:
        return iter(list(self._by_name.values()))

    def down(self) -> list[str]:
        """Describe the tasks that should be running and are not, and the threads that are stuck."""
        failed = [f"{d.name} (failed {d.failures} times, last: {d.error})" for d in self if d.running < d.expected]
        now = time.monotonic()
        return failed + [f"{stuck.name} (stuck for {now - stuck.began:.0f} s)" for stuck in self.stuck()]

    def stuck(self) -> list[StuckThread]:
        """Return the threads that have been at the same piece of work for longer than `stall_s`."""
        since = time.monotonic() - self.stall_s
        return [
            StuckThread(each.name, thread, began)
            for each in self
            for thread, began in list(each.began.items())
            if began < since
        ]

    # Internals

    def _named(self, name: str) -> LongTask:
        return self._by_name.get(name) or self._by_name.setdefault(name, LongTask(name))

    def _own(self, task: asyncio.Task[R]) -> asyncio.Task[R]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _over(self, long_task: LongTask, handled: Handled, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        self._count(long_task, expected=-1, running=-1)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception) and not isinstance(error, handled):
            self.failed(long_task.name, error)

    async def _keep(self, long_task: LongTask, make: Callable[[], Coroutine[object, object, None]]) -> None:
        pauses = _Pauses()
        with self._expected(long_task):
            while True:
                with self._turn(long_task):
                    await make()
                    return
                await asyncio.sleep(pauses.next())

    def _run(self, long_task: LongTask, run: Callable[[], None]) -> None:
        pauses = _Pauses()
        with self._expected(long_task):
            while True:
                with self._turn(long_task):
                    run()
                    return
                time.sleep(pauses.next())

    @contextlib.contextmanager
    def _expected(self, long_task: LongTask) -> Iterator[None]:
        self._count(long_task, expected=1)
        try:
            yield
        finally:
            self._count(long_task, expected=-1)

    def _run_once(self, long_task: LongTask, run: Callable[[], None]) -> None:
        self._count(long_task, expected=1)
        try:
            with self._turn(long_task):
                run()
        finally:
            self._count(long_task, expected=-1)

    @contextlib.contextmanager
    def _turn(self, long_task: LongTask) -> Iterator[None]:
        """Count the task as running; report a failure and suppress it."""
        self._count(long_task, running=1)
        try:
            yield
        except Exception as error:
            self.failed(long_task.name, error)
        finally:
            self._count(long_task, running=-1)

    def _count(self, long_task: LongTask, *, expected: int = 0, running: int = 0) -> None:
        with self._lock:
            long_task.expected += expected
            long_task.running += running


class Tasks:
    """The tasks of one owner, under one name: the owner may start any number of them, wait for them, and end them together."""

    def __init__(self, name: str, *, handled: Handled = (), long_tasks: LongTasks | None = None) -> None:
        """Own tasks; `handled` are the failures that the code awaiting a task deals with."""
        self._name = name
        self._handled = handled
        self._long_tasks = long_tasks or TASKS
        self._tasks: set[asyncio.Task[object]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[object, object, R]) -> asyncio.Task[R]:
        return self._own(self._long_tasks.start(self._name, work, handled=self._handled))

    def keep(self, name: str, make: Callable[[], Coroutine[object, object, None]]) -> asyncio.Task[None]:
        """Run `make()` until it returns or is cancelled, and restart it after a failure."""
        return self._own(self._long_tasks.keep(name, make))

    def cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    async def wait(self) -> None:
        """Wait until all are over."""
        while self._tasks:
            tasks = list(self._tasks)
            await asyncio.gather(*tasks, return_exceptions=True)
            # Not by their callbacks alone: from Python 3.12 on, to gather what is done takes no turn of the event loop.
            self._tasks.difference_update(tasks)

    async def close(self) -> None:
        self.cancel()
        await self.wait()

    def _own(self, task: asyncio.Task[R]) -> asyncio.Task[R]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Pauses:
    """The pauses between restarts."""

    def __init__(self) -> None:
        self._pause_s = 0.0
        self._began = time.monotonic()

    def next(self) -> float:
        least, most = _PAUSE_S
        steady = time.monotonic() - self._began > _STEADY_S
        self._pause_s = least if steady or not self._pause_s else min(self._pause_s * 2, most)
        self._began = time.monotonic() + self._pause_s
        return self._pause_s


TASKS = LongTasks()  # those of this process


async def in_slices(work: Callable[[T], object], items: Iterable[T], used_s: Callable[[], float] = time.thread_time) -> None:
    """Call `work` for each item, in several turns of the event loop if it takes long: others must not wait for all of them.

    If the caller is cancelled meanwhile, the rest is done at once. `used_s` returns the CPU time that this thread has used.
    """
    left = deque(items)
    try:
        while left:
            until = used_s() + _SLICE_S
            while left and used_s() < until:
                work(left.popleft())
            if left:
                await asyncio.sleep(0)
    except asyncio.CancelledError:
        for item in left:
            work(item)
        raise
