"""An `Admission` on its own, and what its actions say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hangup.config import LimitSettings
from hangup.core.admission import Action, Admission, BackendLoad, TenantTerms, Ticket

LIMITS = LimitSettings(queue_depth_max=6, queue_bytes_max=1000, lifo_after_s=2.0, queue_s=1e6)
ROOMY = replace(LIMITS, queue_depth_max=1000)


def new_admission(slots: int = 1, limits: LimitSettings = LIMITS, backends: int = 1, **terms: TenantTerms) -> Admission[Any]:
    admission: Admission[Any] = Admission(limits, [BackendLoad(f"s{at}", slots) for at in range(backends)], lambda: 0.5)
    admission.configure(limits, terms)
    return admission


def started(actions: list[Action[Any]]) -> list[object]:
    return [action.ticket.key for action in actions if action.load is not None]


def refused(actions: list[Action[Any]]) -> list[tuple[object, str]]:
    return [(action.ticket.key, action.reason.code) for action in actions if action.reason is not None]


def fill(admission: Admission[Any], name: str, count: int, now: float = 0.0) -> list[Ticket[Any]]:
    tickets = [Ticket(f"{name}{at}", prompt=10, output_max=10) for at in range(count)]
    for ticket in tickets:
        admission.arrive(ticket, name, now)
    return tickets
