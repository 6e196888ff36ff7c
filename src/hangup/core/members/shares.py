"""Divides places among members: by what they would use, or evenly while nobody can ask."""

from __future__ import annotations

import math
from collections.abc import Mapping


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
    if left:
        for at, name in enumerate(sorted(demands, key=lambda name: (shares[name], name))):
            more = -(-left // (len(demands) - at))
            shares[name] += more
            left -= more
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
