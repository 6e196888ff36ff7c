"""Knows which active jobs may be due, without looking at the others: a heap of the earliest times at which each may be."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from hangup.gateway.jobs.active_job import ActiveJob


class DueJobs:
    """A job is here once. Its lease may have been renewed since: then it is not due, and comes again later."""

    def __init__(self, active: Mapping[int, ActiveJob]) -> None:
        self._active = active
        self._heap: list[tuple[float, int]] = []
        self._known: set[int] = set()

    def add(self, key: int, now: float) -> None:
        """Note a job that has become active."""
        if key not in self._known:
            self._known.add(key)
            self._put(key, now)

    def _put(self, key: int, now: float, not_before: float = 0.0) -> None:
        at = self._active[key].may_be_due_at(now)
        if at is None:  # it has neither a lease nor a window
            self._known.discard(key)
        else:
            heapq.heappush(self._heap, (max(at, not_before), key))

    def take(self, now: float, again_s: float) -> Iterator[ActiveJob]:
        """Yield the jobs that may be due. Those that are still active afterwards come again, in `again_s` at the earliest."""
        while self._heap and self._heap[0][0] <= now:
            _, key = heapq.heappop(self._heap)
            active = self._active.get(key)
            if active is None:
                self._known.discard(key)
                continue
            yield active
            self._put(key, now, now + again_s)
