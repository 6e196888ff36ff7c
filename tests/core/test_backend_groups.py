"""The choice among the backends that can answer a call is the same as if all candidates were compared."""

from __future__ import annotations

import random

import pytest

from hangup.core.admission.backend_group import NOT_ENTERED, order
from hangup.core.admission.backend_load import BackendLoad
from hangup.core.admission.fleet import Fleet
from hangup.core.admission.health import HealthEvent
from hangup.core.admission.tenant_queue import NOBODY
from hangup.core.admission.ticket import Ticket

EVENTS = [HealthEvent.ANSWERED, HealthEvent.FAILED, HealthEvent.GRACE_OVER, HealthEvent.FOUND_ZOMBIE, HealthEvent.FOUND_CLEAN]


def lowest(loads: list[BackendLoad], tried: frozenset[str], eligible: frozenset[str]) -> set[str]:
    """Return the backends that a comparison of all candidates would choose from."""
    among = [load for load in loads if load.name in eligible and load.name not in tried]
    among = [load for load in among if load.health.well] or among
    among = [load for load in among if load.has_room]
    return {load.name for load in among if order(load) == min(map(order, among))}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("sets", [3, 30])
def test_a_group_chooses_like_a_comparison_of_all(seed: int, sets: int) -> None:
    draw = random.Random(seed)
    loads = [BackendLoad(f"engine-{n}", slots=draw.randint(1, 4), weight=draw.choice([1.0, 2.0])) for n in range(40)]
    fleet, names = Fleet(loads), [load.name for load in loads]
    eligible = [frozenset(draw.sample(names, draw.randint(9, 39))) for _ in range(sets)]
    running: list[Ticket[int]] = []
    for now in range(600):
        fleet.now = now * 0.1
        wanted = draw.choice(eligible)
        tried = frozenset(draw.sample(names, 3)) if draw.random() < 0.2 else NOBODY
        best = fleet.best(0, tried, wanted)
        assert ({best.name} if best is not None else set()) <= lowest(loads, tried, wanted)
        assert (best is None) == (not lowest(loads, tried, wanted))
        if best is not None:
            ticket: Ticket[int] = Ticket(now, blind=True)
            fleet.place(best, ticket, fleet.now)
            running.append(ticket)
        while running and draw.random() < 0.5:
            fleet.release(running.pop(draw.randrange(len(running))), fleet.now)
        if draw.random() < 0.05 and draw.choice(loads).health.apply(draw.choice(EVENTS)):
            fleet.refresh()


def test_groups_of_sets_that_nobody_asks_for_any_more_are_dropped() -> None:
    loads = [BackendLoad(f"engine-{n}") for n in range(40)]
    fleet = Fleet(loads)
    for now in range(100):
        fleet.now = now * 10.0
        assert fleet.best(0, NOBODY, frozenset(load.name for load in loads[now % 30 : now % 30 + 10])) is not None
    assert len(fleet._groups) <= 16
    assert max(len(groups) for groups in fleet._groups_of.values()) <= 16


def test_a_backend_with_an_overdue_call_is_still_found() -> None:
    """Noting an overdue call adds an entry, and that may be when old entries are dropped."""
    one, other = BackendLoad("one"), BackendLoad("other")
    fleet = Fleet([one, other])
    fleet.now = 100.0
    for load in (one, other):
        load.limiter.first_token(10, 0.05, 99.0, ahead=0, free=True, late=None, unqueued=True, visible=True)
        fleet.load_changed(load)
    waiting: Ticket[int] = Ticket(1, prompt=10)
    fleet.place(one, waiting, 100.0)
    waiting.unqueued = False
    for number in (2, 3):
        fleet.place(other, Ticket(number, blind=True), 100.0)
    for entries in range(60, 73):  # they are tidied beyond 72
        while len(fleet._all) < entries:
            other.entered = NOT_ENTERED  # so that it gets one more entry
            fleet.load_changed(other)
        fleet.now = 200.0
        assert fleet.best() is one, f"it has fewer calls ({entries} entries)"
        fleet.now, waiting.overdue = 100.0, False
        one.awaiting_first_token[waiting] = None


def test_calls_that_come_and_go_add_no_entries() -> None:
    loads = [BackendLoad(f"engine-{n}") for n in range(20)]
    fleet, chosen = Fleet(loads), []
    for now in range(200):
        best = fleet.best()
        assert best is not None
        chosen.append(best.name)
        ticket: Ticket[int] = Ticket(now, blind=True)
        fleet.place(best, ticket, float(now))
        fleet.release(ticket, float(now))
        assert len(fleet._all) == len(loads)
    assert all(set(chosen[at : at + 20]) == {load.name for load in loads} for at in range(0, 200, 20)), "not in turn"
