"""Divides places among members: by what they would use, by what tenants would, or evenly while nobody can ask."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping


def fair_shares(capacity: int, demands: Mapping[str, int], turns: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return how many of `capacity` places each member should have.

    First everybody gets what it would use, as far as that is possible without giving another one less (max-min fairness). Where
    the last places do not suffice for one more each, the members with the lowest `turns` get them. What remains is spread
    evenly, so that a member can start calls without asking first.
    """
    shares = dict.fromkeys(demands, 0)
    left = max(capacity, 0)
    wanting = sorted((name for name, demand in demands.items() if demand > 0), key=lambda name: (demands[name], name))
    for at, name in enumerate(wanting):  # from the smallest demand to the largest
        shares[name] = min(demands[name], left // (len(wanting) - at))
        left -= shares[name]
    short = [name for name in wanting if shares[name] < demands[name]]
    if turns is not None:
        short.sort(key=lambda name: (turns.get(name, 0), name))
    for name in short[:left]:
        shares[name] += 1
        left -= 1
    _spread(shares, left)
    return shares


def _spread(shares: dict[str, int], left: int) -> None:
    """Add so many places that nobody needs, so that those with the fewest get more."""
    if left > 0:
        for at, name in enumerate(sorted(shares, key=lambda name: (shares[name], name))):
            more = -(-left // (len(shares) - at))
            shares[name] += more
            left -= more


def tenant_shares(
    capacity: float, wants: Mapping[str, Mapping[str, float]], terms: Mapping[str, tuple[int, float]]
) -> dict[str, float]:
    """Return how many of `capacity` places each member should have so that tenants get their shares: higher priorities first,
    then by weight. `wants`: of each member and tenant; `terms`: each tenant's priority and weight."""
    of_tenants: dict[str, dict[str, float]] = {}  # by tenant and member
    for member, mine in wants.items():
        for tenant, want in mine.items():
            of_tenants.setdefault(tenant, {})[member] = want
    shares = dict.fromkeys(wants, 0.0)
    left = max(capacity, 0.0)
    for band in sorted({terms[tenant][0] for tenant in of_tenants}):
        demands = {tenant: sum(by.values()) for tenant, by in of_tenants.items() if terms[tenant][0] == band}
        for tenant, share in _by_weight(left, demands, {tenant: terms[tenant][1] for tenant in demands}).items():
            left -= share
            for member, part in _by_weight(share, of_tenants[tenant], dict.fromkeys(of_tenants[tenant], 1.0)).items():
                shares[member] += part
    return shares


def _by_weight(capacity: float, demands: Mapping[str, float], weights: Mapping[str, float]) -> dict[str, float]:
    """Divide by weight, but give nobody more than it would use (weighted max-min fairness)."""
    shares: dict[str, float] = {}
    left, weight = max(capacity, 0.0), sum(weights.values(), 0.0)
    for name in sorted(demands, key=lambda name: demands[name] / weights[name]):  # first those that need least of their share
        shares[name] = min(demands[name], left * weights[name] / weight) if weight > 0 else 0.0
        left, weight = left - shares[name], weight - weights[name]
    return shares


def whole_places(
    capacity: int, exact: Mapping[str, float], demands: Mapping[str, int], turn: Callable[[str], tuple[float, float, int]]
) -> dict[str, int]:
    """Return shares in whole places: those with the lowest `turn` get the rest, and nobody more than it would use, unless
    everybody has that."""
    shares = {name: min(math.floor(exact.get(name, 0.0) + 1e-6), demand) for name, demand in demands.items()}
    left = max(capacity, 0) - sum(shares.values())
    while left > 0:
        short = [name for name, demand in demands.items() if shares[name] < demand]
        if not short:
            break
        short.sort(key=lambda name: (exact.get(name, 0.0) - shares[name] <= 1e-6, turn(name), name))
        for name in short[:left]:
            shares[name] += 1
            left -= 1
    _spread(shares, left)
    return shares


def equal_part(capacity: int, members: int, rank: int) -> int:
    """Return the part of the member with this `rank`, from 0, while each of `members` decides alone. All parts together are
    `capacity`; only if there are fewer places than members is it more, because each gets one: none would refuse all calls."""
    part = capacity // members + (rank < capacity % members)
    return min(max(part, 1), max(capacity, 0))


def part_alone(capacity: int, share: float) -> int:
    """Return the part of a member that knows of no others, by the configured share of it: at least one."""
    part = math.floor(capacity * share + 1e-9)  # so that 0.29 of 100 is 29
    return min(max(part, 1), max(capacity, 0))
