"""Polls an engine for the length of its own queue, but only while that matters: when calls wait for their first token and the
number of its slots is unknown. That is so in a burst, not on an idle engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hangup.core.admission import Evidence, SharedLimit
from hangup.errors import EngineFault
from hangup.gateway.backends.adapters import Seen
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.fetch import fetch
from hangup.gateway.backends.spread import spread

_SOONER = 0.5  # of the usual pause, while the engine is known to queue
_SELDOM = 10.0  # times that pause, while it cannot be asked: a thousand backends would be a thousand timers for nothing


async def follow(backend: Backend, report: Callable[[Backend, int], None]) -> None:
    """Poll until cancelled; call `report` with the number of calls that wait in the engine."""
    while True:
        limits, limited = backend.limits, backend.load.limiter.queues is not Evidence.NONE
        seldom = backend.facts_known and not _can_be_asked(backend)
        pause_s = limits.figures_poll_s * (_SOONER if limited else 1.0)
        await asyncio.sleep(spread(_SELDOM * limits.figures_poll_s) if seldom else pause_s)
        if not _matters(backend):
            continue
        try:
            answer = await fetch(backend, "GET", backend.adapter.status_path, timeout_s=limits.status_timeout_s)
        except EngineFault:
            continue  # the health check and the reaper handle failures
        status = backend.adapter.read_status(Seen(answer.head.status, "", answer.body))
        if status is not None and _matters(backend):
            report(backend, status.waiting)


def _can_be_asked(backend: Backend) -> bool:
    """llama-server reports its slots, and queries keep it from noticing disconnects, so it is never polled."""
    return not backend.load.slots and backend.reports_status and not backend.adapter.disturbed


def _matters(backend: Backend) -> bool:
    """Decide whether to poll."""
    load = backend.load
    waits = load.unstarted > 0 or load.limiter.queues is not Evidence.NONE
    limiter = load.limiter
    learns_alone = not isinstance(limiter, SharedLimit) or not limiter.follows
    others = backend.settings.shared or (backend.has_peers and learns_alone)  # whose calls may be those that wait
    return waits and _can_be_asked(backend) and not others
