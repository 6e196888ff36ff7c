"""Holds calls until it is known whether their tenant's shared quota has room (`core/members/quotas` decides)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from hangup.core.admission import Ticket
from hangup.core.members import HELD_S, Allotments, PlaceReport, QuotaShares
from hangup.gateway.placement import Placed, Placement


class SharedQuotas:
    def __init__(self, placement: Placement, allotments: Allotments, report_soon: Callable[[], None]) -> None:
        self._placement = placement
        self._report_soon = report_soon
        self._shares: QuotaShares[Placed] = QuotaShares(placement.admission, allotments, lambda held: held.key.call.ended)
        self._timers: dict[Ticket[Placed], asyncio.TimerHandle] = {}  # of the held calls
        placement.on_arrival = self._hold

    def close(self) -> None:
        """Decide all held calls now."""
        self._placement.on_arrival = None
        self._decide(self._shares.take_all())
        for timer in self._timers.values():  # of calls that have ended
            timer.cancel()

    def reports(self) -> list[PlaceReport]:
        return self._shares.reports(time.monotonic())

    def granted(self, resource: str, allowed: int) -> None:
        self._decide(self._shares.granted(resource, allowed))

    def asked_for(self) -> list[str]:
        return self._shares.asked_for()

    def considered(self, more_may_come: dict[str, bool]) -> None:
        self._decide(self._shares.considered(more_may_come))

    def _hold(self, ticket: Ticket[Placed], name: str) -> bool:
        if not self._shares.hold(ticket, name, time.monotonic()):
            return False
        self._timers[ticket] = asyncio.get_running_loop().call_later(HELD_S, self._time_is_up, name, ticket)
        self._report_soon()
        return True

    def _time_is_up(self, name: str, ticket: Ticket[Placed]) -> None:
        del self._timers[ticket]
        self._decide(self._shares.take_until(ticket, name))

    def _decide(self, calls: Iterable[tuple[Ticket[Placed], str]]) -> None:
        """Let admission decide about these calls."""
        for ticket, name in calls:
            timer = self._timers.pop(ticket, None)
            if timer is not None:
                timer.cancel()
            self._placement.arrive(ticket, name)
