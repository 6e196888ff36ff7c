"""Pauses backends that refuse calls for a while, and decides whether a refused call should wait for one.

A client does not see an engine's refusal (429, 529, or 503 with a time to retry) as long as another backend, or the same one a
little later, may serve the call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from hangup.core.admission import BackendLoad
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.rate_limits import come_back_s, spent_s
from hangup.gateway.http.head import ResponseHead

_SHORT_S: Final = 2.0


class BackendPauses:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, pause: Callable[[Backend, float], None], resume: Callable[[Backend], None]
    ) -> None:
        self._loop = loop
        self._start = pause  # begins a pause until a given time, or extends one
        self._resume = resume
        self._timers: dict[Backend, asyncio.TimerHandle] = {}  # not by name: after a reload two backends may have the same name

    def refused(self, backend: Backend, sent_at: float, head: ResponseHead, pause_s_max: float) -> None:
        """Pause a backend that refused a call, for as long as it says.

        A short wait is no reason for a pause while the backend works on other calls: it has room again when one ends.
        """
        wait_s, load = come_back_s(head.fields), backend.load
        if wait_s and (wait_s > _SHORT_S or load.in_flight <= 1 or load.limiter.refuses_all(sent_at)):
            self._pause(backend, min(wait_s, pause_s_max))

    def answered(self, backend: Backend, head: ResponseHead, pause_s_max: float) -> None:
        """Pause a backend that served a call and reports that it was the last one for now."""
        wait_s = spent_s(head.fields)
        if wait_s:
            self._pause(backend, min(wait_s, pause_s_max))

    def _pause(self, backend: Backend, seconds: float) -> None:
        until = time.monotonic() + seconds
        if until <= backend.load.health.paused_until:
            return
        self._drop(backend)
        self._timers[backend] = self._loop.call_later(seconds, self._end, backend)
        self._start(backend, until)

    def _end(self, backend: Backend) -> None:
        self._timers.pop(backend, None)
        self._resume(backend)

    def _drop(self, backend: Backend) -> None:
        timer = self._timers.pop(backend, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        for backend in list(self._timers):
            self._drop(backend)


def worth_waiting(load: BackendLoad, give_up_at: float) -> bool:
    """Return whether a backend that refused a call may serve it before the call's deadline: it said when, or it has room
    again when another call ends. A backend that refuses although it is idle is not worth waiting for."""
    if not load.health.paused and load.in_flight <= 1:
        return False
    return load.health.paused_until < give_up_at
