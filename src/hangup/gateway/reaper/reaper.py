"""The gateway's interface to the reaper: accepts ended calls, and reports the state of every backend."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from hangup.core.admission import BackendLoad, Trust
from hangup.core.members import EndedCall, StopFinding, TokenRow
from hangup.core.reaper import EngineStatus, Orphans, PendingStop, StopState
from hangup.gateway.backends.aborts import Aborts
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.pool import Address
from hangup.gateway.reaper.peers import Peers, SharedBackend
from hangup.gateway.reaper.stats import ReaperStats
from hangup.gateway.reaper.trouble import WatchHost
from hangup.gateway.reaper.watch import BackendWatch


@dataclass(frozen=True, slots=True)
class Zombie:
    """Work that runs on, or did, although its call has ended."""

    call_id: str
    backend: str
    slot: int | None
    since: float  # monotonic time of the call's end
    tokens: int | None  # computed since, where the engine reports it
    tokens_exact: bool  # False: an estimated share, by time, of several calls' tokens
    aborts: int  # sent after the first
    state: StopState
    stopped_at: float | None  # monotonic; None while it runs


@dataclass(frozen=True, slots=True)
class BackendView:
    """A backend's state in the reaper."""

    name: str
    engine: str
    rung: str
    since: float  # when it reached the rung, monotonic
    reason: str
    held: int  # ended calls that are not known to have stopped
    orphans: int
    zombies: tuple[Zombie, ...]


