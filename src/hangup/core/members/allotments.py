"""Allotments: how many places of a shared resource each member may use, granted in advance.

The hub never grants more places than there are. To give a member more it needs places that nobody has. To get some, it lowers
what it allows others, and counts a lowered allotment as it was until its member has confirmed that it holds no more. So
messages that are late or lost cost idle places for a moment, and never a place that two members use.

    hub                                 member
    granted 6, allowed 3 ── allowed 3 ──▶ uses 5: holds 5, starts no call
    granted 5            ◀── holds 5 ───┘
    granted 3            ◀── holds 3 ───  two calls have ended

Three cases exceed the capacity, each by one allotment at most: a member that was given up and comes back, a capacity that
shrinks, and a member that is cut off from the hub and uses an equal part, until others have returned as much. Then nobody gets
more until enough was returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from hangup.core.admission import NO_LIMIT
from hangup.core.members.shares import fair_shares, whole_places
from hangup.core.members.tenant_service import TenantRecords, TenantUse

_TENANTS_S = 0.25  # how often places are shared again because of what tenants use
QUOTA_PREFIX = "tenant "  # of the name of a resource that is a tenant's quota; names of backends have no spaces


@dataclass(frozen=True, slots=True)
class PlaceReport:
    """What a member says of one resource."""

    resource: str
    capacity: int  # places that the resource has, as far as this member knows; `NO_LIMIT`: they are learned
    held: int  # places that it uses, or may use without asking
    demand: int  # places that it would use now
    number: int  # of the latest grant that it has seen

    def row(self) -> tuple[str, int, int, int, int]:
        """Return the values for a message."""
        return self.resource, self.capacity, self.held, self.demand, self.number


@dataclass(frozen=True, slots=True)
class Grant:
    """How many places a member may use from now on."""

    member: str
    resource: str
    allowed: int
    number: int  # higher than those of all earlier grants for this member and resource


class _Allotment:
    """What a member may use of one resource."""

    __slots__ = ("allowed", "number")

    def __init__(self) -> None:
        self.allowed = 0
        self.number = 0


class Allotments:
    """The allotments of one member, as it knows them."""

    def __init__(self) -> None:
        self._by_resource: dict[str, _Allotment] = {}

    def allowed(self, resource: str) -> int:
        allotment = self._by_resource.get(resource)
        return allotment.allowed if allotment is not None else 0

    def take(self, grant: Grant) -> bool:
        """Apply a grant; return False if it is older than another one, or for a resource that is no longer in use."""
        allotment = self._by_resource.get(grant.resource)
        if allotment is None or grant.number <= allotment.number:
            return False
        allotment.allowed, allotment.number = grant.allowed, grant.number
        return True

    def assume(self, resource: str, allowed: int) -> bool:
        """Use so many places of a resource, whatever was granted, because there is no hub to ask; return whether that changes
        anything. The number 0 tells the next hub; its next grant, or its last one, replaces this."""
        allotment = self._by_resource.setdefault(resource, _Allotment())
        if allotment.allowed == allowed:
            return False
        allotment.allowed, allotment.number = allowed, 0
        return True

    def report(self, resource: str, capacity: int, used: int, demand: int) -> PlaceReport:
        """Say what this member holds and would use."""
        allotment = self._by_resource.setdefault(resource, _Allotment())
        return PlaceReport(resource, capacity, max(allotment.allowed, used), demand, allotment.number)

    def keep_only(self, resources: Iterable[str]) -> None:
        """Forget the resources that are no longer in use: a report without them gives their places back."""
        kept = set(resources)
        self._by_resource = {name: allotment for name, allotment in self._by_resource.items() if name in kept}


@dataclass(slots=True)
class _Holder:
    """One member's part of a resource, as the hub knows it."""

    capacity: int = 0
    demand: int = 0
    granted: int = 0  # the most that it may hold, by what it was allowed and what it confirmed
    allowed: int = 0  # by the last grant
    seen: int = 0  # number of the last grant that it had seen when it reported
    number: int = 0  # of the last grant,
    raised: int = 0  # and of the last one that allowed more than the one before
    turn: int = 0  # when it last got a place, as a number of the resource


