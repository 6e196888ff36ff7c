"""Watches one backend: checks its health at intervals, keeps its list of models current, and at first finds out what it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hangup.core.admission import HealthEvent
from hangup.errors import EngineFault, OutOfResources
from hangup.gateway.backends.adapters import AUTO, Seen, recognise
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.fetch import ANSWER_BYTES_MAX, fetch
from hangup.gateway.backends.spread import spread
from hangup.gateway.http.head import Headers

_INQUIRIES_MAX = 3  # in a row, of a backend that leaves questions unanswered
_MODELS_BYTES_MAX = 16 * 1024 * 1024  # room for some thousands of LoRA adapters


async def watch(
    backend: Backend,
    changed: Callable[[Backend, str], None],
    found: Callable[[Backend], None],
    models_answered: Callable[[Backend], None],
) -> None:
    """Check until cancelled; call `changed` when the backend goes up or down or is recognised, `found` when it is known what
    it is, and `models_answered` after each query of its models."""
    asked = False
    while True:
        try:
            fault = await check(backend)
        except OutOfResources:  # nothing was learned about the backend
            await asyncio.sleep(spread(backend.limits.health_interval_s))
            continue
        backend.fault = fault or ""
        if fault is None:
            if backend.load.health.apply(HealthEvent.ANSWERED):
                changed(backend, "up")
            if not backend.facts_known:
                await learn(backend, backend.limits.health_timeout_s)
                if backend.facts_known and backend.settings.engine == AUTO:
                    changed(backend, f"recognised as {backend.adapter.name}")
                if backend.facts_known:
                    found(backend)
                backend.models_asked_at = None  # another engine may have other models
            await ask_models(backend)
            models_answered(backend)
        elif backend.load.health.apply(HealthEvent.FAILED):
            backend.facts_known = False  # another engine may come up at the same address
            changed(backend, f"down: {fault}")
        elif not asked:  # one failure is no proof, but whoever starts a gateway wants to know
            changed(backend, f"does not answer yet: {fault}")
        asked = True
        await asyncio.sleep(spread(backend.limits.health_interval_s))


async def check(backend: Backend) -> str | None:
    """Return what is wrong with the backend, or None. Any answer but a server error proves that it is alive. Raises
    `OutOfResources` if this process could not ask it."""
    if not backend.settings.health_path:
        return None
    try:
        answer = await fetch(backend, "GET", backend.settings.health_path, timeout_s=backend.limits.health_timeout_s)
    except OutOfResources:
        raise
    except EngineFault as fault:
        return fault.detail
    return f"health check returned status {answer.head.status}" if answer.head.status >= 500 else None


async def learn(backend: Backend, timeout_s: float) -> None:
    """Find out what the backend can do and, unless the configuration names its kind, what it is.

    A question without an answer proves nothing: a busy engine must not count as a lesser one until it restarts. So the result
    counts only if all were answered; otherwise `facts_known` stays False, and the next check asks again. An engine that never
    answers some of them is asked a few times.
    """
    answered = True

    async def get(path: str) -> Seen:
        nonlocal answered
        seen = await see(backend, path, timeout_s)
        answered = answered and seen.status != 0
        return seen

    adapter, facts = (
        await recognise(backend.pool.address.host, get)
        if backend.settings.engine == AUTO
        else (backend.adapter, await backend.adapter.inspect(get))
    )
    backend.inquiries += 1
    if not answered and backend.inquiries < _INQUIRIES_MAX:
        return
    if facts is not None:
        backend.use_adapter(adapter, facts)
    backend.facts_known, backend.inquiries = True, 0


async def ask_models(backend: Backend, *, at_once: bool = False) -> None:
    """Request the list of models, unless it is recent, or the configuration makes it irrelevant."""
    asked_at, now = backend.models_asked_at, asyncio.get_running_loop().time()
    rest_s = 0.0 if at_once else max(backend.adapter.models_rest_s, backend.limits.models_interval_s * backend.models_rest)
    if backend.settings.models == ("*",) or (asked_at is not None and now - asked_at < rest_s):
        return
    timeout_s, headers = backend.limits.health_timeout_s, backend.adapter.models_headers
    backend.models_answered(await see(backend, "/v1/models", timeout_s, headers, _MODELS_BYTES_MAX), now)


async def see(
    backend: Backend, path: str, timeout_s: float, headers: Headers | None = None, bytes_max: int = ANSWER_BYTES_MAX
) -> Seen:
    """Return the answer to a GET whatever it is, with status 0 for a failure."""
    try:
        answer = await fetch(backend, "GET", path, timeout_s=timeout_s, headers=headers, bytes_max=bytes_max)
    except EngineFault as fault:
        return Seen(0, "", fault.detail.encode())
    return Seen(answer.head.status, answer.head.fields.get(b"server", b"").decode("latin-1"), answer.body)
