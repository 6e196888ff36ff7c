"""Who waits, and who is next.

Bands go in order. Within a band the tenant with the least service goes next (virtual token counter): each start is
charged to the tenant's counter, and one that comes back after a pause is lifted to where the others are, so that
nobody saves up. Within a tenant it is first come first served as long as the oldest has waited little; once the line
stands, the newest goes first, whose client is the most likely to be still there when the answer comes.

Every operation takes the same time however many wait; finding the least served tenant takes log(tenants).

Calls that only some seats can take (`Ticket.seats`) stand in the same line; when these seats are full, they are passed over.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator

from hangup.core.admission.drain_rate import overlap
from hangup.core.admission.tenants import Band, Tenant, TenantTerms
from hangup.core.admission.ticket import ANYWHERE, NOBODY, AnyTicket, Where

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
        self.groups: dict[Where, int] = {}  # how many wait for what, without the one set aside
        self.aside: AnyTicket | None = None  # one that no seat can take at the moment, though there is room for others
        self.aside_at = 0.0
        self._lanes = [_Lane() for _ in Band]
        self._floor = 0.0  # the service of who went last: where those who come back begin
        self._entries = 0
        self._order = 0  # of who came last; who goes before all others gets it below zero

    # Coming and going

    def push(self, ticket: AnyTicket, now: float, *, first: bool = False) -> None:
        """Puts it in line; `first` for one that has waited already."""
        tenant = ticket.tenant
        assert tenant is not None and not ticket.queued
        self._order += 1
        ticket.order = -self._order if first else self._order
        ticket.where = ANYWHERE if ticket.seats is None and not ticket.tried else (ticket.seats, ticket.tried)
        self._link(ticket, tenant)
        tenant.waiting += 1
        ticket.queued = True
        ticket.queued_at = now
        self.count += 1
        self.bytes += ticket.size

    def _link(self, ticket: AnyTicket, tenant: Tenant) -> None:
        lane = self._lanes[tenant.terms.band]
        if not tenant.line:
            self.lift(tenant)
            lane.tenants += 1
            lane.weight += tenant.terms.weight
            self._enter(lane, tenant)
        tenant.line.push(ticket)
        self.groups[ticket.where] = self.groups.get(ticket.where, 0) + 1
        lane.count += 1
        self._entries += 1
        heapq.heappush(lane.by_length, (-len(tenant.line) / tenant.terms.weight, self._entries, tenant))
        if len(lane.by_length) > 64 + 2 * lane.count:
            self._tidy(lane)

    def remove(self, ticket: AnyTicket) -> None:
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

    def set_aside(self, ticket: AnyTicket, now: float) -> None:
        """It goes as soon as it can, and until then stands in nobody's way."""
        assert self.aside is None
        self._unlink(ticket)
        self.aside = ticket
        self.aside_at = now

    def _unlink(self, ticket: AnyTicket) -> None:
        tenant = ticket.tenant
        assert tenant is not None
        lane = self._lanes[tenant.terms.band]
        tenant.line.remove(ticket)
        left = self.groups[ticket.where] = self.groups[ticket.where] - 1
        if not left:
            del self.groups[ticket.where]
        lane.count -= 1
        if not tenant.line:
            tenant.version += 1  # voids its entry
            lane.tenants -= 1
            lane.weight -= tenant.terms.weight

    def change_terms(self, tenant: Tenant, terms: TenantTerms) -> None:
        """Takes those who wait along into the new band and weight."""
        waiting = sorted(tenant.line, key=lambda ticket: ticket.order)
        for ticket in waiting:
            self._unlink(ticket)
        tenant.set(terms)
        for ticket in waiting:
            self._link(ticket, tenant)

    def regroup(self, seats_of: Callable[[AnyTicket], frozenset[str] | None]) -> None:
        """What seats can answer has changed: all who wait are told anew where they can go, and keep their places."""
        if self.aside is not None:
            self.aside.seats = seats_of(self.aside)
        waiting = sorted((ticket for ticket in self if ticket is not self.aside), key=lambda ticket: ticket.order)
        for ticket in waiting:
            assert ticket.tenant is not None
            self._unlink(ticket)
            ticket.seats = seats_of(ticket)
            ticket.where = ANYWHERE if ticket.seats is None and not ticket.tried else (ticket.seats, ticket.tried)
        for ticket in waiting:
            assert ticket.tenant is not None
            self._link(ticket, ticket.tenant)

    def __iter__(self) -> Iterator[AnyTicket]:
        """All who wait, tenant by tenant."""
        if self.aside is not None:
            yield self.aside
        for lane in self._lanes:
            for _, _, version, tenant in lane.by_service:
                if version == tenant.version:
                    yield from tenant.line

    # Who is next

    def next(self, now: float, full: Collection[Where] = ()) -> AnyTicket | None:
        """Whose turn it is, of those who wait for something else than what is full."""
        if full and len(full) == len(self.groups):
            return None
        for lane in self._lanes:
            ends = self._least_served(lane, full) if lane.count else None
            if ends is not None:
                oldest, newest = ends
                return newest if self._stands(oldest, newest, now) else oldest
        return None

    def waited_for(self) -> set[frozenset[str] | None]:
        """The sets of seats that somebody waits for one of; None is any seat."""
        sets = {seats for seats, _ in self.groups}
        return sets if self.aside is None else sets | {self.aside.seats}

    def wanted(self) -> frozenset[str] | None:
        """All seats that somebody waits for; None if it may be any."""
        wanted = NOBODY
        for seats in self.waited_for():
            if seats is None:
                return None
            wanted |= seats
        return wanted

    def _stands(self, oldest: AnyTicket, newest: AnyTicket, now: float) -> bool:
        """Whether the line moves too slowly for the newest to wait until all before it have gone."""
        return now - oldest.queued_at > min(self.lifo_after_s, _PATIENCE_SHARE * newest.patience_s)

    def _least_served(self, lane: _Lane, full: Collection[Where]) -> tuple[AnyTicket, AnyTicket] | None:
        """The oldest and the newest of the tenant whose turn it is."""
        heap = lane.by_service
        passed: list[tuple[float, int, int, Tenant]] = []
        found = None
        while heap and found is None:
            _, _, version, tenant = heap[0]
            if version != tenant.version:
                heapq.heappop(heap)
                continue
            found = tenant.line.ends(full)
            if found is None:
                passed.append(heapq.heappop(heap))
        for entry in passed:
            heapq.heappush(heap, entry)
        return found

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

    def ahead_of(self, newcomer: AnyTicket, tenant: Tenant) -> float:
        """About how many have to go until all of this tenant's line has."""
        return self._rounds(newcomer, tenant, len(tenant.line))

    def before(self, newcomer: AnyTicket, tenant: Tenant, now: float) -> float:
        """About how many go before a newcomer of this tenant."""
        first = not tenant.line or self._stands(tenant.line.oldest(), newcomer, now)
        return self._rounds(newcomer, tenant, 0 if first else len(tenant.line))

    def _rounds(self, newcomer: AnyTicket, tenant: Tenant, turns: int) -> float:
        """Calls that start until this tenant has had so many turns; those who wait for other seats do not count."""
        lane = self._lanes[tenant.terms.band]
        higher = sum(lane.count for lane in self._lanes[: tenant.terms.band])
        rounds = higher + min(lane.count, turns * lane.weight / tenant.terms.weight)
        if newcomer.seats is None:
            return rounds
        return min(rounds, sum(count for (seats, _), count in self.groups.items() if overlap(seats, newcomer.seats)))

    def victim(self, tenant: Tenant) -> AnyTicket | None:
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
                    return longest.line.oldest()
                mine = (len(tenant.line) + 1) / tenant.terms.weight
                if longest is not tenant and len(longest.line) / longest.terms.weight > mine:
                    return longest.line.oldest()
                return None
        return None

    def victim_elsewhere(self, newcomer: AnyTicket, tenant: Tenant) -> AnyTicket | None:
        """One who waits for other seats, if more do so than for the newcomer's: they shall not fill the queue alone."""
        if newcomer.seats is None:
            return None
        mine = sum(count for (seats, _), count in self.groups.items() if overlap(seats, newcomer.seats))
        others = {w: count for w, count in self.groups.items() if not overlap(w[0], newcomer.seats)}
        most = max(others.values(), default=0)
        if most <= mine + 1:
            return None
        lanes = self._lanes[tenant.terms.band :]
        could = (t for lane in lanes for _, _, version, of in lane.by_service if version == of.version for t in of.line)
        return min((t for t in could if others.get(t.where) == most), key=lambda t: t.order, default=None)

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
