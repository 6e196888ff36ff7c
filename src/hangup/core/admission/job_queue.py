"""`JobQueue`: the second queue, for items of jobs, which no client waits for.

Its tenants share it fairly, as they share the queue of live calls, which does not count jobs. Jobs get idle
capacity and leave room for live calls that may come; when more of those come, jobs yield.
"""

from __future__ import annotations

import math
from collections import Counter

from hangup.config import AdmissionLimits
from hangup.core.admission.backend_load import BackendLoad
from hangup.core.admission.estimates import Peak
from hangup.core.admission.fleet import Fleet
from hangup.core.admission.queue import Queue
from hangup.core.admission.tenant_queue import NOBODY
from hangup.core.admission.tenants import Tenant
from hangup.core.admission.ticket import K, Ticket


class JobQueue(Queue[K]):
    """The waiting items of jobs, the running ones, and those of the latter that must yield."""

    def __init__(self, fleet: Fleet, limits: AdmissionLimits) -> None:
        super().__init__(lifo_after_s=math.inf)  # nobody loses patience: always first come, first served
        self.tenants: dict[str, Tenant[Ticket[K]]] = {}
        self.running: dict[Ticket[K], None] = {}  # in the order of their start
        self.yielding: set[Ticket[K]] = set()  # asked to yield, and not yet ended
        self.live_peak = Peak(limits.jobs_calm_s)  # of live calls in flight
        self._fleet = fleet
        self.configure(limits)

    def configure(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self.live_peak.period_s = limits.jobs_calm_s

    @property
    def in_flight(self) -> int:
        return len(self.running) + len(self.yielding)

    # Tenants

    def tenant(self, live: Tenant[Ticket[K]]) -> Tenant[Ticket[K]]:
        """Return the tenant that counts the jobs of a live tenant."""
        found = self.tenants.get(live.name)
        if found is None:
            found = self.tenants[live.name] = live.copy_for_jobs()
        return found

    def apply_terms(self, live: Tenant[Ticket[K]]) -> None:
        """Apply the tenant's new terms to its jobs."""
        found = self.tenants.get(live.name)
        if found is not None:
            self.change_terms(found, live.terms)
            found.allowance = live.allowance

    # Starts and ends

    def started(self, load: BackendLoad, ticket: Ticket[K]) -> None:
        self.running[ticket] = None
        load.jobs += 1

    def ended(self, load: BackendLoad, ticket: Ticket[K]) -> None:
        self.running.pop(ticket, None)
        self.yielding.discard(ticket)
        load.jobs -= 1

    # Room for live calls

    def idle_backend(
        self,
        live: int,
        now: float,
        kv: int = 0,
        tried: frozenset[str] = NOBODY,
        eligible: frozenset[str] | None = None,
        *,
        whole: bool = False,
    ) -> BackendLoad | None:
        """Return a backend where an item may start, if enough stays free for live calls, of which `live` are in flight."""
        peak = self.live_peak.get(live, now)
        load = self._fleet.best_for_job(not peak, kv, tried, eligible)
        if load is None:
            return None
        if not load.slots and (not peak or (load.is_open and not load.jobs)):
            return load if self._try_capacity(load, now, alone=not peak, whole=whole) else None
        most, taken = self._fleet.places(eligible)
        # The peak is not known per backend: a subset of backends keeps free no more than its share, and jobs there yield.
        headroom = max(self._kept_free(most, peak), peak - live if eligible is None else 0)
        return load if load.in_flight < load.known_capacity and most - taken - 1 >= headroom else None

    def _try_capacity(self, load: BackendLoad, now: float, *, alone: bool, whole: bool) -> bool:
        """Return whether to start an item on a backend with a learned limit, so that it shows how much the engine runs.

        Without live calls many items do that. Beside live calls one at a time does, while nothing shows that the engine
        queues: live calls that never stop would otherwise keep all jobs out. Each yields when a live call comes beyond what
        was seen. If that is one call, only a short answer starts before a live call does, because it would always yield.
        Beside live calls that come close to what was seen, an item would delay the next of them.
        """
        if load.in_flight < load.known_capacity:
            return alone or ((whole or load.known_capacity > 1) and load.limiter.has_free_slot(load.in_flight))
        return load.limiter.try_more(load.in_flight, now)

    def _kept_free(self, most: int, peak: int) -> int:
        share = self._limits.jobs_hold_back_share if peak else self._limits.hold_back_share
        return min(max(1, math.ceil(share * most)), most - 1)

    # Yielding

    def make_way(self, queue: Queue[K]) -> list[Ticket[K]]:
        """Choose one job to yield for each live call that stays in the queue, unless a place is about to become free for it
        anyway."""
        fleet = self._fleet
        freeing = Counter({load: load.held for load in fleet.loads if load.health.well and load.held})
        freeing.update(job.placed_on for job in self.yielding if job.placed_on is not None)
        if queue.count <= freeing.total() and queue.eligible_sets() == {None}:
            return []
        # Jobs whose end makes room; the one that started last has the least to lose.
        candidates = [
            (job, job.placed_on)
            for job in self._may_yield()
            if job.placed_on is not None and job.placed_on.has_room_without(job)
        ]
        chosen: list[Ticket[K]] = []
        for waiting in queue if candidates else ():
            eligible, tried = waiting.eligible, waiting.tried
            soon = next((load for load in freeing if fleet.would_take(load, tried, eligible)), None)
            if soon is not None:
                freeing[soon] -= 1
                if not freeing[soon]:
                    del freeing[soon]
                continue
            at = next(
                (at for at in reversed(range(len(candidates))) if fleet.would_take(candidates[at][1], tried, eligible)), None
            )
            if at is not None:
                chosen.append(candidates.pop(at)[0])
            if not candidates:
                break
        return self._ask_to_yield(chosen)

    def make_way_on(self, load: BackendLoad) -> list[Ticket[K]]:
        """Choose jobs to yield after a live call was sent to a backend that is reading prompts of jobs, which the call would
        wait for, or that may have no slot left."""
        full = (
            not load.slots and load.in_flight - sum(job.placed_on is load for job in self.yielding) > load.limiter.most_running
        )
        here = [job for job in reversed(self._may_yield()) if job.placed_on is load]
        return self._ask_to_yield([job for job in here if job.awaits_first_token] or here[:full])

    def _may_yield(self) -> list[Ticket[K]]:
        """Return all running jobs, except one per backend that has yielded often enough: work must finish at some point."""
        yields_max, kept = self._limits.job_yields_max, set[BackendLoad]()
        may = []
        for job in self.running:
            if (
                job.yields >= yields_max
                and job.placed_on is not None
                and job.placed_on not in kept
                and job.placed_on.known_capacity > 1
            ):
                kept.add(job.placed_on)
            else:
                may.append(job)
        return may

    def _ask_to_yield(self, jobs: list[Ticket[K]]) -> list[Ticket[K]]:
        for job in jobs:
            del self.running[job]
            self.yielding.add(job)
        return jobs
