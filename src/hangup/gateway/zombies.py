"""Books what engines compute for calls that are over, as it is learned: to whom it belongs, and what it costs."""

from __future__ import annotations

from hangup.core import zombie_shares
from hangup.core.account import ZOMBIE, nobodys
from hangup.core.engine_count import EngineCount
from hangup.core.reaper import PendingStop
from hangup.gateway.backends.backend import Backend
from hangup.gateway.gateway import Gateway


class ZombieLedger:
    """One backend's."""

    def __init__(self, now: float, busy_s: float) -> None:
        self._looked_at, self._busy_s = now, busy_s  # then, and how long it had had live calls
        self._rested_at = now

    def look(self, gateway: Gateway, backend: Backend, count: EngineCount | None, seen: int, now: float) -> None:
        """`count` is None where the engine counts no tokens; `seen` are all that came, or may have come unseen."""
        since, before = self._looked_at, self._busy_s
        self._looked_at, self._busy_s = now, backend.load.time.busy_s
        owners = gateway.stopping.reaper.haunting(backend, since)
        if not owners:
            return
        tokens = None
        if count is not None:
            tokens = max(count.ahead(seen), 0)
            count.name(tokens)
        alone_s = max(now - since - (self._busy_s - before), 0.0)
        self._book(gateway, backend, owners, tokens, alone_s, since, now)

    def rest(self, gateway: Gateway, backend: Backend, count: EngineCount, seen: int, now: float) -> None:
        """Neither side has anything at work: what is left over belongs to those that ended since the last rest, if any did."""
        found = count.settle(seen)
        since, self._rested_at = self._rested_at, now
        if gateway.accounting.store is None:
            return
        gateway.accounting.store.uncounted(backend.name, found.uncounted)
        if not found.nobodys:
            return
        ended = [left for call in gateway.registry.ended for left in call.leftovers if call.backend == backend.name]
        owners = [left for left in ended if left.at >= since]
        if owners:
            self._book(gateway, backend, owners, found.nobodys, 0.0, since, now)
        else:
            gateway.accounting.store.add(nobodys(backend.name, found.nobodys))

    def _book(
        self,
        gateway: Gateway,
        backend: Backend,
        owners: list[PendingStop],
        tokens: int | None,
        alone_s: float,
        since: float,
        now: float,
    ) -> None:
        price = gateway.accounting.price_of(backend.name)
        for part in zombie_shares.share(owners, tokens, alone_s, since, now):
            left = part.left
            left.account.booked += part.tokens
            left.account.estimated = left.account.estimated or not (part.exact or not part.tokens)
            gateway.accounting.ledger.tokens[left.tenant, backend.name, ZOMBIE] += part.tokens
            if gateway.accounting.store is None:
                continue
            if any(left.account.saved) and left.zombie_since is not None:
                gateway.accounting.store.add(zombie_shares.not_saved(backend.name, left))
            if part.tokens or part.engine_s:
                gateway.accounting.store.add(zombie_shares.entry(backend.name, part, price))
