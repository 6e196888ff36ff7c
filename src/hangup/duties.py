"""What must go on as long as the process lives: tasks and threads that are owned, counted, and started again when they fail.

A watch or a writer that dies without a word takes with it whatever it watched or wrote. So none is started by hand: `keep` and
`thread` run it, tell of its failure, and begin it anew after a pause; `start` owns a task that comes to an end by itself.
What is not running at the moment is shown by `/readyz`, and how often anything failed by the metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

_PAUSE_S = (0.5, 30.0)  # before a new start: doubled by each failure that follows soon after one
_STEADY_S = 60.0  # what went on for so long has not failed because of how it started

R = TypeVar("R")


class Duty:
    """One of them, by name; several that share a name share their count."""

    __slots__ = ("error", "expected", "failures", "name", "running")

    def __init__(self, name: str) -> None:
        self.name = name
        self.expected = 0  # so many should be running
        self.running = 0
        self.failures = 0
        self.error = ""  # the last one


class Duties:
    def __init__(self, told: Callable[[str, Exception], None] | None = None) -> None:
        """`told` hears of every failure, from any thread."""
        self.told = told
        self._lock = threading.Lock()
        self._duties: dict[str, Duty] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def keep(self, name: str, make: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Goes on until it returns or is cancelled: when what `make` gives fails, it is made anew."""
        return self._own(asyncio.get_running_loop().create_task(self._keep(self._duty(name), make)))

    def start(self, name: str, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """Owned until it is over; a failure is told, and whoever awaits it gets it."""
        task = self._own(asyncio.get_running_loop().create_task(work))
        task.add_done_callback(lambda done: self._look_at(name, done))
        return task

    def thread(self, name: str, run: Callable[[], None]) -> threading.Thread:
        """Goes on until `run` returns: when it fails, it is run again."""
        thread = threading.Thread(target=self._run, args=(self._duty(name), run), name=f"hangup-{name}", daemon=True)
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

    def __iter__(self) -> Iterator[Duty]:
        return iter(list(self._duties.values()))

    def down(self) -> list[str]:
        """Those that should be running and are not, in words."""
        return [f"{d.name} (failed {d.failures} times, last: {d.error})" for d in self if d.running < d.expected]

    # How it is done

    def _duty(self, name: str) -> Duty:
        return self._duties.setdefault(name, Duty(name))

    def _own(self, task: asyncio.Task[R]) -> asyncio.Task[R]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _look_at(self, name: str, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.failed(name, error)

    async def _keep(self, duty: Duty, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        pauses = _Pauses()
        with self._expected(duty):
            while True:
                with self._turn(duty):
                    await make()
                    return
                await asyncio.sleep(pauses.next())

    def _run(self, duty: Duty, run: Callable[[], None]) -> None:
        pauses = _Pauses()
        with self._expected(duty):
            while True:
                with self._turn(duty):
                    run()
                    return
                time.sleep(pauses.next())

    @contextlib.contextmanager
    def _expected(self, duty: Duty) -> Iterator[None]:
        self._count(duty, expected=1)
        try:
            yield
        finally:
            self._count(duty, expected=-1)

    @contextlib.contextmanager
    def _turn(self, duty: Duty) -> Iterator[None]:
        """While it runs it is counted as running; a failure is told, and goes no further."""
        self._count(duty, running=1)
        try:
            yield
        except Exception as error:
            self.failed(duty.name, error)
        finally:
            self._count(duty, running=-1)

    def _count(self, duty: Duty, *, expected: int = 0, running: int = 0) -> None:
        with self._lock:
            duty.expected += expected
            duty.running += running


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


DUTIES = Duties()  # of this process
