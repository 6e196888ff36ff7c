"""The accounting of the engine model: time, tokens and slots add up."""

from __future__ import annotations

import random

import pytest

from hangup.sim.clock import VirtualClock
from hangup.sim.engine import EngineModel, SimEngine, SimWork

MODEL = EngineModel(slots=2, prefill_tokens_s=1000, chunk_tokens=100, step_s=0.1, step_per_call_s=0.01)


class Bench:
    def __init__(self, model: EngineModel) -> None:
        self.clock = VirtualClock()
        self.engine = SimEngine(model, self.clock)
        self.firsts: dict[object, float] = {}
        self.ends: dict[object, float] = {}

    def submit(self, name: str, prompt: int, output: int) -> SimWork:
        work = SimWork(name, prompt, output, self.first, self.end)
        self.engine.submit(work)
        return work

    def first(self, work: SimWork) -> None:
        self.firsts[work.owner] = self.clock.now

    def end(self, work: SimWork) -> None:
        self.ends[work.owner] = self.clock.now


def test_one_call_takes_its_prefill_and_its_steps() -> None:
    bench = Bench(MODEL)
    bench.submit("a", prompt=500, output=11)
    bench.clock.run(100)
    assert bench.firsts["a"] == pytest.approx(0.5)
    assert bench.ends["a"] == pytest.approx(0.5 + 10 * 0.11)
    assert (bench.engine.read, bench.engine.written) == (500, 11)
    assert bench.engine.busy_s == pytest.approx(1.6)


def test_prefill_slows_those_who_run_and_is_slowed_by_them() -> None:
    bench = Bench(MODEL)
    bench.submit("a", prompt=100, output=101)
    bench.clock.run(0.5)
    bench.submit("b", prompt=1000, output=1)
    bench.clock.run(100)
    # Ten chunks, each in a step of 0.1 s for itself and 0.11 s for the running call.
    assert bench.firsts["b"] == pytest.approx(0.5 + 10 * 0.21)
    assert bench.ends["a"] == pytest.approx(0.1 + 100 * 0.11 + 10 * 0.1)


def test_prompts_that_are_read_elsewhere_slow_nobody() -> None:
    bench = Bench(EngineModel(slots=2, prefill_tokens_s=1000, chunk_tokens=0, step_s=0.1, step_per_call_s=0))
    bench.submit("a", prompt=100, output=101)
    bench.clock.run(0.5)
    bench.submit("b", prompt=1000, output=1)
    bench.clock.run(100)
    assert bench.firsts["b"] == pytest.approx(1.5)
    assert bench.ends["a"] == pytest.approx(0.1 + 100 * 0.1)


def test_slots_and_cache_bound_what_runs() -> None:
    bench = Bench(EngineModel(slots=3, kv_tokens=1000, prefill_tokens_s=1e6))
    for at in range(5):
        bench.submit(str(at), prompt=300, output=100)
    assert (bench.engine.taken, bench.engine.waiting) == (2, 3)  # a third one does not fit into the cache
    bench.clock.run(100)
    assert len(bench.ends) == 5 and bench.engine.kv_used == bench.engine.taken == bench.engine.waiting == 0


def test_an_aborted_call_makes_room_at_once_and_costs_what_it_cost() -> None:
    bench = Bench(EngineModel(slots=1, prefill_tokens_s=1000, step_s=0.1, step_per_call_s=0))
    first = bench.submit("a", prompt=100, output=1000)
    bench.submit("b", prompt=100, output=1)
    bench.clock.run(1.1)
    assert bench.engine.abort(first) == pytest.approx(11)
    bench.clock.run(1.3)
    assert bench.firsts["b"] == pytest.approx(1.2) and "a" not in bench.ends
    assert bench.engine.written == pytest.approx(12)


def test_a_deaf_engine_goes_on() -> None:
    bench = Bench(EngineModel(slots=1, prefill_tokens_s=1000, step_s=0.1, step_per_call_s=0, deaf=True))
    work = bench.submit("a", prompt=100, output=100)
    bench.clock.run(1.0)
    bench.engine.abort(work)
    bench.clock.run(100)
    assert bench.engine.written == 100 and "a" not in bench.ends


def test_it_turns_slow_quick_again_and_dead() -> None:
    model = EngineModel(
        slots=1, prefill_tokens_s=1e9, step_s=1, step_per_call_s=0, slow_from_s=10, slow_by=2, slow_until_s=20, dead_from_s=40
    )
    bench = Bench(model)
    bench.submit("a", prompt=1, output=1000)
    counts = []
    for moment in (10, 20, 30, 100):
        bench.clock.run(moment)
        bench.engine._advance()
        counts.append(round(bench.engine._tokens))
    assert counts == [10, 15, 25, 35]


def test_books_balance_whatever_is_aborted() -> None:
    bench = Bench(EngineModel(slots=4, kv_tokens=5000, prefill_tokens_s=3000, chunk_tokens=64, step_s=0.02))
    rng = random.Random(1)
    works, computed = [], 0.0
    for at in range(400):
        works.append(bench.submit(str(at), prompt=rng.randint(1, 900), output=rng.randint(1, 60)))
        bench.clock.run(bench.clock.now + rng.random() * 0.3)
        if rng.random() < 0.5:
            work = rng.choice(works)
            if not work.hung_up and work.owner not in bench.ends:
                computed += bench.engine.abort(work)
        assert 0 <= bench.engine.taken <= 4 and 0 <= bench.engine.kv_used <= 5000
        assert bench.engine.running <= bench.engine.taken
    bench.clock.run(bench.clock.now + 1000)
    computed += sum(work.output for work in works if work.owner in bench.ends)
    assert bench.engine.written == pytest.approx(computed)
    assert len(bench.ends) == sum(not work.hung_up for work in works)
    assert bench.engine.taken == bench.engine.kv_used == bench.engine.running == bench.engine.waiting == 0
