"""Tenants with calls at several members get what their weights and priorities say, of the whole."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.core.admission import Band, TenantTerms, Ticket
from hangup.core.members import Allotments, Grant, PlaceAllocator, ServedElsewhere, TenantUse, backend_places, tenant_uses
from hangup.core.members.shares import tenant_shares, whole_places
from support.admission import ROOMY, new_admission

SLOTS = 8
STEP_S, CALL_S = 0.05, 1.0
WANTS = st.dictionaries(
    st.sampled_from("xyz"), st.dictionaries(st.sampled_from("abcd"), st.floats(0, 20), min_size=1), min_size=1
)
TERMS = {"a": (1, 1.0), "b": (1, 3.0), "c": (0, 1.0), "d": (2, 0.5)}


@given(st.integers(0, 30), WANTS)
def test_tenants_get_their_shares_of_the_whole(capacity: int, wants: dict[str, dict[str, float]]) -> None:
    shares = tenant_shares(capacity, wants, TERMS)
    wanted = sum(want for mine in wants.values() for want in mine.values())
    assert sum(shares.values()) == pytest.approx(min(capacity, wanted), abs=1e-6)
    for member, mine in wants.items():
        assert -1e-9 <= shares[member] <= sum(mine.values()) + 1e-6


def test_shares_by_weight_and_priority() -> None:
    both = {"x": {"a": 20.0}, "y": {"b": 20.0}}
    assert tenant_shares(8, both, TERMS) == {"x": 2.0, "y": 6.0}
    assert tenant_shares(8, {"x": {"a": 20.0}, "y": {"a": 20.0, "b": 20.0}}, TERMS) == {"x": 1.0, "y": 7.0}
    assert tenant_shares(8, {"x": {"a": 20.0}, "y": {"b": 3.0}}, TERMS) == {"x": 5.0, "y": 3.0}, "what one does not use"
    assert tenant_shares(8, {"x": {"a": 20.0}, "y": {"c": 5.0}, "z": {"d": 9.0}}, TERMS) == {"x": 3.0, "y": 5.0, "z": 0.0}


@given(
    st.integers(0, 30),
    st.dictionaries(st.sampled_from("wxyz"), st.tuples(st.floats(0, 12), st.integers(0, 12)), min_size=1),
)
def test_whole_places_are_all_there_are(capacity: int, members: dict[str, tuple[float, int]]) -> None:
    exact = {name: share * min(1.0, capacity / 48) for name, (share, _) in members.items()}
    demands = {name: demand for name, (_, demand) in members.items()}
    places = whole_places(capacity, exact, demands, lambda _: (0, 0, 0))
    assert sum(places.values()) == capacity and min(places.values()) >= 0
    idle = any(places[name] > demands[name] for name in demands)
    assert not idle or all(places[name] >= demands[name] for name in demands)


class Fleet:
    """Members with queues that never end, one backend, and a hub; messages take one step."""

    def __init__(self, queues: dict[str, list[str]], terms: dict[str, TenantTerms], slots: int = SLOTS) -> None:
        self.now, self.hub = 0.0, PlaceAllocator(1.0)
        self.done: Counter[str] = Counter()
        self.peak, self.slots = 0, slots
        self.queues = queues
        self.members: dict[str, Any] = {}
        self.allotments = {name: Allotments() for name in queues}
        self.served = {name: ServedElsewhere() for name in queues}
        self.running: list[tuple[float, str, Ticket[Any]]] = []
        for name in queues:
            admission = self.members[name] = new_admission(slots, ROOMY, 1, **terms)
            admission.fleet.loads[0].allotted = 0
            admission.fleet.load_changed(admission.fleet.loads[0])

    def step(self) -> None:
        self.now += STEP_S
        over = [entry for entry in self.running if entry[0] <= self.now]
        self.running = [entry for entry in self.running if entry[0] > self.now]
        for _, name, ticket in over:
            self.done[ticket.key] += 1
            self.note(name, self.members[name].end(ticket, self.now, 10, 10, completed=True))
        for name, tenants in self.queues.items():
            admission = self.members[name]
            for tenant in tenants:
                while admission.tenant(tenant).waiting < 20:
                    self.note(name, admission.arrive(Ticket(tenant, prompt=10, output_max=10), tenant, self.now))
            self.hub.note_tenants(name, tenant_uses(admission))
            self.take(self.hub.report(name, backend_places(admission, self.allotments[name])))
        self.take(self.hub.pass_time(self.now))
        for name, admission in self.members.items():
            self.served[name].note(admission, self.hub.tenants.served_by_others(name))
        self.peak = max(self.peak, len(self.running))

    def take(self, grants: list[Grant]) -> None:
        for grant in grants:
            if self.allotments[grant.member].take(grant):
                load = self.members[grant.member].fleet.loads[0]
                load.allotted = grant.allowed
                self.members[grant.member].fleet.load_changed(load)
                self.note(grant.member, self.members[grant.member].dispatch(self.now))

    def note(self, name: str, actions: list[Any]) -> None:
        self.running += [(self.now + CALL_S, name, action.ticket) for action in actions if action.load is not None]

    def run(self, seconds: float) -> Counter[str]:
        until = self.now + seconds
        self.done.clear()
        while self.now < until:
            self.step()
        assert self.peak <= self.slots
        return self.done


def weights(**of: float) -> dict[str, TenantTerms]:
    return {name: TenantTerms(weight) for name, weight in of.items()}


@pytest.mark.parametrize(
    "queues",
    [
        {"x": ["a"], "y": ["b"]},
        {"x": ["a"], "y": ["a", "b"]},
        {"x": ["a", "b"], "y": ["a", "b"]},
        {"x": ["a"], "y": ["a"], "z": ["b"]},
    ],
    ids=["apart", "one of them everywhere", "both everywhere", "two to one"],
)
def test_a_tenant_of_three_times_the_weight_is_served_three_times_as_much(queues: dict[str, list[str]]) -> None:
    fleet = Fleet(queues, weights(a=1, b=3))
    fleet.run(20)
    done = fleet.run(200)
    assert done.total() >= 0.85 * SLOTS * 200 / (CALL_S + STEP_S), "and hardly a place is idle"
    assert 2.6 <= done["b"] / done["a"] <= 3.4, done


def test_with_fewer_places_than_members_tenants_take_turns_by_weight() -> None:
    fleet = Fleet({"x": ["a"], "y": ["b"]}, weights(a=1, b=3), slots=1)
    fleet.run(20)
    done = fleet.run(300)
    assert 2.3 <= done["b"] / done["a"] <= 3.7, done


def test_a_higher_priority_goes_first_wherever_its_calls_are() -> None:
    terms = {"a": TenantTerms(band=Band.LOW), "b": TenantTerms(band=Band.HIGH)}
    fleet = Fleet({"x": ["a"], "y": ["b"]}, terms)
    fleet.run(5)
    done = fleet.run(60)
    assert done["b"] > 50 * (done["a"] + 1), done


def test_a_tenant_that_was_alone_is_not_made_to_wait_for_it() -> None:
    """As in one queue: what it was served while nobody else waited is not held against it."""
    fleet = Fleet({"x": ["a"], "y": []}, weights(a=1, b=1))
    fleet.run(100)
    fleet.queues["y"] = ["a", "b"]
    fleet.run(5)
    done = fleet.run(60)
    assert 0.8 <= done["a"] / done["b"] <= 1.25, done


def test_what_others_served_puts_a_tenant_behind_by_so_much_at_most() -> None:
    admission = new_admission(1, ROOMY)
    for name in ("a", "b"):
        admission.tenant(name)
    served = ServedElsewhere()
    for total in (0.0, 1e9):
        for name in "ab":  # both wait here
            admission.arrive(Ticket(name, prompt=10, output_max=10), name, 0.0)
        served.note(admission, {"a": total})
    assert 0 < admission.tenant("a").served <= 50_000 + admission.tenant("b").served
    served.note(admission, {"a": 0.0}, term=2)  # another hub counts from another beginning
    assert admission.tenant("a").served > 0


def test_a_new_member_or_one_that_leaves_changes_no_total() -> None:
    hub = PlaceAllocator(1.0)
    for member, served in (("x", 500.0), ("y", 100.0)):
        hub.note_tenants(member, [TenantUse("a", 1.0, 1, 1, 1, served), TenantUse("b", 1.0, 1, 0, 1, 0.0)])
    before = hub.tenants.served_by_others("y")["a"]
    hub.note_tenants("x", [TenantUse("a", 1.0, 1, 1, 1, 530.0), TenantUse("b", 1.0, 1, 0, 1, 0.0)])
    assert hub.tenants.served_by_others("y")["a"] - before == 30.0
    hub.leave("x", 0.0, died=True)
    hub.note_tenants("z", [TenantUse("a", 1.0, 1, 1, 1, 7000.0)])
    assert hub.tenants.served_by_others("y")["a"] - before == 30.0
