"""Divides places among members by what they would use."""

from __future__ import annotations

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
