"""Records what engines compute for calls that have ended: whose work it is, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable

from hangup.core import zombie_shares
from hangup.core.account import ZOMBIE, unexplained
from hangup.core.call import Call
from hangup.core.engine_count import EngineCount
from hangup.core.reaper import PendingStop
from hangup.gateway.accounting import Accounting
from hangup.gateway.backends.backend import Backend
from hangup.gateway.reaper import Reaper


class ZombieLedger:
    """The record of one backend."""

    def __init__(self, accounting: Accounting, reaper: Reaper, ended: Iterable[Call], now: float, busy_s: float) -> None:
        self._accounting = accounting
        self._reaper = reaper
        self._ended = ended  # recently ended calls
        self._looked_at, self._busy_s = now, busy_s  # the last round's time, and the backend's busy seconds at that time
        self._rested_at = now

    def record_zombies(self, backend: Backend, count: EngineCount | None, seen: int, busy_s: float, now: float) -> None:
        """Record the zombies' tokens and engine time since the last round. `count` is None if the engine counts no tokens;
        `seen` are all tokens that arrived, or may have arrived unseen; `busy_s` is how long the backend had live calls."""
        since, before = self._looked_at, self._busy_s
        self._looked_at, self._busy_s = now, busy_s
        owners = self._reaper.zombies_since(backend, since)
        if not owners:
            return
        tokens = None
        if count is not None:
            tokens = max(count.ahead(seen), 0)
            count.name(tokens)
        alone_s = max(now - since - (self._busy_s - before), 0.0)
        self._record(backend, owners, tokens, alone_s, since, now)

    def record_rest(self, backend: Backend, count: EngineCount, seen: int, now: float) -> None:
        """Record the remaining tokens while neither the gateway nor the engine has a call. They belong to the calls that were
        stopped since the last such moment; without any, they are unexplained."""
        found = count.settle(seen)
        since, self._rested_at = self._rested_at, now
        if self._accounting.store is None:
            return
        self._accounting.store.add_uncounted(backend.name, found.uncounted)
        if not found.nobodys:
            return
        ended = [stop for call in self._ended for stop in call.pending_stops if call.backend == backend.name]
        ended += self._reaper.stops_of_others(backend)
        owners = [stop for stop in ended if stop.at >= since]
        if owners:
            self._record(backend, owners, found.nobodys, 0.0, since, now)
        else:
            self._accounting.store.add(unexplained(backend.name, found.nobodys))

    def _record(
        self,
        backend: Backend,
        owners: list[PendingStop],
        tokens: int | None,
        alone_s: float,
        since: float,
        now: float,
    ) -> None:
        price = self._accounting.price_of(backend.name)
        for part in zombie_shares.share(owners, tokens, alone_s, since, now):
            stop = part.stop
            stop.account.tokens_recorded += part.tokens
            stop.account.estimated = stop.account.estimated or not (part.exact or not part.tokens)
            self._accounting.ledger.add_tokens(stop.tenant, backend.name, ZOMBIE, part.tokens)
            if self._accounting.store is None:
                continue
            if any(stop.account.saved) and stop.zombie_since is not None:
                self._accounting.store.add(zombie_shares.not_saved(backend.name, stop))
            if part.tokens or part.engine_s:
                self._accounting.store.add(zombie_shares.entry(backend.name, part, price))
