"""The watch over one backend: a cheap check at intervals, and at the first success the question what it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hangup.config import Limits
from hangup.engines.adapters import ADAPTERS
from hangup.engines.backend import Backend
from hangup.engines.fetch import fetch
from hangup.errors import EngineFault


async def watch(backend: Backend, limits: Limits, changed: Callable[[Backend, str], None]) -> None:
    """Runs until cancelled; `changed` hears of every up, down and recognition."""
    while True:
        fault = await check(backend, limits)
        if fault is None:
            if backend.seat.succeeded():
                changed(backend, "up")
            if not backend.recognised:
                await recognise(backend, limits)
                changed(backend, f"recognised as {backend.adapter.name}")
        elif backend.seat.failed():
            changed(backend, f"down: {fault}")
        await asyncio.sleep(limits.health_interval_s)


async def check(backend: Backend, limits: Limits) -> str | None:
    """What is wrong with the backend, or None. Any answer but a server error shows that it is alive."""
    if not backend.settings.health_path:
        return None
    try:
        answer = await fetch(backend, "GET", backend.settings.health_path, timeout_s=limits.health_timeout_s)
    except EngineFault as fault:
        return fault.detail
    return f"health check answered {answer.head.status}" if answer.head.status >= 500 else None


async def recognise(backend: Backend, limits: Limits) -> None:
    """Finds the adapter that fits; the generic one stays if none does."""
    backend.recognised = True
    try:
        answer = await fetch(backend, "GET", "/v1/models", timeout_s=limits.health_timeout_s)
    except EngineFault:
        return
    server = answer.head.fields.get(b"server", b"").decode("latin-1")
    for adapter in ADAPTERS.values():
        if adapter.recognises(server, answer.body):
            backend.use(adapter)
