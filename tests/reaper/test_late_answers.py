"""One of several processes does not answer, or leads no longer: what the leader may say and do about an engine."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest

from hangup.core.reaper import Rung
from hangup.gateway.reaper import Reaper, renewal
from hangup.gateway.reaper.trouble import EngineTrouble
from hangup.gateway.reaper.watch import BackendWatch

WEDGE_S = 60.0


class Others:
    """The other processes; None: one of them does not answer."""

    def __init__(self) -> None:
        self.answer: tuple[list[Any], float] | None = ([], 1000.0)

    async def waiting(self, now: float) -> tuple[list[Any], float] | None:
        return self.answer


def test_an_engine_is_not_called_wedged_while_a_process_does_not_say_what_it_received() -> None:
    frozen = SimpleNamespace(frozen_since=1000.0, frozen_s=lambda now: now - 1000.0, zombies=[], held=[], orphans=0)
    frozen.all_late, frozen.frozen_slot, frozen.orphaned_s = (lambda now: False), (lambda now: None), (lambda now: 0.0)
    limits = SimpleNamespace(wedge_s=WEDGE_S, still_s=30.0, orphans_s=0.0)
    backend: Any = SimpleNamespace(limits=limits, load=SimpleNamespace(health=SimpleNamespace(up=True)))
    host: Any = SimpleNamespace(waiting=lambda backend: ([], -math.inf))
    ladder: Any = SimpleNamespace(rung=Rung.HEALTHY)
    status: Any = SimpleNamespace(work=1, shows_progress=True)
    others: Any = Others()
    pending: Any = frozen
    trouble = EngineTrouble(backend, pending, host, others)

    def look(now: float) -> str:
        still_s = asyncio.run(trouble.still_s(status, now))
        return trouble.text(now, still_s, ladder, now, unanswered=False)

    assert not look(1001.0)
    others.answer = None
    assert not look(1001.0 + WEDGE_S), "another process may have received something"
    others.answer = ([], 1000.0)
    assert "without progress" in look(1002.0 + WEDGE_S)


def test_an_engine_is_not_restarted_if_another_process_leads_once_its_calls_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    restarts: list[object] = []

    async def start_anew(*args: object) -> str:
        restarts.append(args)
        return ""

    async def nothing(*_: object) -> None: ...

    async def may_act() -> bool:
        return permitted

    monkeypatch.setattr(renewal, "start_anew", start_anew)
    outcomes: list[bool] = []
    ladder = SimpleNamespace(restarted=lambda ok, now, why: outcomes.append(ok))
    watch: Any = SimpleNamespace(_abandon=nothing, _may_act=may_act, _take_steps=nothing, _release=nothing, ladder=ladder)
    watch.backend, watch._spawned = SimpleNamespace(), None
    watch._trouble = SimpleNamespace(stillness=SimpleNamespace(reset=lambda: None))
    watch._shared, watch.pending_stops = SimpleNamespace(restarted=nothing), SimpleNamespace(reset=list)
    permitted = False
    asyncio.run(BackendWatch._restart(watch))
    assert not restarts and outcomes == [False]
    permitted = True
    asyncio.run(BackendWatch._restart(watch))
    assert len(restarts) == 1 and outcomes == [False, True]


def test_a_new_leader_gives_up_calls_of_a_backend_that_a_reload_has_removed() -> None:
    """Nobody can verify them, and the hub would give them to each new leader for ever."""
    taken: list[object] = []
    watch = SimpleNamespace(backend=SimpleNamespace(name="here"), lead=lambda calls, step: taken.extend(calls))
    reaper: Any = SimpleNamespace(_by_name=lambda: {"here": watch})
    calls: Any = [SimpleNamespace(backend="here"), SimpleNamespace(backend="gone")]
    assert Reaper.lead(reaper, calls, {}) == calls[1:] and taken == calls[:1]
