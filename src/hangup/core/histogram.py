"""`Histogram`: counts of values by upper bound, for the metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, NamedTuple

Bounds = tuple[float, ...]  # not tuples of a known length: compiled, each histogram would get a copy

SECONDS: Final[Bounds] = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

TOKENS: Final[Bounds] = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131072)


class Exemplar(NamedTuple):
    """A call that a bucket counts, as an example: the id of its trace."""

    trace_id: str
    value: float
    at: float  # monotonic


class Histogram:
    """Counts by upper bound; the last bucket holds everything above."""

    __slots__ = ("bounds", "counts", "exemplars", "sum")

    def __init__(self, bounds: Bounds = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.exemplars: dict[int, Exemplar] = {}  # the latest traced call, by bucket

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def show(self, trace_id: str, value: float, at: float) -> None:
        """Keep a traced call as the example of its bucket, which has counted it already."""
        self.exemplars[bisect_left(self.bounds, value)] = Exemplar(trace_id, value, at)

    def add(self, other: Histogram) -> None:
        """Add what another histogram with the same bounds has counted."""
        for at, count in enumerate(other.counts):
            self.counts[at] += count
        self.sum += other.sum
        for bucket, exemplar in other.exemplars.items():
            if bucket not in self.exemplars or self.exemplars[bucket].at < exemplar.at:
                self.exemplars[bucket] = exemplar


def total(parts: Iterable[Histogram]) -> Histogram:
    """Return the sum of histograms of seconds."""
    result = Histogram()
    for part in parts:
        result.add(part)
    return result
