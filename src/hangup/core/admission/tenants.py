"""`Tenant`: a tenant as admission sees it: its share, its own limits, and statistics of its answers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Generic

from hangup.config import TenantSettings
from hangup.core.admission.estimates import Lengths
from hangup.core.admission.patience import TenantPatience
from hangup.core.admission.retries import RetryBudget
from hangup.core.admission.tenant_queue import Q, TenantQueue


class Band(IntEnum):
    """Priorities; the first goes first."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


NO_LIMIT: Final = 10**9  # calls
_LEVEL_OUTDATED_S: Final = 2.0  # without news, a level that others charge as well is too old
_PREDICTED_UNKNOWN: Final = 256  # output tokens expected of a call before anything is known


@dataclass(frozen=True, slots=True)
class TenantTerms:
    """The weight, the priority and the limits that an operator grants a tenant."""

    weight: float = 1.0
    band: Band = Band.NORMAL
    concurrency_max: int = 0  # 0: none
    tokens_per_minute: int = 0  # 0: none

    @classmethod
    def of(cls, settings: TenantSettings) -> TenantTerms:
        return cls(settings.weight, Band[settings.priority.upper()], settings.concurrency_max, settings.tokens_per_minute)


class Allowance:
    """Tokens per minute, as a bucket that may go into debt by one call, because its length is known only at its end.

    Several processes may charge one allowance (`core/members/token_bank.py`): each gets the level of all (`set_level`). If it
    hears nothing, it goes on with its part of the level and of the rate.
    """

    __slots__ = ("_at", "_level", "_outdated_at", "_parts", "_share", "charged", "per_minute")

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self.charged = 0.0  # in all
        self._level = float(per_minute)
        self._at: float | None = None
        self._parts = 1  # how many processes charge it
        self._share = 1.0  # this one's share of it, as long as nothing is heard
        self._outdated_at = math.inf  # from then on

    def remaining(self, now: float) -> float:
        if self._at is not None:
            until = min(now, max(self._outdated_at, self._at))
            self._refill(until - self._at)
            if now >= self._outdated_at:
                self._outdated_at, self._share = math.inf, 1 / self._parts
                self._level = min(self._level, self._level * self._share)
            self._refill(now - until)
        self._at = now
        return self._level

    def _refill(self, seconds: float) -> None:
        most = self.per_minute * self._share
        self._level = min(self._level + seconds * most / 60, most)

    def set_level(self, level: float, included: float, parts: int, now: float) -> None:
        """Take the level of all processes, in which so much of what was charged here is included."""
        self._level, self._at = level - (self.charged - included), now
        self._parts, self._share = parts, 1.0
        self._outdated_at = now + _LEVEL_OUTDATED_S if parts > 1 else math.inf

    def limit_to(self, share: float, now: float) -> None:
        """Use only this share of the rate until a level comes: others charge it, too, and cannot be asked."""
        self.remaining(now)
        self._share = share
        self._level = min(self._level, self.per_minute * share)

    def charge(self, tokens: float) -> None:
        self._level -= tokens
        self.charged += tokens

    def wait_s(self, now: float) -> float:
        """Return the seconds until it is out of debt."""
        return max(-self.remaining(now), 0.0) * 60 / (self.per_minute * self._share)


class Tenant(Generic[Q]):
    """One tenant's terms, waiting and running calls, and statistics."""

    __slots__ = (
        "_lengths",
        "allotted",
        "allowance",
        "entered",
        "has_quota",
        "in_flight",
        "length_entered",
        "line",
        "name",
        "patience",
        "patience_s",
        "retries",
        "served",
        "served_here",
        "terms",
        "version",
        "waiting",
    )

    def __init__(self, name: str, terms: TenantTerms) -> None:
        self.name = name
        self.line: TenantQueue[Q] = TenantQueue()  # waiting calls
        self.served = 0.0  # weighted tokens: the virtual counter that decides who is next,
        self.served_here = 0.0  # and the part of it that this process has served, since its start
        self.waiting = 0  # queued, or set aside
        self.in_flight = 0
        self.allotted = NO_LIMIT  # of its `concurrency_max`, what this process may use: others serve the tenant as well
        self.version = 0  # of its entry in the queue's heap,
        self.entered = 0.0  # and the `served` that this says, which may be less than it is now
        self.length_entered = 0.0  # the same for the heap of lengths, by weight: what its entry says may be more than it is now
        self.patience = TenantPatience()
        self.patience_s: float | None = None  # how long its clients would wait in the queue, on average
        self.retries = RetryBudget()
        self._lengths: dict[int, Lengths] = {}
        self.allowance: Allowance | None = None
        self.set_terms(terms)

    def set_terms(self, terms: TenantTerms) -> None:
        self.terms = terms
        if not terms.tokens_per_minute:
            self.allowance = None
        elif self.allowance is None:
            self.allowance = Allowance(terms.tokens_per_minute)
        else:  # what was used is used
            self.allowance.per_minute = terms.tokens_per_minute
        self.has_quota = bool(terms.concurrency_max or terms.tokens_per_minute)

    def copy_for_jobs(self) -> Tenant[Q]:
        """Return a second tenant for its jobs: it shares the terms and the allowance, and nothing else is counted against this
        one."""
        jobs: Tenant[Q] = Tenant(self.name, self.terms)
        jobs.allowance = self.allowance
        return jobs

    def spent(self, now: float) -> bool:
        """Return whether its tokens per minute are used up for now."""
        return self.allowance is not None and self.allowance.remaining(now) <= 0

    def lengths(self, output_max: int) -> Lengths:
        """Return the lengths of its answers with about this maximum."""
        bucket = output_max.bit_length()
        found = self._lengths.get(bucket)
        if found is None:
            found = self._lengths[bucket] = Lengths()
        return found

    def predict(self, output_max: int) -> float:
        """Return the expected output tokens of a call."""
        lengths = self._lengths.get(output_max.bit_length())
        expected = lengths.mean if lengths is not None and lengths.known else _PREDICTED_UNKNOWN
        return output_max if 0 < output_max < expected else expected

    def output_tokens_p90(self, output_max: int) -> float:
        """Return the output tokens that nine of ten calls stay within; twice the default while that is unknown."""
        lengths = self.lengths(output_max)
        if not lengths.known:
            return min(2 * _PREDICTED_UNKNOWN, output_max)
        return min(lengths.quantile(0.9), output_max)
