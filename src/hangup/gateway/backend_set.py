"""`Backends`: the configured backends, the tasks that watch each of them, and the removal of those that a reload drops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Final, NamedTuple, Protocol

from hangup.config import BackendLimits, BackendSettings
from hangup.core.admission import BackendLoad, HealthEvent
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.figures import follow
from hangup.gateway.backends.health import watch
from hangup.gateway.backends.pool import Dial
from hangup.gateway.log import Log
from hangup.tasks import TASKS

_ANSWERED: Final = HealthEvent.ANSWERED  # Python 3.11 takes as long for a member of an enum as for a function call


class BackendEvents(NamedTuple):
    """Callbacks for changes of backends."""

    configured: Callable[[Backend], None]  # it is new, or has new limits
    changed: Callable[[Backend], None]  # it takes more calls than before, or fewer
    models_reported: Callable[[Backend], None]  # its models were queried
    queue_reported: Callable[[Backend, int], None]  # this many calls wait in the engine, by its own figures
    removed: Callable[[Backend], Coroutine[object, object, None]]  # it left the configuration and has no calls any more


class BackendSetSettings(Protocol):
    """The settings that the backends use."""

    @property
    def backend(self) -> tuple[BackendSettings, ...]: ...

    @property
    def slots(self) -> int: ...

    @property
    def limits(self) -> BackendLimits: ...


class Backends:
    """All backends by name. Each has a health check and a reader of its figures while it is configured."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, log: Log, dials: Mapping[str, Dial], *, has_peers: bool = False
    ) -> None:
        self.by_name: dict[str, Backend] = {}
        self._loop = loop
        self._log = log
        self._dials = dials  # engines in this process, by name
        self._has_peers = has_peers
        self._slots = 0
        self._events: BackendEvents | None = None
        self._retired: set[Backend] = set()  # no longer configured; their running calls may finish
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._figures: dict[str, asyncio.Task[None]] = {}  # tasks that query the engines' queues
        self._removals: set[asyncio.Task[None]] = set()

    # Configuration

    def prepare(self, settings: BackendSetSettings) -> list[Backend]:
        """Create the backends of a configuration without using them. A backend with unchanged settings is kept: its limits can
        change in place, and a new one would restart an engine that is a child process."""
        kept = {b.settings: b for b in self.by_name.values() if b.settings.slots or self._slots == settings.slots}
        return [
            kept.get(s)
            or Backend(s, settings.limits, self._loop, settings.slots, self._dials.get(s.name), has_peers=self._has_peers)
            for s in settings.backend
        ]

    def use(self, settings: BackendSetSettings, backends: list[Backend], events: BackendEvents) -> bool:
        """Use these backends from now on; retire all others. A bug in one step keeps no other step from being done; return
        whether there was none."""
        self._slots, self._events = settings.slots, events
        left = [backend for backend in self.by_name.values() if backend not in backends]
        self.by_name.clear()  # before anything can fail: a retired backend must not be found again
        self.by_name.update({backend.name: backend for backend in backends})
        retired = [self._log.guard("", self._retire, backend) for backend in left]
        started = [
            self._log.guard("", self._start, backend, own, settings, events)
            for backend, own in zip(backends, settings.backend, strict=True)
        ]
        return all(retired) and all(started)

    def _start(self, backend: Backend, own: BackendSettings, settings: BackendSetSettings, events: BackendEvents) -> None:
        """Apply new limits and a new key to a backend of the configuration, and watch it if it is new."""
        backend.take_settings(own)
        backend.take_limits(settings.limits)
        if backend.name not in self._watches:
            checks = partial(watch, backend, self.changed, self._found, events.models_reported)
            self._watches[backend.name] = TASKS.keep("health", checks)
            self._figures[backend.name] = TASKS.keep("engine queue", partial(follow, backend, events.queue_reported))
        events.configured(backend)

    def _retire(self, backend: Backend) -> None:
        """Stop sending calls to a backend that left the configuration; its running calls may finish."""
        for tasks in (self._watches, self._figures):
            task = tasks.pop(backend.name, None)
            if task is not None:
                task.cancel()
        backend.load.health.apply(HealthEvent.RETIRED)
        backend.pool.close_idle()
        if backend.load.in_flight:
            self._retired.add(backend)
        else:
            self._remove(backend)

    def close_if_done(self, load: BackendLoad) -> None:
        """Close a retired backend after its last call."""
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
        """Log a change of a backend, and report it: waiting calls may have more backends to choose from."""
        self._log.event("backend_changed", backend=backend.name, change=what)
        if self._events is not None:
            self._events.changed(backend)

    def _found(self, backend: Backend) -> None:
        """Log what a backend is, and what protects its work from being left behind."""
        adapter, facts = backend.adapter, backend.facts
        self._log.event(
            "backend_found",
            backend=backend.name,
            engine=adapter.name,
            version=facts.version,
            stops_by=adapter.stops_by,
            verified_by=_verified_by(backend),
        )

    def succeeded(self, backend: Backend) -> None:
        """Note that a backend answered."""
        if backend.load.health.apply(_ANSWERED):
            self.changed(backend, "up")

    def failed(self, backend: Backend, detail: str) -> None:
        """Note that a backend failed a call; after a few failures in a row it counts as down."""
        if backend.load.health.apply(HealthEvent.FAILED):
            self.changed(backend, f"down: {detail}")

    def drain(self, name: str, on: bool) -> bool:
        """Stop sending new calls to a backend, or resume; return False if there is no such backend."""
        backend = self.by_name.get(name)
        if backend is None:
            return False
        if backend.load.health.apply(HealthEvent.DRAINED if on else HealthEvent.UNDRAINED):
            self.changed(backend, "drained by an operator" if on else "undrained by an operator")
        return True

    def any_ready(self) -> bool:
        """Return whether a new call could be served now, as far as is known."""
        loads = [backend.load for backend in self.by_name.values()]
        return any(load.health.ready and not load.full_of_others for load in loads)

    # Shutdown

    async def stop_watching(self) -> None:
        """Stop the health checks and the readers of figures."""
        tasks = [*self._watches.values(), *self._figures.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._watches.clear()
        self._figures.clear()

    async def close(self) -> None:
        """Close all connections to backends."""
        await asyncio.gather(*self._removals, return_exceptions=True)
        for backend in (*self.by_name.values(), *self._retired):
            backend.pool.close()


def _verified_by(backend: Backend) -> str | None:
    """Return which of the engine's own figures tell whether it stopped a call; None if none do."""
    adapter = backend.adapter
    if not adapter.status_path or not backend.facts.reports_status or (backend.settings.shared and not adapter.pins_slots):
        return None
    return f"its {'slots' if adapter.pins_slots else 'counts'} ({adapter.status_path.partition('?')[0]})"
