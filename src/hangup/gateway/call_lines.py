"""Writes the log lines of ended calls.

The line of an aborted call waits a moment for the outcome of the stop, so that it can say whether the engine stopped, and how
many tokens it computed after the hang-up.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from hangup.core.call import Call
from hangup.core.reaper import PendingStop, StopState
from hangup.gateway.log import Log, after_the_end

_SLICE_S: Final = 0.005  # of CPU time, in one turn of the event loop: many calls may have ended at once


class CallLines:
    def __init__(self, log: Log, loop: asyncio.AbstractEventLoop, wait_s: Callable[[], float]) -> None:
        self._log = log
        self._loop = loop
        self._wait_s = wait_s
        self._waiting: OrderedDict[Call, tuple[dict[str, Any], float]] = OrderedDict()  # line and due time; oldest first
        self._owners: dict[PendingStop, Call] = {}  # the calls of those stops
        self._timer: asyncio.TimerHandle | None = None

    def ended(self, call: Call) -> None:
        if not call.pending_stops or call.engine_finished or not _is_unconfirmed(call):
            self._log.call_ended(call)
            return
        record, wait_s = self._log.record(call), self._wait_s()
        if record is None:
            return
        if not wait_s or len(self._waiting) >= self._log.lines_max:
            self._log.write(record)
            return
        self._waiting[call] = (record, self._loop.time() + wait_s)
        self._owners.update((stop, call) for stop in call.pending_stops)
        if self._timer is None:
            self._timer = self._loop.call_later(wait_s, self._look)

    def stop_confirmed(self, stop: PendingStop) -> None:
        """Write the call's line if this was the last of its stops that was pending."""
        call = self._owners.get(stop)
        if call is not None and not _is_unconfirmed(call):
            self._write(call)

    def close(self) -> None:
        """Write all waiting lines with what is known now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for call in list(self._waiting):
            self._write(call)

    def _look(self) -> None:
        self._timer, now = None, self._loop.time()
        until = time.thread_time() + _SLICE_S
        while self._waiting:  # oldest first, so that the cost does not grow with the number of lines
            call, (_, due) = next(iter(self._waiting.items()))
            if due > now or time.thread_time() > until:
                self._timer = self._loop.call_at(max(due, now), self._look)
                return
            self._write(call)

    def _write(self, call: Call) -> None:
        record, _ = self._waiting.pop(call)
        for stop in call.pending_stops:
            self._owners.pop(stop, None)
        self._log.write(record | after_the_end(call))


def _is_unconfirmed(call: Call) -> bool:
    return any(stop.state is StopState.PENDING for stop in call.pending_stops)
