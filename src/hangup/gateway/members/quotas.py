"""Shares `concurrency_max` of tenants among members: each may use what it was allotted, like the slots of a backend.

A call beyond what this process was allotted is held while the hub is asked: it grants what others do not use, or
says that there is no more. So a quota is never exceeded, and no call is refused while part of it is unused. A tenant without
calls gives back what it was allotted.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from hangup.core.admission import Ticket
from hangup.core.admission.tenants import Tenant
from hangup.core.members import Allotments, PlaceReport
from hangup.gateway.placement import Placed, Placement

_PREFIX = "tenant "  # of a resource's name; names of backends have no spaces
_HELD_S = 2.0  # without an answer, the call is decided with what is allotted here
_KEPT_S = 5.0  # after a tenant's last call, for the next one


class SharedQuotas:
    def __init__(self, placement: Placement, allotments: Allotments, report_soon: Callable[[], None]) -> None:
        self._placement = placement
        self._allotments = allotments
        self._report_soon = report_soon
        self._held: dict[str, deque[Ticket[Placed]]] = {}
        self._used_at: dict[str, float] = {}  # when each tenant with an allotment last had a call
        self._timers: dict[Ticket[Placed], asyncio.TimerHandle] = {}  # of the held calls
        placement.on_arrival = self._hold

    def close(self) -> None:
        """Decide all held calls now."""
        self._placement.on_arrival = None
        for name in list(self._held):
            self._decide(name, len(self._held[name]))

    def reports(self) -> list[PlaceReport]:
        """Say what tenants with a quota use here, and would use."""
        now, rows = time.monotonic(), []
        for name in self._used_at.keys() | self._held.keys():
            tenant = self._placement.admission.tenant(name)
            used, held = tenant.in_flight + tenant.waiting, len(self._held.get(name, ()))
            if used or held:
                self._used_at[name] = now
            if not tenant.terms.concurrency_max or now - self._used_at.get(name, now) > _KEPT_S:
                self._used_at.pop(name, None)
                tenant.allotted = 0
            else:
                rows.append(self._allotments.report(_PREFIX + name, tenant.terms.concurrency_max, used, used + held))
        return rows

    def granted(self, resource: str, allowed: int) -> None:
        """Use an allotment, if it is one of a tenant's."""
        if resource.startswith(_PREFIX):
            name = resource.removeprefix(_PREFIX)
            tenant = self._placement.admission.tenant(name)
            tenant.allotted = allowed
            self._decide(name, max(allowed - tenant.in_flight - tenant.waiting, 0))

    def asked_for(self) -> list[str]:
        """Return the resources of which more is needed for calls that are held."""
        return [_PREFIX + name for name in self._held]

    def considered(self, more_may_come: dict[str, bool]) -> None:
        """Decide the held calls of tenants for which there is no more."""
        for resource, more in more_may_come.items():
            name = resource.removeprefix(_PREFIX)
            if not more and name in self._held:
                self._decide(name, len(self._held[name]))

    def _hold(self, ticket: Ticket[Placed], name: str) -> bool:
        """Hold a call that this process may not start with what it was allotted, if there may be more; return whether it is
        held."""
        tenant = self._placement.admission.tenant(name)
        if not tenant.terms.concurrency_max:
            return False
        self._used_at[name] = time.monotonic()
        if not self._lacks(tenant):
            return False
        self._held.setdefault(name, deque()).append(ticket)
        self._timers[ticket] = asyncio.get_running_loop().call_later(_HELD_S, self._time_is_up, name, ticket)
        self._report_soon()
        return True

    def _lacks(self, tenant: Tenant[Ticket[Placed]]) -> bool:
        used = tenant.in_flight + tenant.waiting + len(self._held.get(tenant.name, ()))
        return tenant.allotted < tenant.terms.concurrency_max and used >= tenant.allotted

    def _time_is_up(self, name: str, ticket: Ticket[Placed]) -> None:
        self._decide(name, self._held[name].index(ticket) + 1)

    def _decide(self, name: str, count: int) -> None:
        """Let admission decide about the calls that were held first."""
        held = self._held.get(name)
        while held and count > 0:
            ticket = held.popleft()
            self._timers.pop(ticket).cancel()
            if not ticket.key.call.ended:
                count -= 1
                self._placement.arrive(ticket, name)
        if not held:
            self._held.pop(name, None)
