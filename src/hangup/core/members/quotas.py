"""Shares `concurrency_max` of tenants among members: each may use what it was allotted, like the slots of a backend.

A call beyond what this member was allotted is held while the hub is asked: it grants what others do not use, or says that there
is no more. So a quota is never exceeded, and no call is refused while part of it is unused. A tenant without calls gives back
what it was allotted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from hangup.core.admission import Admission, Ticket
from hangup.core.admission.tenants import Tenant
from hangup.core.members.allotments import QUOTA_PREFIX, Allotments, PlaceReport

K = TypeVar("K")
HELD_S = 2.0  # without an answer, the call is decided with what is allotted here
_KEPT_S = 5.0  # after a tenant's last call, for the next one


class QuotaShares(Generic[K]):
    """One member's part of the quotas. Calls that it returns are for admission to decide, with their tenant's name."""

    def __init__(self, admission: Admission[K], allotments: Allotments, has_ended: Callable[[Ticket[K]], bool]) -> None:
        """`has_ended`: the call needs no decision any more."""
        self._admission = admission
        self._allotments = allotments
        self._has_ended = has_ended
        self._held: dict[str, deque[Ticket[K]]] = {}
        self._used_at: dict[str, float] = {}  # when each tenant with an allotment last had a call

    def hold(self, ticket: Ticket[K], name: str, now: float) -> bool:
        """Hold a call that this member may not start with what it was allotted, if there may be more; return whether it is
        held. After `HELD_S`, call `take_until`."""
        tenant = self._admission.tenant(name)
        if not tenant.terms.concurrency_max:
            return False
        self._used_at[name] = now
        if not self._lacks(tenant):
            return False
        self._held.setdefault(name, deque()).append(ticket)
        return True

    def _lacks(self, tenant: Tenant[Ticket[K]]) -> bool:
        used = tenant.in_flight + tenant.waiting + len(self._held.get(tenant.name, ()))
        return tenant.allotted < tenant.terms.concurrency_max and used >= tenant.allotted

    def reports(self, now: float) -> list[PlaceReport]:
        """Say what tenants with a quota use here, and would use."""
        rows = []
        for name in sorted(self._used_at.keys() | self._held.keys()):
            tenant = self._admission.tenant(name)
            used, held = tenant.in_flight + tenant.waiting, len(self._held.get(name, ()))
            if used or held:
                self._used_at[name] = now
            if not tenant.terms.concurrency_max or now - self._used_at.get(name, now) > _KEPT_S:
                self._used_at.pop(name, None)
                tenant.allotted = 0
            else:
                rows.append(self._allotments.report(QUOTA_PREFIX + name, tenant.terms.concurrency_max, used, used + held))
        return rows

    def asked_for(self) -> list[str]:
        """Return the resources of which more is needed for calls that are held."""
        return [QUOTA_PREFIX + name for name in self._held]

    def granted(self, resource: str, allowed: int) -> list[tuple[Ticket[K], str]]:
        """Use an allotment, if it is one of a tenant's; return the calls that may start with it."""
        if not resource.startswith(QUOTA_PREFIX):
            return []
        name = resource.removeprefix(QUOTA_PREFIX)
        tenant = self._admission.tenant(name)
        tenant.allotted = allowed
        return self._take(name, max(allowed - tenant.in_flight - tenant.waiting, 0))

    def considered(self, more_may_come: dict[str, bool]) -> list[tuple[Ticket[K], str]]:
        """Return the held calls of tenants for which there is no more."""
        names = [resource.removeprefix(QUOTA_PREFIX) for resource, more in more_may_come.items() if not more]
        return [held for name in names for held in self._take(name, len(self._held.get(name, ())))]

    def take_until(self, ticket: Ticket[K], name: str) -> list[tuple[Ticket[K], str]]:
        """Return a call that was held for long enough, and those that were held before it."""
        held = self._held.get(name)
        return self._take(name, held.index(ticket) + 1) if held is not None and ticket in held else []

    def take_all(self) -> list[tuple[Ticket[K], str]]:
        return [held for name in list(self._held) for held in self._take(name, len(self._held[name]))]

    def _take(self, name: str, count: int) -> list[tuple[Ticket[K], str]]:
        """Return the calls that were held first, without those that have ended meanwhile."""
        held, taken = self._held.get(name), list[tuple[Ticket[K], str]]()
        while held and len(taken) < count:
            ticket = held.popleft()
            if not self._has_ended(ticket):
                taken.append((ticket, name))
        if not held:
            self._held.pop(name, None)
        return taken
