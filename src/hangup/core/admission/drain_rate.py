"""How fast those who wait get their turn, apart by the seats that they wait for."""

from __future__ import annotations

from hangup.core.admission.estimates import Rate

Seats = frozenset[str] | None
_KEPT_MAX = 256  # sets of seats of which nobody waits any more


class DrainRates:
    """The drain rate is that of a standing queue: only time in which somebody waits for these seats counts."""

    __slots__ = ("_rates",)

    def __init__(self) -> None:
        self._rates: dict[Seats, Rate] = {None: Rate()}

    def pass_time(self, seconds: float, waiting: set[Seats]) -> None:
        """`waiting`: the sets of seats that somebody waited for all this time."""
        for seats in waiting:
            rate = self._rates.get(seats)
            if rate is None:
                if len(self._rates) >= _KEPT_MAX:
                    self._rates = {None: self._rates[None]}
                rate = self._rates[seats] = Rate()
            rate.pass_time(seconds)

    def add(self, seats: Seats) -> None:
        """One of those who waited for these starts."""
        rate = self._rates.get(seats)
        if rate is not None:
            rate.add()

    def per_s(self, seats: Seats) -> float | None:
        """How many start in a second of those who wait for any of these; None before there is enough to go by."""
        if len(self._rates) == 1:
            return self._rates[None].per_s
        known = [rate.per_s for other, rate in self._rates.items() if overlap(seats, other)]
        return sum(per_s for per_s in known if per_s is not None) or None


def overlap(one: Seats, other: Seats) -> bool:
    """Whether some seat is in both."""
    return one is None or other is None or not one.isdisjoint(other)
