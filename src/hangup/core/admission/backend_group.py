"""`BackendGroup`: some backends, of which the least loaded one with room is found at once.

Those with room are in a heap. A backend that is less loaded than its entries say gets a new one in every group that it is in,
which invalidates the old ones. One that is more loaded keeps them, and each is corrected when it comes to the top: so a call
that comes and goes costs one step in one heap.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from typing import Final

from hangup.core.admission.backend_load import BackendLoad
from hangup.core.admission.health import Trust

_TRUSTED: Final = Trust.TRUSTED  # Python 3.11 takes as long for a member of an enum as for a function call
_LAST: Final = 1e9  # larger than any load: a backend that may run abandoned work comes after all others with room

Entry = tuple[float, int, int, BackendLoad]  # (its load, when it was last chosen, number of the entry, the backend)
NOT_ENTERED = (math.inf, 0)  # in place of the first two


class BackendGroup:
    """All backends, or those that can answer certain calls."""

    __slots__ = ("_entries_max", "any_well", "heap", "made_at")

    def __init__(self, loads: Iterable[BackendLoad], made_at: float = 0.0) -> None:
        """Start a group without entries; its health and its members change only with a new group."""
        healths = [load.health for load in loads]
        self.any_well = any(health.well for health in healths)
        self.heap: list[Entry] = []
        self.made_at = made_at
        self._entries_max = 64 + 4 * len(healths)

    def add(self, entry: Entry) -> None:
        """Add a backend with room. One that is down is used only when no other is well, so that a wrong verdict costs a failed
        attempt and never an outage."""
        if entry[3].health.well or not self.any_well:
            heap = self.heap
            heapq.heappush(heap, entry)
            if len(heap) > self._entries_max:
                heap[:] = [entry for entry in heap if entry[2] == entry[3].heap_entry]
                heapq.heapify(heap)

    def top(self) -> Entry | None:
        """Return the entry of the least loaded backend with room."""
        heap = self.heap
        while heap:
            entry = heap[0]
            load = entry[3]
            if entry[2] != load.heap_entry:
                heapq.heappop(heap)
            elif load.in_flight >= load.limit_counted:
                heapq.heappop(heap)
                load.entered = NOT_ENTERED  # it gets a new entry when it has room again
            else:
                load_now = load.in_flight / load.weight if load.in_flight else 0.0  # as `order`
                if load.health.trust is not _TRUSTED:
                    load_now += _LAST
                if entry[0] == load_now and entry[1] == load.turn:
                    return entry
                heapq.heapreplace(heap, (load_now, load.turn, load.heap_entry, load))
                if load.entered < (load_now, load.turn):
                    load.entered = (load_now, load.turn)
        return None


def order(load: BackendLoad) -> float:
    """Return the key by which the lowest backend is chosen first."""
    share = load.in_flight / load.weight if load.in_flight else 0.0  # one object for all that are idle: quick to compare
    return share if load.health.trust is _TRUSTED else share + _LAST
