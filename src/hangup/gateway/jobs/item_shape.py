"""How an API renders the results and events of its items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hangup.core.call import Call
from hangup.gateway.jobs.event_log import EventLog
from hangup.gateway.jobs.item_client import ItemClient
from hangup.gateway.store.jobs import Job


class ItemShape(Protocol):
    """Renders what an API stores and streams of its items."""

    def render_result(self, job: Job, item: ItemClient, call: Call) -> bytes:
        """Return the result to store for an answer."""

    def chunk_listener(self, job: Job, item: ItemClient, log: EventLog) -> Callable[[bytes], None] | None:
        """Return a function that turns chunks of a stream into events, or None."""
