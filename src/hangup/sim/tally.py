"""What a run is judged by, in memory that does not grow with it."""

from __future__ import annotations

import math
from collections import Counter
from itertools import accumulate

_PER_DOUBLING = 24
_LOWEST = 2.0**-10  # seconds


class Quantiles:
    """Times by order, within 3 %."""

    __slots__ = ("_counts", "total")

    def __init__(self) -> None:
        self._counts = [0] * (_PER_DOUBLING * 24)
        self.total = 0

    def observe(self, seconds: float) -> None:
        self.total += 1
        at = int(math.log2(seconds / _LOWEST) * _PER_DOUBLING) if seconds > _LOWEST else 0
        self._counts[min(at, len(self._counts) - 1)] += 1

    def at(self, share: float) -> float:
        """NaN when nothing was seen."""
        if not self.total:
            return math.nan
        passed = accumulate(self._counts)
        index = next(index for index, count in enumerate(passed) if count >= share * self.total)
        return float(_LOWEST * 2 ** ((index + 0.5) / _PER_DOUBLING))


class RunTally:
    """Counts of one run, within its window."""

    def __init__(self, from_s: float, until_s: float) -> None:
        self.from_s = from_s
        self.until_s = until_s
        self.calls = 0  # clients' calls, whatever their attempts
        self.attempts = 0
        self.refused = 0  # attempts
        self.left_queued = 0  # attempts whose client left before they started
        self.served = 0  # calls
        self.given_up = 0  # calls
        self.good_prompt_tokens = 0.0
        self.good_tokens = 0.0
        self.offered_tokens = 0.0
        self.jobs_prompt_tokens = 0.0  # of items of jobs that were finished
        self.jobs_tokens = 0.0
        self.jobs_yielded = 0  # items that had to make way, as often as they had to
        self.ttft = Quantiles()  # of streams; of whole answers, the time to their end
        self.refusal_s = Quantiles()  # from an attempt to its refusal
        self.offered_by: Counter[str] = Counter()  # by prompt quartile, by stream or whole, by tenant
        self.served_by: Counter[str] = Counter()
        self.good_by_time: Counter[int] = Counter()  # tokens by ten seconds

    def good(self, prompt: float, tokens: float, now: float) -> None:
        self.good_prompt_tokens += prompt
        self.good_tokens += tokens
        self.good_by_time[int(now / 10)] += round(tokens)

    def open(self, now: float) -> bool:
        return self.from_s <= now <= self.until_s

    @property
    def seconds(self) -> float:
        return self.until_s - self.from_s
