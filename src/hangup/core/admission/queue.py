"""`Queue`: holds the waiting calls and decides who is next.

Bands go in order. Within a band, the tenant with the least service goes next (virtual token counter): each start is charged to
the tenant's counter, and a tenant that comes back after a pause is lifted to the level of the others, so that nobody can save
up. Within a tenant, calls go first come, first served as long as the oldest has waited only briefly. Once the queue stands
still, the newest goes first, because its client is the most likely to be still there when the answer comes.

Every operation takes the same time however many calls wait; finding the least served tenant takes log(tenants).

Calls that only some backends can take (`Ticket.eligible`) are in the same queue; when those backends are full, the calls are
skipped.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Set
from typing import Final, Generic

from hangup.core.admission.drain_rate import overlap
from hangup.core.admission.tenant_queue import ANYWHERE, NOBODY, QueueGroup
from hangup.core.admission.tenants import Band, Tenant, TenantTerms
from hangup.core.admission.ticket import K, Ticket

_ANY: frozenset[frozenset[str] | None] = frozenset([None])
_PATIENCE_SHARE: Final = 0.25  # of a client's patience: for that long, calls go in order
_AHEAD_MAX: Final = 50_000.0  # tokens by weight: what other processes served puts a tenant this far behind its turn at most


class _Lane(Generic[K]):
    """One band: its tenants that have waiting calls."""

    __slots__ = ("by_length", "by_service", "count", "tenants", "weight")

    def __init__(self) -> None:
        self.by_service: list[tuple[float, int, int, Tenant[Ticket[K]]]] = []
        self.by_length: list[tuple[float, int, Tenant[Ticket[K]]]] = []
        self.count = 0
        self.tenants = 0
        self.weight = 0.0  # the sum over those tenants


class Queue(Generic[K]):
    """The waiting calls of all tenants."""

    def __init__(self, lifo_after_s: float) -> None:
        self.lifo_after_s = lifo_after_s
        self.count = 0
        self.bytes = 0
        self.groups: dict[QueueGroup, int] = {}  # how many calls wait for which backends, without the one set aside
        self.aside: Ticket[K] | None = None  # a call that no backend can take at the moment, although there is room for others
        self.aside_at = 0.0
        self._lanes: list[_Lane[K]] = [_Lane() for _ in Band]
        self._floor = 0.0  # the service of the tenant that started last: returning tenants begin here
        self._entries = 0
        self._order = 0  # the number of the last arrival; a call that goes before all others gets a negative one

    # Arrivals and departures

    def push(self, ticket: Ticket[K], now: float, *, first: bool = False) -> None:
        """Add a call; `first` for a call that has waited before."""
        tenant = ticket.tenant
        assert tenant is not None and not ticket.queued
        self._order += 1
        ticket.order = -self._order if first else self._order
        ticket.queue_group = ANYWHERE if ticket.eligible is None and not ticket.tried else (ticket.eligible, ticket.tried)
        self._link(ticket, tenant)
        tenant.waiting += 1
        ticket.queued = True
        ticket.queued_at = now
        self.count += 1
        self.bytes += ticket.size

    def _link(self, ticket: Ticket[K], tenant: Tenant[Ticket[K]]) -> None:
        lane = self._lanes[tenant.terms.band]
        line = tenant.line
        if not line.count:
            self.lift(tenant)
            lane.tenants += 1
            lane.weight += tenant.terms.weight
            self._enter(lane, tenant)
        line.push(ticket)
        self.groups[ticket.queue_group] = self.groups.get(ticket.queue_group, 0) + 1
        lane.count += 1
        length = line.count / tenant.terms.weight
        if length > tenant.length_entered:  # else its entries are corrected when they come to the top
            self._enter_length(lane, tenant, length)
            if len(lane.by_length) > 64 + 2 * lane.count:
                self._tidy(lane)

    def remove(self, ticket: Ticket[K]) -> None:
        """Remove a call, for whatever reason."""
        assert ticket.queued
        if ticket is self.aside:
            self.aside = None
        else:
            self._unlink(ticket)
        ticket.queued = False
        assert ticket.tenant is not None
        ticket.tenant.waiting -= 1
        self.count -= 1
        self.bytes -= ticket.size

    def set_aside(self, ticket: Ticket[K], now: float) -> None:
        """Take a call out of the order: it starts as soon as it can, and until then blocks no other."""
        assert self.aside is None
        self._unlink(ticket)
        self.aside = ticket
        self.aside_at = now

    def _unlink(self, ticket: Ticket[K]) -> None:
        tenant = ticket.tenant
        assert tenant is not None
        lane = self._lanes[tenant.terms.band]
        tenant.line.remove(ticket)
        remaining = self.groups[ticket.queue_group] = self.groups[ticket.queue_group] - 1
        if not remaining:
            del self.groups[ticket.queue_group]
        lane.count -= 1
        if not tenant.line.count:
            tenant.version += 1  # invalidates its entry in the heap
            lane.tenants -= 1
            lane.weight -= tenant.terms.weight

    def change_terms(self, tenant: Tenant[Ticket[K]], terms: TenantTerms) -> None:
        """Move the tenant's waiting calls into its new band and weight."""
        waiting = sorted(tenant.line, key=lambda ticket: ticket.order)
        for ticket in waiting:
            self._unlink(ticket)
        tenant.set_terms(terms)
        tenant.length_entered = 0.0  # nothing is entered in its new band
        for ticket in waiting:
            self._link(ticket, tenant)

    def regroup(self, eligible_for: Callable[[Ticket[K]], frozenset[str] | None]) -> None:
        """Update where each waiting call can go, after a change in what backends can answer; the calls keep their order."""
        if self.aside is not None:
            self.aside.eligible = eligible_for(self.aside)
        waiting = sorted((ticket for ticket in self if ticket is not self.aside), key=lambda ticket: ticket.order)
        for ticket in waiting:
            assert ticket.tenant is not None
            self._unlink(ticket)
            ticket.eligible = eligible_for(ticket)
            ticket.queue_group = ANYWHERE if ticket.eligible is None and not ticket.tried else (ticket.eligible, ticket.tried)
        for ticket in waiting:
            assert ticket.tenant is not None
            self._link(ticket, ticket.tenant)

    def __iter__(self) -> Iterator[Ticket[K]]:
        """Yield all waiting calls, tenant by tenant."""
        if self.aside is not None:
            yield self.aside
        for lane in self._lanes:
            for _, _, version, tenant in lane.by_service:
                if version == tenant.version:
                    yield from tenant.line

    # The next call

    def next(self, now: float, full: Collection[QueueGroup] = ()) -> Ticket[K] | None:
        """Return the next call to start, of those that wait for something other than `full`."""
        if full and len(full) == len(self.groups):
            return None
        for lane in self._lanes:
            ends = self._least_served(lane, full) if lane.count else None
            if ends is not None:
                oldest, newest = ends
                return newest if self._is_standing(oldest, newest, now) else oldest
        return None

    def eligible_sets(self) -> Set[frozenset[str] | None]:
        """Return the sets of backends that calls wait for; None stands for any backend."""
        if self.aside is None and len(self.groups) == 1 and ANYWHERE in self.groups:  # the usual case
            return _ANY
        sets = {eligible for eligible, _ in self.groups}
        return sets if self.aside is None else sets | {self.aside.eligible}

    def wanted_backends(self) -> frozenset[str] | None:
        """Return all backends that calls wait for; None if a call waits for any."""
        if ANYWHERE in self.groups:
            return None
        wanted = NOBODY
        for eligible in self.eligible_sets():
            if eligible is None:
                return None
            wanted |= eligible
        return wanted

    def _is_standing(self, oldest: Ticket[K], newest: Ticket[K], now: float) -> bool:
        """Return whether the queue moves too slowly for the newest call to wait until all before it have started."""
        in_order_s = _PATIENCE_SHARE * newest.patience_s
        return now - oldest.queued_at > (in_order_s if in_order_s < self.lifo_after_s else self.lifo_after_s)

    def _least_served(self, lane: _Lane[K], full: Collection[QueueGroup]) -> tuple[Ticket[K], Ticket[K]] | None:
        """Return the oldest and the newest call of the tenant that is next."""
        heap = lane.by_service
        passed: list[tuple[float, int, int, Tenant[Ticket[K]]]] = []
        found = None
        while heap and found is None:
            served, _, version, tenant = heap[0]
            if version != tenant.version:
                heapq.heappop(heap)
                continue
            if served < tenant.served:  # it was charged since
                self._entries += 1
                tenant.entered = tenant.served
                heapq.heapreplace(heap, (tenant.served, self._entries, version, tenant))
                continue
            found = tenant.line.ends(full)
            if found is None:
                passed.append(heapq.heappop(heap))
        for entry in passed:
            heapq.heappush(heap, entry)
        return found

    def charge(self, tenant: Tenant[Ticket[K]], tokens: float) -> None:
        """Charge a tenant for tokens; a negative number corrects an earlier charge."""
        weighted = tokens / tenant.terms.weight
        tenant.served += weighted
        tenant.served_here += weighted
        if tenant.line.count and tenant.served < tenant.entered:  # else its entry is corrected when it comes to the top
            self._enter(self._lanes[tenant.terms.band], tenant)

    def charge_for_others(self, tenant: Tenant[Ticket[K]], weighted: float) -> None:
        """Charge a tenant for what another process served it, in tokens by weight. While calls wait here, that puts it behind
        others, but never so far that it would wait for ever."""
        most = max(tenant.served, self._floor + _AHEAD_MAX)
        if not self.count:
            self.note_start(tenant)
        tenant.served = min(tenant.served + weighted, most)
        if tenant.line.count and tenant.served < tenant.entered:
            self._enter(self._lanes[tenant.terms.band], tenant)

    def note_start(self, tenant: Tenant[Ticket[K]]) -> None:
        """Note that a call of this tenant starts: tenants that come back later begin at its level."""
        if self._floor < tenant.served:
            self._floor = tenant.served

    def lift(self, tenant: Tenant[Ticket[K]]) -> None:
        """Raise a returning tenant to the level of the others."""
        if tenant.served < self._floor:
            tenant.served = self._floor

    def _enter(self, lane: _Lane[K], tenant: Tenant[Ticket[K]]) -> None:
        tenant.version += 1
        tenant.entered = tenant.served
        self._entries += 1
        heapq.heappush(lane.by_service, (tenant.served, self._entries, tenant.version, tenant))
        if len(lane.by_service) > 64 + 4 * lane.tenants:
            lane.by_service = [entry for entry in lane.by_service if entry[2] == entry[3].version and entry[3].line.count]
            heapq.heapify(lane.by_service)

    # Overflow

    def ahead_of(self, newcomer: Ticket[K], tenant: Tenant[Ticket[K]]) -> float:
        """Estimate how many calls start until all of this tenant's queue has started."""
        return self._rounds(newcomer, tenant, tenant.line.count)

    def starts_before(self, newcomer: Ticket[K], tenant: Tenant[Ticket[K]], now: float) -> float:
        """Estimate how many calls start before a new call of this tenant."""
        waiting = tenant.line.count
        first = not waiting or self._is_standing(tenant.line.oldest(), newcomer, now)
        return self._rounds(newcomer, tenant, 0 if first else waiting)

    def _rounds(self, newcomer: Ticket[K], tenant: Tenant[Ticket[K]], turns: int) -> float:
        """Return how many calls start until this tenant has had `turns` starts; calls that wait for other backends do not
        count."""
        terms = tenant.terms
        lane = self._lanes[terms.band]
        rounds = turns * lane.weight / terms.weight
        if rounds > lane.count:
            rounds = float(lane.count)
        for higher in self._lanes[: terms.band]:
            rounds += higher.count
        if newcomer.eligible is None:
            return rounds
        return min(rounds, sum(count for (eligible, _), count in self.groups.items() if overlap(eligible, newcomer.eligible)))

    def victim(self, tenant: Tenant[Ticket[K]]) -> Ticket[K] | None:
        """Return the call that makes room for a new call of this tenant: the oldest of the longest queue, of the lowest band.

        Return None if that would be one of its own calls, or one of a higher band: then the new call is refused.
        """
        for band in reversed(Band):
            lane = self._lanes[band]
            if band < tenant.terms.band:
                return None
            if lane.count:
                longest = self._longest(lane)
                if band > tenant.terms.band:
                    return longest.line.oldest()
                mine = (len(tenant.line) + 1) / tenant.terms.weight
                if longest is not tenant and len(longest.line) / longest.terms.weight > mine:
                    return longest.line.oldest()
                return None
        return None

    def victim_elsewhere(self, newcomer: Ticket[K], tenant: Tenant[Ticket[K]]) -> Ticket[K] | None:
        """Return a call that waits for other backends, if more wait there than for the new call's: they must not fill the queue
        alone."""
        if newcomer.eligible is None:
            return None
        mine = sum(count for (eligible, _), count in self.groups.items() if overlap(eligible, newcomer.eligible))
        others = {w: count for w, count in self.groups.items() if not overlap(w[0], newcomer.eligible)}
        most = max(others.values(), default=0)
        if most <= mine + 1:
            return None
        lanes = self._lanes[tenant.terms.band :]
        candidates = (t for lane in lanes for _, _, version, of in lane.by_service if version == of.version for t in of.line)
        return min((t for t in candidates if others.get(t.queue_group) == most), key=lambda t: t.order, default=None)

    def _longest(self, lane: _Lane[K]) -> Tenant[Ticket[K]]:
        heap = lane.by_length
        while True:
            length, _, tenant = heap[0]
            if self._lanes[tenant.terms.band] is not lane:  # a reload gave it another priority
                heapq.heappop(heap)
                continue
            current = tenant.line.count / tenant.terms.weight
            if -length == current:
                return tenant
            heapq.heappop(heap)
            tenant.length_entered = 0.0
            if current and -length > current:
                self._enter_length(lane, tenant, current)

    def _enter_length(self, lane: _Lane[K], tenant: Tenant[Ticket[K]], length: float) -> None:
        self._entries += 1
        tenant.length_entered = length
        heapq.heappush(lane.by_length, (-length, self._entries, tenant))

    def _tidy(self, lane: _Lane[K]) -> None:
        tenants = {id(entry[2]): entry[2] for entry in lane.by_length}.values()
        lane.by_length = []
        for tenant in tenants:
            if self._lanes[tenant.terms.band] is not lane:
                continue
            tenant.length_entered = 0.0
            if tenant.line.count:
                self._enter_length(lane, tenant, tenant.line.count / tenant.terms.weight)
