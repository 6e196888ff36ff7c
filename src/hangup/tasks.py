"""The one owner of tasks and threads: each is held, counted and named, and none fails without a word.

A watch or a writer that dies without a word takes with it whatever it watched or wrote. So none is started by hand, here or
anywhere else: `keep` and `thread` run what must go on, tell of its failure, and begin it anew after a pause; `start` and
`thread_once` own what comes to an end by itself; `Tasks` are those of one owner, who ends them together.
What should be running and is not is shown by `/readyz`; how many run, and how often they failed, by the metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, TypeVar

_PAUSE_S = (0.5, 30.0)  # before a new start: doubled by each failure that follows soon after one
_STEADY_S = 60.0  # what went on for so long has not failed because of how it started

R = TypeVar("R")
Handled = tuple[type[Exception], ...]


class LongTask:
    """One of them, by name; several that share a name share their count."""

    __slots__ = ("error", "expected", "failures", "name", "running")

    def __init__(self, name: str) -> None:
        self.name = name
        self.expected = 0  # so many should be running
        self.running = 0
        self.failures = 0
        self.error = ""  # the last one


class LongTasks:
    def __init__(self, told: Callable[[str, Exception], None] | None = None) -> None:
        """`told` hears of every failure, from any thread."""
        self.told = told
        self._lock = threading.Lock()
        self._duties: dict[str, LongTask] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def keep(self, name: str, make: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Goes on until it returns or is cancelled: when what `make` gives fails, it is made anew."""
        return self._own(asyncio.get_running_loop().create_task(self._keep(self._duty(name), make)))

    def start(
        self,
        name: str,
        work: Coroutine[Any, Any, R],
        *,
        handled: Handled = (),
        label: str | None = None,
    ) -> asyncio.Task[R]:
        """Owned until it is over. A failure is told, and whoever awaits it gets it; one that is `handled` there is no news."""
        task = self._own(asyncio.get_running_loop().create_task(work, name=label))
        duty = self._duty(name)
        self._count(duty, expected=1, running=1)
        task.add_done_callback(partial(self._over, duty, handled))
        return task

    def thread(self, name: str, run: Callable[[], None]) -> threading.Thread:
        """Goes on until `run` returns: when it fails, it is run again."""
        thread = threading.Thread(target=self._run, args=(self._duty(name), run), name=f"hangup-{name}", daemon=True)
        thread.start()
        return thread

    def thread_once(self, name: str, run: Callable[[], None], *, label: str | None = None) -> threading.Thread:
        """Owned until `run` is over; a failure is told. What waits for the thread must see by itself that it is gone."""
        label = label or f"hangup-{name}"
        thread = threading.Thread(target=self._run_once, args=(self._duty(name), run), name=label, daemon=True)
        thread.start()
        return thread

    def failed(self, name: str, error: Exception) -> None:
        """Counts a failure, and tells of it."""
        duty = self._duty(name)
        with self._lock:
            duty.failures += 1
            duty.error = type(error).__name__
        if self.told is not None:
            self.told(name, error)

    # What is seen of them

    def __iter__(self) -> Iterator[LongTask]:
        return iter(list(self._duties.values()))

    def down(self) -> list[str]:
        """Those that should be running and are not, in words."""
        return [f"{d.name} (failed {d.failures} times, last: {d.error})" for d in self if d.running < d.expected]

    # How it is done

    def _duty(self, name: str) -> LongTask:
        return self._duties.setdefault(name, LongTask(name))

    def _own(self, task: asyncio.Task[R]) -> asyncio.Task[R]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _over(self, duty: LongTask, handled: Handled, task: asyncio.Task[Any]) -> None:
        self._count(duty, expected=-1, running=-1)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception) and not isinstance(error, handled):
            self.failed(duty.name, error)

    async def _keep(self, duty: LongTask, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        pauses = _Pauses()
        with self._expected(duty):
            while True:
                with self._turn(duty):
                    await make()
                    return
                await asyncio.sleep(pauses.next())

    def _run(self, duty: LongTask, run: Callable[[], None]) -> None:
        pauses = _Pauses()
        with self._expected(duty):
            while True:
                with self._turn(duty):
                    run()
                    return
                time.sleep(pauses.next())

    @contextlib.contextmanager
    def _expected(self, duty: LongTask) -> Iterator[None]:
        self._count(duty, expected=1)
        try:
            yield
        finally:
            self._count(duty, expected=-1)

    def _run_once(self, duty: LongTask, run: Callable[[], None]) -> None:
        self._count(duty, expected=1)
        try:
            with self._turn(duty):
                run()
        finally:
            self._count(duty, expected=-1)

    @contextlib.contextmanager
    def _turn(self, duty: LongTask) -> Iterator[None]:
        """While it runs it is counted as running; a failure is told, and goes no further."""
        self._count(duty, running=1)
        try:
            yield
        except Exception as error:
            self.failed(duty.name, error)
        finally:
            self._count(duty, running=-1)

    def _count(self, duty: LongTask, *, expected: int = 0, running: int = 0) -> None:
        with self._lock:
            duty.expected += expected
            duty.running += running


class Tasks:
    """Those of one owner, under one name: it may start any number of them, wait for them, and end them together."""

    def __init__(self, name: str, *, handled: Handled = (), duties: LongTasks | None = None) -> None:
        """`handled`: failures that are dealt with by whoever awaits a task."""
        self._name = name
        self._handled = handled
        self._duties = duties or DUTIES
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        return self._own(self._duties.start(self._name, work, handled=self._handled))

    def keep(self, name: str, make: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Goes on until it returns or is cancelled, whatever fails meanwhile."""
        return self._own(self._duties.keep(name, make))

    def cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    async def wait(self) -> None:
        """Until all are over."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        self.cancel()
        await self.wait()

    def _own(self, task: asyncio.Task[R]) -> asyncio.Task[R]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Pauses:
    """How long to wait before the next start."""

    def __init__(self) -> None:
        self._pause_s = 0.0
        self._began = time.monotonic()

    def next(self) -> float:
        least, most = _PAUSE_S
        steady = time.monotonic() - self._began > _STEADY_S
        self._pause_s = least if steady or not self._pause_s else min(self._pause_s * 2, most)
        self._began = time.monotonic() + self._pause_s
        return self._pause_s


DUTIES = LongTasks()  # of this process
