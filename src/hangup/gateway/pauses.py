"""Backends that refuse calls for now: where their calls go, and until when they get no new ones.

A refusal of an engine (429, 529, or 503 with a time to come back) is not its client's to see as long as another backend, or the
same one a little later, may take the call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from hangup.core.admission import BackendLoad
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.rate_limits import come_back_s, spent_s
from hangup.gateway.http.head import ResponseHead

_SHORT_S = 2.0


class BackendPauses:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, pause: Callable[[Backend, float], None], resume: Callable[[Backend], None]
    ) -> None:
        self._loop = loop
        self._start = pause  # begins a pause until a given time, or extends one
        self._resume = resume
        self._timers: dict[Backend, asyncio.TimerHandle] = {}  # not by name: after a reload two may have the same

    def refused(self, backend: Backend, sent_at: float, head: ResponseHead, pause_s_max: float) -> None:
        """The backend refused a call: it gets none for as long as it says.

        A short wait is no reason to leave it alone while it works on others: with their ends it has room again.
        """
        wait_s, load = come_back_s(head.fields), backend.load
        if wait_s and (wait_s > _SHORT_S or load.in_flight <= 1 or load.limiter.refuses_all(sent_at)):
            self._pause(backend, min(wait_s, pause_s_max))

    def answered(self, backend: Backend, head: ResponseHead, pause_s_max: float) -> None:
        """The backend took a call, and may say that it was the last for now."""
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
    """Return whether a backend that refused a call may serve it before the call is given up: it said when, or it works on
    something that ends. If it refuses although it has nothing to do, nothing can be expected of it."""
    if not load.health.paused and load.in_flight <= 1:
        return False
    return load.health.paused_until < give_up_at
