"""Finds the engine slot of each live call, for engines that assign slots themselves. They are queried only on request."""

from __future__ import annotations

import asyncio
import time

from hangup.gateway.backend_set import Backends
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.health import see
from hangup.gateway.client_request import ClientRequest
from hangup.gateway.registry import CallRegistry

ASK_EVERY_S = 0.5  # however many callers there are
ASK_S = 0.25  # the timeout of each query


class Slots:
    def __init__(self, backends: Backends, registry: CallRegistry[ClientRequest]) -> None:
        self._backends = backends
        self._registry = registry
        self._asked_at = -ASK_EVERY_S

    async def find(self) -> None:
        """Query the engines, and set `slot` of the live calls."""
        now = time.monotonic()
        telling = [b for b in self._backends.by_name.values() if b.adapter.slots_path and b.load.in_flight]
        if telling and now - self._asked_at >= ASK_EVERY_S:
            self._asked_at = now
            await asyncio.gather(*(self._ask(backend) for backend in telling))

    async def _ask(self, backend: Backend) -> None:
        slots = backend.adapter.read_slots(await see(backend, backend.adapter.slots_path, ASK_S))
        for flow in self._registry.live.values():
            if flow.backend is backend and flow.engine_key in slots:
                flow.call.slot = slots[flow.engine_key]