@dataclass(slots=True)
class _Resource:
    holders: dict[str, _Holder] = field(default_factory=dict)
    of_dead: list[tuple[float, int]] = field(default_factory=list)  # until when the places of a dead member stay taken
    turns: int = 0
    learned: int = NO_LIMIT  # places, by what all members have seen
    for_tenants: tuple[int, dict[str, float] | None] | None = None  # of so many places, what each member should have for them

    @property
    def capacity(self) -> int:
        """The least that any member knows: an engine that came back with fewer slots has been seen by one of them first."""
        return min(self.learned, min((holder.capacity for holder in self.holders.values()), default=0))


class PlaceAllocator:
    """The allotments of all members. Every event returns the grants that follow from it."""

    def __init__(self, dead_hold_s: float) -> None:
        self._dead_hold_s = dead_hold_s  # how long engines may take to notice that a member has died
        self._resources: dict[str, _Resource] = {}
        self._cut_off: dict[str, int] = {}  # members that will use one of so many parts, without asking
        self.tenants = TenantRecords()
        self._tenants_from = -math.inf  # when to look at them again
        self._tenant_shares: dict[tuple[int, tuple[str, ...]], dict[str, float] | None] = {}  # by places and members
        self._places_of_backends = 1

    def report(self, member: str, reports: Iterable[PlaceReport]) -> list[Grant]:
        """Note all that a member holds, and share what is free; what it does not mention it no longer uses."""
        rows = list(reports)
        grants = self._share(self.note(member, rows))
        new = {grant.resource for grant in grants if grant.member == member}
        return grants + [
            self._last_grant(member, row.resource)
            for row in rows
            if row.resource not in new and self._missed(member, row.resource)
        ]

    def note_tenants(self, member: str, uses: Iterable[TenantUse]) -> None:
        """Note which tenants use a member's places, and would; `pass_time` shares accordingly."""
        self.tenants.note(member, uses)

    def share(self) -> list[Grant]:
        """Share what is free of all resources, once a new hub knows everybody."""
        return self._share(list(self._resources))

    def note(self, member: str, reports: Iterable[PlaceReport]) -> list[str]:
        """Note all that a member holds, and grant nothing: a new hub must know everybody first. Return the resources of which
        it says anything new."""
        by_name = {report.resource: report for report in reports}
        changed = [name for name, resource in self._resources.items() if member in resource.holders and name not in by_name]
        for name in changed:
            del self._resources[name].holders[member]
        for name, report in by_name.items():
            if self._note(self._resources.setdefault(name, _Resource()), member, report):
                changed.append(name)
        return changed

    def leave(self, member: str, now: float, *, died: bool) -> list[Grant]:
        """Take back all that a member has. If it died, all of it may still be used in the engines for a moment; if it left, as
        much as it used by its last report: calls that were cut short."""
        mine = self._resources_of(member)
        self._cut_off.pop(member, None)
        self.tenants.leave(member)
        for name in mine:
            resource = self._resources[name]
            holder = resource.holders.pop(member)
            bounded = died and holder.granted < NO_LIMIT
            still = holder.granted if bounded else min(holder.granted, holder.demand)
            if still:
                resource.of_dead.append((now + self._dead_hold_s, still))
        return self._share(mine)

    def set_learned(self, places: Mapping[str, int]) -> list[Grant]:
        """Allot so many places of backends whose slots are learned; `NO_LIMIT`: as many as anybody wants."""
        changed = [name for name, count in places.items() if self._learned(name) != count]
        for name in changed:
            self._resources.setdefault(name, _Resource()).learned = places[name]
        return self._share(changed)

    def _learned(self, name: str) -> int:
        found = self._resources.get(name)
        return NO_LIMIT if found is None else found.learned

    def set_aside(self, member: str, parts: int) -> list[Grant]:
        """Keep an equal part of everything, one of so many, for a member that is cut off and will use that much unasked."""
        self._cut_off[member] = parts
        return self._share(self._resources_of(member))

    def end_set_aside(self, member: str) -> list[Grant]:
        """Share with a member that is back as with the others, after it has reported what it holds."""
        known = self._cut_off.pop(member, None) is not None
        return self._share(self._resources_of(member)) if known else []

    def _resources_of(self, member: str) -> list[str]:
        return [name for name, resource in self._resources.items() if member in resource.holders]

    def pass_time(self, now: float) -> list[Grant]:
        """Free the places of members that died long enough ago, and follow what tenants need. Call this regularly."""
        changed = []
        if self.tenants.changed and now >= self._tenants_from:
            self._tenants_from = now + _TENANTS_S
            self.tenants.changed = False
            for resource in self._resources.values():
                resource.for_tenants = None
            self._tenant_shares.clear()
            changed = [name for name, resource in self._resources.items() if _is_short(resource)]
        for name, resource in self._resources.items():
            still = [entry for entry in resource.of_dead if entry[0] > now]
            if len(still) != len(resource.of_dead):
                resource.of_dead = still
                changed.append(name)
        return self._share(changed)

    def next_due(self) -> float:
        """Return when `pass_time` has something to do next."""
        return min((until for resource in self._resources.values() for until, _ in resource.of_dead), default=math.inf)

    def granted(self, resource: str) -> int:
        """Return how many places of a resource members may hold, dead ones included."""
        found = self._resources.get(resource)
        return 0 if found is None else _taken(found)

    def granted_to(self, member: str) -> dict[str, int]:
        """Return the most that a member may hold of each resource."""
        return {name: found.holders[member].granted for name, found in self._resources.items() if member in found.holders}

    def expects_more(self, resource: str) -> bool:
        """Return whether members were asked to return places of this resource, and have not done so yet."""
        found = self._resources.get(resource)
        return found is not None and any(holder.granted > holder.allowed for holder in found.holders.values())

    def _missed(self, member: str, name: str) -> bool:
        """Return whether the member had not seen its latest grant when it reported; the grant may be lost or on its way."""
        resource = self._resources.get(name)
        holder = resource.holders.get(member) if resource is not None else None
        return holder is not None and holder.seen < holder.number

    def _last_grant(self, member: str, name: str) -> Grant:
        holder = self._resources[name].holders[member]
        return Grant(member, name, holder.allowed, holder.number)

    def _note(self, resource: _Resource, member: str, report: PlaceReport) -> bool:
        """Note a report; return whether it says anything new. Most do not, and then nothing need be shared again."""
        holder = resource.holders.get(member)
        before = (holder.capacity, holder.demand, holder.granted) if holder is not None else None
        if holder is None:  # new, or known to an earlier hub: what it has, it has
            holder = resource.holders[member] = _Holder(
                granted=report.held, allowed=report.held, number=report.number, raised=report.number
            )
        holder.capacity, holder.demand, holder.seen = max(report.capacity, 0), max(report.demand, 0), report.number
        if report.number == 0 and report.held > holder.granted:  # it had to decide alone, without a hub
            holder.granted = report.held
        if report.number >= holder.raised:  # else a grant of more is on its way to the member
            # Never more than before: a report that was overtaken by a later one may name places that were given away since.
            holder.granted = min(holder.granted, max(report.held, holder.allowed))
        return before != (holder.capacity, holder.demand, holder.granted)

    def _share(self, names: Iterable[str]) -> list[Grant]:
        grants: list[Grant] = []
        for name in dict.fromkeys(names):
            resource = self._resources[name]
            if resource.holders or resource.of_dead:
                grants += _share_one(name, resource, self._cut_off, self._shares)
            else:
                del self._resources[name]
        return grants

    def _shares(self, name: str, resource: _Resource, capacity: int, holders: Mapping[str, _Holder]) -> dict[str, int]:
        """Return how many places each member should have."""
        demands = {member: holder.demand for member, holder in holders.items()}
        # Not enough for one each: they take turns. Otherwise a place stays where it is: moved, it would be idle for a moment.
        scarce = sum(demand > 0 for demand in demands.values()) > capacity
        turns = {member: holder.turn if scarce else -holder.allowed for member, holder in holders.items()}
        if sum(demands.values()) > capacity and not name.startswith(QUOTA_PREFIX):
            if resource.for_tenants is None or resource.for_tenants[0] != capacity:
                resource.for_tenants = capacity, self._shares_for_tenants(capacity, tuple(holders))
            exact = resource.for_tenants[1]
            if exact is not None:
                return whole_places(capacity, exact, demands, lambda member: (*self.tenants.turn(member), turns[member]))
        return fair_shares(capacity, demands, turns)

    def _shares_for_tenants(self, capacity: int, members: tuple[str, ...]) -> dict[str, float] | None:
        """Return what members should have of a backend with so many places: the same for all backends that are alike."""
        if not self._tenant_shares:
            backends = [resource.capacity for name, resource in self._resources.items() if not name.startswith(QUOTA_PREFIX)]
            self._places_of_backends = max(sum(capacity for capacity in backends if capacity < NO_LIMIT), 1)
        key = capacity, members
        if key not in self._tenant_shares:
            self._tenant_shares[key] = self.tenants.shares(capacity, capacity / self._places_of_backends, members)
        return self._tenant_shares[key]


