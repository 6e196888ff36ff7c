"""`Foresight`: predicts whether an answer would reach its client in time, from when the client will leave and how long the
answer takes."""

from __future__ import annotations

import math
from typing import Final

from hangup.core.admission.backend_load import BackendLoad
from hangup.core.admission.fleet import Fleet
from hangup.core.admission.tenants import Tenant
from hangup.core.admission.ticket import K, Ticket

_SURE_IDLE, _SURE_FULL = 0.1, 0.9  # how likely a whole answer must be to come in time, on an idle and on a full backend
_FORESIGHT_S: Final = 300.0  # no predictions beyond this: the time limits apply there
_PATIENCE_GAIN: Final = 0.02


class Foresight:
    """Predicts whether calls would be answered in time, and learns clients' patience."""

    __slots__ = ("_fleet", "queue_s")

    def __init__(self, fleet: Fleet, queue_s: float) -> None:
        self._fleet = fleet
        self.queue_s = queue_s  # how long calls may wait in the queue

    def patience_s(self, ticket: Ticket[K], tenant: Tenant[Ticket[K]], now: float) -> float:
        """Return how long this tenant's clients would wait in the queue, on average: a longer queue would be for nobody."""
        first_by, all_by = self.leaves_by(ticket, tenant)
        if ticket.stream and all_by < math.inf:  # the time to spare is what the answer itself does not take
            all_by -= tenant.predict(ticket.output_max) * (self._fleet.estimates_of(ticket.eligible).step.get(now) or 0.0)
        patience_s = (first_by if first_by < all_by else all_by) - now
        ticket.patience_s = patience_s = patience_s if patience_s > 0.0 else 0.0
        limit_s = patience_s if patience_s < self.queue_s else self.queue_s
        mean = tenant.patience_s if tenant.patience_s is not None else self.queue_s
        tenant.patience_s = mean + (limit_s - mean) * _PATIENCE_GAIN
        return tenant.patience_s

    def leaves_by(self, ticket: Ticket[K], tenant: Tenant[Ticket[K]]) -> tuple[float, float]:
        """Return when the client will have left, without a first token and in any case: by its own deadline, or by what such
        clients do."""
        first, whole = ticket.curves or tenant.patience.of(ticket.client, ticket.stream)
        if not (first.departures or whole.departures):
            return ticket.first_by, ticket.all_by
        arrived, now = ticket.arrived_at, self._fleet.now
        first_s = first.limit(now)
        first_by, all_by = arrived + first_s, arrived + whole.limit(now, first_s)
        # A client that is still there then is more patient than its kind: nothing is known about it.
        return (
            ticket.first_by if first_by <= now else min(ticket.first_by, first_by),
            ticket.all_by if all_by <= now else min(ticket.all_by, all_by),
        )

    def too_late(self, ticket: Ticket[K], load: BackendLoad | None, wait_s: float, now: float) -> bool:
        """Return whether the answer would come too late for its client, as far as can be known."""
        tenant = ticket.tenant
        assert tenant is not None
        is_open = load is not None and load.is_open
        first_by, all_by = (ticket.first_by, ticket.all_by) if is_open else self.leaves_by(ticket, tenant)
        due = first_by if first_by < all_by else all_by
        begin = now + wait_s
        if due - begin > _FORESIGHT_S:
            return False
        if begin >= due:
            return True
        estimates = self._fleet.estimates_of(ticket.eligible) if load is None else load.estimates
        first_s = estimates.first_token.predict(ticket.prompt + (load.unread_tokens if load is not None else 0), now)
        if first_s is None:
            return False
        begin += first_s
        if begin >= due:
            return True
        step_s = (self._fleet.estimates_of(ticket.eligible) if load is None else load.estimates).step.get(now)
        if is_open or not step_s or all_by == math.inf:
            return False
        room = (all_by - begin) / step_s
        lengths = tenant.lengths(ticket.output_max)
        if ticket.output_max <= room or not lengths.known:
            return False
        busy = 1.0 if load is None else min((load.in_flight - load.jobs) / max(load.limit, 1), 1.0)
        return lengths.share_within(room) < _SURE_IDLE + (_SURE_FULL - _SURE_IDLE) * busy

    # Learning clients' patience

    def watch(self, ticket: Ticket[K], tenant: Tenant[Ticket[K]]) -> None:
        """Note that the call's client begins to wait."""
        if not ticket.whole:
            ticket.curves = first, whole = tenant.patience.of(ticket.client, ticket.stream)
            (first if ticket.stream else whole).watch(ticket, ticket.arrived_at, 0.0)

    def first_token(self, ticket: Ticket[K], now: float) -> None:
        """Note that the client has its first token and now waits for the rest."""
        if ticket.stream and ticket.curves is not None:
            first, whole = ticket.curves
            first.unwatch(ticket)
            whole.watch(ticket, ticket.arrived_at, now - ticket.arrived_at)

    def stop_watching(self, ticket: Ticket[K], now: float, client_left: bool) -> None:
        """Learn how long the client waited, and whether it left then."""
        if ticket.curves is None:
            return
        first, whole = ticket.curves
        ticket.curves = None
        if ticket.stream:
            first.unwatch(ticket)
        whole.unwatch(ticket)
        waited_s = now - ticket.arrived_at
        if not ticket.stream:
            whole.observe(0.0, waited_s, client_left=client_left)
        elif ticket.first_token_at:
            first_s = ticket.first_token_at - ticket.arrived_at
            first.observe(0.0, first_s, client_left=False)
            whole.observe(first_s, waited_s, client_left=client_left)
        else:
            first.observe(0.0, waited_s, client_left=client_left)
