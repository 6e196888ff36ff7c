"""The log lines of calls. That of a call which was stopped in its engine waits a moment for the engine's word: so it tells
whether the engine let go, and what it computed after the hang-up."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from hangup.core.call import Call
from hangup.core.reaper import PendingStop, StopState
from hangup.gateway.log import Log, after_the_end


class CallLines:
    def __init__(self, log: Log, loop: asyncio.AbstractEventLoop, wait_s: Callable[[], float]) -> None:
        self._log = log
        self._loop = loop
        self._wait_s = wait_s
        self._waiting: OrderedDict[Call, tuple[dict[str, Any], float]] = OrderedDict()  # lines, and when due; oldest first
        self._owners: dict[PendingStop, Call] = {}  # of what those calls left behind
        self._timer: asyncio.TimerHandle | None = None

    def ended(self, call: Call) -> None:
        record = self._log.record(call)
        if record is None:
            return
        wait_s = self._wait_s()
        if not wait_s or call.engine_finished or not _is_unconfirmed(call) or len(self._waiting) >= self._log.lines_max:
            self._log.write(record)
            return
        self._waiting[call] = (record, self._loop.time() + wait_s)
        self._owners.update((stop, call) for stop in call.pending_stops)
        if self._timer is None:
            self._timer = self._loop.call_later(wait_s, self._look)

    def stop_confirmed(self, stop: PendingStop) -> None:
        """What an engine did with something that it was told to stop is known now."""
        call = self._owners.get(stop)
        if call is not None and not _is_unconfirmed(call):
            self._write(call)

    def close(self) -> None:
        """What is not known by now will not be."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for call in list(self._waiting):
            self._write(call)

    def _look(self) -> None:
        self._timer, now = None, self._loop.time()
        while self._waiting:  # from the oldest on: a look must not cost more, the more lines wait
            call, (_, due) = next(iter(self._waiting.items()))
            if due > now:
                self._timer = self._loop.call_at(due, self._look)
                return
            self._write(call)

    def _write(self, call: Call) -> None:
        record, _ = self._waiting.pop(call)
        for stop in call.pending_stops:
            self._owners.pop(stop, None)
        self._log.write(record | after_the_end(call))


def _is_unconfirmed(call: Call) -> bool:
    return any(stop.state is StopState.PENDING for stop in call.pending_stops)
