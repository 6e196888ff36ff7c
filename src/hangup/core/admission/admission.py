"""The admission: every call starts, waits or is refused, and this is where it is decided.

    arrive ──▶ start on a seat ──▶ first_token ──▶ end
       │  └──▶ wait in the queue ──▶ start │ leave │ pushed out │ too late
       └─────▶ refused

An item of a job goes the same way through a line of its own, when nobody live waits and enough stays free for those who may
come. If they turn out to be more, jobs that run are told to yield: the caller ends them like any other call.

Each method takes what happened and the time, and returns what follows from it: `Action`s to be carried out by the
caller, in order. Budgets are charged in the same call that decides, so nothing can slip in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Generic, NamedTuple

from hangup.config import AdmissionLimits
from hangup.core import reasons
from hangup.core.admission.backend_load import BackendLoad
from hangup.core.admission.drain_rate import DrainRates
from hangup.core.admission.fleet import Fleet
from hangup.core.admission.foresight import Foresight
from hangup.core.admission.job_queue import JobQueue
from hangup.core.admission.queue import Queue
from hangup.core.admission.tenants import Band, Tenant, TenantTerms
from hangup.core.admission.ticket import ANYWHERE, NOBODY, AnyTicket, K, Ticket, Where
from hangup.core.reasons import Reason

_OUTPUT_WEIGHT = 2.0  # an output token's cost against a prompt token's
_RETRY_AFTER_S = (1.0, 30.0)
_CLOSED_S = 5.0  # about how long a quarantine takes that ends well, and how often a backend that is down is looked at
_NOT_SERVING = frozenset([reasons.BACKENDS_CLOSED, reasons.ENGINE_UNREACHABLE, reasons.ENGINE_WEDGED])
_CALM_S = 1.0  # an engine counts as open again when nobody has waited for so long
_CACHE_SHARE_MAX = 0.5  # of an engine's cache for one call: what needs more is the engine's own to say
_BYTES_PER_TOKEN = 4.0  # of a request's body, until engines have told how many they count


class Action(NamedTuple, Generic[K]):
    """`ticket` starts on `seat`, or is refused for `reason`; a job that runs is to be ended for it."""

    ticket: Ticket[K]
    seat: BackendLoad | None
    reason: Reason | None


_NOTHING: list[Action[Any]] = []


def _yielded(jobs: list[AnyTicket]) -> list[Action[Any]]:
    return [Action(job, None, reasons.YIELDED) for job in jobs]


class Admission(Generic[K]):
    """Decides about tickets, whose keys it hands back and never looks at."""

    def __init__(self, limits: AdmissionLimits, seats: Iterable[BackendLoad], jitter: Callable[[], float]) -> None:
        self.fleet = Fleet(seats)
        self.queue = Queue(limits.lifo_after_s)
        self.jobs = JobQueue(self.fleet, limits)
        self._foresight = Foresight(self.fleet, limits.queue_s)
        self.live = 0  # calls in flight, without jobs
        self._live_peak = self.jobs.live_peak
        self.tenants: dict[str, Tenant] = {}
        self._drain = DrainRates()  # calls per second that leave a standing queue
        self._at = 0.0
        self._waited_at = -math.inf  # when somebody was last in line, or refused for its length
        self._jitter = jitter  # between 0 and 1
        self._bytes_per_token = _BYTES_PER_TOKEN
        self.configure(limits, {})

    # Configuration

    def configure(self, limits: AdmissionLimits, terms: dict[str, TenantTerms]) -> None:
        """New limits, and what each tenant is granted; others get the default terms."""
        self.limits = limits
        self.queue.lifo_after_s = limits.lifo_after_s
        self._foresight.queue_s = limits.queue_s
        self.jobs.configure(limits)
        self._terms = terms
        bands = {granted.band for granted in terms.values()}
        self._held_back = [limits.hold_back_share * sum(band < own for band in bands) for own in Band]
        for name, tenant in self.tenants.items():
            granted = terms.get(name, TenantTerms())
            if tenant.terms != granted:
                self.queue.change_terms(tenant, granted)
                self.jobs.follow(tenant)

    def tenant(self, name: str) -> Tenant:
        found = self.tenants.get(name)
        if found is None:
            found = self.tenants[name] = Tenant(name, self._terms.get(name, TenantTerms()))
        return found

    @property
    def jobs_in_flight(self) -> int:
        return self.jobs.in_flight

    def jobs_waiting(self, tenant_name: str) -> int:
        """How many items of this tenant's jobs are in line."""
        tenant = self.jobs.tenants.get(tenant_name)
        return tenant.waiting if tenant is not None else 0

    # What happens to a call

    def arrive(self, ticket: Ticket[K], tenant_name: str, now: float) -> list[Action[K]]:
        if ticket.job:
            return self._arrive_job(ticket, tenant_name, now)
        self.fleet.now = now
        tenant = ticket.tenant = self.tenants.get(tenant_name) or self.tenant(tenant_name)
        ticket.arrived_at = now
        tenant.retries.note(ticket.retry, self.limits.retry_share_max)
        reason = self._over_quota(tenant, now)
        if reason is not None:
            return [Action(ticket, None, reason)]
        if self.fleet.has_kv:
            ticket.kv = self._cache_for(ticket, tenant)
        wanted = self.queue.wanted() if self.queue.count else NOBODY
        if wanted is not None:
            seat = self.fleet.best(ticket.kv, wanted, ticket.seats)
            if seat is not None and not self._held(tenant, ticket.seats):
                if self._foresight.too_late(ticket, seat, 0.0, now):
                    return [Action(ticket, None, reasons.INFEASIBLE)]
                self.queue.lift(tenant)
                self._foresight.watch(ticket, tenant)
                actions = [self._start(ticket, seat, now)]
                return actions + _yielded(self.jobs.make_way_on(seat)) if seat.jobs else actions
        return self._wait(ticket, tenant, now)

    def _arrive_job(self, ticket: Ticket[K], tenant_name: str, now: float) -> list[Action[K]]:
        tenant = ticket.tenant = self.jobs.tenant(self.tenant(tenant_name))
        if not self.fleet.seats:
            return [Action(ticket, None, reasons.NO_BACKEND)]
        if tenant.spent(now):
            return [Action(ticket, None, reasons.TENANT_TOKENS)]
        if self.fleet.has_kv:
            ticket.kv = self._cache_for(ticket, tenant)
        self.jobs.push(ticket, now)
        return self.dispatch(now)

    def _wait(self, ticket: Ticket[K], tenant: Tenant, now: float) -> list[Action[K]]:
        queue, limits = self.queue, self.limits
        if not self.fleet.seats:
            return [Action(ticket, None, reasons.NO_BACKEND)]
        if not self.fleet.usable(ticket.tried, ticket.seats):
            return [Action(ticket, None, reasons.BACKENDS_CLOSED)]  # nothing that it could wait for is sure to come
        if self.fleet.paused_until(ticket.seats) > min(ticket.queue_by, ticket.first_by, ticket.all_by):
            return [Action(ticket, None, reasons.BACKEND_PAUSED)]
        self._pass_time(now)
        patience_s = self._foresight.patience_s(ticket, tenant, now)
        cold = self.fleet.is_cold(ticket.seats)  # nothing shows that engines queue: nobody is refused for a long line
        actions: list[Action[K]] = []
        if not cold:
            self._clear_stale(tenant, now, actions)
            reason = self._hopeless(ticket, tenant, patience_s, now)
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
            self._foresight.watched(victim, now, False)
            actions.append(Action(victim, None, reasons.PUSHED_OUT))
        self._foresight.watch(ticket, tenant)
        queue.push(ticket, now)
        actions += self.dispatch(now)
        return actions

    def _clear_stale(self, tenant: Tenant, now: float, actions: list[Action[K]]) -> None:
        """Those of its line who would come too late by now, even if they were next, make room for those who would not."""
        while tenant.line:
            oldest = tenant.line.oldest()
            if not self._foresight.too_late(oldest, None, 0.0, now):
                return
            self.queue.remove(oldest)
            self._foresight.watched(oldest, now, False)
            actions.append(Action(oldest, None, reasons.DEADLINE_NEAR))

    def _hopeless(self, ticket: Ticket[K], tenant: Tenant, patience_s: float, now: float) -> Reason | None:
        """Why it is not worth waiting in line, if so."""
        if ticket.retry and tenant.retries.spent:
            return reasons.RETRY_BUDGET
        per_s = self._drain.per_s(ticket.seats)
        if per_s and self.queue.ahead_of(ticket, tenant) / per_s > min(ticket.queue_by - now, patience_s):
            return reasons.QUEUE_SLOW
        wait_s = self.queue.before(ticket, tenant, now) / per_s if per_s else 0.0
        if self._foresight.too_late(ticket, None, wait_s, now):
            return reasons.DEADLINE_NEAR if wait_s else reasons.INFEASIBLE
        return None

    def leave(self, ticket: Ticket[K], now: float, *, left: bool = False) -> list[Action[K]]:
        """Its client is gone (`left`), or its time in the queue is up; harmless if it does not wait."""
        if not ticket.queued:
            return _NOTHING
        self._pass_time(now)
        self._foresight.watched(ticket, now, left)
        line = self.jobs if ticket.job else self.queue
        was_aside = ticket is line.aside
        line.remove(ticket)
        return self.dispatch(now) if was_aside or self.jobs.count else _NOTHING

    def first_token(self, ticket: Ticket[K], now: float) -> list[Action[K]]:
        if not ticket.reading:
            return _NOTHING
        seat = ticket.seat
        self.fleet.first_token(ticket, now)
        self._foresight.first_token(ticket, now)
        actions = self.dispatch(now) if self.queue.count or self.jobs.count else _NOTHING
        if seat is not None and not self.queue.count and now - self._waited_at > _CALM_S:
            self.fleet.nobody_waits(seat)
        return actions

    def step(self, seat: BackendLoad, seconds: float, now: float) -> list[Action[K]]:
        """How long a token takes on this seat just now."""
        return self.dispatch(now) if self.fleet.step(seat, seconds, now) and self.queue.count else _NOTHING

    def end(
        self,
        ticket: Ticket[K],
        now: float,
        tokens_out: int = 0,
        tokens_in: int | None = None,
        *,
        completed: bool = False,
        left: bool = False,
        steady: bool = True,
        hold: bool = False,
    ) -> list[Action[K]]:
        """It is over, wherever it was; `left`: by its client's departure.

        `steady`: nothing but the engine set the pace of its answer. `hold`: its engine may still be at work, so its place is
        not free before `let_go`.
        """
        seat = ticket.seat
        if seat is None:
            return self.leave(ticket, now, left=left)
        tenant = ticket.tenant
        assert tenant is not None
        first = ticket.first_token_at
        self._foresight.watched(ticket, now, left)
        self._stop(ticket, seat, tenant, now, hold)
        self._settle(ticket, tenant, tokens_out, tokens_in)
        if tokens_in and ticket.size:
            self._bytes_per_token += (ticket.size / tokens_in - self._bytes_per_token) * 0.05
        each = tokens_out // ticket.choices
        if completed and not ticket.blind:
            tenant.lengths(ticket.output_max).observe(each)
        actions = self.step(seat, (now - first) / (each - 1), now) if first and steady and each > 4 else _NOTHING
        return actions + self.dispatch(now) if self.queue.count or self.jobs.count else actions

    # What an engine says

    def engine_told(self, seat: BackendLoad, waiting: int, now: float) -> list[Action[K]]:
        """By its own figures so many calls wait in it."""
        self.fleet.engine_told(seat, waiting)
        actions = self.dispatch(now) if self.queue.count else _NOTHING
        if not self.queue.count and now - self._waited_at > _CALM_S:
            self.fleet.nobody_waits(seat)
        return actions

    def refused(self, ticket: Ticket[K], now: float) -> list[Action[K]]:
        """Its engine has no room for it: it goes elsewhere or waits, before all others of its tenant."""
        assert ticket.seat is not None
        self.fleet.refused(ticket.seat, now)
        return self.fell_back(ticket, now)

    def pause(self, seat: BackendLoad, paused: bool, now: float) -> list[Action[K]]:
        """The engine wants no calls for a while, or does again."""
        if seat.paused == paused:
            return _NOTHING
        seat.paused = paused
        self.fleet.refresh()
        return self.dispatch(now) if self.queue.count or self.jobs.count else _NOTHING

    def let_go(self, seat: BackendLoad, kv: int, now: float) -> list[Action[K]]:
        """The engine has let go of a call whose place was held."""
        self.fleet.let_go(seat, kv)
        return self.dispatch(now) if self.queue.count or self.jobs.count else _NOTHING

    def fell_back(self, ticket: Ticket[K], now: float) -> list[Action[K]]:
        """Its seat failed before the first byte: it goes elsewhere, before all others of its tenant."""
        seat, tenant = ticket.seat, ticket.tenant
        assert seat is not None and tenant is not None
        self._stop(ticket, seat, tenant, now)
        self._settle(ticket, tenant, 0, 0)
        self._pass_time(now)
        (self.jobs if ticket.job else self.queue).push(ticket, now, first=True)
        return self.dispatch(now)

    # Who starts

    def dispatch(self, now: float) -> list[Action[K]]:
        """Lets those who wait go, as far as there is room; jobs when nobody else waits."""
        self.fleet.now = now
        queue, jobs = self.queue, self.jobs
        actions = _NOTHING
        if queue.count and (self.fleet.best() is not None or ANYWHERE not in queue.groups):
            actions = self._dispatch_live(now)
        if queue.count and jobs.running:
            actions = actions + _yielded(jobs.make_way(queue))
        wanted = (queue.wanted() if queue.count else NOBODY) if jobs.count else None
        return actions + self._dispatch_jobs(now, wanted) if wanted is not None else actions

    def _dispatch_live(self, now: float) -> list[Action[K]]:
        queue, fleet = self.queue, self.fleet
        self._pass_time(now)
        actions: list[Action[K]] = []
        full: set[Where] = set()
        while queue.count:
            kept = NOBODY
            aside = queue.aside
            if aside is not None:
                seat = fleet.best(aside.kv, aside.tried, aside.seats)
                if seat is not None:
                    self._leave_line(aside, seat, now, actions)
                    continue
                if now - queue.aside_at > self.limits.backfill_s:  # what gets free is kept for it now
                    if aside.seats is None:
                        break
                    kept = aside.seats
            if actions and ANYWHERE in queue.groups and fleet.best() is None:
                break
            ticket = queue.next(now, full)
            if ticket is None:
                break
            assert ticket.tenant is not None
            held = self._held(ticket.tenant, ticket.seats)
            seat = fleet.best(ticket.kv, ticket.tried | kept, ticket.seats) if not held else None
            if seat is not None:
                self._leave_line(ticket, seat, now, actions)
            elif aside is None and ticket.kv and not held and fleet.best(0, ticket.tried, ticket.seats) is not None:
                queue.set_aside(ticket, now)
            elif ticket.where is ANYWHERE:
                break
            else:
                full.add(ticket.where)  # others may wait for something else
        return actions

    def _dispatch_jobs(self, now: float, wanted: frozenset[str]) -> list[Action[K]]:
        """`wanted`: seats that live calls wait for."""
        jobs = self.jobs
        actions: list[Action[K]] = []
        full: set[Where] = set()
        while jobs.count:
            kept = wanted
            aside = jobs.aside
            if aside is not None:
                seat = jobs.idle_seat(self.live, now, aside.kv, aside.tried | wanted, aside.seats)
                if seat is not None:
                    self._leave_job_line(aside, seat, now, actions)
                    continue
                if now - jobs.aside_at > self.limits.backfill_s:
                    if aside.seats is None:
                        break
                    kept = wanted | aside.seats
            ticket = jobs.next(now, full)
            if ticket is None:
                break
            seat = jobs.idle_seat(self.live, now, ticket.kv, ticket.tried | kept, ticket.seats)
            if seat is not None:
                self._leave_job_line(ticket, seat, now, actions)
            elif (
                aside is None and ticket.kv and jobs.idle_seat(self.live, now, 0, ticket.tried | kept, ticket.seats) is not None
            ):
                jobs.set_aside(ticket, now)
            elif ticket.where is ANYWHERE:
                break
            else:
                full.add(ticket.where)
        return actions

    def _leave_job_line(self, ticket: Ticket[K], seat: BackendLoad, now: float, actions: list[Action[K]]) -> None:
        assert ticket.tenant is not None
        self.jobs.remove(ticket)
        if ticket.tenant.spent(now):
            actions.append(Action(ticket, None, reasons.TENANT_TOKENS))
        else:
            actions.append(self._start(ticket, seat, now))

    def _leave_line(self, ticket: Ticket[K], seat: BackendLoad, now: float, actions: list[Action[K]]) -> None:
        """Its turn: it starts, unless it would come too late."""
        self.queue.remove(ticket)
        if now >= ticket.queue_by or self._foresight.too_late(ticket, seat, 0.0, now):
            self._foresight.watched(ticket, now, False)
            actions.append(Action(ticket, None, reasons.QUEUE_TIME if now >= ticket.queue_by else reasons.DEADLINE_NEAR))
        else:
            self._drain.add(ticket.seats)
            actions.append(self._start(ticket, seat, now))
            if seat.jobs:
                actions += _yielded(self.jobs.make_way_on(seat))

    def _start(self, ticket: Ticket[K], seat: BackendLoad, now: float) -> Action[K]:
        tenant = ticket.tenant
        assert tenant is not None
        ticket.charge = ticket.prompt + _OUTPUT_WEIGHT * tenant.predict(ticket.output_max) * ticket.choices
        line = self.jobs if ticket.job else self.queue
        line.went(tenant)
        line.charge(tenant, ticket.charge)
        if tenant.allowance is not None:
            tenant.allowance.charge(ticket.prompt + tenant.predict(ticket.output_max) * ticket.choices)
        tenant.in_flight += 1
        self.fleet.take(seat, ticket, now)
        if ticket.job:
            self.jobs.on(seat, ticket)
        else:
            self.live += 1
            if self.live > self._live_peak.latest or now >= self._live_peak.until:
                self._live_peak.note(self.live, now)
        return Action(ticket, seat, None)

    def _stop(self, ticket: Ticket[K], seat: BackendLoad, tenant: Tenant, now: float, hold: bool = False) -> None:
        if ticket.job:
            self.jobs.off(seat, ticket)
        else:
            if now >= self._live_peak.until:
                self._live_peak.note(self.live, now)
            self.live -= 1
        self.fleet.release(ticket, now, hold)
        tenant.in_flight -= 1

    def _settle(self, ticket: Ticket[K], tenant: Tenant, tokens_out: int, tokens_in: int | None) -> None:
        """From what it was charged to what it cost."""
        prompt = ticket.prompt if tokens_in is None else tokens_in
        true = prompt + _OUTPUT_WEIGHT * tokens_out
        if tenant.allowance is not None:
            predicted = (ticket.charge - ticket.prompt) / _OUTPUT_WEIGHT
            tenant.allowance.charge(prompt + tokens_out - ticket.prompt - predicted)
        (self.jobs if ticket.job else self.queue).charge(tenant, true - ticket.charge)

    # What stands in the way

    def _over_quota(self, tenant: Tenant, now: float) -> Reason | None:
        terms = tenant.terms
        if terms.concurrency_max and tenant.in_flight + tenant.waiting >= terms.concurrency_max:
            return reasons.TENANT_CONCURRENCY
        if tenant.allowance is not None and tenant.allowance.left(now) <= 0:
            return reasons.TENANT_TOKENS
        return None

    def _cache_for(self, ticket: Ticket[K], tenant: Tenant) -> int:
        """Tokens of an engine's cache that are set aside for it: never so many that others would have to leave first."""
        need = ticket.prompt + int(tenant.most(ticket.output_max)) * ticket.choices
        return min(need, int(self.fleet.smallest_cache * _CACHE_SHARE_MAX))

    def _held(self, tenant: Tenant, seats: frozenset[str] | None) -> bool:
        """Whether what is free is held back for higher bands: a share of what is known to exist, never of a guess."""
        share = self._held_back[tenant.terms.band]
        if share <= 0:
            return False
        in_flight, capacity = self.fleet.load_of(seats)
        return capacity is not None and in_flight >= math.ceil(capacity * (1 - share))

    # Time

    def _pass_time(self, now: float) -> None:
        """The drain rate is that of a standing queue: only such time counts."""
        if self.queue.count and now > self._at:
            self._waited_at = now
            self._drain.pass_time(now - self._at, self.queue.waited_for())
        self._at = now

    def prompt_tokens(self, size: int) -> int:
        """About how many tokens a request body of this size has."""
        return int(size / self._bytes_per_token) + 1

    def retry_after_s(self, tenant_name: str, reason: Reason, now: float, seats: frozenset[str] | None = None) -> float:
        """When it is worth to try again, for a call that these seats can answer; jittered, so that those who were refused
        together do not come together."""
        tenant = self.tenant(tenant_name)
        least, most = _RETRY_AFTER_S
        per_s = self._drain.per_s(None)
        wait = (self.queue.count + 1) / per_s if per_s else least
        if reason is reasons.TENANT_TOKENS and tenant.allowance is not None:
            wait = tenant.allowance.wait_s(now)
        elif reason in _NOT_SERVING:
            wait = _CLOSED_S
        elif reason is reasons.BACKEND_PAUSED:
            wait, most = self.fleet.paused_until(seats) - now, math.inf
        return min(max(wait * (0.75 + 0.75 * self._jitter()), least), most)
