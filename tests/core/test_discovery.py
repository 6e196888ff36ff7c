"""What DNS answers mean for the backends behind a name."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hangup.core.admission import DnsListing
from hangup.core.discovery import HostAddress, KnownAddresses

GONE_S = 15.0
A, B, C = (HostAddress(f"10.0.0.{n}", 8000) for n in (1, 2, 3))
LISTED, NEW, MISSING = DnsListing.LISTED, DnsListing.NEW, DnsListing.MISSING


def answer(known: KnownAddresses, now: float, *addresses: HostAddress, most: int = 10) -> dict[HostAddress, DnsListing]:
    known.answered(addresses, now, gone_s=GONE_S, most=most)
    return known.listings


def test_the_first_ones_get_calls_at_once_and_later_ones_after_a_canary() -> None:
    known = KnownAddresses()
    assert answer(known, 0, A, B) == {A: LISTED, B: LISTED}
    assert answer(known, 5, A, B, C) == {A: LISTED, B: LISTED, C: NEW}
    known.warmed_up(C)
    assert answer(known, 10, A, B, C) == {A: LISTED, B: LISTED, C: LISTED}


def test_a_missing_one_rests_and_comes_back_or_is_gone() -> None:
    known = KnownAddresses()
    answer(known, 0, A, B)
    assert answer(known, 5, A) == {A: LISTED, B: MISSING}
    assert answer(known, 10, A, B) == {A: LISTED, B: LISTED}, "it needs no second canary"
    assert answer(known, 15, A) == {A: LISTED, B: MISSING}
    assert answer(known, 29, A) == {A: LISTED, B: MISSING}
    assert answer(known, 30, A) == {A: LISTED}


def test_a_name_without_addresses_keeps_its_calls_for_a_while() -> None:
    known = KnownAddresses()
    answer(known, 0, A, B)
    assert answer(known, 5) == {A: LISTED, B: LISTED}
    assert answer(known, 20) == {}


def test_if_all_are_exchanged_the_new_ones_get_calls_at_once() -> None:
    known = KnownAddresses()
    answer(known, 0, A)
    assert answer(known, 5, B) == {A: MISSING, B: LISTED}


def test_a_new_one_is_used_without_a_canary_when_the_others_leave() -> None:
    known = KnownAddresses()
    answer(known, 0, A)
    assert answer(known, 5, A, B) == {A: LISTED, B: NEW}
    assert answer(known, 10, B) == {A: MISSING, B: LISTED}


def test_a_canary_of_one_that_is_missing_counts_when_it_returns() -> None:
    known = KnownAddresses()
    answer(known, 0, A)
    answer(known, 5, A, B)
    assert answer(known, 10, A) == {A: LISTED, B: MISSING}
    known.warmed_up(B)
    assert known.listings == {A: LISTED, B: MISSING}
    assert answer(known, 15, A, B) == {A: LISTED, B: LISTED}
    known.warmed_up(C)  # it was removed while its canary was on its way
    assert known.listings == {A: LISTED, B: LISTED}


def test_too_many_leave_those_in_use_alone() -> None:
    known = KnownAddresses()
    assert answer(known, 0, B, C, most=2) == {B: LISTED, C: LISTED}
    assert answer(known, 5, A, B, C, most=2) == {B: LISTED, C: LISTED}


ANSWERS = st.lists(st.tuples(st.sets(st.sampled_from([A, B, C])), st.sets(st.sampled_from([A, B, C])), st.floats(0, 30)))


@given(ANSWERS)
def test_any_answers_leave_something_that_gets_calls(answers: list[tuple[set[HostAddress], set[HostAddress], float]]) -> None:
    known, now = KnownAddresses(), 0.0
    last_listed: dict[HostAddress, float] = {}
    for found, warmed, pause in answers:
        now += pause
        last_listed |= dict.fromkeys(found, now)
        listings = answer(known, now, *found)
        assert found <= listings.keys()
        assert not found or LISTED in [listings[address] for address in found], "a name with addresses can serve"
        assert all(listing is not MISSING for address, listing in listings.items() if address in found)
        assert all(listings[address] is MISSING for address in listings.keys() - found) or not found
        assert all(now - last_listed[address] < 30 + GONE_S for address in listings), "what is gone is forgotten"
        for address in warmed:
            known.warmed_up(address)
        assert all(known.listings[address] is LISTED for address in warmed & found)
