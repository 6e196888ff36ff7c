"""An event loop in virtual time, whose processes can be stopped and killed: nothing really waits, and a seed gives one run."""

from __future__ import annotations

import asyncio
import contextvars
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Process:
    """A simulated process. Everything started in it, directly or indirectly, runs only while it is alive and not stopped."""

    def __init__(self, loop: Loop, name: str) -> None:
        self.name = name
        self.alive = True
        self.stopped = False
        self.died = loop.create_future()
        self._loop = loop
        self._waiting: list[tuple[Callable[..., Any], contextvars.Context]] = []
        loop.processes.append(self)

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        context = contextvars.copy_context()
        context.run(_PROCESS.set, self)
        return self._loop.create_task(work, context=context)

    async def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run `work` in the process for a caller outside of it; raise `Died` if the process dies first."""
        if not self.alive:
            work.close()
            raise Died
        task = self.start(work)
        await asyncio.wait({task, self.died}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Died
        return task.result()

    def kill(self) -> None:
        """Never run anything of the process again, until `bury`."""
        self.alive = False
        if not self.died.done():
            self.died.set_result(None)

    def stop(self) -> None:
        self.stopped = True

    def go_on(self) -> None:
        """Resume: run what became due meanwhile, in order."""
        self.stopped = False
        if not self.alive:
            return
        waiting, self._waiting = self._waiting, []
        for step, context in waiting:
            self._loop.call_soon(step, context=context)

    def bury(self) -> None:
        """At the very end, let its tasks be cancelled, so that none is left half done."""
        self.alive = True
        self.go_on()

    def gated(self, handle: list[asyncio.Handle], callback: Callable[..., Any], *args: Any) -> Callable[[], None]:
        def step() -> None:
            if handle and handle[0].cancelled():
                return
            if self.stopped or not self.alive:
                self._waiting.append((step, contextvars.copy_context()))
            else:
                callback(*args)

        return step


class Died(Exception):
    """The process died before it answered."""


def this_process() -> Process | None:
    return _PROCESS.get()


class _Selector(selectors.DefaultSelector):
    """Advances the time instead of waiting."""

    loop: Loop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nothing will ever happen again"
            self.loop.now += timeout
        return ready


class Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.now = 1000.0
        selector = _Selector()
        selector.loop = self
        self.processes: list[Process] = []
        self._tasks: list[asyncio.Task[Any]] = []  # all tasks ever: the loop itself would forget those that nothing can wake
        super().__init__(selector)
        self.set_task_factory(self._task)

    def _task(self, _: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=self, **options)
        self._tasks.append(task)
        return task

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        process = context.get(_PROCESS) if context is not None else _PROCESS.get()
        if process is None:
            return super().call_soon(callback, *args, context=context)
        own: list[asyncio.Handle] = []
        own.append(super().call_soon(process.gated(own, callback, *args), context=context))
        return own[0]

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        process = context.get(_PROCESS) if context is not None else _PROCESS.get()
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        own: list[asyncio.Handle] = []
        handle = super().call_at(when, process.gated(own, callback, *args), context=context)
        own.append(handle)
        return handle

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """Run at once: a thread would have its own time."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def end(self) -> None:
        """Cancel everything that is left, also in killed processes, and close the loop."""
        for process in self.processes:
            process.bury()
        for _ in range(100):  # a cancelled task may start another
            tasks = [task for task in self._tasks if not task.done()]
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            self.run_until_complete(asyncio.wait(tasks, timeout=100))
        assert not tasks, tasks
        self.close()


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` like `asyncio.run`, in virtual time and in no process."""
    with asyncio.Runner(debug=True, loop_factory=Loop) as runner:
        return runner.run(main)
