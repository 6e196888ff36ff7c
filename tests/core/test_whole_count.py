"""One leader judges an engine by its counts, with the calls of all members: messages may be late, answers may be lost, members
and leaders may die at any moment."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hangup.core.members import EndedCall, PeakLog, StopFinding, StopRecords, Sum, Tally, WholeCount
from hangup.core.reaper import EngineStatus, PendingStop, PendingStops

GRACE, LAG, PREFILL = 2.0, 4.0, 1.0
TALLY = Tally(live=2, peak=3, placed=10, unstarted=1, calls=2)


def ended(key: str, age_s: float = 0.0, **fields: Any) -> EndedCall:
    return EndedCall(key, "gpu", f"call-{key}", age_s, False, 0, 1, None, False, "t", "m", "client_gone", **fields)


class TestCounts:
    def test_what_members_have_is_added_up(self) -> None:
        counts = WholeCount()
        assert counts.note_before(counts.next_number(), ["a", "b"], {"a": TALLY, "b": TALLY})
        after = {"a": TALLY._replace(placed=12), "b": TALLY, "c": TALLY._replace(live=5, placed=1)}
        found = counts.add_up(counts.next_number(), ["a", "b", "c"], after)
        assert found == Sum(live=9, peak=11, placed_between=3, unstarted=3, calls=6)
        assert counts.since == 2

    @pytest.mark.parametrize("missing", ["before", "after", "left"])
    def test_without_all_of_them_there_is_no_sum(self, missing: str) -> None:
        counts, both = WholeCount(), {"a": TALLY, "b": TALLY}
        one = {"a": TALLY}
        counts.note_before(counts.next_number(), both, one if missing == "before" else both)
        expected = one if missing == "left" else both
        assert counts.add_up(counts.next_number(), expected, one if missing != "before" else both) is None
        assert counts.since == 0

    def test_a_sum_needs_two_counts(self) -> None:
        counts = WholeCount()
        counts.note_before(counts.next_number(), [], {})
        assert counts.add_up(counts.next_number(), [], {}) == Sum()
        assert counts.add_up(counts.next_number(), [], {}) is None

    def test_nobody_to_count(self) -> None:
        counts = WholeCount()
        assert counts.note_before(counts.next_number(), [], {})
        assert counts.add_up(counts.next_number(), [], {}) == Sum()

    @given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=200))
    def test_a_lost_answer_loses_no_peak(self, looks: list[tuple[int, bool]]) -> None:
        log, since, unseen = PeakLog(), 0, 0
        for number, (peak, arrives) in enumerate(looks, 1):
            unseen = max(unseen, peak)
            answer = log.peak_since(1, number, since, peak)
            assert answer >= unseen
            if arrives:
                assert len(looks) > 60 or answer == unseen
                since, unseen = number, 0

    def test_a_new_leader_starts_with_the_peaks_of_its_own_counts(self) -> None:
        log = PeakLog()
        assert log.peak_since(1, 1, 0, 9) == 9
        assert log.peak_since(2, 1, 0, 3) == 3


class TestStopRecords:
    def test_what_ended_goes_to_the_leader_and_what_it_found_goes_back(self) -> None:
        book = StopRecords()
        (call,) = book.add("a", [ended("k", 0.5)], now=10.0)
        assert call.member == "a" and book.is_open("gpu", "k")
        assert book.add("a", [ended("k")], now=11.0) == [], "once"
        assert book.found("b", [StopFinding(call, "verified")], now=11.0) == {"a": [StopFinding(call, "verified")]}
        assert len(book) == 0

    def test_a_new_leader_gets_what_is_open_with_what_is_known(self) -> None:
        book = StopRecords()
        book.add("a", [ended("young")], now=10.0)
        book.add("b", [ended("old", 3.0)], now=10.0)
        old = book.open_calls(10.0)[0]
        assert old.key == "old" and old.age_s == 3.0
        assert book.found("b", [StopFinding(old._replace(member="", zombie=True, aborts=2), "zombie")], now=11.0) == {}
        book.take("gpu", {"rung": "degraded"})
        first, second = book.open_calls(12.0)
        assert (first.member, first.zombie, first.aborts, first.age_s) == ("b", True, 2, 4.0)
        assert (second.key, second.zombie) == ("young", False)
        assert book.steps == {"gpu": {"rung": "degraded"}}

    def test_a_release_that_is_taken_back_is_open_again(self) -> None:
        book = StopRecords()
        (call,) = book.add("a", [ended("k")], now=0.0)
        book.found("b", [StopFinding(call, "verified")], now=1.0)
        assert book.found("b", [StopFinding(call._replace(age_s=5.0), "zombie")], now=5.0)["a"]
        assert book.open_calls(6.0)[0].age_s == 6.0

    def test_steps_on_backends_that_are_gone_are_forgotten(self) -> None:
        book = StopRecords()
        book.take("gpu", {})
        book.take("other", {})
        book.forget_steps("gpu")
        book.forget_steps("unknown")
        assert book.steps == {"other": {}}


@dataclass
class Member:
    name: str
    live: dict[str, float] = field(default_factory=dict)
    peak: int = 0
    placed: int = 0
    peaks: PeakLog = field(default_factory=PeakLog)
    to_hub: deque[tuple[Any, ...]] = field(default_factory=deque)  # messages on their way
    from_hub: deque[tuple[Any, ...]] = field(default_factory=deque)


class Whole(RuleBasedStateMachine):
    """Members on one engine, a hub, and a leader. The engine's figures are up to LAG seconds old; it stops every call within
    the grace period, also those of a member that died, but for those that `deaf` calls."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.calls = 0
        self.members: dict[str, Member] = {}
        self.stopping: list[float] = []  # when the engine is done with each of the ended calls
        self.planted = 0
        self.history: list[tuple[float, int]] = [(0.0, 0)]
        self.records = StopRecords()
        self.term = 0
        self.asked: tuple[int, int, set[str], dict[str, Tally]] | None = None  # the hub's open question
        self.pending = PendingStops(GRACE, LAG, prefill_grace_s=PREFILL)

    @initialize(count=st.integers(2, 3))
    def begin(self, count: int) -> None:
        for _ in range(count):
            self.join()
        self.new_leader()

    @rule()
    def join(self) -> None:
        if len(self.members) < 4:
            self.calls += 1
            name = f"m{self.calls}"
            self.members[name] = Member(name)

    # The engine

    def _note(self) -> None:
        self.stopping = [at for at in self.stopping if at > self.now]
        work = len(self.stopping) + sum(len(member.live) for member in self.members.values())
        self.history.append((self.now, work))

    def _pass(self, seconds: float) -> None:
        target = self.now + seconds
        for moment in sorted(at for at in self.stopping if at <= target):
            self.now = moment
            self._note()
        self.now = target
        self._note()

    @rule(seconds=st.floats(0.01, 3.0))
    def wait(self, seconds: float) -> None:
        self._pass(seconds)

    # Calls

    def _any(self, data: st.DataObject) -> Member:
        return self.members[data.draw(st.sampled_from(sorted(self.members)))]

    @rule(data=st.data(), count=st.integers(1, 3))
    def call(self, data: st.DataObject, count: int) -> None:
        member = self._any(data)
        for _ in range(count):
            self.calls += 1
            member.live[f"c{self.calls}"] = self.now
            member.placed += 1
            member.peak = max(member.peak, len(member.live))
        self._note()

    @rule(data=st.data(), takes=st.floats(0, GRACE * 0.99))
    def hang_up(self, data: st.DataObject, takes: float) -> None:
        self._end(self._any(data), takes)

    def _end(self, member: Member, takes: float) -> None:
        if member.live:
            id, _ = member.live.popitem()
            self.stopping.append(self.now + takes)
            if member.name == self.leader:
                self.pending.add(PendingStop(id, self.now))
            member.to_hub.append(("ended", id, self.now))
            self._note()

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        member = self._any(data)
        if member.live:
            member.live.popitem()
            self._note()

    @precondition(lambda self: len(self.members) > 1)
    @rule(data=st.data(), takes=st.floats(0, GRACE * 0.99), lost=st.integers(0, 3))
    def die(self, data: st.DataObject, takes: float, lost: int) -> None:
        """A member dies; its last messages may be lost with it, and nobody knows which calls it had."""
        member = self._any(data)
        self.stopping += [self.now + takes for _ in member.live]
        member.live.clear()
        for _ in range(min(lost, len(member.to_hub))):
            member.to_hub.pop()
        while member.to_hub:
            self._to_hub(member)
        del self.members[member.name]
        self._note()
        if member.name == self.leader:
            self.new_leader()
        else:
            self.pending.doubt(self.now)
            if self.asked is not None and member.name in self.asked[2] and member.name not in self.asked[3]:
                self.answer()

    # Messages

    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        member = self._any(data)
        if data.draw(st.booleans()) and member.to_hub:
            self._to_hub(member)
        elif member.from_hub:
            self._from_hub(member)

    def _deliver_all(self) -> None:
        for member in self.members.values():
            while member.from_hub:
                self._from_hub(member)
            while member.to_hub:
                self._to_hub(member)

    def _to_hub(self, member: Member) -> None:
        kind, *rest = member.to_hub.popleft()
        if kind == "ended":
            id, at = rest
            new = self.records.add(member.name, [ended(id, self.now - at)], self.now)
            if new and member.name != self.leader:
                self.pending.add(PendingStop(id, self.now - new[0].age_s, member=member.name))
        else:
            number, tally = rest
            if self.asked is not None and self.asked[:2] == (self.term, number):
                self.asked[3][member.name] = tally

    def _from_hub(self, member: Member) -> None:
        term, number, since = member.from_hub.popleft()
        peak, member.peak = member.peak, len(member.live)
        tally = Tally(len(member.live), member.peaks.peak_since(term, number, since, peak), member.placed, 0, len(member.live))
        member.to_hub.append(("answer_leader", number, tally))

    # The leader

    @rule()
    def new_leader(self) -> None:
        self.term += 1
        self.leader = min(self.members)
        self.asked = None
        self.counts = WholeCount()
        self.look: tuple[str, float, int, int] | None = None
        before = {stop.key: stop.zombie_since is not None for stop in self.pending.held}
        self.pending = PendingStops(GRACE, LAG, prefill_grace_s=PREFILL)
        self.pending.doubt(self.now)
        for call in self.records.open_calls(self.now):
            stop = PendingStop(call.key, self.now - call.age_s, member=call.member)
            self.pending.add(stop)
            stop.zombie_since = self.now if before.get(call.key) else None  # as it was recorded
        mine = {"c" + id[1:] for kind, id, *_ in self.members[self.leader].to_hub if kind == "ended"}
        for id in sorted(mine):  # on their way
            self.pending.add(PendingStop(id, self.now))

    def _ask(self) -> None:
        number = self.counts.next_number()
        others = set(self.members) - {self.leader}
        self.asked = (self.term, number, others, {})
        for name in others:
            self.members[name].from_hub.append((self.term, number, self.counts.since))

    @rule(age=st.floats(0, LAG * 0.99))
    def ask_engine(self, age: float) -> None:
        """Begin a look, or ask the engine if the others were counted."""
        if self.look is None and self.asked is None:
            self._ask()
        elif self.look is not None and self.look[0] == "counted" and self.asked is None:
            shown = [count for at, count in self.history if at <= self.now - age][-1]
            self.look = ("asked", self.now, shown, self.look[3])
            self._ask()

    @rule()
    def answer(self) -> None:
        """The hub answers the leader's question, complete or not."""
        if self.asked is None:
            return
        _, number, expected, tallies = self.asked
        self.asked = None
        own = self.members[self.leader]
        if self.look is None:
            self.counts.note_before(number, expected, tallies)
            self.look = ("counted", 0.0, 0, own.placed)
            return
        _, asked_at, shown, placed = self.look
        self.look = None
        others = self.counts.add_up(number, expected, tallies)
        if others is None:
            return
        peak, own.peak = own.peak, len(own.live)
        live, unseen = len(own.live) + others.live, own.placed - placed + others.placed_between
        status = EngineStatus(shown)
        gone = self.pending.observe(status, asked_at, asked_at, live, peak + others.peak, unseen=unseen)
        gone += self.pending.take_expired(asked_at)
        for stops, state in ((gone, "verified"), (self.pending.zombies, "zombie")):
            rows = [StopFinding(ended(stop.key, self.now - stop.at, member=stop.member), state) for stop in stops]
            self.records.found(self.leader, rows, self.now)

    def _look_at_all(self) -> None:
        self.look = self.asked = None
        for _ in range(2):
            self.ask_engine(0.0)
            self._deliver_all()
            self.answer()

    @invariant()
    def nobody_healthy_is_convicted(self) -> None:
        if not self.planted:
            assert not self.pending.zombies and not self.pending.orphans

    def teardown(self) -> None:
        if not self.members:
            return
        self._deliver_all()
        for _ in range(40):
            self._pass(0.5)
            self._look_at_all()
        assert sum(stop.choices for stop in self.pending.zombies) + self.pending.orphans == self.planted
        assert len(self.pending.held) == len(self.pending.zombies)


class WholeWithDeaf(Whole):
    """Some calls are never stopped: each is found, and no more than those are."""

    @rule(data=st.data())
    def plant(self, data: st.DataObject) -> None:
        member = self._any(data)
        if member.live and self.planted < 3:
            self.planted += 1
            self._end(member, math.inf)

    @invariant()
    def no_more_than_planted(self) -> None:
        assert sum(stop.choices for stop in self.pending.zombies) + self.pending.orphans <= self.planted


TestWhole = Whole.TestCase
TestWhole.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
TestWholeWithDeaf = WholeWithDeaf.TestCase
TestWholeWithDeaf.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
