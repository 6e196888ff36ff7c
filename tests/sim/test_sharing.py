"""Several simulated gateways in front of the same engines, with messages that are late or lost and gateways that die."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hangup.config import Settings, TenantSettings
from hangup.sim import traces, world
from hangup.sim.clients import People, SimClient
from hangup.sim.engine import EngineModel, SimEngine
from hangup.sim.load import ClientHabits, Load
from hangup.sim.sharing import SharedGateway, SharedMaker, SharingModel, SimHub, SimReport
from hangup.sim.study import Plan, Row, study

LOAD = Load(traces.synthetic(1), ClientHabits())
MODEL = EngineModel(slots=4)
SETTINGS = Settings(slots=4)


def simulate(gateways: int, sharing: SharingModel | None, **given: Any) -> Row:
    plan = Plan(
        **{
            "load": LOAD,
            "settings": SETTINGS,
            "model": MODEL,
            "loads": [3.0],
            "backends": 2,
            "gateways": gateways,
            "sharing": sharing,
            "calls": 150,
            "warm_s": 30,
            **given,
        }
    )
    [row] = study(plan)
    return row


def test_several_gateways_reach_what_one_reaches() -> None:
    one, three = simulate(1, None), simulate(3, SharingModel())
    assert three.goodput_ratio >= 0.95 * one.goodput_ratio
    assert three.waste_share <= 0.015
    assert three.engine_queue_peak == 0 and three.granted_beyond == 0


def test_more_gateways_than_slots() -> None:
    """They take turns: none starves behind a queue of its own while others are served."""
    one, many = simulate(1, None, backends=1), simulate(12, SharingModel(), backends=1)
    assert many.goodput_ratio >= 0.95 * one.goodput_ratio
    assert many.engine_queue_peak == 0


def test_without_a_hub_engines_get_too_much() -> None:
    assert simulate(3, None).engine_queue_peak > 0


def test_learned_slots_are_of_the_whole() -> None:
    """The engines' queues stay as short as behind one gateway, and the engines as busy."""
    learned = {"settings": Settings(), "calls": 300, "warm_s": 60, "backends": 1}
    one, many = simulate(1, None, **learned), simulate(6, SharingModel(delay_s=0.005, loss=0.01), **learned)
    assert many.goodput_ratio >= 0.95 * one.goodput_ratio
    assert many.waste_share <= 0.015
    assert many.engine_queue_peak <= max(one.engine_queue_peak, 2)
    assert simulate(6, None, **learned).engine_queue_peak > 10


@pytest.mark.parametrize(("by_silence", "longest_s"), [(False, 1.3), (True, 1.8)])
def test_places_of_the_dead_become_free(by_silence: bool, longest_s: float) -> None:
    row = simulate(3, SharingModel(deaths_per_minute=10, by_silence=by_silence))
    assert row.gateway_deaths > 3 and 1.0 <= row.freed_s_mean <= row.freed_s_max < longest_s
    assert row.engine_queue_peak == 0 and row.goodput_ratio > 0.5


def test_one_seed_gives_one_result() -> None:
    bad_day = SharingModel(delay_s=0.01, loss=0.1, deaths_per_minute=10, by_silence=True)
    rows = [simulate(3, bad_day, calls=60, seeds=[7]) for _ in range(2)]
    for row in rows:
        row.calls_per_cpu_s = 0.0
    assert rows[0] == rows[1]


def test_a_quota_is_one_for_all_gateways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a tenant with `concurrency_max`, no more calls run or wait at a time in all gateways together, and so many do."""
    gateways: list[SharedGateway] = []
    most = 0

    class Kept(SharedMaker):
        def __call__(self, *world: Any) -> SharedGateway:
            gateways.append(super().__call__(*world))
            return gateways[-1]

    def started(people: People, client: SimClient, engine: SimEngine) -> None:
        nonlocal most
        tenants = [gateway.admission.tenant("default") for gateway in gateways]
        most = max(most, sum(tenant.in_flight + tenant.waiting for tenant in tenants))
        start(people, client, engine)

    start = People.started
    monkeypatch.setattr(People, "started", started)
    tenant = TenantSettings(name="default", concurrency_max=3)
    make = Kept(Settings(slots=4, tenant=(tenant,)), (), SharingModel(loss=0.05), 1)
    run = world.run(LOAD, [MODEL] * 2, make, rate=4.0, seconds=100, warm_s=0, seed=1, gateways=3)
    assert most == 3 and run.tally.served > 20 and run.tally.refused > 20


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    gateways=st.integers(2, 6),
    slots=st.integers(1, 5),
    loss=st.floats(0, 0.6),
    delay_s=st.floats(0, 0.3),
    deaths=st.one_of(st.just(0.0), st.floats(0.1, 60)),
    by_silence=st.booleans(),
)
def test_whatever_is_lost_or_dies_no_place_is_granted_twice(
    seed: int, gateways: int, slots: int, loss: float, delay_s: float, deaths: float, by_silence: bool
) -> None:
    """But for a gateway that was silent, was given up and is back: it may exceed the slots by what it holds."""
    taken_for_dead: set[str] = set()
    beyond: list[int] = []

    class Watched(SimHub):
        def noted(self, report: SimReport, turn: int) -> None:
            super().noted(report, turn)
            self.check()

        def _left(self, name: str, turn: int) -> None:
            if name not in self._died_at:
                taken_for_dead.add(name)
            super()._left(name, turn)
            self.check()

        def check(self) -> None:
            beyond.append(max(self._places.granted(str(at)) - slots for at in range(2)))

    class WatchedMaker(SharedMaker):
        def __call__(self, clock: Any, people: People, engines: Any, rng: Any) -> Any:
            self._hub = self._hub or Watched(clock, people, engines, self._model, self._seed)
            return super().__call__(clock, people, engines, rng)

    model = SharingModel(delay_s, loss, deaths, by_silence=by_silence)
    make = WatchedMaker(Settings(slots=slots), (), model, seed)
    engines = [EngineModel(slots=slots)] * 2
    run = world.run(LOAD, engines, make, rate=2.0 * slots, seconds=12, warm_s=0, seed=seed, gateways=gateways)
    most = max(beyond, default=0)
    over: list[SimEngine] = [engine for engine in run.engines if engine.waiting_peak]
    if not taken_for_dead:
        assert most <= 0 and not over
    assert most <= slots * len(taken_for_dead)
    assert all(engine.waiting_peak <= slots * len(taken_for_dead) for engine in over)
