"""Compares the engines' own counters with the tokens that clients received, and raises an alarm when they diverge.

It queries each backend once per `counters_interval_s`, and never on the data path.
"""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, Protocol

import orjson

from hangup.config import ReportLimits
from hangup.core.call import Call
from hangup.core.divergence import AlarmTerms, CounterSample, DivergenceAlarm, DivergenceFinding
from hangup.core.engine_count import EngineCount
from hangup.core.history import History, HistoryLimits, HistorySample
from hangup.core.members import TokenRow, TokenSums
from hangup.core.reasons import Outcome
from hangup.gateway.accounting import Accounting
from hangup.gateway.backend_set import Backends
from hangup.gateway.backends import counters
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.busy import busy
from hangup.gateway.client_request import ClientRequest
from hangup.gateway.log import Log
from hangup.gateway.placement import Placement
from hangup.gateway.reaper import Reaper
from hangup.gateway.registry import CallRegistry
from hangup.gateway.tokens_seen import token_row, tokens_seen
from hangup.gateway.zombies import ZombieLedger
from hangup.no_redirects import open_url
from hangup.tasks import TASKS, Tasks

_SUSPECTS_MAX = 5  # tenants and calls named by an alarm
_NO_CALL_S = 1e-6  # sums of the same numbers may differ by their order; no call is as short as this
_ASKED_AT_A_TIME = 25  # backends in one turn of the loop: a thousand would hold up every client
_ASK_AGAIN = 12  # rounds before an engine without counters is queried again
_ENDED_EARLY = frozenset([Outcome.CLIENT_GONE, Outcome.DEADLINE, Outcome.CAP, Outcome.KILLED])


class MonitorSettings(Protocol):
    """The settings that the monitor uses."""

    @property
    def alarm_webhook(self) -> str: ...

    @property
    def limits(self) -> ReportLimits: ...


@dataclass(slots=True)
class Watched:
    """What the monitor knows about one backend."""

    alarm: DivergenceAlarm
    count: EngineCount = field(default_factory=EngineCount)
    counters: counters.ReportedCounters | None = None
    busy: float | None = None
    ask_in: int = 0  # rounds to skip
    zombie_ledger: ZombieLedger | None = None
    alone_since: float = -1.0  # the backend's call-seconds at the last query, if it had no call then; else -1
    sums: TokenSums = field(default_factory=TokenSums)
    judged: bool = False  # here, in the last round: with several processes, one does so for all
    received: int = 0  # tokens, by the last round

    @property
    def computed(self) -> int | None:
        """The tokens that the engine reports as computed since the first query; None while it reports none."""
        return self.count.computed if self.counters is not None and self.counters.tokens is not None else None


