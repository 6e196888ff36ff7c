"""Measures how fast waiting calls start, separately for each set of backends that they wait for."""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from hangup.core.admission.estimates import Rate

BackendNames = frozenset[str] | None
_KEPT_MAX: Final = 256  # sets of backends to keep, including those that no call waits for any more


class DrainRates:
    """The drain rates of the queue. Only time in which calls wait for these backends counts."""

    __slots__ = ("_rates",)

    def __init__(self) -> None:
        self._rates: dict[BackendNames, Rate] = {None: Rate()}

    def pass_time(self, seconds: float, waiting: Set[BackendNames]) -> None:
        """Advance time for `waiting`: the sets of backends that calls waited for all this time."""
        for eligible in waiting:
            rate = self._rates.get(eligible)
            if rate is None:
                if len(self._rates) >= _KEPT_MAX:
                    self._rates = {None: self._rates[None]}
                rate = self._rates[eligible] = Rate()
            rate.pass_time(seconds)

    def add(self, eligible: BackendNames) -> None:
        """Note that a call that waited for these backends starts."""
        rate = self._rates.get(eligible)
        if rate is not None:
            rate.add()

    def per_s(self, eligible: BackendNames) -> float | None:
        """Return how many of the calls that wait for any of these backends start per second; None before there is enough
        evidence."""
        if len(self._rates) == 1:
            return self._rates[None].per_s
        known = [rate.per_s for other, rate in self._rates.items() if overlap(eligible, other)]
        return sum((per_s for per_s in known if per_s is not None), 0.0) or None


def overlap(one: BackendNames, other: BackendNames) -> bool:
    """Return whether some backend is in both sets."""
    return one is None or other is None or not one.isdisjoint(other)
