"""`History`: what happened lately, for the dashboard's graphs, in a bounded memory.

Three rings hold intervals of growing length: one poll, one minute, a quarter of an hour. Each poll adds to all three, so the
last minutes are known in detail and the last days in outline. An interval holds differences and counts, never rates or
percentiles: intervals can be added up, over time and over several worker processes.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hangup.core.ledger import OTHER, CallSeries
from hangup.core.reasons import Outcome

MINUTE_S, QUARTER_S = 60, 900
_NOT_SERVED = frozenset([Outcome.SHED, Outcome.ENGINE_FAILED, Outcome.ENGINE_REFUSED])
GROUPED_BY = ("tenant", "model", "backend")
_Buckets = Counter[int]
_ITEM = "I"  # of packed buckets: number and count of a bucket, in turns


@dataclass(slots=True)
class Group:
    """The calls that ended in an interval, of all or of one tenant, model or backend."""

    calls: int = 0
    not_served: int = 0  # shed, refused by the engine, or the engine failed
    first_token: _Buckets = field(default_factory=Counter)  # counts by the number of the bucket
    queue: _Buckets = field(default_factory=Counter)
    packed: tuple[bytes, bytes] | None = None  # both of them, in a tenth of the memory, once nothing is added any more

    def pack(self) -> None:
        self.packed = (_packed(self.first_token), _packed(self.queue))
        self.first_token = self.queue = _NONE

    def add(self, other: Group) -> None:
        self.calls += other.calls
        self.not_served += other.not_served
        self.first_token.update(other.first_token)
        self.queue.update(other.queue)

    def as_json(self) -> dict[str, Any]:
        first_token, queue = self.packed or (_packed(self.first_token), _packed(self.queue))
        buckets = {"first_token": _listed(first_token), "queue": _listed(queue)}
        return {"calls": self.calls, "not_served": self.not_served, **buckets}


_NONE: _Buckets = Counter()  # never added to


def _packed(buckets: _Buckets) -> bytes:
    return array(_ITEM, [number for pair in sorted(buckets.items()) for number in pair]).tobytes()


def _listed(packed: bytes) -> list[list[int]]:
    numbers = array(_ITEM)
    numbers.frombytes(packed)
    return [[bucket, count] for bucket, count in zip(numbers[::2], numbers[1::2], strict=True)]


@dataclass(slots=True)
class HistorySample:
    """One poll: totals since the start, and what is true now."""

    wall: float
    monotonic: float
    busy: float | None  # how busy the engines are, from 0 to 1
    computed: int | None  # tokens, by the engines' own counters
    received: int  # tokens, from the engines
    live: int
    waiting: int
    uncounted: int = 0  # those of `received` that `computed` does not have: their engines do not count


@dataclass(slots=True)
class Interval:
    """A span of time; `live`, `waiting` and `busy` are sums over time (per second), to be divided by the seconds."""

    end: float  # wall time
    seconds: float = 0.0
    busy: float = 0.0
    busy_s: float = 0.0  # the seconds of which `busy` is known
    computed: int = 0
    computed_s: float = 0.0
    received: int = 0
    uncounted: int = 0
    live: float = 0.0
    waiting: float = 0.0
    ends: Counter[str] = field(default_factory=Counter)  # calls by outcome
    every: Group = field(default_factory=Group)
    groups: dict[tuple[str, str], Group] = field(default_factory=dict)  # by dimension and name

    def add(self, other: Interval, groups_max: int) -> None:
        self.end = max(self.end, other.end)
        for name in ("seconds", "busy", "busy_s", "computed", "computed_s", "received", "uncounted", "live", "waiting"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.ends.update(other.ends)
        self.every.add(other.every)
        for key, group in other.groups.items():
            self.group(key, groups_max).add(group)

    def pack(self) -> None:
        """Take less memory: nothing is added any more."""
        self.every.pack()
        for group in self.groups.values():
            group.pack()

    def group(self, key: tuple[str, str], groups_max: int) -> Group:
        """Return the group of that name; beyond the bound, the group of all other names."""
        found = self.groups.get(key)
        if found is not None:
            return found
        dimension = key[0]
        if sum(known[0] == dimension for known in self.groups) >= groups_max:
            key = (dimension, OTHER)
        return self.groups.setdefault(key, Group())

    def as_json(self, by: str) -> dict[str, Any]:
        groups = {name: group.as_json() for (dimension, name), group in self.groups.items() if dimension == by}
        return {
            "end": round(self.end, 1),
            "seconds": round(self.seconds, 2),
            "busy": round(self.busy / self.busy_s, 3) if self.busy_s else None,
            "computed": self.computed if self.computed_s else None,
            "received": self.received,
            "uncounted": self.uncounted,
            "live": round(self.live / self.seconds, 1) if self.seconds else 0,
            "waiting": round(self.waiting / self.seconds, 1) if self.seconds else 0,
            "ends": dict(self.ends),
            "every": self.every.as_json(),
            "groups": groups,
        }


@dataclass(slots=True)
class HistoryLimits:
    """The lengths of the rings, and how many names each interval has in each dimension."""

    looks_max: int = 360
    minutes_max: int = 360
    quarters_max: int = 672
    groups_max: int = 8


class History:
    """Remembers intervals. `note` is called once per poll."""

    def __init__(self, limits: HistoryLimits) -> None:
        self._groups_max = limits.groups_max
        self._rings: tuple[tuple[int, deque[Interval]], ...] = (
            (0, deque(maxlen=limits.looks_max)),
            (MINUTE_S, deque(maxlen=limits.minutes_max)),
            (QUARTER_S, deque(maxlen=limits.quarters_max)),
        )
        self._last: HistorySample | None = None
        self._seen: dict[CallSeries, _Seen] = {}

    def note(self, look: HistorySample, series: Iterable[CallSeries]) -> None:
        """Add what happened since the last poll."""
        interval, before = Interval(look.wall), self._last
        self._last = look
        self._count(interval, series)
        if before is None or look.monotonic <= before.monotonic:
            return
        seconds = interval.seconds = look.monotonic - before.monotonic
        interval.received = max(look.received - before.received, 0)
        interval.uncounted = max(look.uncounted - before.uncounted, 0)
        interval.live, interval.waiting = look.live * seconds, look.waiting * seconds
        if look.busy is not None:
            interval.busy, interval.busy_s = look.busy * seconds, seconds
        if look.computed is not None and before.computed is not None and look.computed >= before.computed:
            interval.computed, interval.computed_s = look.computed - before.computed, seconds
        for length, ring in self._rings:
            if length and ring and int(ring[-1].end // length) == int(look.wall // length):
                ring[-1].add(interval, self._groups_max)
            else:
                if ring:
                    ring[-1].pack()
                ring.append(_copy(interval, self._groups_max))

    def _count(self, interval: Interval, series: Iterable[CallSeries]) -> None:
        for each in series:
            seen = self._seen.get(each)
            if seen is None:
                seen = self._seen[each] = _Seen()
            if sum(each.ends.values()) == seen.calls:
                continue
            for outcome, count in seen.since(each).items():
                interval.ends[outcome.value] += count
            interval.every.add(seen.change)
            for dimension in GROUPED_BY:
                name = getattr(each.labels, dimension)
                if name:
                    interval.group((dimension, name), self._groups_max).add(seen.change)

    def within(self, seconds: float, now: float) -> tuple[int, list[Interval]]:
        """Return the length and the intervals of the finest ring that reaches that far back, else of the longest one."""
        since = now - seconds
        length, ring = next(((length, ring) for length, ring in self._rings if _reaches(ring, since)), self._rings[-1])
        return length, [interval for interval in ring if interval.end > since]

    @property
    def reaches_back_to(self) -> float | None:
        """Return the wall time of the oldest interval."""
        ring = self._rings[-1][1]
        return ring[0].end - ring[0].seconds if ring else None

    def latest(self) -> Interval | None:
        ring = self._rings[0][1]
        return ring[-1] if ring else None


class _Seen:
    """What a series had counted at the last poll."""

    __slots__ = ("calls", "change", "ends", "first_token", "queue")

    def __init__(self) -> None:
        self.calls = 0
        self.ends: Counter[Outcome] = Counter()
        self.first_token: list[int] = []
        self.queue: list[int] = []
        self.change = Group()

    def since(self, series: CallSeries) -> Counter[Outcome]:
        """Return the calls by outcome since the last poll; `change` has the rest."""
        ends: Counter[Outcome] = Counter()
        for (reason, _), count in series.ends.items():
            ends[reason.outcome] += count
        new = ends - self.ends
        not_served = sum(count for outcome, count in new.items() if outcome in _NOT_SERVED)
        first_token, queue = series.first_token_s.counts, series.queue_s.counts
        self.change = Group(new.total(), not_served, _grown(first_token, self.first_token), _grown(queue, self.queue))
        self.ends, self.calls = ends, ends.total()
        self.first_token, self.queue = first_token, queue
        return new


def _reaches(ring: deque[Interval], since: float) -> bool:
    if len(ring) < (ring.maxlen or 0):
        return True  # nothing was forgotten yet
    return ring[0].end - ring[0].seconds <= since


def _grown(counts: list[int], before: list[int]) -> _Buckets:
    before = before or [0] * len(counts)
    return Counter({at: now - then for at, (now, then) in enumerate(zip(counts, before, strict=True)) if now > then})


def _copy(interval: Interval, groups_max: int) -> Interval:
    copied = Interval(interval.end)
    copied.add(interval, groups_max)
    return copied
