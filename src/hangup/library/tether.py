"""Runs one call in an application and ties work, client and clock together: when one of them ends, all three end.

The work runs in a single task, so that an engine's stream is opened, read and closed in the same task. `core.call.Call` makes
the decisions; this module carries them out.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from hangup.core import reasons
from hangup.core.call import Call, EngineAction, Tell
from hangup.core.reasons import Reason
from hangup.library.deadline import deadline
from hangup.library.ended import Ended, OnEnd, describe, log, report_end
from hangup.library.faults import ApplicationFault
from hangup.library.limits import Limits
from hangup.library.token import CancelToken
from hangup.library.watch import ClientWatch
from hangup.tasks import TASKS

Abort = Callable[[], object]
OnFailure = Callable[[Exception], tuple[int, str]]

_numbers = itertools.count(1)
_HANDLED = (Exception,)  # `_settle` and `_release` report them, with the call that they belong to
_unsettled: set[asyncio.Task[Any]] = set()  # tasks that outlive their call: its end, if the server cancelled it, and zombies


class Tether:
    """Ties `work` to `watch` and to the limits."""

    def __init__(
        self, limits: Limits, abort: Abort | None = None, token: CancelToken | None = None, on_end: OnEnd | None = None
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.limits = limits
        self.token = token or CancelToken()
        self.call = Call(f"hu-{os.getpid()}-{next(_numbers)}", self.loop.time())
        self.call.clock = limits.clock()
        self.tell = Tell.NOTHING
        self.ended: Ended | None = None
        self.error: BaseException | None = None  # the work's own
        self._client_error: OSError | None = None  # of a write
        self._abort = abort
        self._on_end = on_end
        self._work: asyncio.Task[Any] | None = None
        self._aborting: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writing_since: float | None = None
        self._ended_future = self.loop.create_future()
        self.engine_name = ""  # what the log names if it does not stop
        self.on_failure: OnFailure | None = None  # returns the status and the detail to report for the work's failure

    async def run(self, watch: ClientWatch, work: Coroutine[Any, Any, Any]) -> Any:
        """Run the work until it ends, the client disconnects or the time runs out; return the work's result, or None."""
        now = self.loop.time()
        self.call.received(now)
        self.call.sent("engine", now)
        with contextlib.nullcontext() if self.limits.total_s is None else deadline(self.limits.total_s):
            # The task inherits the deadline.
            self._work = TASKS.start("library call", work, handled=_HANDLED, label=f"hangup {self.call.id}")
        try:
            watch.start(self.end)
            self._set_timer()
            await asyncio.wait({self._work, self._ended_future}, return_when=asyncio.FIRST_COMPLETED)
            self._end_with_work(self._work)
        except asyncio.CancelledError:
            # Some servers and frameworks cancel a handler whose client left.
            self.end(watch.disconnect_reason() or reasons.DRAINED, "the server cancelled the call")
            self._start_settling(watch)
            raise
        except BaseException:  # a bug: the work must not run on without anybody who waits for it
            self.end(reasons.INTERNAL)
            self._start_settling(watch)
            raise
        await asyncio.shield(self._start_settling(watch))
        if not self._work.done() or self._work.cancelled() or self._work.exception() is not None:
            return None
        return self._work.result()

    def _end_with_work(self, work: asyncio.Task[Any]) -> None:
        """End the call, if the work ended before the call did."""
        if not work.done():
            return
        if work.cancelled():
            self.end(reasons.ENGINE_ERROR, "the engine's task was cancelled")
        elif (error := work.exception()) is not None:
            if self._client_error is None:
                self.error = error
                self._end_with_failure(error)
        else:
            self.call.engine_finished = True
            self.end(reasons.COMPLETED)

    def _end_with_failure(self, error: BaseException) -> None:
        status, detail = 0, f"{type(error).__name__}: {error}"
        if isinstance(error, ApplicationFault):
            self.end(reasons.APPLICATION_FAULT, detail)
            return
        if self.on_failure is not None and isinstance(error, Exception) and not self.call.ended:
            status, detail = self._ask_on_failure(error, detail)
        self.end(reasons.ENGINE_ERROR, detail)
        if status and self.tell is Tell.STATUS:
            self.call.status = status

    def _ask_on_failure(self, error: Exception, detail: str) -> tuple[int, str]:
        assert self.on_failure is not None
        try:
            return self.on_failure(error)
        except Exception:  # the application's code, or an exception whose attributes are not what they seem
            log.exception("call %s: finding the answer to a failure failed", self.call.id)
            return 0, detail

    # Progress of the work

    def progressed(self, tokens: int) -> None:
        now = self.loop.time()
        if self.call.answered_at is None and not self.call.ended:
            self.call.answered(now)
        self.call.progressed(tokens, now)

    async def write(self, writing: Awaitable[Any]) -> None:
        """Await a write to the client; meanwhile the client's stall limit applies instead of the engine's."""
        self._writing_since = self.loop.time()
        self._set_timer()
        try:
            await writing
        except OSError as error:  # only the client can fail here; the engine must not be blamed for it
            self._client_error = error
            self.end(reasons.CLIENT_RESET, f"{type(error).__name__}: {error}")
            raise
        finally:
            self._writing_since = None
            self.call.progress_at = self.loop.time()
            self._set_timer()

    # Time

    def _next_due(self) -> float:
        if self._writing_since is None or self.limits.write_stall_s is None:
            return self.call.next_due()
        return min(self.call.started_at + self.call.clock.total_s, self._writing_since + self.limits.write_stall_s)

    def _set_timer(self) -> None:
        """Set the one timer; move it only if it would fire too late."""
        due = self._next_due()
        if self.call.ended or due == float("inf"):
            return
        if self._timer is None or self._timer.when() > due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = self.loop.time()
        reason: Reason | None
        if self._writing_since is None:
            reason = self.call.overdue(now)
        else:
            stall_s = self.limits.write_stall_s
            reason = reasons.CLIENT_STALLED if stall_s is not None and now >= self._writing_since + stall_s else None
            if reason is None and now >= self.call.started_at + self.call.clock.total_s:
                reason = reasons.TOTAL_TIME
        if reason is not None:
            self.end(reason)
        self._set_timer()

    # The end

    def end(self, reason: Reason, detail: str = "") -> None:
        """End the call, once; the engine is stopped in the same loop iteration."""
        ending = self.call.end(reason, self.loop.time(), detail)
        if ending is None:
            return
        self.tell = ending.tell
        self._ended_future.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if ending.engine is EngineAction.ABORT:
            self.token.cancel()
            self._call_abort()
            if self._work is not None and self._work is not asyncio.current_task():
                self._work.cancel()

    def _call_abort(self) -> None:
        if self._abort is None:
            return
        try:
            result = self._abort()
        except Exception:
            log.exception("call %s: abort failed", self.call.id)
            return
        if inspect.isawaitable(result):
            label = f"hangup aborts {self.call.id}"
            self._aborting = TASKS.start("library abort", _wait_for(result), handled=_HANDLED, label=label)

    def _start_settling(self, watch: ClientWatch) -> asyncio.Task[None]:
        """Settle in a separate task, so that a server that cancels the call (perhaps again) cannot cancel its end."""
        task = TASKS.start("library call", self._settle(watch), handled=_HANDLED, label=f"hangup settles {self.call.id}")
        _keep(task)
        return task

    async def _settle(self, watch: ClientWatch) -> None:
        """Wait at most the grace period until everything that the call started has ended; then report how the call ended."""
        await watch.stop()
        tasks = {task for task in (self._work, self._aborting) if task is not None}
        pending = (await asyncio.wait(tasks, timeout=self.limits.grace_s))[1] if tasks else set()
        for task in tasks - pending:
            error = None if task.cancelled() else task.exception()
            if error is not None and error is not self.error and error is not self._client_error:
                log.error("call %s: %s failed while stopping: %r", self.call.id, task.get_name(), error)
        self.ended = describe(self.call, self._name_zombies(pending))
        report_end(self.ended, self._on_end)

    def _name_zombies(self, pending: set[asyncio.Task[Any]]) -> str:
        """Return the names of the tasks that did not stop, and keep these tasks until they do."""
        for task in pending:
            _keep(task)
        names = {self.engine_name or task.get_name() if task is self._work else task.get_name() for task in pending}
        zombie = ", ".join(sorted(names))
        if zombie:
            log.warning("call %s: %s did not stop within %g s", self.call.id, zombie, self.limits.grace_s)
        return zombie


def _keep(task: asyncio.Task[Any]) -> None:
    """Hold a task until it ends, and retrieve its error."""
    _unsettled.add(task)
    task.add_done_callback(_release)


def _release(task: asyncio.Task[Any]) -> None:
    _unsettled.discard(task)
    if not task.cancelled() and task.exception() is not None:
        log.error("%s failed: %r", task.get_name(), task.exception())


async def _wait_for(result: Awaitable[Any]) -> None:
    await result
