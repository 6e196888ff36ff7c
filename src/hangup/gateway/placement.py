"""Connects calls with admission: passes their tickets in, and carries out what admission decides about them.

call ── place, fell_back, refused, end ──▶ Placement ──▶ core.admission (decides)
  ◀────────── placed, or end ──────────────────┘ actions, carried out one after another (`actions.py`)
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from hangup.config import AdmissionLimits
from hangup.core.admission import Action, Admission, BackendLoad, TenantTerms, Ticket
from hangup.core.call import ENDED, Call
from hangup.core.reasons import Outcome, Reason
from hangup.gateway.actions import ActionLoop
from hangup.gateway.backend_set import Backends
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.loop_beats import BEATS
from hangup.gateway.http.head import Headers, ResponseHead
from hangup.gateway.pauses import BackendPauses, worth_waiting

# As constants of the module, because Python 3.11 takes as long for a member of an enum as for a function call.
_COMPLETED: Final = Outcome.COMPLETED
_CLIENT_GONE: Final = Outcome.CLIENT_GONE
BackendNames = frozenset[str] | None  # names of the backends that can answer a call; None: any


class Placed(Protocol):
    """A call that holds a ticket."""

    @property
    def call(self) -> Call: ...

    def eligible_backends(self) -> BackendNames:
        """Return the backends that can answer it now."""

    def placed(self, backend: Backend, *, waited: bool) -> None:
        """Start on this backend, which has a place for it."""

    def end(self, reason: Reason, detail: str = "") -> None: ...

    def fault(self, error: Exception) -> None: ...


class Placement:
    """Owns the queue. Every change of free capacity goes through a method of this class, which starts the next calls."""

    def __init__(
        self, limits: AdmissionLimits, backends: Backends, loop: asyncio.AbstractEventLoop, *, shares_slots: bool = False
    ) -> None:
        """`shares_slots`: other processes send calls to the same backends for the same tenants, so slots and `concurrency_max`
        are used only as they are allotted."""
        self.admission: Admission[Placed] = Admission(limits, [], random.random)
        self.admission.fleet.delayed_s = BEATS.delayed_s
        self.pauses = BackendPauses(loop, self._pause, self._resume)
        self._backends = backends
        self._shares_slots = self.admission.shares_quotas = shares_slots
        self.on_arrival: Callable[[Ticket[Placed], str], bool] | None = None  # returns True if it holds the call back
        self.on_wait: Callable[[], None] | None = None  # called when a call has to wait
        self._act: Callable[[Iterable[Action[Placed]]], None] = ActionLoop(self._carry_out, self._action_failed).run

    def configure(self, limits: AdmissionLimits, terms: dict[str, TenantTerms]) -> None:
        """Apply new limits and the tenants' terms."""
        self.admission.configure(limits, terms)

    def use(self, backends: Iterable[Backend]) -> None:
        """Use these backends from now on; a retired one still gets its calls' places back."""
        backends = list(backends)
        if self._shares_slots:
            known = set(self.admission.fleet.loads)
            for load in {backend.load for backend in backends} - known:
                load.share()
        self.admission.fleet.set_loads(backend.load for backend in backends)

    # Calls

    def place(self, ticket: Ticket[Placed], tenant: str) -> None:
        """Start the call, queue it or refuse it. The ticket represents all that the call holds, until its end."""
        if self.on_arrival is not None and not ticket.job and self.on_arrival(ticket, tenant):
            return
        self.arrive(ticket, tenant)

    def arrive(self, ticket: Ticket[Placed], tenant: str) -> None:
        """Let admission decide about a call."""
        self._act(self.admission.arrive(ticket, tenant, time.monotonic()))
        if self.on_wait is not None and ticket.queued:
            self.on_wait()

    def fell_back(self, ticket: Ticket[Placed]) -> None:
        """Place a call again after its backend failed before the first byte."""
        self._act(self.admission.fell_back(ticket, time.monotonic()))

    def may_fail_over(self, ticket: Ticket[Placed], backend: str, failover_max: int) -> bool:
        """Return whether another backend may be tried after this one."""
        tried = ticket.tried | {backend}
        return len(tried) <= failover_max and self.admission.fleet.usable(tried, ticket.eligible)

    def skip(self, ticket: Ticket[Placed], backend: str, backends_max: int) -> bool:
        """Exclude a backend that does not know the call's model; return False if there is no other to try."""
        tried = ticket.tried | {backend}
        if len(tried) > backends_max or not self.admission.fleet.usable(tried, ticket.eligible):
            return False
        ticket.tried = tried
        return True

    def note_refusal(self, ticket: Ticket[Placed], backend: Backend, head: ResponseHead, pause_s_max: float) -> bool:
        """Note that a backend has no room for the call; return whether the call can go elsewhere or wait.

        If so, the client does not see the refusal, and the caller must call `refused`."""
        self.pauses.refused(backend, ticket.sent_at, head, pause_s_max)
        tried = ticket.tried | {backend.name}
        if self.admission.fleet.has_other(tried, ticket.eligible):
            ticket.tried = tried
            return True
        return worth_waiting(backend.load, min(ticket.queue_by, ticket.first_by, ticket.all_by))

    def refused(self, ticket: Ticket[Placed]) -> None:
        """Place a call again after its backend had no room for it."""
        self._act(self.admission.refused(ticket, time.monotonic()))

    def first_token(self, ticket: Ticket[Placed]) -> None:
        """Note that the call's first token has arrived."""
        actions = self.admission.first_token(ticket, time.monotonic())
        if actions:
            self._act(actions)

    def end(self, ticket: Ticket[Placed], call: Call, *, steady: bool, hold: bool) -> None:
        """Give all that the call held to the next one, at once; with `hold`, all but its place in the engine.

        `steady`: only the engine set the pace of the answer, because the client never stalled."""
        load, outcome = ticket.placed_on, call.outcome
        actions = self.admission.end(
            ticket,
            time.monotonic(),
            call.tokens_out,
            call.tokens_in,
            completed=outcome is _COMPLETED,
            client_left=outcome is _CLIENT_GONE,
            steady=steady,
            hold=hold,
        )
        if load is not None and load.health.retired:
            self._backends.close_if_done(load)
        if actions:
            self._act(actions)

    def release_held(self, load: BackendLoad, kv: int) -> None:
        """Free a place that was held until the engine stopped its call."""
        actions = self.admission.release_held(load, kv, time.monotonic())
        self._backends.close_if_done(load)
        self._act(actions)

    def retry_headers(self, ticket: Ticket[Placed] | None, tenant: str, reason: Reason) -> Headers:
        """Return the headers that tell the client of a shed call when to retry."""
        admission = self.admission
        eligible = None if ticket is None else ticket.eligible
        seconds = math.ceil(admission.retry_after_s(tenant, reason, time.monotonic(), eligible))
        headers = [(b"retry-after", b"%d" % seconds)]
        if reason.retry is None and ticket is not None and ticket.retry and admission.tenant(tenant).retries.spent:
            headers.append((b"x-should-retry", b"false"))
        return headers

    # Backends

    def dispatch(self) -> None:
        """Start queued calls, as far as there is room."""
        self._act(self.admission.dispatch(time.monotonic()))

    def backend_changed(self, backend: Backend) -> None:
        """Note that a backend went up, went down, was quarantined, or was drained."""
        self.admission.fleet.refresh()
        self.dispatch()

    def allot(self, load: BackendLoad, places: int) -> None:
        """Use at most so many of a backend's places; running calls go on if that is fewer than before."""
        load.allot(places)
        self.load_changed(load)

    def load_changed(self, load: BackendLoad) -> None:
        """Follow a change of a backend's limit."""
        self.admission.fleet.load_changed(load)
        self.dispatch()

    def queue_reported(self, backend: Backend, waiting: int) -> None:
        """Note how many calls wait in the engine's own queue, by its own figures."""
        self._act(self.admission.engine_reported(backend.load, waiting, time.monotonic()))

    def steps_seen(self, steps: Iterable[tuple[BackendLoad, float, float]]) -> None:
        """Note how long a token currently takes on each backend: its load, the seconds, the time of the measurement."""
        actions: list[Action[Placed]] = []
        for load, seconds, at in steps:
            actions += self.admission.step(load, seconds, at)
        if self.admission.jobs.count:
            actions += self.admission.dispatch(time.monotonic())  # less room may be reserved for live calls now
        self._act(actions)

    def regroup(self) -> None:
        """Find again which backends can answer each queued call."""
        for line in (self.admission.queue, self.admission.jobs):
            line.regroup(lambda ticket: ticket.key.eligible_backends())
        self.dispatch()

    def _pause(self, backend: Backend, until: float) -> None:
        is_new = not backend.load.health.paused
        self.admission.pause(backend.load, until)
        if is_new:
            seconds = until - time.monotonic()
            self._backends.changed(backend, f"paused for {seconds:.1f} s: the engine refuses calls")

    def _resume(self, backend: Backend) -> None:
        self._act(self.admission.resume(backend.load, time.monotonic()))

    def close(self) -> None:
        self.pauses.close()

    # Carrying out decisions

    def _carry_out(self, action: Action[Placed]) -> None:
        ticket, load, reason = action
        flow = ticket.key
        if flow.call.phase is ENDED:
            return
        if reason is not None:
            flow.end(reason)
        elif load is not None:
            flow.placed(self._backends.by_name[load.name], waited=bool(ticket.queued_at))

    def _action_failed(self, action: Action[Placed], error: Exception) -> None:
        action.ticket.key.fault(error)
