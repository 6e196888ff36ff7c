"""Attributes the tokens that an engine computed and never sent to the calls that it did not stop.

The engine's counter says how many tokens there are, and the reaper says which calls they can belong to. Where the engine
reports single slots, the shares are exact; otherwise they follow the time that each call ran on, and are estimates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hangup.core.account import ZOMBIE, Account, Entry, Price
from hangup.core.reaper import PendingStop


class ZombieShare(NamedTuple):
    """One call's share of tokens and engine time."""

    stop: PendingStop
    tokens: int
    engine_s: float
    exact: bool  # the tokens are this call's own, not a share by time


def share(owners: Sequence[PendingStop], tokens: int | None, alone_s: float, since: float, now: float) -> list[ZombieShare]:
    """Return each call's share since the last time. `tokens` is None if the engine has no counter: then only its slots count.

    `alone_s` is how long the engine had no live call meanwhile: time that it used beside a live call is in that call's share
    already.
    """
    if not owners:
        return []
    known = [max((stop.tokens_since or 0) - stop.account.tokens_recorded, 0) for stop in owners]
    lived = [max(min(now, stop.released_at or now) - max(since, stop.at), 1e-6) for stop in owners]
    if tokens is None:
        counts = known
    else:
        weights: list[float] = [float(count) for count in known] if sum(known) else lived
        counts = _whole_parts(tokens, weights)
    exact = tokens is None or sum(known) > 0 or len(owners) == 1
    all_lived = sum(lived, 0.0)
    parts = zip(owners, counts, lived, strict=True)
    return [ZombieShare(stop, count, alone_s * time_s / all_lived, exact) for stop, count, time_s in parts]


def _whole_parts(total: int, weights: Sequence[float]) -> list[int]:
    """Split `total` by weight into whole numbers that add up to it."""
    parts, given, passed, sum_of_all = list[int](), 0, 0.0, sum(weights, 0.0)
    for weight in weights:
        passed += weight
        upto = round(total * passed / sum_of_all)
        parts.append(upto - given)
        given = upto
    return parts


def entry(backend: str, part: ZombieShare, price: Price) -> Entry:
    """Return one share as an account entry."""
    stop, money = part.stop, price.of(part.engine_s, part.tokens)
    account = Account(
        tokens_wasted=part.tokens,
        tokens_estimated=0 if part.exact else part.tokens,
        engine_s=part.engine_s,
        engine_wasted_s=part.engine_s,
        money=money,
        money_wasted=money,
    )
    return Entry(stop.tenant, stop.model, backend, ZOMBIE, account)


def not_saved(backend: str, stop: PendingStop) -> Entry:
    """Return an `Entry` that takes back the savings of a call whose engine did not stop."""
    tokens, money = stop.account.saved
    stop.account.saved = (0, 0.0)
    return Entry(stop.tenant, stop.model, backend, stop.cause, Account(tokens_saved=-tokens, money_saved=-money))
