"""One level of `tokens_per_minute` for all members: the hub adds up what they charged, and tells them the level.

A member decides with the hub's level, less what it has charged since. So a tenant gets no more than its tokens and what other
members granted within the time that a report takes. Totals are sent, not differences: a report that is lost loses nothing.

While the hub is silent, a member uses its part of what it knew (`Allowance`): all of them together grant no more than the rate.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hangup.core.admission.tenants import Allowance


class TokensCharged(NamedTuple):
    """What a member charged a tenant so far."""

    tenant: str
    per_minute: int
    charged: float
    level: float = 0.0  # what is left, as far as the member knows; only a new hub uses it


class TokenLevel(NamedTuple):
    """What is left of a tenant's tokens, with how much of a member's own charges was taken into account."""

    tenant: str
    level: float
    included: float


class TokenBank:
    def __init__(self) -> None:
        self._accounts: dict[str, Allowance] = {}  # by tenant
        self._charged: dict[str, dict[str, float]] = {}  # by member and tenant

    def __len__(self) -> int:
        return len(self._accounts)

    def note(self, member: str, rows: Iterable[TokensCharged], now: float) -> None:
        """Note what a member has charged so far."""
        known = self._charged.setdefault(member, {})
        for row in rows:
            account = self._accounts.get(row.tenant)
            if account is None:
                account = self._accounts[row.tenant] = Allowance(row.per_minute)
            account.remaining(now)
            account.per_minute = row.per_minute
            account.charge(row.charged - known.get(row.tenant, 0.0))  # less than nothing: a call was shorter than predicted
            known[row.tenant] = row.charged

    def learn(self, member: str, rows: Iterable[TokensCharged], now: float) -> None:
        """Note what a member had charged before this hub knew it: that is part of the level that it knows. Of several levels,
        the lowest counts."""
        known = self._charged.setdefault(member, {})
        for row in rows:
            account = self._accounts.get(row.tenant)
            if account is None:
                account = self._accounts[row.tenant] = Allowance(row.per_minute)
            account.charge(max(account.remaining(now) - row.level, 0.0))
            known[row.tenant] = row.charged

    def leave(self, member: str) -> None:
        self._charged.pop(member, None)

    def levels(self, member: str, now: float) -> list[TokenLevel]:
        """Return the levels of all tenants, for one member."""
        known = self._charged.get(member, {})
        return [TokenLevel(name, account.remaining(now), known.get(name, 0.0)) for name, account in self._accounts.items()]
