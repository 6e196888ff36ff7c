"""The reaper's counters over all backends, for metrics and the dashboard."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Protocol

from hangup.core.histogram import Histogram
from hangup.core.reaper import PendingStop, PendingStops
from hangup.gateway.backends.backend import Backend


class WatchedBackend(Protocol):
    """A backend and the stops that are pending there."""

    @property
    def backend(self) -> Backend: ...

    @property
    def pending_stops(self) -> PendingStops: ...


class ReaperStats:
    """The reaper's counters over all backends."""

    def __init__(self, watches: Iterable[WatchedBackend], stories_max: int) -> None:
        self._watches = watches
        self.release_s = Histogram()
        self.releases: Counter[tuple[str, str]] = Counter()  # backend, verified | restarted | unverified
        self.zombies: deque[tuple[str, PendingStop]] = deque(maxlen=stories_max)  # backend and pending call, newest last
        self.steps: Counter[tuple[str, str]] = Counter()  # backend, step

    def remember(self, backend: str, stop: PendingStop) -> None:
        """Record a zombie, unless it is recorded already: one that was believed gone may come back."""
        if all(known is not stop for _, known in self.zombies):
            self.zombies.append((backend, stop))

    def standing(self) -> Iterable[tuple[str, int, int, int]]:
        """Return for each backend its name and its numbers of zombies, orphans and other calls not known to have stopped."""
        zombies: Counter[str] = Counter()
        orphans: Counter[str] = Counter()
        held: Counter[str] = Counter()
        for watch in self._watches:  # after a reload two backends may have the same name
            name, pending = watch.backend.name, watch.pending_stops
            zombies[name] += len(pending.zombies)
            orphans[name] += pending.orphans
            held[name] += len(pending.held)
        return [(name, zombies[name], orphans[name], held[name] - zombies[name]) for name in held]
