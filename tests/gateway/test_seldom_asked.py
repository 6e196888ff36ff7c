"""A thousand idle backends cost little: what has not changed is asked seldom, and what cannot be seen is not looked at."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

from hangup.config import BackendSettings, LimitSettings
from hangup.core.admission import HealthEvent
from hangup.gateway.backends.adapters import Seen
from hangup.gateway.backends.backend import Backend
from hangup.gateway.reaper.watch import BackendWatch


def answer(*models: str, created: int = 0) -> Seen:
    rows = [{"id": model, "object": "model", "created": created} for model in models]
    return Seen(200, "", json.dumps({"object": "list", "data": rows}).encode())


def made() -> Backend:
    return Backend(BackendSettings(url="http://127.0.0.1:9"), LimitSettings(), cast("asyncio.AbstractEventLoop", None))


def test_models_that_stay_the_same_are_asked_for_less_and_less() -> None:
    backend, rests = made(), list[float]()
    for n in range(6):
        backend.models_answered(answer("a", created=n), float(n))  # vLLM gives each answer the time of day
        rests.append(backend.models_rest)
    assert rests == [1, 2, 4, 8, 8, 8]
    backend.models_answered(answer("a", "a-lora"), 9.0)
    assert backend.models_rest == 1
    backend.models_answered(answer("a", "a-lora"), 10.0)
    backend.models_asked_at = None  # another engine may be there now
    backend.models_answered(answer("a", "a-lora"), 11.0)
    assert backend.models_rest == 1
    backend.models_answered(Seen(500, "", b""), 12.0)
    assert backend.models_rest == 1, "no answer is no news"


def test_an_idle_engine_that_tells_nothing_is_not_looked_at_until_it_has_a_call() -> None:
    class Watch(BackendWatch):
        looked: asyncio.Event

        async def _look(self) -> None:
            self.looked.set()

    async def run() -> None:
        backend = made()
        backend.limits = LimitSettings(health_interval_s=0.1)
        host: Any = None
        watch = Watch(backend, host, host, host)
        watch.looked = asyncio.Event()
        await asyncio.sleep(0.5)
        assert not watch.looked.is_set()
        backend.load.in_flight = 1
        await watch.looked.wait()
        backend.load.in_flight = 0
        backend.load.health.apply(HealthEvent.FOUND_ZOMBIE)
        watch.looked.clear()
        await watch.looked.wait()  # it is not trusted: only a look can change that
        await watch.close()

    asyncio.run(asyncio.wait_for(run(), 60))
