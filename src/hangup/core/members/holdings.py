"""What a member reports of the backends' places, as its admission uses them."""

from __future__ import annotations

from typing import TypeVar

from hangup.core.admission import Admission
from hangup.core.members.allotments import Allotments, PlaceReport

K = TypeVar("K")


def backend_places(admission: Admission[K], allotments: Allotments) -> list[PlaceReport]:
    """Say how many slots of each backend are held here, and would be used. Learned slots are not shared."""
    waiting = admission.queue.count
    rows = []
    for load in admission.fleet.loads:
        if load.slots:
            demand = load.in_flight + (waiting if load.health.takes_calls else 0)
            free = load.slots - load.occupied  # by work that is not ours
            rows.append(allotments.report(load.name, free, load.in_flight, min(demand, load.slots)))
    return rows


def needs_places(admission: Admission[K]) -> bool:
    """Return whether a slot may be needed here or elsewhere."""
    if admission.queue.count:
        return True
    return any(load.slots and load.in_flight > load.allotted for load in admission.fleet.loads)
