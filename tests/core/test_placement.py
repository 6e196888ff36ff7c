"""Placement: never over capacity, nobody lost or served twice, first come first served, whatever happens."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hangup.core.placement import Grant, Placement, Seat


class Places(RuleBasedStateMachine):
    """Calls come, wait, go and fail over; the model is a plain list of who waits and a dict of who is where."""

    @initialize(slots=st.lists(st.integers(0, 3), min_size=1, max_size=4), depth=st.integers(0, 5))
    def start(self, slots: list[int], depth: int) -> None:
        self.seats = [Seat(f"b{i}", slots=n, failures_max=2) for i, n in enumerate(slots)]
        self.placement = Placement(depth, list(self.seats))
        self.at: dict[int, Seat] = {}
        self.waiting: list[int] = []
        self.next = 0

    def grant(self, grants: list[Grant]) -> None:
        order = [g.key for g in grants]
        for granted in grants:
            assert isinstance(granted.key, int)
            assert granted.key in self.waiting
            self.waiting.remove(granted.key)
            self.at[granted.key] = granted.seat
        assert order == sorted(order, key=lambda k: k), "first come, first served"  # type: ignore[arg-type, return-value]

    @rule()
    def a_call_comes(self) -> None:
        key, self.next = self.next, self.next + 1
        seat = self.placement.choose()
        if seat is not None:
            self.placement.take(seat)
            self.at[key] = seat
        elif self.placement.wait(key):
            self.waiting.append(key)
        else:
            assert len(self.waiting) == self.placement.queue_depth_max

    @rule(data=st.data())
    def a_call_ends(self, data: st.DataObject) -> None:
        if self.at:
            key = data.draw(st.sampled_from(sorted(self.at)))
            self.grant(self.placement.release(self.at.pop(key)))

    @rule(data=st.data())
    def a_waiting_call_leaves(self, data: st.DataObject) -> None:
        if self.waiting:
            key = data.draw(st.sampled_from(self.waiting))
            self.waiting.remove(key)
            self.placement.leave(key)

    @rule(index=st.integers(0, 3), well=st.booleans())
    def a_backend_is_checked(self, index: int, well: bool) -> None:
        seat = self.seats[index % len(self.seats)]
        changed = seat.succeeded() if well else seat.failed()
        if changed:
            self.grant(self.placement.grants())

    @invariant()
    def never_over_capacity(self) -> None:
        for seat in getattr(self, "seats", []):
            mine = [key for key, at in self.at.items() if at is seat]
            assert seat.in_flight == len(mine)
            assert not seat.slots or seat.in_flight <= seat.slots

    @invariant()
    def the_line_is_what_it_should_be(self) -> None:
        if hasattr(self, "placement"):
            assert list(self.placement.line) == self.waiting
            assert len(self.waiting) <= self.placement.queue_depth_max

    @invariant()
    def nobody_waits_for_a_free_place(self) -> None:
        if getattr(self, "waiting", None):
            usable = [s for s in self.seats if s.up] or self.seats
            assert not any(s.free for s in usable)


TestPlaces = Places.TestCase
TestPlaces.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)


def test_least_loaded_by_weight_and_in_turn() -> None:
    one, two = Seat("one", weight=1), Seat("two", weight=2)
    placement = Placement(0, [one, two])
    for _ in range(9):
        seat = placement.choose()
        assert seat is not None
        placement.take(seat)
    assert (one.in_flight, two.in_flight) == (3, 6)


def test_a_down_backend_is_used_only_when_nothing_else_is_left() -> None:
    up, down = Seat("up"), Seat("down", up=False)
    placement = Placement(0, [down, up])
    assert placement.choose() is up
    assert placement.choose(frozenset(["up"])) is down
    up.up = False
    assert placement.choose() in (up, down)


def test_down_after_failures_in_a_row() -> None:
    seat = Seat("x", failures_max=3)
    assert [seat.failed(), seat.failed()] == [False, False]
    seat.succeeded()
    assert [seat.failed(), seat.failed(), seat.failed(), seat.failed()] == [False, False, True, False]
    assert seat.succeeded() is True
    assert seat.succeeded() is False
