"""A backend's health: its tables are complete, and no order of events breaks what admission relies on."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.core.admission.health import (
    INTAKE,
    LISTING,
    REACH,
    TRUST,
    USE,
    BackendHealth,
    CallIntake,
    DnsListing,
    HealthEvent,
    ImpossibleEventError,
    Reach,
    Trust,
    Use,
)

TABLES: list[tuple[type[StrEnum], Any]] = [
    (Reach, REACH),
    (Trust, TRUST),
    (CallIntake, INTAKE),
    (Use, USE),
    (DnsListing, LISTING),
]
E = HealthEvent


def test_each_event_is_in_one_table_and_leads_somewhere_from_each_of_its_states() -> None:
    assert sorted(event for _, table in TABLES for event in table) == sorted(HealthEvent)
    for states, table in TABLES:
        for event, row in table.items():
            assert set(row) == set(states), event
            assert all(to is None or to in states for to in row.values())


def test_each_state_can_be_reached_and_left() -> None:
    for states, table in TABLES:
        moves = {(state, to) for row in table.values() for state, to in row.items() if to not in (state, None)}
        start = next(iter(states))
        assert {to for _, to in moves} >= set(states) - {start, Reach.ASSUMED_UP}
        assert {state for state, _ in moves} == set(states) - {Use.RETIRED}


@given(st.lists(st.tuples(st.sampled_from(HealthEvent), st.floats(1.0, 1e6))), st.integers(1, 4))
def test_any_order_of_events_keeps_the_facts_apart(events: list[tuple[HealthEvent, float]], failures_max: int) -> None:
    health = BackendHealth(failures_max)
    seen, failures = False, 0
    for event, at in events:
        before = (health.reach, health.trust, health.intake, health.use, health.listing)
        visible = (health.up, health.trust, health.intake, health.use, health.listing)
        until = at if event is E.PAUSED else 0.0
        if health.retired and event in USE:
            with pytest.raises(ImpossibleEventError):
                health.apply(event)
            assert (health.reach, health.trust, health.intake, health.use, health.listing) == before
            continue
        changed = health.apply(event, until=until)
        after = (health.reach, health.trust, health.intake, health.use, health.listing)
        assert sum(one is not other for one, other in zip(before, after, strict=True)) <= 1, "one source, one fact"
        assert changed == (visible != (health.up, health.trust, health.intake, health.use, health.listing))
        assert changed or before == after or before[0] is Reach.ASSUMED_UP
        seen = seen or event is E.ANSWERED
        failures = 0 if event is E.ANSWERED else failures + (event is E.FAILED)
        assert health.failures == failures
        assert_consistent(health, seen)
        if event is E.FAILED:
            assert health.up == (before[0] is not Reach.DOWN and failures < failures_max)
        if event is E.ANSWERED:
            assert health.reach is Reach.UP


def assert_consistent(health: BackendHealth, seen: bool) -> None:
    drained_or_retired = health.drained or health.retired
    assert health.paused == (health.paused_until > 0)
    assert not (health.drained and health.retired)
    unlisted = health.listing is not DnsListing.LISTED
    assert not (health.in_service and (drained_or_retired or health.quarantined or unlisted)), "no call waits for it"
    assert not (health.takes_calls and (health.paused or not health.in_service)), "no call is sent there"
    assert not (health.well and not (health.up and health.in_service))
    assert not (health.well and health.trust in (Trust.DEGRADED, Trust.QUARANTINED))
    assert not (health.ready and not (seen and health.up and health.in_service)), "ready means that it has answered"
    if not drained_or_retired and not health.quarantined and not unlisted:
        assert health.in_service and health.takes_calls != health.paused
    assert (health.reach is Reach.ASSUMED_UP) <= (not seen)


@given(st.lists(st.sampled_from([event for event in HealthEvent if event not in USE])))
def test_no_recovery_takes_back_what_an_operator_drained(events: list[HealthEvent]) -> None:
    health = BackendHealth()
    health.apply(E.DRAINED)
    for event in events:
        health.apply(event)
        assert health.drained and not health.takes_calls and not health.well and not health.ready
    assert health.apply(E.UNDRAINED) and not health.drained


@given(st.lists(st.sampled_from([event for event in HealthEvent if event not in USE and event is not E.TAKEN_BACK])))
def test_only_the_reaper_ends_a_quarantine(events: list[HealthEvent]) -> None:
    health = BackendHealth()
    health.apply(E.QUARANTINED)
    for event in events:
        health.apply(event)
        assert health.quarantined and not health.in_service
    assert health.apply(E.TAKEN_BACK) and health.trust is Trust.TRUSTED


def test_it_is_down_after_some_failures_in_a_row() -> None:
    health = BackendHealth()
    assert not health.ready and not health.apply(E.ANSWERED) and health.ready
    for _ in range(2):
        most = health.failures_max
        assert [health.apply(E.FAILED) for _ in range(most)] == [False] * (most - 1) + [True]
        assert not health.apply(E.FAILED), "it is down already"
        assert not health.up and health.apply(E.ANSWERED) and health.up and health.failures == 0


def test_a_lower_maximum_counts_from_the_next_failure_on() -> None:
    health = BackendHealth(failures_max=5)
    assert not health.apply(E.FAILED) and not health.apply(E.FAILED)
    health.failures_max = 2
    assert health.up and health.apply(E.FAILED) and not health.up


def test_the_clock_alone_suspects_and_never_clears() -> None:
    health = BackendHealth()
    assert health.apply(E.GRACE_OVER) and health.trust is Trust.SUSPECTED and health.well
    assert health.apply(E.FOUND_ZOMBIE) and not health.well and health.in_service
    assert not health.apply(E.GRACE_OVER) and health.trust is Trust.DEGRADED
    assert health.apply(E.FOUND_LATE) and health.trust is Trust.SUSPECTED
    assert health.apply(E.FOUND_CLEAN) and health.trust is Trust.TRUSTED


def test_a_longer_pause_is_the_same_pause() -> None:
    health = BackendHealth()
    assert health.apply(E.PAUSED, until=5.0) and not health.apply(E.PAUSED, until=9.0)
    assert health.paused_until == 9.0 and health.in_service and not health.takes_calls
    assert health.apply(E.RESUMED) and health.paused_until == 0.0 and health.takes_calls
