"""The ladder in virtual time: every step in order, none too often, and none that is turned off."""

from __future__ import annotations

import dataclasses
import json
import math
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hangup.core.reaper import Ladder, LadderTerms, PendingStop, Rung

TERMS = LadderTerms(aborts_max=3, abort_backoff_s=1.0, restart=True, restarts_per_hour=2)


def zombie(id: str = "z") -> PendingStop:
    return PendingStop(id, 0.0, slot=0)


def climb(ladder: Ladder, zombies: list[PendingStop], seconds: float, live: int = 0, start: float = 0.0) -> list[str]:
    """Return what happens in that time, looking ten times a second."""
    said = []
    for tenth in range(int(seconds * 10)):
        said += [step.what for step in ladder.advance(start + tenth / 10, zombies, "", live)]
    return said


def test_the_whole_way_up_and_back() -> None:
    ladder = Ladder(TERMS)
    assert climb(ladder, [zombie()], 10) == ["degraded", "abort", "abort", "abort", "quarantined", "restarting"]
    assert [step.what for step in ladder.restarted(True, 10.0)] == ["canary"]
    assert [step.what for step in ladder.canary(True, 11.0)] == ["healthy"]


def test_the_oldest_zombie_is_named_and_the_others_are_counted() -> None:
    for others, said in ((0, "old in slot 0 still runs"), (1, "old in slot 0 and others still run")):
        stuck = [PendingStop(f"new{at}", 5.0) for at in range(others)]
        first = Ladder(TERMS).advance(10.0, [*stuck, PendingStop("old", 1.0, slot=0)], "", 0)[0]
        assert said in first.reason


def test_aborts_are_few_and_far_between_however_often_it_is_looked_at() -> None:
    ladder, stuck = Ladder(dataclasses.replace(TERMS, quarantine=False)), zombie()
    times = [
        tenth / 100 for tenth in range(100_000) if "abort" in {s.what for s in ladder.advance(tenth / 100, [stuck], "", 0)}
    ]
    assert times == [0.0, 1.0, 3.0]


def test_a_zombie_that_goes_by_itself_ends_the_matter() -> None:
    ladder = Ladder(TERMS)
    climb(ladder, [zombie()], 1)
    assert [step.what for step in ladder.advance(1.0, [], "", 0)] == ["healthy"]


def test_no_live_client_is_harmed_unless_told_so() -> None:
    ladder, stuck = Ladder(TERMS), zombie()
    assert "restarting" not in climb(ladder, [stuck], 200, live=1)
    assert "restarting" in climb(ladder, [stuck], 1, live=0, start=200)
    forced, stuck = Ladder(dataclasses.replace(TERMS, force=True, restart_wait_s=20)), zombie()
    assert "restarting" not in climb(forced, [stuck], 20, live=1)
    assert "restarting" in climb(forced, [stuck], 20, live=1, start=20)


def test_quarantine_ends_without_a_restart_when_the_trouble_does() -> None:
    ladder = Ladder(dataclasses.replace(TERMS, restart=False))
    assert climb(ladder, [zombie()], 10)[-1] == "quarantined"
    assert [step.what for step in ladder.advance(10.0, [], "", 3)] == ["canary"]


def test_a_failed_canary_backs_off_then_leads_to_a_restart() -> None:
    ladder = Ladder(TERMS)
    ladder.advance(0.0, [], "wedged", 0)
    said = []
    for tenth in range(200):
        for step in ladder.advance(tenth / 10, [], "", 0):
            said.append(step.what)
            if step.what == "canary":
                said += [step.what for step in ladder.canary(False, tenth / 10, "no answer")]
    assert said == ["canary", "quarantined", "canary", "quarantined", "restarting"]


def test_an_engine_without_abort_gets_the_same_time() -> None:
    ladder = Ladder(TERMS)
    ladder.can_abort = False
    assert climb(ladder, [zombie()], 10) == ["degraded", "wait", "wait", "wait", "quarantined", "restarting"]


def test_a_wedge_needs_no_aborts() -> None:
    ladder = Ladder(TERMS)
    assert [step.what for step in ladder.advance(0.0, [], "frozen", 1)] == ["degraded", "quarantined"]


class Climb(RuleBasedStateMachine):
    """Whatever happens, aborts per zombie and restarts per hour have their limits, and time alone never breaks the order."""

    def __init__(self) -> None:
        super().__init__()
        self.ladder = Ladder(TERMS)
        self.now = 0.0
        self.zombies: list[PendingStop] = []
        self.made = 0
        self.trouble = ""
        self.live = 0
        self.restarts: list[float] = []

    @rule(seconds=st.floats(0.01, 900))
    def look(self, seconds: float) -> None:
        self.now += seconds
        before = self.ladder.rung
        for step in self.ladder.advance(self.now, self.zombies, self.trouble, self.live):
            if step.what == Rung.RESTARTING:
                assert before is Rung.QUARANTINED and not self.live
                self.restarts.append(self.now)

    @rule(ok=st.booleans())
    def outcome(self, ok: bool) -> None:
        if self.ladder.rung is Rung.RESTARTING:
            self.ladder.restarted(ok, self.now)
            self.zombies = [] if ok else self.zombies
        elif self.ladder.rung is Rung.CANARY:
            self.ladder.canary(ok, self.now)

    @rule()
    def another_zombie(self) -> None:
        self.made += 1
        self.zombies.append(zombie(f"z{self.made}"))

    @rule()
    def all_gone(self) -> None:
        self.zombies, self.trouble = [], ""

    @rule(live=st.integers(0, 2), wedged=st.booleans())
    def change(self, live: int, wedged: bool) -> None:
        self.live, self.trouble = live, "wedged" if wedged else ""

    @invariant()
    def limits_hold(self) -> None:
        assert all(stop.aborts <= TERMS.aborts_max for stop in self.zombies)
        assert sum(at > self.now - 3600 for at in self.restarts) <= TERMS.restarts_per_hour


