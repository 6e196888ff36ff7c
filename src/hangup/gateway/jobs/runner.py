"""Runs items of jobs: claims some from the store, sends each as a gateway call, and stores the results.

    claim ──▶ hand ──▶ the gateway's job queue ──▶ call ──▶ result ──▶ store ──▶ ledger
               ▲  └── only a few items per tenant wait in that queue: admission decides whose item is next
               └───── retry: the item made way for a live client, or its engine failed

The "hand" holds items that are claimed and not yet sent. The ledger gets the entry of a result only after the store has the
result, so that an item which runs again after a crash is not billed twice.
"""

from __future__ import annotations

import asyncio
import math
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
from hangup.gateway.store.jobs import Job, JobStore
from hangup.gateway.store.worker_thread import StoreFailed
from hangup.tasks import TASKS, Tasks

_WAITING_PER_TENANT = 2  # items per tenant in the gateway's queue: enough that a free slot never waits for us
_CLAIMED_MIN, _CLAIMED_MAX = 8, 256  # items claimed and not yet sent
_CLAIM_BYTES_MAX = 8 * 1024 * 1024
_STOP_STATES_MAX = 10_000  # cancelled jobs for which we remember how their engines stopped
_RETRY_AFTER_MAX_S = 600.0  # longest `retry-after` that we honour
_ABANDON_S = 1.0  # for the event loop to learn how the last work of a closed store ended
_RETRY_S, _RETRY_MAX_S = 0.5, 30.0  # pause before a retry; doubles each time


class RunnerHost(Protocol):
    """The gateway, as the runner sees it."""

    @property
    def limits(self) -> JobLimits: ...

    def run_item(self, item: ItemClient, id: str, headers: dict[str, str]) -> None:
        """Start a call for the item; `ItemClient.call_ended` follows, perhaps before this returns."""

    def jobs_waiting(self, tenant: str) -> int: ...

    def limits_of_tenant(self, tenant: str) -> JobLimits: ...

    def record_cost(self, entry: Entry) -> None: ...

    def when_confirmed(self, stop: PendingStop, callback: Callable[[], None]) -> None:
        """Call back once the engine has stopped."""

    def log_event(self, event: str, **fields: object) -> None: ...

    def fault(self, error: Exception) -> None:
        """Log a bug of ours."""


class ItemEvents(Protocol):
    """Receives the events of items; implemented by `JobRegistry`."""

    def prepare_item(self, item: ItemClient) -> dict[str, str]:
        """Prepare for an item that is about to be sent; return the headers for its call."""

    def render_result(self, item: ItemClient, call: Call) -> tuple[bytes | None, bytes | None]:
        """Return what to store of an answer: the result and the events before it. No result: none could be made of it."""

    def job_changed(self, job: Job) -> None: ...

    def cancel_reason(self, key: int) -> Reason | None:
        """Return why a job's items must not run if it was cancelled and the store does not know that yet."""


