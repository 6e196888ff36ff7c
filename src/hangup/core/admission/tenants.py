"""A tenant in the admission: its share, its own limits, and what is known of its answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from hangup.config import TenantSettings
from hangup.core.admission.estimates import Lengths
from hangup.core.admission.patience import PatienceBook
from hangup.core.admission.retries import RetryBudget
from hangup.core.admission.tenant_queue import TenantQueue


class Band(IntEnum):
    """Priorities, the first to go first."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


_PREDICTED_UNKNOWN = 256  # output tokens expected of a call before anything is known


@dataclass(frozen=True, slots=True)
class TenantTerms:
    """What an operator grants a tenant."""

    weight: float = 1.0
    band: Band = Band.NORMAL
    concurrency_max: int = 0  # 0: none
    tokens_per_minute: int = 0  # 0: none

    @classmethod
    def of(cls, settings: TenantSettings) -> TenantTerms:
        return cls(settings.weight, Band[settings.priority.upper()], settings.concurrency_max, settings.tokens_per_minute)


class Allowance:
    """Tokens per minute, as a bucket that may go into debt by one call: its length is known only at its end."""

    __slots__ = ("_at", "_level", "per_minute")

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at: float | None = None

    def left(self, now: float) -> float:
        if self._at is not None:
            self._level = min(self._level + (now - self._at) * self.per_minute / 60, self.per_minute)
        self._at = now
        return self._level

    def charge(self, tokens: float) -> None:
        self._level -= tokens

    def wait_s(self, now: float) -> float:
        """Until it is out of debt."""
        return max(-self.left(now), 0.0) * 60 / self.per_minute


class Tenant:
    __slots__ = (
        "_lengths",
        "allowance",
        "in_flight",
        "line",
        "name",
        "patience",
        "patience_s",
        "retries",
        "served",
        "terms",
        "version",
        "waiting",
    )

    def __init__(self, name: str, terms: TenantTerms) -> None:
        self.name = name
        self.line = TenantQueue()  # who waits
        self.served = 0.0  # weighted tokens: the virtual counter that fairness goes by
        self.waiting = 0  # in line, or set aside
        self.in_flight = 0
        self.version = 0  # of its entry among those who wait
        self.patience = PatienceBook()
        self.patience_s: float | None = None  # how long its clients would wait in line, on average
        self.retries = RetryBudget()
        self._lengths: dict[int, Lengths] = {}
        self.set(terms)

    def set(self, terms: TenantTerms) -> None:
        self.terms = terms
        self.allowance = Allowance(terms.tokens_per_minute) if terms.tokens_per_minute else None

    def for_its_jobs(self) -> Tenant:
        """A tenant beside it: jobs have its terms and its allowance, and nothing else that they do is counted against it."""
        jobs = Tenant(self.name, self.terms)
        jobs.allowance = self.allowance
        return jobs

    def spent(self, now: float) -> bool:
        """Whether its tokens are used up for now."""
        return self.allowance is not None and self.allowance.left(now) <= 0

    def lengths(self, output_max: int) -> Lengths:
        """Of its answers with about this maximum."""
        bucket = output_max.bit_length()
        found = self._lengths.get(bucket)
        if found is None:
            found = self._lengths[bucket] = Lengths()
        return found

    def predict(self, output_max: int) -> float:
        """Output tokens of a call on average."""
        lengths = self.lengths(output_max)
        expected = lengths.mean if lengths.known else _PREDICTED_UNKNOWN
        return min(expected, output_max) if output_max else expected

    def most(self, output_max: int) -> float:
        """Output tokens that nine calls of ten stay within; twice what is usual, before that is known."""
        lengths = self.lengths(output_max)
        if not lengths.known:
            return min(2 * _PREDICTED_UNKNOWN, output_max)
        return min(lengths.quantile(0.9), output_max)
