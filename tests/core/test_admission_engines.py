"""How admission learns an engine's limit from its first tokens, its refusals, its steps and its own report."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from hangup.config import LimitSettings
from hangup.core.admission import Action, Admission, BackendLoad, Ticket
from hangup.core.admission.limiter import Evidence
from support.admission import ROOMY, fill, started


class Slots:
    """An engine with a number of slots that admission does not know: prompts take 0.1 s, answers 2 s, steps 10 ms."""

    def __init__(self, slots: int, load: BackendLoad, limits: LimitSettings = ROOMY) -> None:
        self.slots = slots
        self.load = load
        self.admission: Admission[Any] = Admission(replace(limits, queue_s=1e6), [load], lambda: 0.5)
        self.now = 0.0
        self.first_s = 0.1
        self.answer_s = 2.0
        self.running: list[tuple[float, float, Ticket[Any]]] = []  # when its first token comes, when it ends
        self.waiting: list[Ticket[Any]] = []
        self.done = 0
        self.refused: list[str] = []
        self.first_tokens: list[float] = []  # seconds from arrival

    def take(self, actions: list[Action[Any]]) -> None:
        self.waiting.extend(action.ticket for action in actions if action.load is not None)
        self.refused += [action.reason.code for action in actions if action.reason is not None]

    def come(self, count: int = 1) -> None:
        for _ in range(count):
            self.take(self.admission.arrive(Ticket("call", prompt=10, output_max=40), "a", self.now))

    def step(self) -> None:
        self.now += 0.01
        now = self.now
        for item in [item for item in self.running if item[1] <= now]:
            self.running.remove(item)
            self.done += 1
            self.take(self.admission.end(item[2], now, 40, 10, completed=True))
        while self.waiting and len(self.running) < self.slots:
            first_at = now + self.first_s
            self.running.append((first_at, first_at + self.answer_s, self.waiting.pop(0)))
        for first, _, ticket in self.running:
            if first <= now and ticket.awaits_first_token:
                self.first_tokens.append(now - ticket.arrived_at)
                self.take(self.admission.first_token(ticket, now))


@pytest.mark.parametrize("slots", [1, 4, 40])
def test_an_engine_that_is_full_has_at_most_two_calls_in_its_own_queue(slots: int) -> None:
    engine = Slots(slots, BackendLoad("s"))
    queue_peak = 0
    for at in range(3000):
        engine.step()
        if at % max(1, 70 // slots) == 0:  # three times what it can take
            engine.come()
        if at > 1000:
            queue_peak = max(queue_peak, len(engine.waiting))
    assert engine.load.limiter.evidence is Evidence.LATE
    assert queue_peak <= (3 if slots < 10 else 8)  # two and one that is tried, and what it can read at a time
    assert engine.done >= 0.9 * slots * 28 / 2.1  # it is kept full, but for the climb at the start


@pytest.mark.parametrize("first_s", [0.1, 1.0])
def test_an_engine_without_a_limit_gets_every_call_at_once(first_s: float) -> None:
    """An unknown limit is not a full engine: for a steady load, for bursts, and for a burst right after the start."""
    engine = Slots(10**6, BackendLoad("s"))
    engine.first_s = first_s
    engine.come(200)
    assert len(engine.waiting) == 200
    for at in range(3000):
        engine.step()
        if at % 2 == 0:
            engine.come()
        if at % 500 == 250:
            engine.come(300)
    assert not engine.refused and not engine.admission.queue.count
    assert max(engine.first_tokens) <= first_s + 0.02


def test_an_engine_whose_first_tokens_scatter_is_not_taken_for_full() -> None:
    """First-token times of hosted APIs vary by a factor of ten, whatever the load."""
    scatter = random.Random(1)
    engine = Slots(10**6, BackendLoad("s"))
    for _ in range(6000):
        engine.first_s = 0.5 * scatter.lognormvariate(0, 0.6)
        engine.step()
        if scatter.random() < 0.3:
            engine.come()
    assert not engine.refused
    waited = sorted(engine.first_tokens)
    assert waited[len(waited) // 2] < 0.6 and waited[int(0.99 * len(waited))] < 2.6


def test_an_engine_that_becomes_slower_is_not_strangled() -> None:
    engine = Slots(10**6, BackendLoad("s"))
    engine.first_s = 0.5
    for at in range(8000):
        engine.step()
        if at == 1000:
            engine.first_s = 2.0
        if at % 5 == 0:
            engine.come()
        if at == 4000:
            engine.first_tokens.clear()
    assert not engine.refused
    assert max(engine.first_tokens) < 2.2


def test_an_engine_whose_tokens_become_slower_is_not_strangled() -> None:
    """A larger model at the same address takes 0.13 instead of 0.02 s per token, however few calls it has."""
    engine = Slots(10**6, BackendLoad("s", step_slo_s=0.1))
    engine.answer_s = 40 * 0.02
    for at in range(6000):
        engine.step()
        if at == 1000:
            engine.answer_s = 40 * 0.13
        if len(engine.running) + len(engine.waiting) + engine.admission.queue.count < 12:
            engine.come()
        if at > 5000:
            assert len(engine.running) + len(engine.waiting) >= 11, "none of the twelve waits here"
    assert engine.load.limiter.slow_max == math.inf and not engine.refused


def test_one_cold_call_does_not_let_the_engines_queue_grow() -> None:
    engine = Slots(4, BackendLoad("s"))
    engine.first_s = 15.0
    engine.come()
    for _ in range(1800):
        engine.step()
    engine.first_s = 0.1
    queue_peak = 0
    for at in range(3000):
        engine.step()
        if at % 17 == 0:
            engine.come()
        if at > 1000:
            queue_peak = max(queue_peak, len(engine.waiting))
    assert queue_peak <= 3


def test_the_engines_own_word_goes_before_any_estimate() -> None:
    engine = Slots(4, BackendLoad("s"))
    limiter = engine.load.limiter
    engine.come(4)
    for _ in range(30):
        engine.step()
    assert str(limiter.evidence) == "none"
    engine.admission.engine_reported(engine.load, 1, engine.now)
    assert str(limiter.evidence) == "none"  # one may be about to be taken
    engine.admission.engine_reported(engine.load, 1, engine.now)
    assert str(limiter.evidence) == "engine_reports_waiting"
    engine.come(5)
    assert engine.admission.queue.count == 5  # none is sent to stand in the engine's queue
    for _ in range(3):
        engine.admission.engine_reported(engine.load, 0, engine.now)
    assert engine.admission.queue.count == 5  # it has what it was seen to run, so that none can wait in it
    engine.admission.engine_reported(engine.load, 0, engine.now)
    assert engine.admission.queue.count == 4  # one more is tried,
    for _ in range(5):
        engine.admission.engine_reported(engine.load, 0, engine.now)
    assert str(limiter.evidence) == "none" and not engine.admission.queue.count  # and did not have to wait


def test_calls_that_wait_for_the_engines_next_step_are_no_queue() -> None:
    """At 33 calls/s, 1 s to the first token and room for all, most reports show a few new calls that wait for a step."""
    engine = Slots(10**6, BackendLoad("s"))
    engine.first_s = 1.0
    for at in range(2000):
        engine.step()
        if at % 3 == 0:
            engine.come()
        if at % 5 == 0:
            engine.admission.engine_reported(engine.load, at % 4, engine.now)
        assert str(engine.load.limiter.evidence) == "none" and not engine.admission.queue.count


def test_calls_that_wait_longer_than_a_moment_are_a_queue() -> None:
    engine = Slots(4, BackendLoad("s"))
    engine.come(6)
    for _ in range(20):
        engine.step()
    engine.admission.engine_reported(engine.load, 2, engine.now)
    engine.admission.engine_reported(engine.load, 2, engine.now)
    assert str(engine.load.limiter.evidence) == "none", "they came 0.2 s ago"
    for _ in range(10):
        engine.step()
    engine.admission.engine_reported(engine.load, 2, engine.now)
    engine.admission.engine_reported(engine.load, 2, engine.now)
    assert str(engine.load.limiter.evidence) == "engine_reports_waiting"


def test_an_engine_is_open_again_when_nobody_has_waited_for_a_while() -> None:
    engine = Slots(4, BackendLoad("s"))
    for at in range(1500):
        engine.step()
        if at % 5 == 0:
            engine.come()
    admission, load = engine.admission, engine.load
    assert str(load.limited_by) == "late_first_tokens" and admission.queue.count
    for ticket in list(admission.queue):
        admission.leave(ticket, engine.now)
    closed, on_time = 0.0, 0
    while not load.is_open:
        engine.step()
        closed += 0.01
        if not engine.running:
            engine.come()
            on_time += 1
        assert closed < 60
    assert closed > 1.0 and on_time, "a line that is empty for a moment says little"


def test_a_place_that_is_held_is_not_at_work_on_a_whole_answer() -> None:
    admission: Admission[Any] = Admission(ROOMY, [BackendLoad("s")], lambda: 0.5)
    load = admission.fleet.loads[0]
    tickets = [Ticket(at, prompt=10, stream=False, whole=True) for at in range(5)]
    for ticket in tickets:
        admission.arrive(ticket, "a", 0.0)
    for ticket in tickets[:2]:
        admission.end(ticket, 0.1, client_left=True, hold=True)
    admission.first_token(tickets[2], 0.2)
    assert (load.in_flight, load.held, load.limiter.most_running) == (5, 2, 3)


def test_refusals_set_the_limit_and_one_more_is_tried_later() -> None:
    load = BackendLoad("s")
    admission: Admission[Any] = Admission(ROOMY, [load], lambda: 0.5)
    calls = fill(admission, "a", 5)
    for ticket in calls[3:]:
        assert admission.refused(ticket, 0.1) == []  # it waits
    assert load.in_flight == 3 == load.limit and admission.queue.count == 2
    assert load.limiter.evidence is Evidence.REFUSED
    assert started(admission.end(calls[0], 0.2, 5, 5, completed=True)) == ["a4"]
    admission.first_token(calls[1], 0.3)
    assert load.limit == 3
    assert started(admission.first_token(calls[2], 1.5)) == ["a3"] and load.limit == 4


def test_a_slow_engine_gets_fewer_calls() -> None:
    load = BackendLoad("s", step_slo_s=0.05)
    load.limiter.step(0.02, 10)
    assert load.limiter.in_flight_max == math.inf
    for _ in range(20):
        load.limiter.step(0.2, 40)
    assert load.limiter.in_flight_max < 20
    shrunk = load.limiter.in_flight_max
    for _ in range(50):
        load.limiter.step(0.02, int(load.limiter.in_flight_max))
    assert load.limiter.in_flight_max > shrunk + 20