class Reaper:
    def __init__(self, aborts: Aborts, host: WatchHost, stories_max: int, peers: Peers | None = None) -> None:
        self._aborts = aborts
        self._peers = peers
        self._host = host
        self._watches: dict[Backend, BackendWatch] = {}
        self._at: dict[Address, list[Backend]] = {}  # those watched, by engine: each look asks who else is at the same one
        self.stats = ReaperStats(self._watches.values(), stories_max)

    def watch(self, backend: Backend) -> None:
        """Start to watch a backend of the configuration, or give new limits to one that is watched already."""
        watch = self._watches.get(backend)
        if watch is None:
            shared = SharedBackend(backend.name, self._peers, partial(self._other_loads, backend))
            self._watches[backend] = BackendWatch(backend, self._aborts, self._host, self.stats, shared)
            self._at.setdefault(backend.pool.address, []).append(backend)
        else:
            watch.take_limits()

    def add(self, backend: Backend, stop: PendingStop, *, first_token: bool) -> bool:
        """Take a call that ended while its engine worked on it. Return True if its slot must stay reserved until the work is
        known to have stopped."""
        watch = self._watches.get(backend)
        if watch is None:
            return False
        watch.add(stop, first_token=first_token)
        return True

    def look(self, backend: Backend) -> None:
        """Check the backend soon, because something about it has changed."""
        watch = self._watches.get(backend)
        if watch is not None:
            watch.look()

    async def forget(self, backend: Backend) -> None:
        """Stop watching a backend that has left the configuration and has no calls any more."""
        watch = self._watches.pop(backend, None)
        if watch is not None:
            others = self._at[backend.pool.address]
            others.remove(backend)
            if not others:
                del self._at[backend.pool.address]
            watch.stop_judging(removed=not self.backends_named(backend.name))
            await watch.close()

    async def close(self, within_s: float = math.inf) -> None:
        """End all watches. Spawned engines stop at the same time: one after another, they might take `stop_s` each."""
        watches = list(self._watches.values())
        self._watches.clear()
        self._at.clear()
        await asyncio.gather(*(watch.close(within_s) for watch in watches))

    # Several processes: one of them judges all backends

    def lead(self, calls: Iterable[EndedCall], steps: dict[str, dict[str, Any]]) -> list[EndedCall]:
        """Judge all backends from now on. `calls` have ended and are not known to have stopped; `steps` say how far the ladder
        went on each backend. Return the calls of backends that are not known here."""
        by_name: dict[str, list[EndedCall]] = {}
        for call in calls:
            by_name.setdefault(call.backend, []).append(call)
        for name, watch in self._by_name().items():
            watch.lead(by_name.pop(name, ()), steps.get(name))
        return [call for unknown in by_name.values() for call in unknown]

    def follow(self) -> None:
        """Leave the judgement of all backends to another process."""
        for watch in self._watches.values():
            watch.follow()

    def judge_alone(self) -> None:
        """Judge only our own calls, and those only as far as that is possible without the others."""
        for watch in self._watches.values():
            watch.judge_alone()

    def given_calls(self) -> list[EndedCall]:
        """Return our ended calls that another process judges, or should."""
        return [call for watch in self._watches.values() for call in watch.given_calls()]

    def take_calls(self, calls: Iterable[EndedCall]) -> list[EndedCall]:
        """Take ended calls of other processes; return those of backends that are not known here."""
        by_name, unknown = self._by_name(), list[EndedCall]()
        for call in calls:
            watch = by_name.get(call.backend)
            if watch is None:
                unknown.append(call)
            else:
                watch.take_calls([call])
        return unknown

    def doubt(self) -> None:
        """Allow for work that nobody knows of, because another process died."""
        for watch in self._watches.values():
            watch.doubt()

    def found(self, row: StopFinding) -> PendingStop | None:
        """Take what another process found out about an ended call of ours; return the call if this is news."""
        watches = [watch for watch in self._watches.values() if watch.backend.name == row.call.backend]
        return next((stop for watch in watches if (stop := watch.found(row)) is not None), None)

    def take_trust(self, backend: str, trust: Trust) -> None:
        watch = self._by_name().get(backend)
        if watch is not None:
            watch.take_trust(trust)

    @property
    def leads(self) -> bool:
        """Return whether this process judges the engines: it is alone, or leads."""
        return self._peers is None or self._peers.leads

    async def tokens_of_others(self, backend: Backend) -> tuple[tuple[str, ...], dict[str, TokenRow]] | None:
        """Return what the other processes received from a backend; None if there are no others."""
        if self._peers is None:
            return None
        if not self._peers.leads:
            return (), {}
        expected, rows = await self._peers.ask("tokens", backend.name, {})
        return expected, {member: TokenRow(*row) for member, row in rows.items()}

    async def calls_of_others(self, backend: Backend) -> tuple[int, float]:
        """Return how many calls the other processes have at a backend now, and the durations of all they had."""
        if self._peers is None or not self._peers.leads:
            return 0, 0.0
        rows = (await self._peers.ask("calls", backend.name, {})).rows.values()
        return sum(calls for calls, _ in rows), sum(call_s for _, call_s in rows)

    def pending_of_others(self, name: str) -> list[PendingStop]:
        """Return the ended calls of other processes that are not known to have stopped."""
        watch = self._by_name().get(name)
        return [stop for stop in watch.pending_stops.held if stop.member] if watch is not None else []

    def stops_of_others(self, backend: Backend) -> list[PendingStop]:
        """Return recently ended calls of other processes."""
        watch = self._watches.get(backend)
        return watch.pending_stops.of_others() if watch is not None else []

    def backends_named(self, name: str) -> list[Backend]:
        """Return the backends of this name, and others at the same engine: after a reload one may be left with old calls."""
        addresses = {backend.pool.address for backend in self._watches if backend.name == name}
        return [backend for backend in self._watches if backend.pool.address in addresses]

    def _other_loads(self, backend: Backend) -> list[BackendLoad]:
        """Return the loads of other backends at the same engine."""
        return [other.load for other in self._at.get(backend.pool.address, ()) if other is not backend]

    def _by_name(self) -> dict[str, BackendWatch]:
        """Return the watches by the names of their backends; after a reload two may have the same, and the later one counts."""
        return {watch.backend.name: watch for watch in self._watches.values()}

    # What others see

    def zombies_since(self, backend: Backend, since: float) -> list[PendingStop]:
        """Return the backend's zombies of now, and those that ended since then."""
        watch = self._watches.get(backend)
        now = watch.pending_stops.zombies if watch is not None else []
        ended = [stop for name, stop in self.stats.zombies if name == backend.name and stop.state is not StopState.ZOMBIE]
        return now + [stop for stop in ended if stop.released_at is not None and stop.released_at >= since]

    async def orphans(self, backend: Backend, *, end: bool) -> Orphans | None:
        """Return what a backend runs that belongs to nobody, and what can be done about it; None if the backend is unknown.
        `end`: do it."""
        watch = self._watches.get(backend)
        if watch is None:
            return None
        return await watch.end_orphans() if end else watch.orphans()

    def status(self, backend: Backend) -> EngineStatus | None:
        """Return the last status that a backend reported."""
        watch = self._watches.get(backend)
        return watch.status if watch is not None else None

    def view(self) -> list[BackendView]:
        return [_view(watch) for watch in self._watches.values()]

    def zombies(self) -> Iterable[Zombie]:
        return (zombie for view in self.view() for zombie in view.zombies)

    def recent_zombies(self) -> list[Zombie]:
        """Return the most recent zombies, including those that have ended; newest first."""
        return [_zombie(backend, stop) for backend, stop in reversed(self.stats.zombies)]


def _zombie(backend: str, stop: PendingStop) -> Zombie:
    tokens = stop.tokens_after, stop.tokens_exact
    return Zombie(stop.call_id, backend, stop.slot, stop.at, *tokens, stop.aborts, stop.state, stop.released_at)


def _view(watch: BackendWatch) -> BackendView:
    backend, pending, ladder = watch.backend, watch.pending_stops, watch.ladder
    zombies = tuple(_zombie(backend.name, stop) for stop in pending.zombies)
    return BackendView(
        backend.name,
        backend.adapter.name,
        ladder.rung.value,
        ladder.since,
        ladder.reason,
        len(pending.held),
        pending.orphans,
        zombies,
    )
