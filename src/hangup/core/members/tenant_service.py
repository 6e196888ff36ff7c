"""Fairness among tenants whose calls are at several members: what each tenant would use, and what it was served.

A member serves the tenants of its own queue fairly. That is not enough: one tenant may have calls at every member, and another
at one. So the hub divides a backend's places among tenants first, by priority and weight, and then each tenant's part among the
members that have its calls. And each member learns what the others served, so that its own queue takes that into account.

With one tenant, or while there are places for all, none of this changes anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from hangup.core.admission import Admission
from hangup.core.members.shares import tenant_shares

K = TypeVar("K")
_TENANTS_MAX = 256  # in a report, those with the most calls; more would cost more than they change


class TenantUse(NamedTuple):
    """What a member says of one tenant."""

    tenant: str
    weight: float
    band: int  # priorities; the lowest number goes first
    running: int
    waiting: int
    served: float  # by this member so far, in tokens by weight


def tenant_uses(admission: Admission[K]) -> list[TenantUse]:
    """Say what tenants use here, and would use."""
    rows = [
        TenantUse(name, tenant.terms.weight, tenant.terms.band, tenant.in_flight, tenant.waiting, round(tenant.served_here, 1))
        for name, tenant in admission.tenants.items()
        if tenant.in_flight or tenant.waiting
    ]
    if len(rows) > _TENANTS_MAX:
        rows.sort(key=lambda row: -row.running - row.waiting)
        del rows[_TENANTS_MAX:]
    return rows


class ServedElsewhere:
    """A member's knowledge of what the others served."""

    def __init__(self) -> None:
        self._totals: dict[str, float] = {}  # by tenant, by the hub's last message,
        self._term = 0  # and which hub that was

    def note(self, admission: Admission[K], totals: Mapping[str, float], term: int = 0) -> None:
        """Charge tenants for what others served them since the hub's last message. What they were served while none of their
        calls waited anywhere counts for nothing, as in one queue."""
        before, self._totals = self._totals if term == self._term else {}, dict(totals)
        self._term = term
        for name in sorted(totals.keys() & before.keys() & admission.tenants.keys()):
            admission.queue.charge_for_others(admission.tenants[name], totals[name] - before[name])


class TenantRecords:
    """The hub's knowledge of tenants."""

    def __init__(self) -> None:
        self.changed = False  # since somebody looked
        self._uses: dict[str, dict[str, TenantUse]] = {}  # by member and tenant
        self._served: dict[str, dict[str, float]] = {}  # the same, by the last report that mentioned the tenant
        self._total: dict[str, float] = {}  # by tenant, of all members that ever were
        self._counter: dict[str, float] = {}  # by tenant: as `_total`, but nobody saves up what he did not ask for

    def note(self, member: str, rows: Iterable[TenantUse]) -> None:
        """Note all tenants that have calls at a member."""
        uses = {row.tenant: row for row in rows}
        before, known = self._uses.get(member, {}), self._served.setdefault(member, {})
        self.changed = self.changed or before != uses
        waited = self.waiting_tenants()
        for name, row in uses.items():
            more = row.served - known.get(name, row.served)  # what it served before this hub knew it counts for nothing
            known[name] = row.served
            self._total[name] = self._total.get(name, 0.0) + more
            self._counter[name] = self._counter.get(name, 0.0) + more
        self._uses[member] = uses
        level = min((self._counter[name] for name in waited), default=0.0)
        for name, row in uses.items():
            if row.waiting and name not in waited:
                self._counter[name] = max(self._counter[name], level)

    def leave(self, member: str) -> None:
        self.changed = self.changed or bool(self._uses.get(member))
        self._uses.pop(member, None)
        self._served.pop(member, None)

    def waiting_tenants(self) -> set[str]:
        return {name for uses in self._uses.values() for name, use in uses.items() if use.waiting}

    def served_by_others(self, member: str) -> dict[str, float]:
        """Return what other members served the tenants that wait anywhere, as totals that start anywhere; nothing if fewer than
        two wait."""
        waiting, own = self.waiting_tenants(), self._served.get(member, {})
        if len(waiting) < 2:
            return {}
        return {name: round(self._total[name] - own.get(name, 0.0), 1) for name in sorted(waiting)}

    def shares(self, capacity: int, part: float, members: Iterable[str]) -> dict[str, float] | None:
        """Return how many of a backend's places each member should have, for the sake of its tenants; None if there is only one
        tenant. `part`: of all places, those of this backend."""
        wants: dict[str, dict[str, float]] = {}
        terms: dict[str, tuple[int, float]] = {}
        for member in members:
            mine = wants[member] = {}
            for name, use in self._uses.get(member, {}).items():
                mine[name] = min(use.waiting + use.running * part, capacity)
                terms[name] = use.band, use.weight
        return tenant_shares(capacity, wants, terms) if len(terms) > 1 else None

    def turn(self, member: str) -> tuple[float, float]:
        """Return the priority and the service of the tenant that is next at a member: the lowest goes first."""
        waiting = [use for use in self._uses.get(member, {}).values() if use.waiting]
        return min(((use.band, self._counter[use.tenant]) for use in waiting), default=(math.inf, math.inf))
