"""Runs items of jobs: claims some from the store, sends each as a gateway call, and stores the results.

    claim ──▶ hand ──▶ the gateway's job queue ──▶ call ──▶ result ──▶ store ──▶ ledger
               ▲  └── only a few items per tenant wait in that queue: admission decides whose item is next
               └───── retry: the item made way for a live client, or its engine failed

The "hand" holds items that are claimed and not yet sent. The ledger gets the entry of a result only after the store has the
result, so that an item which runs again after a crash is not billed twice.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from hangup.config import JobLimits
from hangup.core import reasons
from hangup.core.account import Entry
from hangup.core.call import Call
from hangup.core.jobs import AfterEffects, ItemState, after
from hangup.core.reaper import PendingStop, StopState
from hangup.core.reasons import Outcome, Reason
from hangup.gateway.jobs.item_client import ItemClient
from hangup.gateway.jobs.result_writer import ItemOutcome, ResultWriter
from hangup.gateway.store.database import StoreFailed
from hangup.gateway.store.jobs import Job, JobStore
from hangup.tasks import Tasks

_IN_LINE = 2  # items per tenant in the gateway's queue: enough that a free slot never waits for us
_HAND_MIN, _HAND_MAX = 8, 256  # items claimed and not yet sent
_HAND_BYTES_MAX = 8 * 1024 * 1024
_RELEASES_MAX = 10_000  # cancelled jobs for which we remember how their engines stopped
_AFTER_MAX_S = 600.0  # longest `retry-after` that we honour
_AGAIN_S, _AGAIN_MAX_S = 0.5, 30.0  # pause before a retry; doubles each time


class RunnerHost(Protocol):
    """The gateway, as the runner sees it."""

    @property
    def limits(self) -> JobLimits: ...

    def run_item(self, item: ItemClient, id: str, headers: dict[str, str]) -> None:
        """Start a call for the item; `ItemClient.over` follows, perhaps before this returns."""

    def jobs_waiting(self, tenant: str) -> int: ...

    def limits_of_tenant(self, tenant: str) -> JobLimits: ...

    def record_cost(self, entry: Entry) -> None: ...

    def when_confirmed(self, stop: PendingStop, callback: Callable[[], None]) -> None:
        """Call back once the engine has stopped."""

    def told(self, event: str, **fields: object) -> None: ...

    def fault(self, error: Exception) -> None:
        """Log a bug of ours."""


class ItemEvents(Protocol):
    """Receives the events of items; implemented by `JobRegistry`."""

    def sending(self, item: ItemClient) -> dict[str, str]:
        """Prepare for an item that is about to be sent; return the headers for its call."""

    def result(self, item: ItemClient, call: Call) -> tuple[bytes | None, bytes | None]:
        """Return what to store of an answer: the result and the events before it. No result: none could be made of it."""

    def changed(self, job: Job) -> None: ...

    def unwanted(self, key: int) -> Reason | None:
        """Return why a job's items must not run if it was cancelled and the store does not know that yet."""


@dataclass(slots=True)
class _TenantItems:
    """A tenant's items between the store and the gateway."""

    calls: deque[ItemClient] = field(default_factory=deque)  # claimed items of single calls, sent first,
    hand: deque[ItemClient] = field(default_factory=deque)  # then claimed items of batches
    sent: int = 0
    more: bool = True  # the store may have queued items
    urgent: bool = False  # among them a single call
    claiming: bool = False
    feeding: bool = False

    def __len__(self) -> int:
        return len(self.calls) + len(self.hand)

    def of(self, item: ItemClient) -> deque[ItemClient]:
        return self.calls if item.single else self.hand

    def next(self) -> ItemClient:
        return (self.calls or self.hand).popleft()


