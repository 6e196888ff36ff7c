"""A `JobRegistry` on its own: its gateway is an object that records what it gets."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

from hangup.config import LimitSettings
from hangup.core import reasons
from hangup.core.account import Account, Entry
from hangup.core.call import Call
from hangup.core.reaper import PendingStop
from hangup.core.reasons import Reason
from hangup.gateway.apis.routes import Router
from hangup.gateway.jobs.api import JobApi
from hangup.gateway.jobs.closing import CLOSE_S
from hangup.gateway.jobs.item_client import ItemClient
from hangup.gateway.jobs.registry import JobRegistry
from hangup.gateway.store.jobs import JobStore, NewItem

PATH = "/v1/chat/completions"
CALL = {"path": PATH, "model": "m", "stream": False, "headers": {}}
BATCH = {"endpoint": PATH, "input_file_id": "f", "completion_window": "24h", "headers": {}}
ENTRY = Entry("ann", "m", "engine", "completed", Account())


class FakeItemCall:
    """A call that runs until something ends it."""

    def __init__(self, item: ItemClient, id: str) -> None:
        self.call = Call(id, time.monotonic(), "job")
        self.call.sent_at = time.monotonic()
        self._item = item

    answer_bytes_max = 1 << 20

    def end(self, reason: Reason, detail: str = "") -> None:
        if self.call.reason is None:
            self.call.reason = reason
            self._item.call_ended(self.call, None, ENTRY)

    def on_due(self) -> None: ...


class FakeGateway:
    """A gateway with room for `room` waiting items; each item runs until the test says how it ended."""

    def __init__(self, room: int = 1000, limits: LimitSettings | None = None) -> None:
        self.room = room
        self.limits = limits or LimitSettings()
        self.events: list[str] = []
        self.faults: list[Exception] = []
        self.booked: list[Entry] = []
        self.items: list[ItemClient] = []
        self.headers: list[dict[str, str]] = []

    def run_item(self, item: ItemClient, id: str, headers: dict[str, str]) -> None:
        item.flow = FakeItemCall(item, id)
        self.items.append(item)
        self.headers.append(headers)

    def jobs_waiting(self, tenant: str) -> int:
        return 0 if len(self.items) < self.room else 1000

    def limits_of_tenant(self, tenant: str) -> LimitSettings:
        return self.limits

    def record_cost(self, entry: Entry) -> None:
        self.booked.append(entry)

    def when_confirmed(self, stop: PendingStop, callback: Callable[[], None]) -> None:
        callback()

    def log_event(self, event: str, **fields: object) -> None:
        self.events.append(event)

    def fault(self, error: Exception) -> None:
        self.faults.append(error)


def answered(item: ItemClient, body: bytes = b'{"id":"x"}', status: int = 200, reason: Reason = reasons.COMPLETED) -> None:
    """Let the engine's answer arrive all at once."""
    flow = item.flow
    assert flow is not None
    item.begin(b"", chunked=False)
    item.send(body)
    flow.call.status = status
    flow.end(reason)


@contextlib.asynccontextmanager
async def open_registry(
    store: JobStore, host: FakeGateway, keep_days: float = 1, *, ticks: bool = True, close_s: float = CLOSE_S
) -> AsyncIterator[JobRegistry]:
    """Open a registry; without `ticks`, it reads the store and sends heartbeats only when the test says so. At the end, it has
    `close_s` for its last writes."""
    registry = JobRegistry(store, host, asyncio.get_running_loop(), keep_days)
    JobApi(registry, lambda: Router(()))
    await registry.open()
    if not ticks:
        registry._watches.cancel()
    try:
        yield registry
    finally:
        await registry.close(close_s)


def items(count: int) -> list[NewItem]:
    return [NewItem(f"c{n}", PATH, b"{}") for n in range(count)]


async def tick(registry: JobRegistry, now: float) -> None:
    """Do what a registry does twice a second, to its end."""
    await registry._read_changes(now)
    await registry._cancel_due_jobs(now)
    await registry._tasks.wait()
