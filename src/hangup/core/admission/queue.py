"""Who waits, and who is next.

Bands go in order. Within a band the tenant with the least service goes next (virtual token counter): each start is
charged to the tenant's counter, and one that comes back after a pause is lifted to where the others are, so that
nobody saves up. Within a tenant it is first come first served as long as the oldest has waited little; once the line
stands, the newest goes first, whose client is the most likely to be still there when the answer comes.

Every operation takes the same time however many wait; finding the least served tenant takes log(tenants).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from hangup.core.admission.tenants import Band, Tenant, Terms
from hangup.core.admission.ticket import Ticket

_PATIENCE_SHARE = 0.25  # of what a call may wait, that it waits in order


class _Lane:
    """One band: its tenants with someone in line."""

    __slots__ = ("by_length", "by_service", "count", "tenants", "weight")

    def __init__(self) -> None:
        self.by_service: list[tuple[float, int, int, Tenant]] = []
        self.by_length: list[tuple[float, int, Tenant]] = []
        self.count = 0
        self.tenants = 0
        self.weight = 0.0  # of those tenants


class Queue:
    def __init__(self, lifo_after_s: float) -> None:
        self.lifo_after_s = lifo_after_s
        self.count = 0
        self.bytes = 0
        self.aside: Ticket | None = None  # one that no seat can take at the moment, though there is room for others
        self.aside_at = 0.0
        self._lanes = [_Lane() for _ in Band]
        self._floor = 0.0  # the service of who went last: where those who come back begin
        self._entries = 0

    # Coming and going

    def push(self, ticket: Ticket, now: float, *, first: bool = False) -> None:
        """Puts it in line; `first` for one that has waited already."""
        tenant = ticket.tenant
        assert tenant is not None and not ticket.queued
        self._link(ticket, tenant)
        if first:
            tenant.line.move_to_end(ticket, last=False)
        tenant.waiting += 1
        ticket.queued = True
        ticket.queued_at = now
        self.count += 1
        self.bytes += ticket.size

    def _link(self, ticket: Ticket, tenant: Tenant) -> None:
        lane = self._lanes[tenant.terms.band]
        if not tenant.line:
            self.lift(tenant)
            lane.tenants += 1
            lane.weight += tenant.terms.weight
            self._enter(lane, tenant)
        tenant.line[ticket] = None
        lane.count += 1
        self._entries += 1
        heapq.heappush(lane.by_length, (-len(tenant.line) / tenant.terms.weight, self._entries, tenant))
        if len(lane.by_length) > 64 + 2 * lane.count:
            self._tidy(lane)

    def remove(self, ticket: Ticket) -> None:
        """It does not wait any longer, for whatever reason."""
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

    def set_aside(self, ticket: Ticket, now: float) -> None:
        """It goes as soon as it can, and until then stands in nobody's way."""
        assert self.aside is None
        self._unlink(ticket)
        self.aside = ticket
        self.aside_at = now

    def _unlink(self, ticket: Ticket) -> None:
        tenant = ticket.tenant
        assert tenant is not None
        lane = self._lanes[tenant.terms.band]
        del tenant.line[ticket]
        lane.count -= 1
        if not tenant.line:
            tenant.version += 1  # voids its entry
            lane.tenants -= 1
            lane.weight -= tenant.terms.weight

    def change_terms(self, tenant: Tenant, terms: Terms) -> None:
        """Takes those who wait along into the new band and weight."""
        waiting = list(tenant.line)
        for ticket in waiting:
            self._unlink(ticket)
        tenant.set(terms)
        for ticket in waiting:
            self._link(ticket, tenant)

    def __iter__(self) -> Iterator[Ticket]:
        """All who wait, tenant by tenant."""
        if self.aside is not None:
            yield self.aside
        for lane in self._lanes:
            for _, _, version, tenant in lane.by_service:
                if version == tenant.version:
                    yield from tenant.line

    # Who is next

    def next(self, now: float) -> Ticket | None:
        for lane in self._lanes:
            if lane.count:
                tenant = self._least_served(lane)
                oldest, newest = next(iter(tenant.line)), next(reversed(tenant.line))
                return newest if self._stands(oldest, newest, now) else oldest
        return None

    def _stands(self, oldest: Ticket, newest: Ticket, now: float) -> bool:
        """Whether the line moves too slowly for the newest to wait until all before it have gone."""
        return now - oldest.queued_at > min(self.lifo_after_s, _PATIENCE_SHARE * newest.patience_s)

    def _least_served(self, lane: _Lane) -> Tenant:
        heap = lane.by_service
        while True:
            _, _, version, tenant = heap[0]
            if version == tenant.version:
                return tenant
            heapq.heappop(heap)

    def charge(self, tenant: Tenant, tokens: float) -> None:
        """Tokens were spent on it, or fewer than it was charged with."""
        tenant.served += tokens / tenant.terms.weight
        if tenant.line:
            self._enter(self._lanes[tenant.terms.band], tenant)

    def went(self, tenant: Tenant) -> None:
        """One of its calls starts: those who come back later begin here."""
        self._floor = max(self._floor, tenant.served)

    def lift(self, tenant: Tenant) -> None:
        tenant.served = max(tenant.served, self._floor)

    def _enter(self, lane: _Lane, tenant: Tenant) -> None:
        tenant.version += 1
        self._entries += 1
        heapq.heappush(lane.by_service, (tenant.served, self._entries, tenant.version, tenant))
        if len(lane.by_service) > 64 + 4 * lane.tenants:
            lane.by_service = [entry for entry in lane.by_service if entry[2] == entry[3].version and entry[3].line]
            heapq.heapify(lane.by_service)

    # Overflow

    def ahead_of(self, tenant: Tenant) -> float:
        """About how many have to go until all of this tenant's line has."""
        return self._rounds(tenant, len(tenant.line))

    def before(self, newcomer: Ticket, tenant: Tenant, now: float) -> float:
        """About how many go before a newcomer of this tenant."""
        first = not tenant.line or self._stands(next(iter(tenant.line)), newcomer, now)
        return self._rounds(tenant, 0 if first else len(tenant.line))

    def _rounds(self, tenant: Tenant, turns: int) -> float:
        """Calls that start until this tenant has had so many turns."""
        lane = self._lanes[tenant.terms.band]
        higher = sum(lane.count for lane in self._lanes[: tenant.terms.band])
        return higher + min(lane.count, turns * lane.weight / tenant.terms.weight)

    def victim(self, tenant: Tenant) -> Ticket | None:
        """Who makes room for a newcomer of this tenant: the oldest of the longest line, of the lowest band.

        None if that would be one of its own, or of a higher band: then the newcomer has to go.
        """
        for band in reversed(Band):
            lane = self._lanes[band]
            if band < tenant.terms.band:
                return None
            if lane.count:
                longest = self._longest(lane)
                if band > tenant.terms.band:
                    return next(iter(longest.line))
                mine = (len(tenant.line) + 1) / tenant.terms.weight
                if longest is not tenant and len(longest.line) / longest.terms.weight > mine:
                    return next(iter(longest.line))
                return None
        return None

    def _longest(self, lane: _Lane) -> Tenant:
        heap = lane.by_length
        while True:
            length, _, tenant = heap[0]
            true = -len(tenant.line) / tenant.terms.weight
            if length == true:
                return tenant
            heapq.heappop(heap)
            if true and length < true:
                self._entries += 1
                heapq.heappush(heap, (true, self._entries, tenant))

    def _tidy(self, lane: _Lane) -> None:
        tenants = {id(entry[2]): entry[2] for entry in lane.by_length if entry[2].line}
        self._entries += 1
        lane.by_length = [(-len(t.line) / t.terms.weight, self._entries + at, t) for at, t in enumerate(tenants.values())]
        self._entries += len(tenants)
        heapq.heapify(lane.by_length)
