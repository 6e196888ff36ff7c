"""What a member reports of the backends' places, as its admission uses them."""

from __future__ import annotations

from typing import TypeVar

from hangup.core.admission import NO_LIMIT, Admission, BackendLoad, SharedLimit
from hangup.core.members.allotments import Allotments, PlaceReport

K = TypeVar("K")


def backend_places(admission: Admission[K], allotments: Allotments) -> list[PlaceReport]:
    """Say how many places of each backend are held here, and would be used."""
    waiting = admission.queue.count
    rows = []
    for load in admission.fleet.loads:
        demand = load.in_flight + (waiting if load.health.takes_calls else 0)
        if load.slots:
            free = load.slots - load.occupied  # by work that is not ours
            rows.append(allotments.report(load.name, free, load.in_flight, min(demand, load.slots)))
        else:
            rows.append(allotments.report(load.name, NO_LIMIT, load.in_flight, demand))
    return rows


def needs_places(admission: Admission[K]) -> bool:
    """Return whether a place may be needed here or elsewhere."""
    if admission.queue.count:
        return True
    return any(load.in_flight > _allotted(load) for load in admission.fleet.loads)


def new_under_old_names(admission: Admission[K], allotments: Allotments) -> list[BackendLoad]:
    """Return the backends that do not use what is allotted to their names: a reload has put them in the places of others, and
    the hub, which knows names alone, has nothing new to grant."""
    loads = admission.fleet.loads
    return [load for load in loads if (allowed := allotments.allowed(load.name)) and _allotted(load) != allowed]


def _allotted(load: BackendLoad) -> int:
    if load.slots:
        return load.allotted
    return load.limiter.allowed if isinstance(load.limiter, SharedLimit) and load.limiter.follows else NO_LIMIT
