"""`Admission`: decides for every call whether it starts, waits or is refused.

    arrive ──▶ start on a backend ──▶ first_token ──▶ end
       │  └──▶ wait in the queue ──▶ start │ leave │ pushed out │ too late
       └─────▶ refused

An item of a job takes the same path through a queue of its own. It starts when no live call waits for the backend and enough
stays free for live calls that may come. If more of them come, running items must yield, and the caller ends them like any
other call.

Each method takes an event and the time, and returns `Action`s, which the caller carries out in order. Budgets are charged in
the same call that decides, so nothing can slip in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final, Generic, NamedTuple

from hangup.config import AdmissionLimits
from hangup.core import reasons
from hangup.core.admission.backend_load import BackendLoad
from hangup.core.admission.drain_rate import DrainRates
from hangup.core.admission.fleet import Fleet
from hangup.core.admission.foresight import Foresight
from hangup.core.admission.health import HealthEvent
from hangup.core.admission.job_queue import JobQueue
from hangup.core.admission.queue import Queue
from hangup.core.admission.tenant_queue import ANYWHERE, NOBODY, QueueGroup
from hangup.core.admission.tenants import Band, Tenant, TenantTerms
from hangup.core.admission.ticket import K, Ticket
from hangup.core.reasons import Reason

_OUTPUT_WEIGHT: Final = 2.0  # the cost of an output token, in prompt tokens
_RETRY_AFTER_S = (1.0, 30.0)
_CLOSED_S: Final = 5.0  # about how long a successful quarantine takes, and how often a backend that is down is checked
_NOT_SERVING: Final = frozenset([reasons.BACKENDS_UNAVAILABLE, reasons.ENGINE_UNREACHABLE, reasons.ENGINE_WEDGED])
_CALM_S: Final = 1.0  # an engine counts as open again when no call has waited for this long
_CACHE_SHARE_MAX: Final = 0.5  # of an engine's cache for one call; the engine itself decides about larger ones
_BYTES_PER_TOKEN: Final = 4.0  # of a request body, until engines have reported token counts


class Action(NamedTuple, Generic[K]):
    """Start `ticket` on `load`, or refuse it for `reason`; a running job with a `reason` is to be ended."""

    ticket: Ticket[K]
    load: BackendLoad | None
    reason: Reason | None


def _preempted(jobs: list[Ticket[K]]) -> list[Action[K]]:
    return [Action(job, None, reasons.PREEMPTED) for job in jobs]


class Admission(Generic[K]):
    """Decides about tickets. It returns their keys and never looks at them."""

    def __init__(self, limits: AdmissionLimits, loads: Iterable[BackendLoad], jitter: Callable[[], float]) -> None:
        self._nothing: list[Action[K]] = []  # shared, and never changed
        self.shares_quotas = False  # a new tenant may use nothing of its `concurrency_max` before something is allotted
        self.fleet = Fleet(loads)
        self.queue: Queue[K] = Queue(limits.lifo_after_s)
        self.jobs: JobQueue[K] = JobQueue(self.fleet, limits)
        self._foresight = Foresight(self.fleet, limits.queue_s)
        self.live = 0  # calls in flight, without jobs
        self._live_peak = self.jobs.live_peak
        self.tenants: dict[str, Tenant[Ticket[K]]] = {}
        self._drain_rates = DrainRates()  # calls per second that start from a queue in which calls wait all the time
        self._at = 0.0
        self._waited_at = -math.inf  # when a call last waited, or was refused because of the queue's length
        self._jitter = jitter  # between 0 and 1
        self._bytes_per_token = _BYTES_PER_TOKEN
        self.configure(limits, {})

    # Configuration

    def configure(self, limits: AdmissionLimits, terms: dict[str, TenantTerms]) -> None:
        """Apply new limits and new terms per tenant; tenants without terms get the default."""
        self.limits = limits
        self.queue.lifo_after_s = limits.lifo_after_s
        self._foresight.queue_s = limits.queue_s
        self.jobs.configure(limits)
        self._terms = terms
        bands = {granted.band for granted in terms.values()}
        self._held_back = [limits.hold_back_share * sum(band < own for band in bands) for own in Band]
        self._holds_back = any(share > 0 for share in self._held_back)
        for name, tenant in self.tenants.items():
            granted = terms.get(name, TenantTerms())
            if tenant.terms != granted:
                self.queue.change_terms(tenant, granted)
                self.jobs.apply_terms(tenant)

    def tenant(self, name: str) -> Tenant[Ticket[K]]:
        found = self.tenants.get(name)
        if found is None:
            found = self.tenants[name] = Tenant(name, self._terms.get(name, TenantTerms()))
            if self.shares_quotas:
                found.allotted = 0
        return found

    def jobs_waiting(self, tenant_name: str) -> int:
        """Return how many items of this tenant's jobs are queued."""
        tenant = self.jobs.tenants.get(tenant_name)
        return tenant.waiting if tenant is not None else 0

    # Events of a call

    def arrive(self, ticket: Ticket[K], tenant_name: str, now: float) -> list[Action[K]]:
        """Decide about a new call."""
        if ticket.job:
            return self._arrive_job(ticket, tenant_name, now)
        self.fleet.now = now
        tenant = ticket.tenant = self.tenants.get(tenant_name) or self.tenant(tenant_name)
        ticket.arrived_at = now
        if ticket.retry or not tenant.retries.full:
            tenant.retries.note(ticket.retry, self.limits.retry_share_max)
        if tenant.has_quota and (reason := self._over_quota(tenant, now)) is not None:
            return [Action(ticket, None, reason)]
        if self.fleet.has_kv:
            ticket.kv = self._cache_for(ticket, tenant)
        wanted = self.queue.wanted_backends() if self.queue.count else NOBODY
        if wanted is not None:
            load = self.fleet.best(ticket.kv, wanted, ticket.eligible)
            if load is not None and not (self._holds_back and self._is_held_back(tenant, ticket.eligible)):
                if self._foresight.too_late(ticket, load, 0.0, now):
                    return [Action(ticket, None, reasons.INFEASIBLE)]
                self.queue.lift(tenant)
                self._foresight.watch(ticket, tenant)
                actions = [self._start(ticket, load, now)]
                return actions + _preempted(self.jobs.make_way_on(load)) if load.jobs else actions
        return self._wait(ticket, tenant, now)

    def _arrive_job(self, ticket: Ticket[K], tenant_name: str, now: float) -> list[Action[K]]:
        tenant = ticket.tenant = self.jobs.tenant(self.tenant(tenant_name))
        if not self.fleet.loads:
            return [Action(ticket, None, reasons.NO_BACKEND)]
        if tenant.spent(now):
            return [Action(ticket, None, reasons.TENANT_TOKENS)]
        if self.fleet.has_kv:
            ticket.kv = self._cache_for(ticket, tenant)
        self.jobs.push(ticket, now)
        return self.dispatch(now)

    def _wait(self, ticket: Ticket[K], tenant: Tenant[Ticket[K]], now: float) -> list[Action[K]]:
        queue, limits = self.queue, self.limits
        if not self.fleet.loads:
            return [Action(ticket, None, reasons.NO_BACKEND)]
        if not self.fleet.usable(ticket.tried, ticket.eligible):
            return [Action(ticket, None, reasons.BACKENDS_UNAVAILABLE)]  # no backend is certain to become usable
        until = self.fleet.paused_until(ticket.eligible)
        if until and until > min(ticket.queue_by, ticket.first_by, ticket.all_by):
            return [Action(ticket, None, reasons.BACKEND_PAUSED)]
        self._pass_time(now)
        patience_s = self._foresight.patience_s(ticket, tenant, now)
        cold = self.fleet.is_cold(ticket.eligible)  # no evidence that engines queue: no queue is too long
        actions: list[Action[K]] = []
        if not cold:
            self._clear_stale(tenant, now, actions)
            reason = self._why_not_wait(ticket, tenant, patience_s, now)
            if reason is not None:
                self._waited_at = now
                actions.append(Action(ticket, None, reason))
                return actions
        depth_max = math.inf if cold else limits.queue_depth_max
        while queue.count >= depth_max or queue.bytes + ticket.size > limits.queue_bytes_max:
            victim = queue.victim(tenant) or queue.victim_elsewhere(ticket, tenant)
            if victim is None:
                actions.append(Action(ticket, None, reasons.QUEUE_FULL))
                return actions
            queue.remove(victim)
            self._foresight.stop_watching(victim, now, False)
            actions.append(Action(victim, None, reasons.QUEUE_EVICTED))
        self._foresight.watch(ticket, tenant)
        queue.push(ticket, now)
        actions += self.dispatch(now)
        return actions

    def _clear_stale(self, tenant: Tenant[Ticket[K]], now: float, actions: list[Action[K]]) -> None:
        """Refuse the tenant's oldest calls as long as they would be too late even if they were next, to make room for calls
        that would not."""
        while tenant.line.count:
            oldest = tenant.line.oldest()
            if not self._foresight.too_late(oldest, None, 0.0, now):
                return
            self.queue.remove(oldest)
            self._foresight.stop_watching(oldest, now, False)
            actions.append(Action(oldest, None, reasons.DEADLINE_NEAR))

    def _why_not_wait(self, ticket: Ticket[K], tenant: Tenant[Ticket[K]], patience_s: float, now: float) -> Reason | None:
        """Return the reason why the call should not wait, or None if it may."""
        if ticket.retry and tenant.retries.spent:
            return reasons.RETRY_BUDGET
        wait_s = 0.0
        if per_s := self._drain_rates.per_s(ticket.eligible):
            if self.queue.ahead_of(ticket, tenant) / per_s > min(ticket.queue_by - now, patience_s):
                return reasons.QUEUE_TOO_LONG
            wait_s = self.queue.starts_before(ticket, tenant, now) / per_s
        if self._foresight.too_late(ticket, None, wait_s, now):
            return reasons.DEADLINE_NEAR if wait_s else reasons.INFEASIBLE
        return None

    def leave(self, ticket: Ticket[K], now: float, *, client_left: bool = False) -> list[Action[K]]:
        """Remove a call whose client hung up (`client_left`) or whose queue time is up; do nothing if it is not queued."""
        if not ticket.queued:
            return self._nothing
        self._pass_time(now)
        self._foresight.stop_watching(ticket, now, client_left)
        line = self.jobs if ticket.job else self.queue
        was_aside = ticket is line.aside
        line.remove(ticket)
        return self.dispatch(now) if was_aside or self.jobs.count else self._nothing

    def first_token(self, ticket: Ticket[K], now: float) -> list[Action[K]]:
        """Note that the first token of a call has come."""
        if not ticket.awaits_first_token:
            return self._nothing
        load = ticket.placed_on
        self.fleet.first_token(ticket, now)
        if ticket.stream:
            self._foresight.first_token(ticket, now)
        actions = self.dispatch(now) if self.queue.count or self.jobs.count else self._nothing
        if load is not None and not self.queue.count and now - self._waited_at > _CALM_S:
            self.fleet.open_if_on_time(load)
        return actions

    def step(self, load: BackendLoad, seconds: float, now: float) -> list[Action[K]]:
        """Note the current time per token on this backend."""
        return self.dispatch(now) if self.fleet.step(load, seconds, now) and self.queue.count else self._nothing

    def end(
        self,
        ticket: Ticket[K],
        now: float,
        tokens_out: int = 0,
        tokens_in: int | None = None,
        *,
        completed: bool = False,
        client_left: bool = False,
        steady: bool = True,
        hold: bool = False,
    ) -> list[Action[K]]:
        """End a call, whether it runs or waits; `client_left`: because its client hung up; `steady`: nothing but the engine set
        the pace of its answer; `hold`: its engine may still be at work, so its place is not free before `release_held`."""
        load = ticket.placed_on
        if load is None:
            return self.leave(ticket, now, client_left=client_left)
        tenant = ticket.tenant
        assert tenant is not None
        first = ticket.first_token_at
        self._foresight.stop_watching(ticket, now, client_left)
        if completed and first:
            self.fleet.answer_ended(load, ticket, now)
        self._stop(ticket, load, tenant, now, hold)
        self._settle(ticket, tenant, tokens_out, tokens_in)
        if tokens_in and ticket.size:
            self._bytes_per_token += (ticket.size / tokens_in - self._bytes_per_token) * 0.05
        each = tokens_out // ticket.choices
        if completed and not ticket.blind:
            tenant.lengths(ticket.output_max).observe(each)
        actions = self.step(load, (now - first) / (each - 1), now) if first and steady and each > 4 else self._nothing
        return actions + self.dispatch(now) if self.queue.count or self.jobs.count else actions

    # Reports from engines

    def engine_reported(self, load: BackendLoad, waiting: int, now: float) -> list[Action[K]]:
        """Note how many calls wait inside the engine, by its own figures."""
        self.fleet.engine_reported(load, waiting, now)
        actions = self.dispatch(now) if self.queue.count else self._nothing
        if not self.queue.count and now - self._waited_at > _CALM_S:
            self.fleet.open_if_on_time(load)
        return actions

    def refused(self, ticket: Ticket[K], now: float) -> list[Action[K]]:
        """Note that the engine has no room for the call: the call goes to another backend or waits, ahead of its tenant's other
        calls."""
        assert ticket.placed_on is not None
        self.fleet.refused(ticket.placed_on, now)
        return self.fell_back(ticket, now)

    def pause(self, load: BackendLoad, until: float) -> None:
        """Send no calls to a backend for a time: the engine asked for a break."""
        if load.health.apply(HealthEvent.PAUSED, until=until):
            self.fleet.refresh()

    def resume(self, load: BackendLoad, now: float) -> list[Action[K]]:
        """Send calls to a backend again: its pause is over."""
        if not load.health.apply(HealthEvent.RESUMED):
            return self._nothing
        self.fleet.refresh()
        return self.dispatch(now) if self.queue.count or self.jobs.count else self._nothing

    def release_held(self, load: BackendLoad, kv: int, now: float) -> list[Action[K]]:
        """Free the place of an ended call: its engine has stopped working on it."""
        self.fleet.release_held(load, kv)
        return self.dispatch(now) if self.queue.count or self.jobs.count else self._nothing

    def fell_back(self, ticket: Ticket[K], now: float) -> list[Action[K]]:
        """Send the call to another backend, ahead of its tenant's other calls: its backend failed before the first byte."""
        load, tenant = ticket.placed_on, ticket.tenant
        assert load is not None and tenant is not None
        self._stop(ticket, load, tenant, now)
        self._settle(ticket, tenant, 0, 0)
        self._pass_time(now)
        (self.jobs if ticket.job else self.queue).push(ticket, now, first=True)
        return self.dispatch(now)

    # Starts

    def dispatch(self, now: float) -> list[Action[K]]:
        """Start as many waiting calls as there is room for; start jobs on backends that no live call waits for."""
        self.fleet.now = now
        queue, jobs = self.queue, self.jobs
        actions = self._nothing
        if queue.count and (self.fleet.best() is not None or ANYWHERE not in queue.groups):
            actions = self._dispatch_live(now)
        if queue.count and jobs.running:
            actions = actions + _preempted(jobs.make_way(queue))
        wanted = (queue.wanted_backends() if queue.count else NOBODY) if jobs.count else None
        return actions + self._dispatch_jobs(now, wanted) if wanted is not None else actions

    def _dispatch_live(self, now: float) -> list[Action[K]]:
        queue, fleet = self.queue, self.fleet
        self._pass_time(now)
        actions: list[Action[K]] = []
        full: set[QueueGroup] = set()
        while queue.count:
            kept = NOBODY
            aside = queue.aside
            if aside is not None:
                load = fleet.best(aside.kv, aside.tried, aside.eligible)
                if load is not None:
                    self._start_or_refuse(aside, load, now, actions)
                    continue
                if now - queue.aside_at > self.limits.backfill_s:  # from now on, free room is kept for it
                    if aside.eligible is None:
                        break
                    kept = aside.eligible
            if actions and ANYWHERE in queue.groups and fleet.best() is None:
                break
            ticket = queue.next(now, full)
            if ticket is None:
                break
            assert ticket.tenant is not None
            held = self._holds_back and self._is_held_back(ticket.tenant, ticket.eligible)
            load = fleet.best(ticket.kv, ticket.tried | kept, ticket.eligible) if not held else None
            if load is not None:
                self._start_or_refuse(ticket, load, now, actions)
            elif aside is None and ticket.kv and not held and fleet.best(0, ticket.tried, ticket.eligible) is not None:
                queue.set_aside(ticket, now)
            elif ticket.queue_group is ANYWHERE:
                break
            else:
                full.add(ticket.queue_group)  # other calls may wait for other backends
        return actions

    def _dispatch_jobs(self, now: float, wanted: frozenset[str]) -> list[Action[K]]:
        """Start as many items of jobs as may start, on none of the backends in `wanted`, which live calls wait for."""
        jobs = self.jobs
        actions: list[Action[K]] = []
        full: set[QueueGroup] = set()
        while jobs.count:
            kept = wanted
            aside = jobs.aside
            if aside is not None:
                load = jobs.idle_backend(self.live, now, aside.kv, aside.tried | wanted, aside.eligible, whole=aside.whole)
                if load is not None:
                    self._start_or_refuse_job(aside, load, now, actions)
                    continue
                if now - jobs.aside_at > self.limits.backfill_s:
                    if aside.eligible is None:
                        break
                    kept = wanted | aside.eligible
            ticket = jobs.next(now, full)
            if ticket is None:
                break
            load = jobs.idle_backend(self.live, now, ticket.kv, ticket.tried | kept, ticket.eligible, whole=ticket.whole)
            if load is not None:
                self._start_or_refuse_job(ticket, load, now, actions)
            elif (
                aside is None
                and ticket.kv
                and jobs.idle_backend(self.live, now, 0, ticket.tried | kept, ticket.eligible) is not None
            ):
                jobs.set_aside(ticket, now)
            elif ticket.queue_group is ANYWHERE:
                break
            else:
                full.add(ticket.queue_group)
        return actions

    def _start_or_refuse_job(self, ticket: Ticket[K], load: BackendLoad, now: float, actions: list[Action[K]]) -> None:
        assert ticket.tenant is not None
        self.jobs.remove(ticket)
        if ticket.tenant.spent(now):
            actions.append(Action(ticket, None, reasons.TENANT_TOKENS))
        else:
            actions.append(self._start(ticket, load, now))

    def _start_or_refuse(self, ticket: Ticket[K], load: BackendLoad, now: float, actions: list[Action[K]]) -> None:
        """Start the call that is next in the queue, or refuse it if it would be too late."""
        self.queue.remove(ticket)
        if now >= ticket.queue_by or self._foresight.too_late(ticket, load, 0.0, now):
            self._foresight.stop_watching(ticket, now, False)
            actions.append(Action(ticket, None, reasons.QUEUE_TIME if now >= ticket.queue_by else reasons.DEADLINE_NEAR))
        else:
            self._drain_rates.add(ticket.eligible)
            actions.append(self._start(ticket, load, now))
            if load.jobs:
                actions += _preempted(self.jobs.make_way_on(load))

    def _start(self, ticket: Ticket[K], load: BackendLoad, now: float) -> Action[K]:
        tenant = ticket.tenant
        assert tenant is not None
        ticket.charge = ticket.prompt + _OUTPUT_WEIGHT * tenant.predict(ticket.output_max) * ticket.choices
        line = self.jobs if ticket.job else self.queue
        line.note_start(tenant)
        line.charge(tenant, ticket.charge)
        if tenant.allowance is not None:
            tenant.allowance.charge(ticket.prompt + tenant.predict(ticket.output_max) * ticket.choices)
        tenant.in_flight += 1
        self.fleet.place(load, ticket, now)
        if ticket.job:
            self.jobs.started(load, ticket)
        else:
            self.live += 1
            if self.live > self._live_peak.latest or now >= self._live_peak.until:
                self._live_peak.note(self.live, now)
        return Action(ticket, load, None)

    def _stop(self, ticket: Ticket[K], load: BackendLoad, tenant: Tenant[Ticket[K]], now: float, hold: bool = False) -> None:
        if ticket.job:
            self.jobs.ended(load, ticket)
        else:
            if now >= self._live_peak.until:
                self._live_peak.note(self.live, now)
            self.live -= 1
        self.fleet.release(ticket, now, hold)
        tenant.in_flight -= 1

    def _settle(self, ticket: Ticket[K], tenant: Tenant[Ticket[K]], tokens_out: int, tokens_in: int | None) -> None:
        """Replace the predicted cost that the tenant was charged by the actual cost."""
        prompt = ticket.prompt if tokens_in is None else tokens_in
        actual = prompt + _OUTPUT_WEIGHT * tokens_out
        if tenant.allowance is not None:
            predicted = (ticket.charge - ticket.prompt) / _OUTPUT_WEIGHT
            tenant.allowance.charge(prompt + tokens_out - ticket.prompt - predicted)
        (self.jobs if ticket.job else self.queue).charge(tenant, actual - ticket.charge)

    # Obstacles

    def _over_quota(self, tenant: Tenant[Ticket[K]], now: float) -> Reason | None:
        terms = tenant.terms
        if terms.concurrency_max and tenant.in_flight + tenant.waiting >= min(terms.concurrency_max, tenant.allotted):
            return reasons.TENANT_CONCURRENCY
        if tenant.allowance is not None and tenant.allowance.remaining(now) <= 0:
            return reasons.TENANT_TOKENS
        return None

    def _cache_for(self, ticket: Ticket[K], tenant: Tenant[Ticket[K]]) -> int:
        """Return how many tokens of an engine's cache to reserve for the call: never so many that other calls would have to end
        first."""
        need = ticket.prompt + int(tenant.output_tokens_p90(ticket.output_max)) * ticket.choices
        return min(need, int(self.fleet.smallest_cache * _CACHE_SHARE_MAX))

    def _is_held_back(self, tenant: Tenant[Ticket[K]], eligible: frozenset[str] | None) -> bool:
        """Return whether the free capacity is held back for higher bands. It is a share of known capacity, never of a guess."""
        share = self._held_back[tenant.terms.band]
        if share <= 0:
            return False
        in_flight, capacity = self.fleet.in_flight_and_capacity(eligible)
        return capacity is not None and in_flight >= math.ceil(capacity * (1 - share))

    # Time

    def _pass_time(self, now: float) -> None:
        """Advance the clock of the drain rate, which counts only time in which calls wait."""
        if self.queue.count and now > self._at:
            self._waited_at = now
            self._drain_rates.pass_time(now - self._at, self.queue.eligible_sets())
        self._at = now

    def prompt_tokens(self, size: int) -> int:
        """Estimate how many tokens a request body of this size has."""
        return int(size / self._bytes_per_token) + 1

    def retry_after_s(self, tenant_name: str, reason: Reason, now: float, eligible: frozenset[str] | None = None) -> float:
        """Return when to retry a call; jittered, so that calls refused together do not come back together."""
        tenant = self.tenant(tenant_name)
        least, most = _RETRY_AFTER_S
        per_s = self._drain_rates.per_s(None)
        wait = (self.queue.count + 1) / per_s if per_s else least
        if reason is reasons.TENANT_TOKENS and tenant.allowance is not None:
            wait = tenant.allowance.wait_s(now)
        elif reason in _NOT_SERVING:
            wait = _CLOSED_S
        elif reason is reasons.BACKEND_PAUSED:
            wait, most = self.fleet.paused_until(eligible) - now, math.inf
        return min(max(wait * (0.75 + 0.75 * self._jitter()), least), most)
