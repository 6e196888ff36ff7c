"""The configured backends: the tasks that watch each of them, and how one leaves when the configuration changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import NamedTuple

from hangup.config import Settings
from hangup.core.admission import BackendLoad, HealthEvent
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.figures import follow
from hangup.gateway.backends.health import watch
from hangup.gateway.backends.pool import Dial
from hangup.gateway.log import Log
from hangup.tasks import TASKS


class BackendEvents(NamedTuple):
    """Who hears about backends."""

    configured: Callable[[Backend], None]  # it is in use from now on, or has new limits
    changed: Callable[[Backend], None]  # it takes more calls than before, or fewer
    models_reported: Callable[[Backend], None]  # it was asked for its models
    queue_reported: Callable[[Backend, int], None]  # by its own figures so many calls wait in it
    removed: Callable[[Backend], Coroutine[object, object, None]]  # out of the configuration, and nothing of ours is left in it


class Backends:
    """All backends by name. Each has a health check and a reader of its figures for as long as it is configured."""

    def __init__(self, loop: asyncio.AbstractEventLoop, log: Log, dials: Mapping[str, Dial]) -> None:
        self.by_name: dict[str, Backend] = {}
        self._loop = loop
        self._log = log
        self._dials = dials  # engines in this process, by name
        self._slots = 0
        self._events: BackendEvents | None = None
        self._retired: set[Backend] = set()  # out of the configuration, with calls that may finish
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._figures: dict[str, asyncio.Task[None]] = {}  # who asks backends about their queues
        self._removals: set[asyncio.Task[None]] = set()

    # Configuration

    def prepare(self, settings: Settings) -> list[Backend]:
        """Makes the backends of a configuration without using them. One whose settings are as before stays as it is: limits
        can change under a backend, and were it made anew, an engine that is a process of ours would be started anew."""
        kept = {b.settings: b for b in self.by_name.values() if b.settings.slots or self._slots == settings.slots}
        return [
            kept.get(s) or Backend(s, settings.limits, self._loop, settings.slots, self._dials.get(s.name))
            for s in settings.backend
        ]

    def use(self, settings: Settings, backends: list[Backend], events: BackendEvents) -> None:
        """Takes these backends into use; others get no new calls."""
        self._slots, self._events = settings.slots, events
        for backend in list(self.by_name.values()):
            if backend not in backends:
                self._retire(backend)
        self.by_name.clear()
        self.by_name.update({backend.name: backend for backend in backends})
        for backend in backends:
            backend.take_limits(settings.limits)
            if backend.name not in self._watches:
                checks = partial(watch, backend, self.changed, events.models_reported)
                self._watches[backend.name] = TASKS.keep("health", checks)
                self._figures[backend.name] = TASKS.keep("engine queue", partial(follow, backend, events.queue_reported))
            events.configured(backend)

    def _retire(self, backend: Backend) -> None:
        """Sends no new calls to a backend that is out of the configuration; those that run may finish."""
        backend.load.health.apply(HealthEvent.RETIRED)
        backend.pool.close_idle()
        for tasks in (self._watches, self._figures):
            task = tasks.pop(backend.name, None)
            if task is not None:
                task.cancel()
        if backend.load.in_flight:
            self._retired.add(backend)
        else:
            self._remove(backend)

    def close_if_done(self, load: BackendLoad) -> None:
        """Closes a retired backend when its last call is gone."""
        if not load.health.retired or load.in_flight:
            return
        for backend in [backend for backend in self._retired if backend.load is load]:
            self._retired.remove(backend)
            backend.pool.close()
            self._remove(backend)

    def _remove(self, backend: Backend) -> None:
        if self._events is not None:
            task = TASKS.start("backend close", self._events.removed(backend))
            self._removals.add(task)
            task.add_done_callback(self._removals.discard)

    # State

    def changed(self, backend: Backend, what: str) -> None:
        """Logs what happened to a backend; those who wait may have more to choose from."""
        self._log.event("backend_changed", backend=backend.name, change=what)
        if self._events is not None:
            self._events.changed(backend)

    def succeeded(self, backend: Backend) -> None:
        """Notes that a backend answered."""
        if backend.load.health.apply(HealthEvent.ANSWERED):
            self.changed(backend, "up")

    def failed(self, backend: Backend, detail: str) -> None:
        """Notes that a backend failed a call; after a few in a row it is taken for down."""
        if backend.load.health.apply(HealthEvent.FAILED):
            self.changed(backend, f"down: {detail}")

    def drain(self, name: str, on: bool) -> bool:
        """Sends no new calls to a backend, until it is taken back; False when there is none of that name."""
        backend = self.by_name.get(name)
        if backend is None:
            return False
        if backend.load.health.apply(HealthEvent.DRAINED if on else HealthEvent.UNDRAINED):
            self.changed(backend, "drained by an operator" if on else "undrained by an operator")
        return True

    def any_ready(self) -> bool:
        """Tells whether a call that came now could be served, as far as is known."""
        loads = [backend.load for backend in self.by_name.values()]
        return any(load.health.ready and not load.full_of_others for load in loads)

    # The process ends

    async def stop_watching(self) -> None:
        """Ends the health checks and the readers of figures."""
        tasks = [*self._watches.values(), *self._figures.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._watches.clear()
        self._figures.clear()

    async def close(self) -> None:
        """Cuts all connections to backends."""
        await asyncio.gather(*self._removals, return_exceptions=True)
        for backend in (*self.by_name.values(), *self._retired):
            backend.pool.close()