@dataclass(slots=True)
class _TenantItems:
    """A tenant's items between the store and the gateway."""

    single_items: deque[ItemClient] = field(default_factory=deque)  # claimed items of single calls, sent first,
    batch_items: deque[ItemClient] = field(default_factory=deque)  # then claimed items of batches
    sent: int = 0
    more_in_store: bool = True  # the store may have queued items
    urgent: bool = False  # among them a single call
    claiming: bool = False
    dispatch_scheduled: bool = False

    def __len__(self) -> int:
        return len(self.single_items) + len(self.batch_items)

    def queue_of(self, item: ItemClient) -> deque[ItemClient]:
        return self.single_items if item.single else self.batch_items

    def pop_next(self) -> ItemClient:
        return (self.single_items or self.batch_items).popleft()


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
        self._tenants: dict[str, _TenantItems] = {}
        self._stop_states: dict[int, StopState] = {}  # how engines stopped cancelled jobs, latest last
        self._items: dict[int, dict[int, ItemClient]] = {}  # all claimed items, by job and number
        self._retry_timers: dict[ItemClient, asyncio.TimerHandle] = {}
        self._claim_tasks = Tasks("job claims")
        self._stopped = False
        self._last_writes: asyncio.Task[None] | None = None
        self.writer = ResultWriter(store, host, item_events.job_changed, self._on_store_recovered, loop)

    @property
    def running(self) -> int:
        return sum(item.flow is not None for item in self._all_items())

    def running_of(self, key: int) -> int:
        """Return how many of a job's items have a call in this process."""
        return sum(item.flow is not None for item in self._items.get(key, {}).values())

    def wake(self, tenant: str, *, urgent: bool = False) -> None:
        """Look for items of this tenant to run; `urgent` if one is a single call, which need not wait behind batches."""
        tenant_items = self._tenants.setdefault(tenant, _TenantItems())
        tenant_items.more_in_store = True
        tenant_items.urgent = tenant_items.urgent or urgent
        self._dispatch_soon(tenant)

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
        if not self.writer.idle or any(tenant_items.claiming for tenant_items in self._tenants.values()):
            return set()
        return claimed - {(item.claim.job_key, item.claim.n, item.claim.fence) for item in self._all_items()}

    def item(self, key: int, n: int) -> ItemClient | None:
        return self._items.get(key, {}).get(n)

    def _all_items(self) -> list[ItemClient]:
        return [item for items in self._items.values() for item in items.values()]

    # From the store to the gateway

    def _dispatch_soon(self, tenant: str) -> None:
        tenant_items = self._tenants[tenant]
        if not tenant_items.dispatch_scheduled:
            tenant_items.dispatch_scheduled = True
            self._loop.call_soon(self._dispatch, tenant, tenant_items)

    def _dispatch(self, tenant: str, tenant_items: _TenantItems) -> None:
        tenant_items.dispatch_scheduled = False
        if self._stopped:
            return
        while len(tenant_items) and not self.writer.hold_up_if_full() and self._host.jobs_waiting(tenant) < _WAITING_PER_TENANT:
            self._send(tenant_items.pop_next(), tenant_items)
        wanted = min(max(_CLAIMED_MIN, 2 * tenant_items.sent), _CLAIMED_MAX)
        # A single call need not wait behind the batches in the hand; behind other single calls it waits in the store as well.
        in_front = len(tenant_items.single_items) if tenant_items.urgent else len(tenant_items)
        claim_more = tenant_items.more_in_store and in_front <= wanted // 2
        if claim_more and not tenant_items.claiming and not self.writer.failing and not self.writer.hold_up_if_full():
            tenant_items.claiming, tenant_items.urgent = True, False
            self._claim_tasks.start(self._claim(tenant, tenant_items, max(wanted - len(tenant_items), 1)))

    def _send(self, item: ItemClient, tenant_items: _TenantItems) -> None:
        tenant_items.sent += 1
        item.attempts += 1
        claim = item.claim
        retry_suffix = f"-{item.attempts}" if item.attempts > 1 else ""
        try:
            self._host.run_item(item, f"{claim.job_id}.{claim.n}{retry_suffix}", self._item_events.prepare_item(item))
        except Exception as error:  # no call has it, so nobody else would ever end it
            tenant_items.sent -= 1
            self._failed(item, error)

    def _failed(self, item: ItemClient, error: Exception) -> None:
        """End an item after a bug of ours, without a result."""
        self._host.fault(error)
        self._finish(item, ItemState.ERRORED)

    async def _claim(self, tenant: str, tenant_items: _TenantItems, count: int) -> None:
        store, worker = self._store, self._worker
        try:
            claims = await store.do(lambda: store.jobs.claim(worker, tenant, count, _CLAIM_BYTES_MAX, time.time()))
        except StoreFailed as failure:
            self.writer.store_failed(failure)
            return
        finally:
            tenant_items.claiming = False
        tenant_items.more_in_store = bool(claims)
        for job in {claim.job_key: claim.job for claim in claims}.values():
            self._item_events.job_changed(job)  # before any item is sent: the job may be new to this process
        for claim in claims:
            self._add(ItemClient(claim, tenant, self._loop, self), tenant_items)
        for key in {claim.job_key for claim in claims}:
            reason = self._item_events.cancel_reason(key)
            if reason is not None:
                self.hang_up(key, reason)
        if self._stopped:
            self._give_back([*tenant_items.single_items, *tenant_items.batch_items])
            tenant_items.single_items.clear()
            tenant_items.batch_items.clear()
        elif claims:
            self._dispatch_soon(tenant)

    def _add(self, item: ItemClient, tenant_items: _TenantItems) -> None:
        earlier = self.item(item.claim.job_key, item.claim.n)
        if earlier is not None:  # we have claimed the item again, so the earlier claim is stale
            self._drop(earlier)
        self._items.setdefault(item.claim.job_key, {})[item.claim.n] = item
        tenant_items.queue_of(item).append(item)

    # From the gateway

    def item_started(self, item: ItemClient) -> None:
        self._dispatch_soon(item.tenant)

    def item_ended(self, item: ItemClient, call: Call, stop: PendingStop | None, entry: Entry) -> None:
        tenant_items = self._tenants[item.tenant]
        tenant_items.sent -= 1
        try:
            self._after(item, tenant_items, call, stop, entry)
        except Exception as error:
            self._failed(item, error)
        self._dispatch_soon(item.tenant)

    def _after(self, item: ItemClient, tenant_items: _TenantItems, call: Call, stop: PendingStop | None, entry: Entry) -> None:
        """Do with an item what follows from the end of its call: keep a result, run it again, or give it back."""
        assert call.reason is not None
        item.failures += call.reason.outcome is Outcome.ENGINE_FAILED
        item.yields += call.reason is reasons.PREEMPTED
        stopping = item.stopping is not None
        next_step = after(
            call.reason,
            call.status,
            stopping=stopping,
            failures=item.failures,
            failures_max=self._host.limits.job_failures_max,
        )
        if next_step in (AfterEffects.SUCCEEDED, AfterEffects.ERRORED):
            body, events = self._item_events.render_result(item, call)
            self._finish(item, ItemState(next_step) if body is not None else ItemState.ERRORED, body, events, entry)
        else:
            self._host.record_cost(_as_shed(entry, call.reason))
            if next_step is AfterEffects.AGAIN and not self._stopped:
                self._retry_later(item, tenant_items)
            elif next_step is AfterEffects.CANCELLED:
                self._finish_when_stopped(item, stop)
            else:
                self._give_back([item])

    def _retry_later(self, item: ItemClient, tenant_items: _TenantItems) -> None:
        """Retry an item after a pause, also if it made way for a live client, since more live clients are likely to follow."""
        item.body.clear()
        pause = min(_RETRY_S * 2 ** min(item.attempts - 1, 10), _RETRY_MAX_S)
        pause = max(pause, min(item.retry_after_s, _RETRY_AFTER_MAX_S)) * random.uniform(1.0, 1.25)  # noqa: S311
        self._retry_timers[item] = self._loop.call_later(pause, self._retry, item, tenant_items)

    def _retry(self, item: ItemClient, tenant_items: _TenantItems) -> None:
        del self._retry_timers[item]
        tenant_items.queue_of(item).append(item)
        self._dispatch_soon(item.tenant)

    def _finish_when_stopped(self, item: ItemClient, stop: PendingStop | None) -> None:
        """End a cancelled item when the reaper has settled its `PendingStop`, and not before."""
        state = _stopped_state(item)
        if stop is None:
            self._finish(item, state)
        else:
            self._host.when_confirmed(stop, partial(self._on_stop_confirmed, item, state, stop))

    def _on_stop_confirmed(self, item: ItemClient, state: ItemState, stop: PendingStop) -> None:
        key, by_severity = item.claim.job_key, list(StopState)
        earlier = self._stop_states.pop(key, stop.state)
        self._stop_states[key] = max(earlier, stop.state, key=by_severity.index)
        while len(self._stop_states) > _STOP_STATES_MAX:
            del self._stop_states[next(iter(self._stop_states))]
        self._finish(item, state)

    def stop_state_of(self, key: int) -> str | None:
        """Return the worst `StopState` among a job's cancelled items; None if none was running, or if we have forgotten it."""
        state = self._stop_states.get(key)
        return state.value if state is not None else None

    def _withdraw(self, item: ItemClient) -> None:
        """Take an item out of its queue or its retry pause, so that it is not sent."""
        timer = self._retry_timers.pop(item, None)
        if timer is not None:
            timer.cancel()
        queue = self._tenants[item.tenant].queue_of(item)
        if item in queue:
            queue.remove(item)

    # Back to the store

    def _finish(
        self,
        item: ItemClient,
        state: ItemState,
        body: bytes | None = None,
        events: bytes | None = None,
        entry: Entry | None = None,
    ) -> None:
        if self._release(item):  # otherwise we no longer own it
            self.writer.finish(ItemOutcome(item.claim, state, body, events, entry))

    def _give_back(self, items: list[ItemClient]) -> None:
        for item in items:
            if self._release(item):
                self.writer.give_back(item.claim)

    def _release(self, item: ItemClient) -> bool:
        """Forget an item; return False if we do not own it, or own it under a later claim."""
        key, n = item.claim.job_key, item.claim.n
        items = self._items.get(key, {})
        if items.get(n) is not item:
            return False
        del items[n]
        if not items:
            del self._items[key]
        return True

    def _on_store_recovered(self) -> None:
        for tenant in self._tenants:
            self.wake(tenant)

    # Shutdown

    def stop(self) -> None:
        """Start no more items: give back those that are not running; running items may finish."""
        self._stopped = True
        for tenant_items in self._tenants.values():
            tenant_items.single_items.clear()
            tenant_items.batch_items.clear()
        for timer in self._retry_timers.values():
            timer.cancel()
        self._retry_timers.clear()
        self._give_back([item for item in self._all_items() if item.flow is None and item.stopping is None])
        for item in [item for item in self._all_items() if item.flow is not None and item.flow.call.sent_at is None]:
            assert item.flow is not None
            item.flow.end(reasons.DRAINED)

    def drop_all(self, worker: int) -> None:
        """Stop all items and start afresh as `worker`, because others declared us dead and may own our items.

        All items are given back in case nobody owns them; if somebody does, the store refuses our stale fence.
        """
        self._worker = worker
        for item in self._all_items():
            self._drop(item)
        for tenant in self._tenants:
            self.wake(tenant)

    def _drop(self, item: ItemClient) -> None:
        """Stop an item that we may no longer own; one that is already cancelled stays until its engine has stopped."""
        if item.flow is not None:
            item.flow.end(reasons.TAKEN_OVER)  # `item_ended` gives it back
        elif item.stopping is None:
            self._withdraw(item)
            self._give_back([item])

    async def close(self, within_s: float = math.inf) -> bool:
        """Write all pending results; return False if they are still being written after `within_s`. Every call must have ended.

        That write then goes on: if it was cancelled, nobody would know whether its results are on the disk.
        """
        self._stopped = True
        self._items.clear()  # the rest wait for an engine to stop; the registry gives their claims back
        self._last_writes = TASKS.start("job results", self._write_rest())
        await asyncio.wait([self._last_writes], timeout=within_s if within_s < math.inf else None)
        return self._last_writes.done()

    async def _write_rest(self) -> None:
        await self._claim_tasks.wait()
        await self.writer.close()

    async def abandon(self, within_s: float = _ABANDON_S) -> None:
        """End what `close` left, after the store was closed."""
        if self._last_writes is not None:  # wait for the outcome of its last write
            await asyncio.wait([self._last_writes], timeout=min(within_s, _ABANDON_S))
        await self.writer.abandon()
        if self._last_writes is not None:
            self._last_writes.cancel()
        await self._claim_tasks.close()


def _as_shed(entry: Entry, reason: Reason) -> Entry:
    """Return a retried answer's entry as shed: an engine without room completed nothing, though its answer was complete."""
    return entry._replace(cause=Outcome.SHED.value) if reason.outcome is Outcome.ENGINE_REFUSED else entry


def _stopped_state(item: ItemClient) -> ItemState:
    return ItemState.EXPIRED if item.stopping is reasons.WINDOW_PASSED else ItemState.CANCELLED
