"""Which slot of its engine each call is in, where only the engine knows: it is asked when somebody looks."""

from __future__ import annotations

import asyncio
import time

from hangup.gateway.backend_set import Backends
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.health import see
from hangup.gateway.client_request import ClientRequest
from hangup.gateway.registry import CallRegistry

ASK_EVERY_S = 0.5  # however many look
ASK_S = 0.25  # whoever looks waits no longer for an engine than this


class Slots:
    def __init__(self, backends: Backends, registry: CallRegistry[ClientRequest]) -> None:
        self._backends = backends
        self._registry = registry
        self._asked_at = -ASK_EVERY_S

    async def find(self) -> None:
        """Puts the slots into the calls that are live."""
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