@dataclass
class DivergenceMonitor:
    settings: Callable[[], MonitorSettings]  # returns the current ones: a reload replaces them
    backends: Backends
    registry: CallRegistry[ClientRequest]
    placement: Placement
    reaper: Reaper
    accounting: Accounting
    log: Log
    watched: dict[str, Watched] = field(default_factory=dict)
    history: History = field(init=False)  # for the dashboard's graphs
    alarms_raised: int = 0
    _uncounted: int = 0  # tokens from engines that did not count them then
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _webhooks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        limits = self.settings().limits
        lengths = (limits.history_looks_max, limits.history_minutes_max, limits.history_quarters_max)
        self.history = History(HistoryLimits(*lengths, limits.history_groups_max))

    async def run(self) -> None:
        """Query all backends at intervals, until cancelled."""
        while True:
            try:
                await self.look()
                self._remember()
            except Exception as error:  # one odd answer must not end the loop
                self.log.fault(error)
            await asyncio.sleep(self.settings().limits.counters_interval_s)

    async def look(self) -> None:
        """Query every backend once. Rounds never overlap: answers out of order would look like a restart of the engine."""
        async with self._looking:
            await self._look()

    async def _look(self) -> None:
        backends = list(self.backends.by_name.values())
        for removed in self.watched.keys() - {backend.name for backend in backends}:
            del self.watched[removed]
        asked = Tasks("counters")
        try:
            for number, backend in enumerate(backends, 1):
                asked.start(self._ask_or_log(backend))
                if not number % _ASKED_AT_A_TIME:
                    await asyncio.sleep(0)
            await asked.wait()
        finally:
            await asked.close()
        others = {backend.name: await self.reaper.tokens_of_others(backend) for backend in backends}
        now = time.monotonic()
        seen = tokens_seen(self.accounting, self.registry)
        for backend in backends:
            watched, name = self.watched.get(backend.name), backend.name
            if watched is None or not self._judges(watched, others[name]):
                continue
            own = token_row(backend, seen, now)
            total = watched.sums.add_up(own, *(others[name] or ((), {})))
            if total is None:
                continue
            if not watched.judged:
                watched.judged = True
                watched.count.agree_on(total[0].seen)  # what was before is not known here
            elif total[1]:
                self._judge(backend, watched, total[0], now)
                self._settle(backend, watched, total[0], now)
            else:
                watched.alarm.restarted(now)  # nobody knows what a process received just before it ended

    def _judges(self, watched: Watched, others: object) -> bool:
        """Return whether this process judges the backend."""
        if others is None:
            watched.judged = True
        elif not self.reaper.leads:
            watched.judged, watched.sums, watched.zombie_ledger = False, TokenSums(), None
            watched.alarm = DivergenceAlarm(_terms(self.settings().limits))
        return others is None or self.reaper.leads

    async def _ask_or_log(self, backend: Backend) -> None:
        try:
            await self._ask(backend)
        except Exception as error:  # one odd answer says nothing about other engines
            self.log.fault(error)

    async def _ask(self, backend: Backend) -> None:
        watched = self.watched.setdefault(backend.name, Watched(DivergenceAlarm(_terms(self.settings().limits))))
        calls, call_s = await self.reaper.calls_of_others(backend)
        time_of = backend.load.time
        watched.alone_since = -1.0 if time_of.count or calls else time_of.call_s + call_s
        if watched.ask_in and watched.counters is None:
            watched.ask_in -= 1
        else:
            found = await counters.ask(backend)
            watched.ask_in = 0 if found is not None else _ASK_AGAIN
            if (found is None or found.running is None) and (status := self.reaper.status(backend)) is not None:
                # An engine without metrics: use the status that it reported to the reaper.
                found = counters.ReportedCounters(found.tokens if found is not None else status.tokens, float(status.running))
                watched.ask_in = 0
            self._note(backend.name, watched, found, shared=backend.settings.shared or not self.reaper.leads)
        watched.busy = await busy(backend, watched.counters, backend.limits.health_timeout_s)

    def _note(self, name: str, watched: Watched, found: counters.ReportedCounters | None, *, shared: bool) -> None:
        watched.counters = found
        if found is None or found.tokens is None:
            watched.count.lost_sight()
            return
        before = watched.count.computed
        if watched.count.note(found.tokens):
            watched.alarm.restarted(time.monotonic())
        if self.accounting.store is not None and before is not None and not shared:
            self.accounting.store.add_computed(name, (watched.count.computed or 0) - before)

    def _judge(self, backend: Backend, watched: Watched, total: TokenRow, now: float) -> None:
        if not backend.load.health.up:
            watched.alarm.restarted(now)
        sample = CounterSample(watched.computed, watched.busy, total.seen, total.unseen, total.call_s, total.served_s)
        if backend.settings.shared:  # other clients' work says nothing about ours
            sample = sample._replace(computed=None, busy=None)
        else:
            zombies = len(self.reaper.zombies_since(backend, now))
            by_itself = watched.busy is not None and backend.settings.busy_from == "engine"
            sample = sample._replace(zombies=zombies, runs=bool(by_itself and watched.busy), textless=total.textless)
        change = watched.alarm.observe(sample, now)
        if change is not None:
            self._report(backend.name, watched.alarm.finding)

    def _settle(self, backend: Backend, watched: Watched, total: TokenRow, now: float) -> None:
        """Record tokens that the engine counted and no client received. Zombies' tokens are recorded at once; the rest when
        neither the gateway nor the engine has a call. Nothing can be said about an engine that other clients use as well."""
        if backend.settings.shared:
            return
        if watched.zombie_ledger is None:
            watched.zombie_ledger = ZombieLedger(self.accounting, self.reaper, self.registry.ended, now, total.served_s)
        afterlives = watched.zombie_ledger
        count = watched.count if watched.computed is not None else None
        afterlives.record_zombies(backend, count, total.seen + total.unseen, total.served_s, now)
        if count is None or watched.counters is None or watched.counters.running != 0:
            return
        if not total.calls and abs(total.call_s - watched.alone_since) < _NO_CALL_S:  # otherwise a call came and went
            afterlives.record_rest(backend, count, total.seen, now)

    def _report(self, backend: str, finding: DivergenceFinding | None) -> None:
        fields: dict[str, Any] = {"backend": backend, "state": "raised" if finding else "ended"}
        if finding is not None:
            self.alarms_raised += 1
            fields |= {"signal": finding.signal, "excess": round(finding.excess, 3), "suspects": self.suspects(backend)}
        self.log.event("divergence_alarm_changed", **fields)
        url = self.settings().alarm_webhook
        if url:
            task = TASKS.start("webhook", self._send(url, {"event": "divergence_alarm_changed", **fields}))
            self._webhooks.add(task)
            task.add_done_callback(self._webhooks.discard)

    async def _send(self, url: str, fields: dict[str, Any]) -> None:
        try:
            await asyncio.to_thread(_post, url, orjson.dumps(fields), self.settings().limits.webhook_s)
        except (OSError, ValueError, HTTPException) as error:
            self.log.event("webhook_failed", error=type(error).__name__)

    def suspects(self, backend: str) -> dict[str, Any]:
        """Return the tenants and calls whose work may still run: calls that ended early and are not known to have stopped."""
        now = time.monotonic()
        ended = [call for call in self.registry.ended if call.backend == backend and _may_be_zombie(call)]
        rows = [(call.id, call.tenant, call.ended_at or now) for call in ended]
        rows += [(stop.call_id, stop.tenant, stop.at) for stop in self.reaper.pending_of_others(backend)]
        tenants = Counter(tenant for _, tenant, _ in rows)
        oldest = [{"id": id, "tenant": tenant, "ended_s_ago": round(now - at, 1)} for id, tenant, at in rows[:_SUSPECTS_MAX]]
        return {"tenants": [name for name, _ in tenants.most_common(_SUSPECTS_MAX)], "calls": oldest}

    def _remember(self) -> None:
        known = [watched.busy for watched in self.watched.values() if watched.busy is not None]
        computed = [watched.computed for watched in self.watched.values() if watched.computed is not None]
        seen = tokens_seen(self.accounting, self.registry).arrived
        for name, watched in self.watched.items():
            new, watched.received = max(seen[name] - watched.received, 0), seen[name]
            self._uncounted += new if watched.computed is None else 0
        sample = HistorySample(
            time.time(),
            time.monotonic(),
            busy=sum(known) / len(known) if known else None,
            computed=sum(computed) if computed else None,
            received=seen.total(),
            live=len(self.registry.live),
            waiting=self.placement.admission.queue.count,
            uncounted=self._uncounted,
        )
        self.history.note(sample, self.accounting.ledger.series.values())

    async def close(self) -> None:
        for task in self._webhooks:
            task.cancel()
        await asyncio.gather(*self._webhooks, return_exceptions=True)


def _terms(limits: ReportLimits) -> AlarmTerms:
    return AlarmTerms(
        limits.divergence_window_s, limits.divergence_hold_s, limits.divergence_share_max, limits.divergence_yield_min
    )


def _may_be_zombie(call: Call) -> bool:
    return call.outcome in _ENDED_EARLY and not call.engine_stopped


def _post(url: str, body: bytes, timeout_s: float) -> None:
    request = urllib.request.Request(url, body, {"content-type": "application/json"})  # noqa: S310 - from the configuration
    with open_url(request, timeout=timeout_s):
        pass
