"""The divergence alarm in virtual time: silent through a day of honest traffic, raised within a minute of a deaf engine."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from hangup.core.divergence import AlarmTerms, CounterSample, DivergenceAlarm

TICK_S = 5.0
DAY_S = 86_400.0
SLOTS = 32
STEP_S, STEP_PER_CALL_S = 0.02, 0.0005  # a step of the engine, and what each call adds to it


class Traffic:
    """An engine that answers calls at the pace of its batch, and may continue for clients that disconnected."""

    def __init__(self, seed: int, *, counts: bool, late_counter: bool = False, blind: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.counts, self.late_counter, self.blind = counts, late_counter, blind
        self.now = 0.0
        self.calls: list[list[float]] = []  # tokens left, tokens had, whether it is blind
        self.zombies: list[float] = []  # tokens left
        self.computed, self.seen, self.ended, self.call_s, self.served_s = 0.0, 0.0, 0.0, 0.0, 0.0
        self.deaf = False
        self.warming = False

    def step(self, load: float, answer_tokens: float, leave: float = 0.1) -> CounterSample:
        self.now += TICK_S
        for _ in range(min(self._poisson(load * TICK_S), 2 * SLOTS - len(self.calls))):  # the gateway sheds the rest
            self.calls.append([self.random.expovariate(1 / answer_tokens) + 1, 0.0, float(self.random.random() < self.blind)])
        batch = min(len(self.calls) + len(self.zombies), SLOTS)
        each = TICK_S / (STEP_S + STEP_PER_CALL_S * batch) if batch else 0.0
        running = self.calls[: max(SLOTS - len(self.zombies), 0)]  # zombies were there before
        parts = [min(left / each, 1.0) for left in (*self.zombies[:SLOTS], *(call[0] for call in running))]
        own = parts[len(self.zombies) :] + [1.0] * (len(self.calls) - len(running))
        self.call_s += sum(own) * TICK_S
        self.served_s += max(own, default=0.0) * TICK_S
        self._run_zombies(each)
        for call in running:
            self._run(call, each, leave)
        busy = 1.0 if self.warming else max(parts, default=0.0)
        noisy = min(max(busy * self.random.uniform(0.85, 1.0), 0.0), 1.0)
        computed = self.ended if self.late_counter else self.computed
        unseen = sum(1000 for call in self.calls if call[2])
        return CounterSample(int(computed) if self.counts else None, noisy, int(self.seen), unseen, self.call_s, self.served_s)

    def _run(self, call: list[float], each: float, leave: float) -> None:
        done = min(call[0], each)
        call[0] -= done
        call[1] += done
        self.computed += done
        if not call[2]:
            self.seen += done
        if call[0] <= 0 or self.random.random() < leave:
            self.calls.remove(call)
            self.ended += call[1]
            self.seen += call[1] if call[2] else 0.0
            if call[0] > 0 and self.deaf:
                self.zombies.append(call[0])

    def _run_zombies(self, each: float) -> None:
        left = []
        for tokens in self.zombies[:SLOTS]:
            self.computed += min(tokens, each)
            self.ended += min(tokens, each)
            if tokens > each:
                left.append(tokens - each)
        self.zombies = left

    def _poisson(self, mean: float) -> int:
        count, product = 0, self.random.random()
        while product > math.exp(-mean):
            count, product = count + 1, product * self.random.random()
        return count


def load_of_day(now: float) -> float:
    """Return the calls per second: none at night, a swing over the day, and sudden bursts."""
    hour = now / 3600 % 24
    if hour < 6:
        return 0.0 if hour < 5 else 0.02
    swing = 1.2 + math.sin((hour - 9) / 24 * 2 * math.pi)
    return swing * (3.0 if int(now / 300) % 7 == 0 else 1.0)


def tokens_of_day(now: float) -> float:
    return 2000.0 if 14 <= now / 3600 % 24 < 16 else 200.0  # the hours of long answers


KINDS: dict[str, Callable[[int], Traffic]] = {
    "the engine counts": lambda seed: Traffic(seed, counts=True),
    "the engine counts at the end of calls": lambda seed: Traffic(seed, counts=True, late_counter=True),
    "some answers come as a whole": lambda seed: Traffic(seed, counts=True, blind=0.3),
    "only its use is known": lambda seed: Traffic(seed, counts=False),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_day_without_a_false_alarm(kind: str, seed: int) -> None:
    traffic, alarm = KINDS[kind](seed), DivergenceAlarm()
    alarm.restarted(0.0)
    while traffic.now < DAY_S:
        if 12 * 3600 <= traffic.now < 12 * 3600 + TICK_S:  # at noon it is started anew, and warms up for 100 s
            traffic.computed = traffic.ended = 0.0
            traffic.calls.clear()
            traffic.warming = True
            alarm.restarted(traffic.now)
        if traffic.now > 12 * 3600 + 100:
            traffic.warming = False
        load = 0.0 if traffic.warming else load_of_day(traffic.now)
        assert alarm.observe(traffic.step(load, tokens_of_day(traffic.now)), traffic.now) is None, f"at {traffic.now:.0f} s"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_deaf_engine_is_found_within_a_minute_and_forgiven(kind: str, seed: int) -> None:
    """Clients disconnect, and the engine continues for them with few free slots; then it recovers, and the alarm ends."""
    traffic, alarm = KINDS[kind](seed), DivergenceAlarm()
    alarm.restarted(0.0)
    while traffic.now < 4 * 3600:
        assert alarm.observe(traffic.step(1.0, 400.0), traffic.now) is None
    traffic.deaf, began = True, traffic.now
    traffic.zombies, traffic.calls = [20_000.0] * 28, []
    raised = None
    while raised is None and traffic.now < began + 120:
        if alarm.observe(traffic.step(1.0, 400.0, leave=0.5), traffic.now):
            raised = traffic.now - began
    assert raised is not None and raised <= 60, f"raised after {raised}"
    assert alarm.finding is not None
    traffic.deaf = False
    traffic.zombies.clear()
    cured = traffic.now
    while alarm.finding is not None:
        alarm.observe(traffic.step(1.0, 400.0), traffic.now)
        assert traffic.now < cured + 120
    assert alarm.finding is None


def test_busy_with_no_call_of_ours_is_the_plainest_case() -> None:
    traffic, alarm = Traffic(5, counts=False), DivergenceAlarm()
    while traffic.now < 3600:
        assert alarm.observe(traffic.step(1.0, 400.0), traffic.now) is None
    began, raised = traffic.now, False
    traffic.calls, traffic.zombies = [], [1e9]
    while not raised:
        raised = alarm.observe(traffic.step(0.0, 1.0), traffic.now) is True
        assert traffic.now <= began + 60
    assert alarm.finding is not None and alarm.finding.signal == "statistical"


def test_an_alarm_does_not_flutter() -> None:
    """A divergence that comes and goes faster than `hold_s` neither raises nor ends an alarm."""
    alarm, now, seen, computed, changes = DivergenceAlarm(), 0.0, 0, 0, []
    for tick in range(600):
        now += TICK_S
        computed += 1000
        seen += 0 if 200 <= tick < 400 and tick % 8 else 1000
        changes.append(alarm.observe(CounterSample(computed, 1.0, seen, 0, 5 * now, now), now))
    assert [change for change in changes if change is not None] == [True, False]


def looks(alarm: DivergenceAlarm, count: int, start: float = 0.0, **sample: object) -> list[bool | None]:
    """Return samples at intervals of five seconds that differ only in their time."""
    given: dict[str, Any] = {"computed": None, "busy": None, "seen": 0, "unseen": 0, "call_s": 0.0, "served_s": 0.0, **sample}
    return [alarm.observe(CounterSample(**given), start + at * TICK_S) for at in range(count)]


def test_zombies_all_the_time_are_an_alarm_after_a_window_and_a_hold() -> None:
    """divergence_window_s, divergence_hold_s"""
    alarm = DivergenceAlarm()
    assert looks(alarm, 8, zombies=2) == [None] * 8, "20 s of window, then 20 s that it must last"
    assert looks(alarm, 1, 40.0, zombies=2) == [True]
    assert alarm.finding is not None and alarm.finding == ("zombies", 2.0)
    assert looks(alarm, 4, 45.0) == [None] * 4 and looks(alarm, 1, 65.0) == [False], "and 20 s that it must be gone"


def test_zombies_in_all_looks_but_one_are_none() -> None:
    alarm = DivergenceAlarm()
    for at in range(40):
        assert alarm.observe(CounterSample(None, None, 0, 0, 0.0, 0.0, zombies=int(at % 4 != 0)), at * TICK_S) is None


@pytest.mark.parametrize(
    ("served_share", "runs", "raised"), [(0.0, True, True), (0.04, True, True), (0.1, True, False), (0, False, False)]
)
def test_an_engine_that_runs_something_and_has_no_call_of_ours(served_share: float, runs: bool, raised: bool) -> None:
    alarm = DivergenceAlarm()
    said = [
        alarm.observe(CounterSample(None, None, 0, 0, 0.0, served_share * at * TICK_S, runs=runs), at * TICK_S)
        for at in range(30)
    ]
    assert (True in said) is raised
    if raised:
        assert alarm.finding is not None and alarm.finding.signal == "alone"
        assert alarm.finding.excess == pytest.approx(1 - served_share)


@pytest.mark.parametrize(("lead", "raised"), [(100, False), (101, True)])
def test_a_lead_of_a_hundred_tokens_is_never_worth_an_alarm(lead: int, raised: bool) -> None:
    alarm, said = DivergenceAlarm(AlarmTerms(hold_s=5.0)), list[bool | None]()
    for at in range(40):
        said.append(alarm.observe(CounterSample(50 + (lead if at >= 10 else 0), 1.0, 50, 0, 0.0, 0.0), at * TICK_S))
    assert (True in said) is raised


def test_a_count_that_falls_comes_or_goes_begins_anew() -> None:
    for before, after in ((1000, 10), (1000, None), (None, 1000)):
        alarm = DivergenceAlarm()
        looks(alarm, 10, computed=before)
        alarm.observe(CounterSample(after, None, 0, 0, 0.0, 0.0), 50.0)
        assert len(alarm._ticks) == 1, "what was before is no measure"