TestClimb = Climb.TestCase
TestClimb.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_each_step_says_why() -> None:
    ladder, stuck = Ladder(dataclasses.replace(TERMS, aborts_max=1)), zombie()
    assert ladder.since == -math.inf and ladder.reason == ""
    taken = ladder.advance(1.0, [stuck], "", 0)
    assert taken == [("degraded", "z in slot 0 still runs", None), ("abort", "abort 1 of 1", stuck)]
    assert (ladder.rung, ladder.since, ladder.reason) == (Rung.DEGRADED, 1.0, "z in slot 0 still runs")
    assert ladder.advance(3.0, [stuck], "", 1) == [("quarantined", "z in slot 0 still runs", None)]
    assert (ladder.since, ladder.advance(3.5, [stuck], "frozen", 1)) == (3.0, [])
    assert ladder.advance(4.0, [stuck], "frozen", 0) == [("restarting", "frozen", None)]
    assert ladder.restarted(True, 5.0) == [("canary", "restarted", None)]
    assert ladder.canary(True, 6.0) == [("healthy", "the canary succeeded", None)] and ladder.since == 6.0
    ladder.advance(7.0, [zombie("another")], "", 0)
    assert ladder.advance(8.0, [], "", 0) == [("healthy", "the engine has recovered", None)]


def test_what_failed_says_so_and_is_tried_again_after_longer_and_longer() -> None:
    """The pauses are 2, 4, 8 seconds and so on, up to a minute."""
    ladder = Ladder(dataclasses.replace(TERMS, restart=False))
    ladder.advance(0.0, [], "wedged", 0)
    times = []
    for half in range(400):
        for step in ladder.advance(half / 2, [], "", 0):
            assert step == ("canary", "the engine has recovered", None)
            times.append(half / 2)
            assert ladder.canary(False, half / 2, "no answer") == [("quarantined", "the canary failed: no answer", None)]
    assert [later - earlier for earlier, later in pairwise(times)] == [2, 4, 8, 16, 32, 60, 60]


def test_restarts_are_few_within_an_hour_and_those_that_fail_count() -> None:
    ladder, times = Ladder(TERMS), []
    ladder.advance(0.0, [], "wedged", 0)
    for second in range(1, 8000):
        for step in ladder.advance(float(second), [], "wedged", 0):
            assert step == ("restarting", "wedged", None)
            times.append(second)
            assert ladder.restarted(False, float(second), "no such file") == [
                ("quarantined", "the restart failed: no such file", None)
            ]
    assert times == [1, 3, 3601, 3609, 7201, 7233]


def test_taken_back_without_a_canary_where_it_is_off() -> None:
    ladder = Ladder(dataclasses.replace(TERMS, canary=False))
    ladder.advance(0.0, [], "wedged", 1)
    ladder.advance(1.0, [], "", 0)
    assert ladder.canary(True, 1.0) == [("healthy", "recovered; the canary is off", None)]


@pytest.mark.parametrize("looks", [5, 15, 40])
def test_another_process_goes_on_from_the_record(looks: int) -> None:
    """The steps of both together are those that one alone would take; its clock has nothing to do with ours."""
    alone = climb(Ladder(TERMS), [zombie()], 10)
    first, second, stuck = Ladder(TERMS), Ladder(TERMS), zombie()
    taken = climb(first, [stuck], looks / 10)
    assert second.resume(json.loads(json.dumps(first.record(looks / 10))), 5000.0) == []
    taken += climb(second, [stuck], 20, start=5000.0)
    assert taken == alone


def test_a_restart_without_a_result_is_repeated_only_if_the_engine_needs_it() -> None:
    first, stuck = Ladder(TERMS), zombie()
    assert climb(first, [stuck], 10)[-1] == "restarting"
    for zombies, then in (([], ["canary"]), ([stuck], ["restarting"])):
        second = Ladder(TERMS)
        (step,) = second.resume(first.record(10.0), 0.0)
        assert step.what == "quarantined" and "died" in step.reason
        assert climb(second, zombies, 1.9) == [], "it has a moment to come up"
        assert climb(second, zombies, 10, start=2.0) == then
    third = Ladder(TERMS)
    third.resume(second.record(12.0), 0.0)
    assert climb(third, [stuck], 60) == [], "the restarts of both count within the hour"


def test_a_canary_without_a_result_is_sent_again() -> None:
    first, second = Ladder(TERMS), Ladder(TERMS)
    climb(first, [zombie()], 10)
    first.restarted(True, 10.0)
    assert [step.what for step in second.resume(first.record(10.0), 0.0)] == ["canary"]
    assert [step.what for step in second.canary(True, 1.0)] == ["healthy"]
