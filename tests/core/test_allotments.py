"""Places leased to several members: whatever is late, lost or dead, no place is used twice, and none stays idle for ever."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.config import LimitSettings
from hangup.core.admission import NO_LIMIT, Admission, BackendLoad
from hangup.core.members import (
    Allotments,
    Grant,
    PlaceAllocator,
    PlaceReport,
    backend_places,
    equal_part,
    fair_shares,
    new_under_old_names,
    part_alone,
)

PLACES = "backend gpu"
HOLD_S = 1.0
DEMANDS = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 30), min_size=1)


@given(st.integers(0, 60), DEMANDS)
def test_shares_are_fair(capacity: int, demands: dict[str, int]) -> None:
    shares = fair_shares(capacity, demands)
    assert sum(shares.values()) == capacity
    for one, demand in demands.items():
        if shares[one] < demand:  # who gets less than it would use has no less than anybody else, but for a rest
            assert all(shares[other] <= shares[one] + 1 for other in demands if other != one)


@given(st.integers(0, 60), DEMANDS)
def test_nobody_wants_while_another_has_idle_places(capacity: int, demands: dict[str, int]) -> None:
    shares = fair_shares(capacity, demands)
    idle = any(shares[name] > demands[name] for name in demands)
    assert not idle or all(shares[name] >= demands[name] for name in demands)


def test_idle_places_are_spread() -> None:
    assert fair_shares(8, {"a": 0, "b": 0}) == {"a": 4, "b": 4}
    assert fair_shares(8, {"a": 4, "b": 0}) == {"a": 6, "b": 2}
    assert fair_shares(8, {"a": 7, "b": 0}) == {"a": 7, "b": 1}
    assert fair_shares(8, {"a": 30, "b": 2, "c": 9}) == {"a": 3, "b": 2, "c": 3}
    assert fair_shares(1, {"a": 0, "b": 1}) == {"a": 0, "b": 1}
    assert fair_shares(-1, {"a": 2}) == {"a": 0}


@given(st.integers(0, 60), st.integers(1, 12))
def test_equal_parts_are_all_there_is(capacity: int, members: int) -> None:
    parts = [equal_part(capacity, members, rank) for rank in range(members)]
    assert sum(parts) == (capacity if capacity >= members else min(capacity, 1) * members)
    assert max(parts) - min(parts) <= 1


def test_a_share_of_few_places_is_at_least_one_and_never_rounded_up() -> None:
    assert [part_alone(places, 0.5) for places in (-1, 0, 1, 2, 3, 8)] == [0, 0, 1, 1, 1, 4]
    assert part_alone(100, 0.29) == 29 and part_alone(3, 1.0) == 3


class Member:
    """A gateway: it starts calls within its allotment, and its calls end."""

    def __init__(self, name: str, capacity: int) -> None:
        self.name = name
        self.capacity = capacity
        self.allotments = Allotments()
        self.used = 0
        self.waiting = 0

    def report(self) -> PlaceReport:
        return self.allotments.report(PLACES, self.capacity, self.used, self.used + self.waiting)

    def start(self) -> None:
        while self.waiting and self.used < self.allotments.allowed(PLACES):
            self.waiting -= 1
            self.used += 1


class World:
    """One engine, its members, a hub, and messages in between that are delayed, reordered and lost at random."""

    def __init__(self, capacity: int, members: int, rng: random.Random) -> None:
        self.rng = rng
        self.capacity = capacity
        self.now = 0.0
        self.hub = PlaceAllocator(HOLD_S)
        self.members = {f"m{n}": Member(f"m{n}", capacity) for n in range(members)}
        self.born = members
        self.messages: list[Callable[[], None]] = []
        self.in_engine: list[tuple[float, int]] = []  # until when the engine runs on for a dead member

    def used(self) -> int:
        return sum(m.used for m in self.members.values()) + sum(n for until, n in self.in_engine if until > self.now)

    def check(self) -> None:
        assert self.used() <= self.hub.granted(PLACES) <= self.capacity
        assert all(member.used >= 0 for member in self.members.values())

    def any(self) -> Member:
        return self.rng.choice(list(self.members.values()))

    def say(self, member: Member, lost: float = 0.2) -> None:
        report = member.report()
        if self.rng.random() >= lost:
            self.messages.append(lambda: self.heard(member.name, report))

    def heard(self, member: str, report: PlaceReport) -> None:
        if member in self.members:
            self.send(self.hub.report(member, [report]))

    def send(self, grants: list[Grant], lost: float = 0.2) -> None:
        for grant in grants:
            if self.rng.random() >= lost:
                self.messages.append(lambda grant=grant: self.granted(grant))  # type: ignore[misc]

    def granted(self, grant: Grant) -> None:
        member = self.members.get(grant.member)
        if member is not None and member.allotments.take(grant):
            member.start()
            self.say(member)

    def deliver(self) -> None:
        if self.messages:
            self.messages.pop(self.rng.randrange(len(self.messages)))()

    def arrive(self) -> None:
        member = self.any()
        member.waiting += self.rng.randrange(1, 6)
        member.start()
        self.say(member)

    def end(self) -> None:
        member = self.any()
        if member.used:
            member.used -= self.rng.randrange(1, member.used + 1)
        member.start()
        self.say(member)

    def die(self) -> None:
        if len(self.members) == 1:
            return
        member = self.any()
        del self.members[member.name]
        self.in_engine.append((self.now + self.rng.random() * HOLD_S, member.used))
        self.send(self.hub.leave(member.name, self.now, died=True))

    def be_born(self) -> None:
        self.born += 1
        name = f"m{self.born}"
        self.members[name] = Member(name, self.capacity)
        self.say(self.members[name])

    def wait(self) -> None:
        self.now += self.rng.random()
        self.send(self.hub.pass_time(self.now))

    def settle(self) -> None:
        """Nothing is lost any more, and everybody reports now and then."""
        self.messages.clear()
        self.now += HOLD_S
        self.send(self.hub.pass_time(self.now), lost=0.0)
        for _ in range(20):
            for member in self.members.values():
                self.say(member, lost=0.0)
            while self.messages:
                self.messages.pop(0)()


@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 5))
def test_no_place_is_used_twice_and_none_is_lost(seed: int, capacity: int, members: int) -> None:
    rng = random.Random(seed)
    world = World(capacity, members, rng)
    steps = [world.deliver] * 6 + [world.arrive] * 2 + [world.end] * 2 + [world.wait, world.die, world.be_born]
    for _ in range(rng.randrange(10, 120)):
        rng.choice(steps)()
        world.check()
    world.settle()
    world.check()
    waiting = sum(member.waiting for member in world.members.values())
    assert not waiting or world.used() == capacity, "calls wait although places are idle"


def told(grants: list[Grant]) -> dict[str, int]:
    return {grant.member: grant.allowed for grant in grants}


def row(held: int = 0, demand: int = 0, number: int = 0, capacity: int = 8) -> PlaceReport:
    return PlaceReport(PLACES, capacity, held, demand, number)


def test_an_idle_member_returns_what_another_needs() -> None:
    hub = PlaceAllocator(HOLD_S)
    assert told(hub.report("a", [row()])) == {"a": 8}
    assert told(hub.report("b", [row()])) == {"a": 4}  # b gets its part when a has returned it
    assert told(hub.report("a", [row(held=4, number=2)])) == {"b": 4}
    assert told(hub.report("b", [row(held=4, demand=7, number=1)])) == {"a": 1}
    assert told(hub.report("a", [row(held=1, number=3)])) == {"b": 7}


def test_it_is_known_whether_more_may_come() -> None:
    hub = PlaceAllocator(HOLD_S)
    assert not hub.expects_more(PLACES)
    hub.report("a", [row(demand=2)])
    assert not hub.expects_more(PLACES)
    hub.report("b", [row(demand=9)])
    assert hub.expects_more(PLACES), "a was asked to return what it does not use"
    hub.report("a", [row(held=2, demand=2, number=2)])
    assert not hub.expects_more(PLACES)


def test_a_members_places_stay_taken_for_a_moment_after_its_death() -> None:
    hub = PlaceAllocator(HOLD_S)
    hub.report("a", [row()])
    hub.report("b", [row()])
    hub.report("a", [row(held=4, demand=9, number=2)])
    assert hub.leave("a", 10.0, died=True) == []
    assert hub.next_due() == 11.0 and hub.pass_time(10.9) == []
    assert hub.granted(PLACES) == 8
    assert told(hub.pass_time(11.0)) == {"b": 8}


def test_a_member_that_leaves_on_purpose_frees_its_places_at_once() -> None:
    hub = PlaceAllocator(HOLD_S)
    hub.report("a", [row()])
    hub.report("b", [row()])
    assert told(hub.leave("a", 10.0, died=False)) == {"b": 8}


def test_calls_that_a_leaving_member_cut_short_stay_counted_for_a_moment() -> None:
    hub = PlaceAllocator(HOLD_S)
    hub.report("a", [row()])
    hub.report("b", [row()])
    hub.report("a", [row(held=4, demand=3, number=2)])
    assert told(hub.leave("a", 10.0, died=False)) == {"b": 5}
    assert hub.granted(PLACES) == 8
    assert told(hub.pass_time(11.0)) == {"b": 8}


def test_a_part_is_set_aside_for_a_member_that_is_cut_off() -> None:
    hub = PlaceAllocator(HOLD_S)
    for member in "abc":
        hub.note(member, [row(held=4 if member != "c" else 0, demand=8 if member != "c" else 0, number=1)])
    assert hub.share() == [] and hub.granted(PLACES) == 8
    assert told(hub.set_aside("c", 3)) == {"a": 2, "b": 3}  # c will use three, and cannot be told anything
    hub.report("a", [row(held=4, demand=8, number=2)])
    assert hub.granted(PLACES) == 8, "its calls still run"
    hub.report("a", [row(held=2, demand=8, number=2)])
    hub.report("b", [row(held=3, demand=8, number=2)])
    assert hub.granted(PLACES) == 5
    hub.share()
    assert hub.granted(PLACES) == 5, "nobody gets what is set aside"
    hub.report("c", [row(held=3, demand=3, number=0)])  # it is back
    hub.end_set_aside("c")
    assert hub.granted(PLACES) == 8 and hub.end_set_aside("c") == []
    hub.set_aside("c", 3)
    hub.leave("c", 10.0, died=True)
    assert sum(told(hub.pass_time(11.0)).values()) == 8, "nothing stays set aside for a dead one"


def test_a_new_keeper_believes_what_members_hold() -> None:
    """A store that came back empty: nobody loses what it uses, and nobody gets more than is left."""
    hub = PlaceAllocator(HOLD_S)
    assert told(hub.report("a", [row(held=6, demand=6, number=17)])) == {"a": 8}
    assert told(hub.report("b", [row(held=2, demand=6, number=4)])) == {"a": 4}
    assert hub.granted(PLACES) == 10  # a was told 8 before b came: by one allotment more than there is
    assert told(hub.report("a", [row(held=4, demand=6, number=19)])) == {"b": 4}
    assert hub.granted(PLACES) == 8


def test_an_engine_with_fewer_slots_gets_fewer_calls() -> None:
    hub = PlaceAllocator(HOLD_S)
    hub.report("a", [row(demand=8)])
    assert told(hub.report("a", [row(held=8, demand=8, number=1, capacity=4)])) == {"a": 4}
    assert hub.report("b", [row(demand=4, capacity=4)]) == [Grant("a", PLACES, 2, 3)]
    assert told(hub.report("a", [row(held=2, demand=8, number=3, capacity=4)])) == {"b": 2}


def test_a_resource_that_a_member_no_longer_names_is_returned() -> None:
    hub = PlaceAllocator(HOLD_S)
    hub.report("a", [row()])
    hub.report("b", [row()])
    assert told(hub.report("a", [])) == {"b": 8}
    assert hub.report("b", []) == [] and hub.granted(PLACES) == 0


def test_a_lost_grant_is_sent_again() -> None:
    hub = PlaceAllocator(HOLD_S)
    lost = hub.report("a", [row()])
    assert hub.report("a", [row()]) == lost


def test_an_old_grant_changes_nothing() -> None:
    allotments = Allotments()
    allotments.report(PLACES, 8, 0, 0)
    assert allotments.take(Grant("a", PLACES, 3, 2)) and not allotments.take(Grant("a", PLACES, 8, 1))
    assert allotments.allowed(PLACES) == 3
    assert not allotments.take(Grant("a", "another", 8, 9)) and allotments.allowed("another") == 0
    allotments.keep_only([])
    assert allotments.allowed(PLACES) == 0


@pytest.mark.parametrize("slots", [0, 4])
def test_a_backend_that_takes_the_name_of_another_gets_what_that_one_was_allotted(slots: int) -> None:
    """A reload gives a name another address: the hub knows names alone, and grants nothing anew."""
    first = BackendLoad("b", slots)
    first.share()
    admission: Admission[object] = Admission(LimitSettings(), [first], lambda: 0.5)
    allotments = Allotments()
    backend_places(admission, allotments)
    assert not new_under_old_names(admission, allotments), "nothing is granted yet"
    granted = slots or NO_LIMIT
    assert allotments.take(Grant("", "b", granted, 1))
    first.allot(granted)
    assert not new_under_old_names(admission, allotments)
    second = BackendLoad("b", slots)
    second.share()
    admission.fleet.set_loads([second])
    assert new_under_old_names(admission, allotments) == [second] and not second.has_room
    second.allot(allotments.allowed("b"))
    admission.fleet.load_changed(second)
    assert not new_under_old_names(admission, allotments) and second.has_room
