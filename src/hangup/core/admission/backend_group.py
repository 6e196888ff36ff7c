"""`BackendGroup`: some backends, of which the least loaded one with room is found at once.

Those without a call are in a queue, the others with room in a heap. A backend that is less loaded than its entries say gets a
new one in every group that it is in, which invalidates the old ones. One that is more loaded keeps them, and each is corrected
when its turn comes: so a call that comes and goes costs one step in one queue, which touches as little memory with a thousand
backends as with two.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
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

    __slots__ = ("_busy", "_entries_max", "_idle", "any_well", "made_at")

    def __init__(self, loads: Iterable[BackendLoad], made_at: float = 0.0) -> None:
        """Start a group without entries; its health and its members change only with a new group."""
        healths = [load.health for load in loads]
        self.any_well = any(health.well for health in healths)
        self._idle: deque[Entry] = deque()  # the one that has waited longest first
        self._busy: list[Entry] = []  # a heap
        self.made_at = made_at
        self._entries_max = 64 + 4 * len(healths)

    def __len__(self) -> int:
        return len(self._idle) + len(self._busy)

    def add(self, entry: Entry) -> None:
        """Add a backend with room. One that is down is used only when no other is well, so that a wrong verdict costs a failed
        attempt and never an outage."""
        if entry[3].health.well or not self.any_well:
            self._enter(entry)
            if len(self) > self._entries_max:
                self._drop_old_entries()

    def top(self) -> Entry | None:
        """Return the entry of the least loaded backend with room."""
        idle, busy = self._idle, self._busy
        while idle or busy:
            entry = idle[0] if idle else busy[0]
            load = entry[3]
            if entry[2] == load.heap_entry and load.in_flight < load.limit_counted:
                load_now = load.in_flight / load.weight if load.in_flight else 0.0  # as `order`
                if load.health.trust is not _TRUSTED:
                    load_now += _LAST
                if entry[0] == load_now and entry[1] == load.turn:
                    return entry
                self._take_first()
                self._enter((load_now, load.turn, load.heap_entry, load))
                if load.entered < (load_now, load.turn):
                    load.entered = (load_now, load.turn)
            else:
                self._take_first()
                if entry[2] == load.heap_entry:
                    load.entered = NOT_ENTERED  # it gets a new entry when it has room again
        return None

    def take(self) -> Entry | None:
        """Take the top entry out; `put_back` must follow before anything else."""
        entry = self.top()
        if entry is not None:
            self._take_first()
        return entry

    def put_back(self, taken: list[Entry]) -> None:
        """Put the entries back that were taken, in the order in which they were taken."""
        for entry in reversed(taken):
            if entry[0]:
                heapq.heappush(self._busy, entry)
            else:
                self._idle.appendleft(entry)

    def _enter(self, entry: Entry) -> None:
        if entry[0]:
            heapq.heappush(self._busy, entry)
        else:
            self._idle.append(entry)

    def _take_first(self) -> None:
        if self._idle:
            self._idle.popleft()
        else:
            heapq.heappop(self._busy)

    def _drop_old_entries(self) -> None:
        idle = [entry for entry in self._idle if entry[2] == entry[3].heap_entry]
        self._idle.clear()
        self._idle.extend(idle)
        self._busy[:] = [entry for entry in self._busy if entry[2] == entry[3].heap_entry]
        heapq.heapify(self._busy)


def order(load: BackendLoad) -> float:
    """Return the key by which the lowest backend is chosen first."""
    share = load.in_flight / load.weight if load.in_flight else 0.0  # one object for all that are idle: quick to compare
    return share if load.health.trust is _TRUSTED else share + _LAST
