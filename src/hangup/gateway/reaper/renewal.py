"""Brings an engine back: the restart, the canary, and how far the ladder may go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hangup.core.reaper import LadderTerms
from hangup.errors import OutOfResources
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.health import check
from hangup.gateway.reaper import canary, restart
from hangup.gateway.reaper.peers import Peers
from hangup.gateway.reaper.process import EngineOwner, Spawned

_HEALTH_PAUSE_S = 0.2


def owner_of_engine(backend: Backend, peers: Peers | None, log_event: Callable[..., None]) -> EngineOwner | None:
    """Return what starts and stops a spawned engine: this process, or the one that does so for all."""
    if not backend.settings.spawn:
        return None
    if peers is not None:
        return peers.engine_owner(backend.name, lambda: backend.limits.stop_s)
    return Spawned(backend.settings, lambda: backend.limits.stop_s, log_event)


async def start_anew(backend: Backend, spawned: EngineOwner | None) -> str:
    """Restart the engine and wait until it is healthy; return what went wrong, or ""."""
    settings, limits = backend.settings, backend.limits
    if spawned is not None:
        why = await spawned.restart()
    else:
        command = restart.command(settings.restart_command, settings)
        why = await restart.run(command, settings.hidden_variables, limits.restart_s)
    if why:
        return why
    fault: str | None = ""
    try:
        async with asyncio.timeout(limits.restart_s):
            while fault := await _checked(backend):  # noqa: ASYNC110 (nobody will tell)
                await asyncio.sleep(_HEALTH_PAUSE_S)
    except TimeoutError:
        return f"still unhealthy after {limits.restart_s:g} s: {fault}"
    return ""


async def send_canary(backend: Backend) -> str:
    """Return what is wrong with the backend; "" if it answered the canary."""
    while True:
        try:
            return await canary.send(backend, backend.limits.canary_s)
        except OutOfResources:  # nothing was learned about the engine, which a few failed canaries would restart
            await asyncio.sleep(_HEALTH_PAUSE_S)


async def _checked(backend: Backend) -> str | None:
    try:
        return await check(backend)
    except OutOfResources as lack:
        return lack.detail


def ladder_terms(backend: Backend) -> LadderTerms:
    """Return how far the ladder may go on a backend."""
    settings, limits = backend.settings, backend.limits
    return LadderTerms(
        aborts_max=limits.abort_again_max if settings.abort_again else 0,
        abort_backoff_s=limits.abort_backoff_s,
        quarantine=settings.quarantine,
        restart=bool(settings.restart_command or settings.spawn),
        force=settings.restart_force,
        restart_wait_s=limits.restart_wait_s,
        restarts_per_hour=limits.restarts_per_hour_max,
        canary=settings.canary,
        wedge_s=limits.wedge_s,
    )