def _taken(resource: _Resource) -> int:
    return sum(holder.granted for holder in resource.holders.values()) + sum(places for _, places in resource.of_dead)


def _is_short(resource: _Resource) -> bool:
    return sum(holder.demand for holder in resource.holders.values()) > resource.capacity


Shares = Callable[[str, _Resource, int, Mapping[str, _Holder]], dict[str, int]]


def _share_one(name: str, resource: _Resource, cut_off: Mapping[str, int], shares_of: Shares) -> list[Grant]:
    """Bring each member closer to its fair share, as far as there are places that nobody has."""
    holders = {member: holder for member, holder in resource.holders.items() if member not in cut_off}
    kept, most_kept = _kept_for(resource, cut_off)
    if resource.capacity >= NO_LIMIT:
        shares, free = dict.fromkeys(holders, NO_LIMIT), NO_LIMIT
    else:
        capacity = resource.capacity - sum(places for _, places in resource.of_dead) - most_kept
        shares = shares_of(name, resource, capacity, holders)
        free = resource.capacity - _taken(resource) - kept
    grants = []
    for member, holder in sorted(holders.items(), key=lambda item: (item[1].allowed, item[1].turn)):
        # More is out than there is: nobody gets more, not even of what it may still hold, which may be less.
        most = holder.granted + free if free >= 0 else min(holder.allowed, holder.granted)
        allowed = min(shares[member], most)
        if allowed == holder.allowed:
            continue
        holder.number += 1
        if allowed > holder.allowed:
            holder.raised = holder.number
            resource.turns += 1
            holder.turn = resource.turns
        free -= max(allowed - holder.granted, 0) if free < NO_LIMIT else 0
        holder.granted, holder.allowed = max(holder.granted, allowed), allowed
        grants.append(Grant(member, name, allowed, holder.number))
    return grants


def _kept_for(resource: _Resource, cut_off: Mapping[str, int]) -> tuple[int, int]:
    """Return how many places members that are cut off may take beyond those that they hold, and together with those."""
    beyond = whole = 0
    for member, parts in cut_off.items():
        holder = resource.holders.get(member)
        if holder is not None and resource.capacity < NO_LIMIT:
            most = max(holder.granted, math.ceil(resource.capacity / parts))
            beyond, whole = beyond + most - holder.granted, whole + most
    return beyond, whole
