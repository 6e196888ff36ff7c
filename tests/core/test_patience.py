"""How long clients wait before they disconnect: learned from departures alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.config import LimitSettings
from hangup.core.admission import Admission, BackendLoad, Ticket
from hangup.core.admission.patience import _ENOUGH, KINDS_MAX, Patience, TenantPatience

SHARES = st.lists(st.floats(0, 0.999), max_size=60)


@given(
    timeout_s=st.floats(1.1, 1500),
    departures=st.integers(_ENOUGH, 60),
    joined=st.lists(st.floats(0, 0.9), max_size=60),
    answered=SHARES,
)
def test_a_common_timeout_is_found_however_few_were_kept_waiting_that_long(
    timeout_s: float, departures: int, joined: list[float], answered: list[float]
) -> None:
    """Everyone who was not answered by then left; some of them were watched only from later on."""
    patience = Patience()
    for share in answered:
        patience.observe(0.0, share * timeout_s, client_left=False)
    for at in range(departures):
        patience.observe(joined[at] * timeout_s if at < len(joined) else 0.0, timeout_s, client_left=True)
    assert patience.limit_s == pytest.approx(timeout_s)
    assert patience.departures == departures


@given(st.lists(st.tuples(st.floats(0, 4000), st.floats(0, 4000)), max_size=200))
def test_without_departures_there_is_no_timeout(waits: list[tuple[float, float]]) -> None:
    patience = Patience()
    for one, other in waits:
        patience.observe(min(one, other), max(one, other), client_left=False)
        assert patience.limit_s == math.inf
    assert patience.departures == 0


def leaving(at_s: float, departures: int, staying: int = 0, stay_s: float = 100.0) -> Patience:
    patience = Patience()
    for _ in range(staying):
        patience.observe(0.0, stay_s, client_left=False)
    for _ in range(departures):
        patience.observe(0.0, at_s, client_left=True)
    return patience


def test_a_few_departures_prove_nothing() -> None:
    assert leaving(10.0, _ENOUGH - 1, staying=9, stay_s=1.0).limit_s == math.inf
    assert leaving(10.0, _ENOUGH).limit_s == pytest.approx(10.0)


@pytest.mark.parametrize(("departures", "limit_s"), [(89, math.inf), (91, 10.0)])
def test_it_is_a_timeout_if_hardly_anybody_waits_longer(departures: int, limit_s: float) -> None:
    assert leaving(10.0, departures, staying=100 - departures).limit_s == pytest.approx(limit_s)


def test_shares_multiply_from_moment_to_moment() -> None:
    """Two in three leave at 5 s, two in three of the others at 10 s, and so on: after 15 s, one in 27 is left."""
    patience = Patience()
    for at_s, departures in ((5.0, 18), (10.0, 6), (15.0, 2)):
        for _ in range(departures):
            patience.observe(0.0, at_s, client_left=True)
    patience.observe(0.0, 60.0, client_left=False)
    assert patience.limit_s == pytest.approx(15.0)


@pytest.mark.parametrize("answered_s", [0.0, 0.0501, 0.5, 9.0])
def test_those_who_were_answered_before_are_not_among_those_who_stayed(answered_s: float) -> None:
    """Hundreds of short calls say nothing about who would have waited ten seconds."""
    patience = Patience()
    for _ in range(300):
        patience.observe(0.0, answered_s, client_left=False)
    for _ in range(8):
        patience.observe(0.0, 10.0, client_left=True)
    assert patience.limit_s == pytest.approx(10.0)


def test_one_watched_from_later_on_is_not_counted_before() -> None:
    patience = Patience()
    for _ in range(20):
        patience.observe(0.0, 10.0, client_left=True)
        patience.observe(20.0, 30.0, client_left=False)  # its line was stood in before; nobody knows who left it at 10 s
    assert patience.limit_s == pytest.approx(10.0)


@pytest.mark.parametrize(("at_s", "limit_s"), [(0.02, math.inf), (0.9, math.inf), (1.0, 1.0), (1.1, 1.1)])
def test_who_leaves_within_a_second_did_not_lose_patience(at_s: float, limit_s: float) -> None:
    assert leaving(at_s, 50).limit_s == pytest.approx(limit_s)


def test_beyond_the_last_bin_it_is_still_known_when_they_left() -> None:
    assert leaving(5000.0, 8).limit_s == pytest.approx(5000.0)


def test_the_curve_is_drawn_anew_after_a_moment() -> None:
    patience = leaving(10.0, _ENOUGH)
    assert patience.limit(1.0) == pytest.approx(10.0)
    for _ in range(2):
        patience.observe(0.0, 60.0, client_left=False)
    assert patience.limit(1.2) == pytest.approx(10.0)
    assert patience.limit(1.3) == math.inf


def test_a_timeout_that_is_no_more_is_forgotten() -> None:
    patience = leaving(10.0, 700)
    for _ in range(4000):
        patience.observe(0.0, 30.0, client_left=False)
    assert patience.limit_s == math.inf
    for _ in range(4000):  # were the 4,000 still counted in full, half would seem to stay
        patience.observe(0.0, 20.0, client_left=True)
    assert patience.limit_s == pytest.approx(20.0)


def test_a_few_in_a_row_do_not_outweigh_hundreds() -> None:
    patience = Patience()
    for at in range(2000):
        patience.observe(0.0, 60.0 if at % 2 else 10.0, client_left=not at % 2)
    for _ in range(10):
        patience.observe(0.0, 10.0, client_left=True)
    assert patience.limit_s == math.inf


def test_many_calls_change_nothing_while_all_leave_alike() -> None:
    patience = Patience()
    for _ in range(5000):
        patience.observe(0.0, 10.0, client_left=True)
        assert patience.limit_s in (math.inf, pytest.approx(10.0))
    assert patience.limit_s == pytest.approx(10.0)


def test_each_kind_of_client_has_its_own_patience() -> None:
    book = TenantPatience()
    one = book.of("curl", True)
    assert book.of("curl", True) == one and one[0] is not one[1]  # a Patience equals itself alone
    assert book.of("curl", False) != one and book.of("python", True) != one


def test_names_of_clients_fill_no_memory() -> None:
    book = TenantPatience()
    known = {name: book.of(str(name), True) for name in range(2 * KINDS_MAX)}
    assert len(set(known.values())) == 2 * KINDS_MAX
    rest = book.of("one more", True)
    assert book.of("another", True) == rest and book.of("another", False) != rest
    assert all(book.of(str(name), True) == kind and kind != rest for name, kind in known.items())


@pytest.mark.parametrize(("step_s", "spare_s"), [(None, 10.0), (0.02, 8.0)])
def test_what_a_client_has_to_spare_is_what_its_answer_does_not_take(step_s: float | None, spare_s: float) -> None:
    """An answer of a hundred tokens must be complete within ten seconds; an unknown time per token counts as zero."""
    [load] = loads = [BackendLoad("s", 1)]
    admission: Admission[Any] = Admission(LimitSettings(), loads, lambda: 0.5)
    admission.arrive(Ticket("runs"), "t", 0.0)
    for _ in range(8 if step_s else 0):
        admission.fleet.step(load, step_s or 0.0, 0.0)
    waits = Ticket("waits", output_max=100, all_by=10.0)
    admission.arrive(waits, "t", 0.0)
    assert waits.queued and waits.patience_s == pytest.approx(spare_s)


def test_those_who_are_still_there_count() -> None:
    """At first, only the calls of clients that left have ended: they must not stand for the clients that keep reading."""
    patience = Patience()
    for at in range(40):
        patience.watch(at, 0.0, 0.0)
    for at in range(20):
        patience.unwatch(at)
        patience.observe(0.0, 2.0, client_left=True)
    assert patience.limit_s == pytest.approx(2.0)  # what the departures alone would say
    assert patience.limit(3.0) == math.inf


def test_a_timeout_that_clients_keep_roughly_is_known_by_its_edge_and_people_by_their_end() -> None:
    """Many clients round their timeouts up to whole seconds."""
    rough, people = Patience(), Patience()
    for at in range(40):
        rough.observe(0.0, 6.0 + at / 40, client_left=True)
        people.observe(0.0, 2.0 + at, client_left=True)
    assert 6.0 <= rough.limit_s <= 6.2
    assert people.limit_s > 30.0


def left_whole(*moments: float) -> Patience:
    """Return streams, each of which its client left after this many seconds."""
    patience = Patience()
    for at_s in moments:
        patience.observe(2.0, at_s, client_left=True)
    return patience


def test_a_few_who_leave_a_stream_when_others_leave_the_line_have_one_timeout_for_both() -> None:
    assert left_whole(6.1, 6.4, 6.9).limit(0.0, 6.1) == 6.1
    assert left_whole(6.1, 6.4, 6.9).limit(0.0) == math.inf, "by themselves they are too few"
    assert left_whole(6.1, 6.4).limit(0.0, 6.1) == math.inf, "two may be chance"
    assert left_whole(6.1, 6.4, 3.0).limit(0.0, 6.1) == math.inf, "one of them left at another time"
    assert left_whole(6.1, 6.4, 6.9).limit(0.0, 20.0) == math.inf


def test_one_who_stays_longer_has_no_timeout_for_all_of_it() -> None:
    """These clients wait 6 s for a first token, and then read for as long as it takes."""
    answered = left_whole(6.1, 6.4, 6.9)
    answered.observe(2.0, 9.0, client_left=False)
    assert answered.limit(0.0, 6.1) == math.inf
    reading = left_whole(6.1, 6.4, 6.9)
    reading.watch("who", 0.0, 2.0)
    assert reading.limit(7.0, 6.1) == 6.1
    assert reading.limit(9.0, 6.1) == math.inf
    many = left_whole(*[6.3] * 11)
    many.observe(2.0, 9.0, client_left=False)
    assert many.limit(0.0, 6.1) == pytest.approx(6.3), "one in ten may be another kind"