class ItemRunner:
    """Owns all items that this process has claimed, from the claim until their end is handed to `ResultWriter`."""

    def __init__(
        self, store: JobStore, worker: int, host: RunnerHost, item_events: ItemEvents, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._store = store
        self._worker = worker
        self._host = host
        self._item_events = item_events
        self._loop = loop
        self._lines: dict[str, _TenantItems] = {}
        self._releases: dict[int, StopState] = {}  # how engines stopped cancelled jobs, latest last
        self._items: dict[int, dict[int, ItemClient]] = {}  # all claimed items, by job and number
        self._pausing: dict[ItemClient, asyncio.TimerHandle] = {}
        self._claims = Tasks("job claims")
        self._stopped = False
        self.writer = ResultWriter(store, host, item_events.changed, self._store_works, loop)

    @property
    def running(self) -> int:
        return sum(item.flow is not None for item in self._all())

    def running_of(self, key: int) -> int:
        """Return how many of a job's items have a call in this process."""
        return sum(item.flow is not None for item in self._items.get(key, {}).values())

    def wake(self, tenant: str, *, urgent: bool = False) -> None:
        """Look for items of this tenant to run; `urgent` if one is a single call, which need not wait behind batches."""
        line = self._lines.setdefault(tenant, _TenantItems())
        line.more = True
        line.urgent = line.urgent or urgent
        self._feed_soon(tenant)

    def hang_up(self, key: int, reason: Reason) -> None:
        """Cancel all items of a job: stop running items in their engines, and end the others at once."""
        for item in list(self._items.get(key, {}).values()):
            idle = item.flow is None and item.stopping is None
            item.hang_up(reason)
            if idle:
                self._withdraw(item)
                self._finish(item, _stopped_state(item))

    def unknown(self, claimed: set[tuple[int, int, int]]) -> set[tuple[int, int, int]]:
        """Return which claimed items (job, number, fence) we do not know; none while a claim or write is pending."""
        if not self.writer.idle or any(line.claiming for line in self._lines.values()):
            return set()
        return claimed - {(e.claim.key, e.claim.n, e.claim.fence) for e in self._all()}

    def item(self, key: int, n: int) -> ItemClient | None:
        return self._items.get(key, {}).get(n)

    def _all(self) -> list[ItemClient]:
        return [item for items in self._items.values() for item in items.values()]

    # From the store to the gateway

    def _feed_soon(self, tenant: str) -> None:
        line = self._lines[tenant]
        if not line.feeding:
            line.feeding = True
            self._loop.call_soon(self._feed, tenant, line)

    def _feed(self, tenant: str, line: _TenantItems) -> None:
        line.feeding = False
        if self._stopped:
            return
        while len(line) and not self.writer.full and self._host.jobs_waiting(tenant) < _IN_LINE:
            self._send(line.next(), line)
        wanted = min(max(_HAND_MIN, 2 * line.sent), _HAND_MAX)
        wants = line.more and (line.urgent or len(line) <= wanted // 2)
        if wants and not line.claiming and not self.writer.failing and not self.writer.full:
            line.claiming, line.urgent = True, False
            self._claims.start(self._claim(tenant, line, max(wanted - len(line), 1)))

    def _send(self, item: ItemClient, line: _TenantItems) -> None:
        line.sent += 1
        item.attempts += 1
        claim = item.claim
        again = f"-{item.attempts}" if item.attempts > 1 else ""
        try:
            self._host.run_item(item, f"{claim.job}.{claim.n}{again}", self._item_events.sending(item))
        except Exception as error:  # no call has it, so nobody else would ever end it
            line.sent -= 1
            self._failed(item, error)

    def _failed(self, item: ItemClient, error: Exception) -> None:
        """End an item after a bug of ours, without a result."""
        self._host.fault(error)
        self._finish(item, ItemState.ERRORED)

    async def _claim(self, tenant: str, line: _TenantItems, count: int) -> None:
        store, worker = self._store, self._worker
        try:
            claims = await store.do(lambda: store.jobs.claim(worker, tenant, count, _HAND_BYTES_MAX, time.time()))
        except StoreFailed as failure:
            self.writer.failed(failure)
            return
        finally:
            line.claiming = False
        line.more = bool(claims)
        for job in {claim.key: claim.of for claim in claims}.values():
            self._item_events.changed(job)  # before any item is sent: the job may be new to this process
        for claim in claims:
            self._take(ItemClient(claim, tenant, self._loop, self), line)
        for key in {claim.key for claim in claims}:
            reason = self._item_events.unwanted(key)
            if reason is not None:
                self.hang_up(key, reason)
        if self._stopped:
            self._give_back([*line.calls, *line.hand])
            line.calls.clear()
            line.hand.clear()
        elif claims:
            self._feed_soon(tenant)

    def _take(self, item: ItemClient, line: _TenantItems) -> None:
        before = self.item(item.claim.key, item.claim.n)
        if before is not None:  # we have claimed the item again, so the earlier claim is stale
            self._drop(before)
        self._items.setdefault(item.claim.key, {})[item.claim.n] = item
        line.of(item).append(item)

    # From the gateway

    def item_started(self, item: ItemClient) -> None:
        self._feed_soon(item.tenant)

    def item_ended(self, item: ItemClient, call: Call, stop: PendingStop | None, entry: Entry) -> None:
        line = self._lines[item.tenant]
        line.sent -= 1
        try:
            self._after(item, line, call, stop, entry)
        except Exception as error:
            self._failed(item, error)
        self._feed_soon(item.tenant)

    def _after(self, item: ItemClient, line: _TenantItems, call: Call, stop: PendingStop | None, entry: Entry) -> None:
        """Do with an item what follows from the end of its call: keep a result, run it again, or give it back."""
        assert call.reason is not None
        item.failures += call.reason.outcome is Outcome.ENGINE_FAILED
        item.yields += call.reason is reasons.PREEMPTED
        stopping = item.stopping is not None
        what = after(
            call.reason,
            call.status,
            stopping=stopping,
            failures=item.failures,
            failures_max=self._host.limits.job_failures_max,
        )
        if what in (AfterEffects.SUCCEEDED, AfterEffects.ERRORED):
            body, events = self._item_events.result(item, call)
            self._finish(item, ItemState(what) if body is not None else ItemState.ERRORED, body, events, entry)
        else:
            self._host.record_cost(_without_result(entry, call.reason))
            if what is AfterEffects.AGAIN and not self._stopped:
                self._again(item, line)
            elif what is AfterEffects.CANCELLED:
                self._when_gone(item, stop)
            else:
                self._give_back([item])

    def _again(self, item: ItemClient, line: _TenantItems) -> None:
        """Retry an item after a pause, also if it made way for a live client, since more live clients are likely to follow."""
        item.body.clear()
        pause = min(_AGAIN_S * 2 ** min(item.attempts - 1, 10), _AGAIN_MAX_S)
        pause = max(pause, min(item.retry_after_s, _AFTER_MAX_S)) * random.uniform(1.0, 1.25)  # noqa: S311
        self._pausing[item] = self._loop.call_later(pause, self._paused, item, line)

    def _paused(self, item: ItemClient, line: _TenantItems) -> None:
        del self._pausing[item]
        line.of(item).append(item)
        self._feed_soon(item.tenant)

    def _when_gone(self, item: ItemClient, stop: PendingStop | None) -> None:
        """End a cancelled item when the reaper has settled its `PendingStop`, and not before."""
        state = _stopped_state(item)
        if stop is None:
            self._finish(item, state)
        else:
            self._host.when_confirmed(stop, partial(self._gone, item, state, stop))

    def _gone(self, item: ItemClient, state: ItemState, stop: PendingStop) -> None:
        key, worst = item.claim.key, list(StopState)
        known = self._releases.pop(key, stop.state)
        self._releases[key] = max(known, stop.state, key=worst.index)
        while len(self._releases) > _RELEASES_MAX:
            del self._releases[next(iter(self._releases))]
        self._finish(item, state)

    def release_of(self, key: int) -> str | None:
        """Return the worst `StopState` among a job's cancelled items; None if none was running, or if we have forgotten it."""
        fate = self._releases.get(key)
        return fate.value if fate is not None else None

    def _withdraw(self, item: ItemClient) -> None:
        """Take an item out of the hand or its retry pause, so that it is not sent."""
        timer = self._pausing.pop(item, None)
        if timer is not None:
            timer.cancel()
        hand = self._lines[item.tenant].of(item)
        if item in hand:
            hand.remove(item)

    # Back to the store

    def _finish(
        self,
        item: ItemClient,
        state: ItemState,
        body: bytes | None = None,
        events: bytes | None = None,
        entry: Entry | None = None,
    ) -> None:
        if self._let_go(item):  # otherwise we no longer own it
            self.writer.finish(ItemOutcome(item.claim, state, body, events, entry))

    def _give_back(self, items: list[ItemClient]) -> None:
        for item in items:
            if self._let_go(item):
                self.writer.give_back(item.claim)

    def _let_go(self, item: ItemClient) -> bool:
        """Forget an item; return False if we do not own it, or own it under a later claim."""
        key, n = item.claim.key, item.claim.n
        items = self._items.get(key, {})
        if items.get(n) is not item:
            return False
        del items[n]
        if not items:
            del self._items[key]
        return True

    def _store_works(self) -> None:
        for tenant in self._lines:
            self.wake(tenant)

    # Shutdown

    def stop(self) -> None:
        """Start no more items: give back those that are not running; running items may finish."""
        self._stopped = True
        for line in self._lines.values():
            line.calls.clear()
            line.hand.clear()
        for timer in self._pausing.values():
            timer.cancel()
        self._pausing.clear()
        self._give_back([item for item in self._all() if item.flow is None and item.stopping is None])
        for item in [e for e in self._all() if e.flow is not None and e.flow.call.sent_at is None]:
            assert item.flow is not None
            item.flow.end(reasons.DRAINED)

    def drop_all(self, worker: int) -> None:
        """Stop all items and start afresh as `worker`, because others declared us dead and may own our items.

        All items are given back in case nobody owns them; if somebody does, the store refuses our stale fence.
        """
        self._worker = worker
        for item in self._all():
            self._drop(item)
        for tenant in self._lines:
            self.wake(tenant)

    def _drop(self, item: ItemClient) -> None:
        """Stop an item that we may no longer own; one that is already cancelled stays until its engine has stopped."""
        if item.flow is not None:
            item.flow.end(reasons.TAKEN_OVER)  # `item_ended` gives it back
        elif item.stopping is None:
            self._withdraw(item)
            self._give_back([item])

    async def close(self) -> None:
        """Write all pending results. Every call must have ended."""
        self._stopped = True
        self._items.clear()  # the rest wait for an engine to stop; the registry gives their claims back
        await self._claims.wait()
        await self.writer.close()


def _without_result(entry: Entry, reason: Reason) -> Entry:
    """Book an answer that is retried as shed: an engine without room completed nothing, though its answer was complete."""
    return entry._replace(cause=Outcome.SHED.value) if reason.outcome is Outcome.COMPLETED else entry


def _stopped_state(item: ItemClient) -> ItemState:
    return ItemState.EXPIRED if item.stopping is reasons.WINDOW_PASSED else ItemState.CANCELLED
