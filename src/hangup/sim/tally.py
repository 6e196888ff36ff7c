"""Counts the results of a run, in memory that does not grow with its length."""

from __future__ import annotations

import math
from collections import Counter
from itertools import accumulate

_PER_DOUBLING = 24
_LOWEST = 2.0**-10  # seconds


class Quantiles:
    """A histogram of times that gives quantiles within 3 %."""

    __slots__ = ("_counts", "total")

    def __init__(self) -> None:
        self._counts = [0] * (_PER_DOUBLING * 24)
        self.total = 0

    def observe(self, seconds: float) -> None:
        self.total += 1
        at = int(math.log2(seconds / _LOWEST) * _PER_DOUBLING) if seconds > _LOWEST else 0
        self._counts[min(at, len(self._counts) - 1)] += 1

    def at(self, share: float) -> float:
        """Return the quantile, or NaN if nothing was observed."""
        if not self.total:
            return math.nan
        passed = accumulate(self._counts)
        index = next(index for index, count in enumerate(passed) if count >= share * self.total)
        return float(_LOWEST * 2 ** ((index + 0.5) / _PER_DOUBLING))


class RunTally:
    """The counts of one run, within its time window."""

    def __init__(self, from_s: float, until_s: float) -> None:
        self.from_s = from_s
        self.until_s = until_s
        self.calls = 0  # clients' calls, however many attempts they took
        self.attempts = 0
        self.refused = 0  # attempts
        self.left_queued = 0  # attempts whose client hung up before they started
        self.served = 0  # calls
        self.given_up = 0  # calls
        self.good_prompt_tokens = 0.0
        self.good_tokens = 0.0
        self.jobs_prompt_tokens = 0.0  # of finished job items
        self.jobs_tokens = 0.0
        self.jobs_yielded = 0  # preemptions of job items
        self.hub_messages = 0  # between gateways and the hub
        self.gateway_deaths = 0
        self.freed_s: list[float] = []  # for each death: how long the gateway's places stayed taken
        self.granted_beyond = 0  # the most places of an engine that gateways were allowed to use beyond its slots
        self.ttft = Quantiles()  # of streams; of whole answers, the time to their end
        self.refusal_s = Quantiles()  # from an attempt to its refusal
        self.offered_by: Counter[str] = Counter()  # by prompt quartile, by stream or whole, by tenant
        self.served_by: Counter[str] = Counter()
        self.good_by_time: Counter[int] = Counter()  # tokens per ten seconds

    def good(self, prompt: float, tokens: float, now: float) -> None:
        self.good_prompt_tokens += prompt
        self.good_tokens += tokens
        self.good_by_time[int(now / 10)] += round(tokens)

    def open(self, now: float) -> bool:
        return self.from_s <= now <= self.until_s

    @property
    def seconds(self) -> float:
        return self.until_s - self.from_s
