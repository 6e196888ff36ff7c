"""`AdminView`: implements `GatewayView` for the admin port, by reading the gateway's state on request."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any

from hangup.config import ReaperLimits, keys
from hangup.core import reasons
from hangup.core.admission import BackendLoad, DnsListing
from hangup.core.call import Call, Phase
from hangup.core.histogram import Histogram
from hangup.core.history import History
from hangup.core.ledger import Ledger
from hangup.gateway.admin.view import JobsView, Killed, SharedStateView
from hangup.gateway.backends.backend import Backend
from hangup.gateway.client_request import FlowPorts
from hangup.gateway.divergence_monitor import DivergenceMonitor, Watched
from hangup.gateway.intake import Intake
from hangup.gateway.jobs.overview import JobsOverview
from hangup.gateway.jobs.provider_overview import ProviderOverview
from hangup.gateway.loop_watch import LoopWatch
from hangup.gateway.reaper import BackendView, ReaperStats, Zombie
from hangup.gateway.slots import Slots
from hangup.gateway.store.ledger import LedgerStore
from hangup.tasks import TASKS, LongTask


class AdminView:
    def __init__(
        self,
        ports: FlowPorts,
        intake: Intake,
        lag: Histogram,
        monitor: DivergenceMonitor,
        store: LedgerStore,
        stalls: LoopWatch,
        limits: Callable[[], ReaperLimits],
    ) -> None:
        self._ports = ports
        self._intake = intake
        self._lag = lag
        self._monitor = monitor
        self._store = store
        self._stalls = stalls
        self._limits = limits  # returns the current ones: a reload replaces them
        self.shared_state: SharedStateView | None = None  # while there is one
        self._slots = Slots(ports.backends, ports.registry)

    @property
    def ledger(self) -> Ledger:
        return self._ports.accounting.ledger

    def now(self) -> float:
        return time.monotonic()

    def ready(self) -> str | None:
        reason = self._intake.why_not_ready()
        return None if reason is None else "draining" if reason is reasons.DRAINING else "no backend is up"

    def not_running(self) -> list[str]:
        return TASKS.down()

    def tasks(self) -> Iterable[LongTask]:
        return TASKS

    # Calls

    def calls(self) -> Iterator[Call]:
        return (flow.call for flow in self._ports.registry.live.values())

    def find(self, id: str) -> Call | None:
        return self._ports.registry.find(id)

    def ids(self, prefix: str, *, live: bool) -> Iterator[str]:
        ended = () if live else reversed(self._ports.registry.ended)
        every = chain(self._ports.registry.live, (call.id for call in ended))
        return (id for id in every if id.startswith(prefix))

    def waits_for(self, call: Call) -> str:
        flow = self._ports.registry.live.get(call.id)
        return "" if flow is None else flow.waits_for()

    async def find_slots(self) -> None:
        await self._slots.find()

    def kill(self, id: str) -> Killed | None:
        flow = self._ports.registry.live.get(id)
        if flow is None:
            return None
        call = flow.call
        cut = not call.engine_finished and flow.connected
        before = len(call.pending_stops)
        flow.end(reasons.KILLED)
        aborts = any(stop.abort_sent for stop in call.pending_stops[before:])
        self._ports.log.event("call_killed", id=id, tenant=call.tenant, backend=call.backend)
        return Killed(call, cut, aborts)

    async def wait_for_stops(self, ended: list[Call], within_s: float | None) -> None:
        set_s = self._limits().kill_wait_s
        waited_for = [stop for call in ended for stop in call.pending_stops]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(set_s if within_s is None else min(within_s, set_s)):
                while waited_for:
                    if waited_for[-1].released is not None:
                        waited_for.pop()
                    else:
                        await self._ports.stopping.released.wait()

    def zombies(self) -> list[dict[str, Any]]:
        zombies = self._ports.stopping.reaper.recent_zombies()
        ids = {zombie.call_id for zombie in zombies}
        ended = {call.id: call for call in self._ports.registry.ended if call.id in ids}
        return [_zombie_row(zombie, ended.get(zombie.call_id), self.now()) for zombie in zombies]

    def phases(self) -> Iterable[Phase]:
        return (flow.call.phase for flow in self._ports.registry.live.values())

    def queue_depth(self) -> int:
        return self._ports.placement.admission.queue.count

    # Backends

    def loads(self) -> Iterable[BackendLoad]:
        return self._ports.placement.admission.fleet.loads

    def backends(self) -> list[dict[str, Any]]:
        stands = {view.name: view for view in self._ports.stopping.reaper.view()}
        watched = self._monitor.watched
        zombies = list(self._ports.stopping.reaper.zombies())
        return [
            {
                **_backend_row(backend, watched.get(name), stands.get(name), self.now()),
                "zombies": [zombie.call_id for zombie in zombies if zombie.backend == name],
            }
            for name, backend in self._ports.backends.by_name.items()
        ]

    def drain(self, backend: str, on: bool) -> bool:
        return self._ports.backends.drain(backend, on)

    async def orphans(self, backend: str, *, end: bool) -> dict[str, Any] | None:
        found = self._ports.backends.by_name.get(backend)
        orphans = await self._ports.stopping.reaper.orphans(found, end=end) if found is not None else None
        if found is None or orphans is None:
            return None
        return {"backend": backend, "orphans": orphans.calls, "means": orphans.means.value, "shared": found.settings.shared}

    # Ledger and history

    async def report(self, since_s: float, by: str) -> dict[str, Any]:
        """Return the ledger's sums beside the engines' own counters of now, with the difference between them."""
        await self._monitor.look()
        live: Counter[str] = Counter()
        for call in self.calls():
            live[call.backend] += call.tokens_out
        report = await asyncio.to_thread(self._store.report, since_s, by)
        report["currency"] = self._ports.policy.settings.currency
        for name, row in report["engines"].items():
            row |= {"live": live[name], "difference": row["computed"] + row["uncounted"] - row["booked"] - live[name]}
        return report

    def history(self) -> History:
        return self._monitor.history

    def events(self) -> list[dict[str, Any]]:
        return list(self._ports.log.events)

    def alarms(self) -> list[dict[str, Any]]:
        rows = []
        for name, watched in self._monitor.watched.items():
            finding = watched.alarm.finding
            if finding is not None:
                suspects = self._monitor.suspects(name)
                rows.append({"backend": name, "signal": finding.signal, "excess": finding.excess, "suspects": suspects})
        return rows

    def ended(self, count: int) -> list[Call]:
        return list(islice(reversed(self._ports.registry.ended), count))

    # The process

    def connections(self) -> int:
        return len(self._intake.open_connections)

    def media_held_bytes(self) -> int:
        return self._ports.uploads.held_bytes

    def body_bytes(self) -> int:
        return self._intake.body_bytes

    def loop_tasks(self) -> int:
        return len(asyncio.all_tasks(self._ports.loop))

    def longest_stall_s(self) -> float:
        return self._stalls.longest_s

    def counts(self) -> dict[str, int]:
        tracer = self._ports.accounting.tracer
        return {
            "loop_stalls": self._stalls.stalls,
            "connections_refused": self._intake.connections_refused,
            "log_lines_dropped": self._ports.log.dropped,
            "ledger_entries_dropped": self._store.dropped,
            "traces_dropped": tracer.dropped if tracer is not None else 0,
            "divergence_alarms": self._monitor.alarms_raised,
        }

    def aborts(self) -> dict[str, int]:
        aborts = self._ports.stopping.aborts
        return {"sent": aborts.sent, "failed": aborts.failed, "skipped": aborts.skipped}

    def reaper(self) -> ReaperStats:
        return self._ports.stopping.reaper.stats

    def jobs(self) -> JobsView | None:
        job_api, provider = self._ports.jobs.api, self._ports.jobs.provider
        if provider is not None:
            return ProviderOverview(provider, time.monotonic)
        return JobsOverview(job_api.registry, time.monotonic) if job_api is not None else None

    def fault(self, error: Exception) -> None:
        self._ports.log.fault(error)

    def loop_lag(self) -> Histogram:
        return self._lag


def _zombie_row(zombie: Zombie, call: Call | None, now: float) -> dict[str, Any]:
    stopped_at = zombie.stopped_at
    return {
        "id": zombie.call_id,
        "tenant": call.tenant if call is not None else None,
        "cause": call.reason.code if call is not None and call.reason is not None else None,
        "backend": zombie.backend,
        "slot": zombie.slot,
        "ended_s_ago": round(now - zombie.since, 1),
        "tokens_since": zombie.tokens,
        "tokens_exact": zombie.tokens_exact,
        "aborts": zombie.aborts,
        "release": zombie.state.value,
        "lived_s": round(stopped_at - zombie.since, 1) if stopped_at is not None else None,
    }


def _backend_row(backend: Backend, watched: Watched | None, stands: BackendView | None, now: float) -> dict[str, Any]:
    load, offer = backend.load, backend.offer()
    return {
        "name": backend.name,
        "engine": backend.adapter.name,
        "state": _state(load),
        "drained": load.health.drained,
        "quarantined": load.health.quarantined,
        "models": _models(backend),
        "apis": sorted(offer.apis) if offer.apis is not None else None,
        "client_key": "own" if keys.has_own_key(backend.settings) else "pass" if backend.gets_client_key else "drop",
        "in_flight": load.in_flight,
        "limit": None if load.is_open and load.limit else load.limit,
        "limit_learned": not load.slots,
        "limited_by": load.limited_by,
        "paused_s": round(load.health.paused_until - now, 1) if load.health.paused else None,
        "failures": load.health.failures,
        "fault": backend.fault,
        "ladder": stands.rung if stands is not None else None,
        "ladder_reason": stands.reason if stands is not None else "",
        "ladder_s": round(now - stands.since, 1) if stands is not None and stands.since > -math.inf else None,
        "busy": watched.busy if watched is not None else None,
        "tokens_computed": watched.computed if watched is not None else None,
        "busy_s": round(load.time.used_s, 3),
        "orphans": stands.orphans if stands is not None else 0,
        "alarm": watched.alarm.finding.signal if watched is not None and watched.alarm.finding is not None else None,
    }


def _models(backend: Backend) -> list[str] | None:
    """Return the models that are configured or that the backend lists; None if neither is known."""
    if backend.settings.models:
        return list(backend.settings.models)
    return [row["id"] for row in backend.model_rows] if backend.model_rows is not None else None


_LISTINGS = {DnsListing.NEW: "warming up", DnsListing.MISSING: "not in DNS"}


def _state(load: BackendLoad) -> str:
    health = load.health
    reach = "up" if health.answered else "no answer yet" if health.up else "down"
    state = "quarantined" if health.quarantined else reach
    if health.listing is not DnsListing.LISTED:
        state = f"{_LISTINGS[health.listing]}, {state}"
    return f"{'draining' if load.in_flight else 'drained'}, {state}" if health.drained else state
