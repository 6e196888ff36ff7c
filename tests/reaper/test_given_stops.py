"""Ended calls that another process judges: what it says reaches the call, and silence has an end."""

from __future__ import annotations

from hangup.core.reaper import GivenStops, PendingStop, StopState
from hangup.core.reaper.pending_stops import REMEMBERED


def given(*keys: str) -> tuple[GivenStops, list[PendingStop]]:
    stops, found = [PendingStop(key, at=0.0) for key in keys], GivenStops()
    for stop in stops:
        found.add(stop)
    return found, stops


def test_what_was_found_out_is_news_once() -> None:
    book, (stop,) = given("a")
    assert book.found("a", StopState.VERIFIED, 7, 1, now=2.0) is stop
    assert stop.state is StopState.VERIFIED and stop.released_at == 2.0 and stop.tokens_now == 7 and stop.aborts == 1
    assert book.found("a", StopState.VERIFIED, 7, 1, now=3.0) is None and stop.released_at == 2.0
    assert book.found("b", StopState.VERIFIED, None, 0, now=3.0) is None, "not ours"
    assert len(book) == 0


def test_a_release_that_is_taken_back_makes_it_a_zombie() -> None:
    book, (stop,) = given("a")
    book.found("a", StopState.VERIFIED, None, 0, now=2.0)
    assert book.found("a", StopState.ZOMBIE, None, 0, now=5.0) is stop
    assert stop.state is StopState.ZOMBIE and stop.released_at is None and len(book) == 1
    book.found("a", StopState.RESTARTED, None, 3, now=9.0)
    assert stop.released is StopState.RESTARTED and stop.aborts == 3


def test_only_a_call_of_which_nobody_says_anything_is_given_up() -> None:
    book, (quiet, zombie, young) = given("quiet", "zombie", "young")
    young.at = 20.0
    book.found("zombie", StopState.ZOMBIE, None, 0, now=3.0)
    assert book.take_forgotten(30.0, after_s=30.0) == []
    assert book.take_forgotten(31.0, after_s=30.0) == [quiet]
    assert quiet.state is StopState.UNVERIFIED and zombie.state is StopState.ZOMBIE and len(book) == 2
    assert book.found("quiet", StopState.ZOMBIE, None, 0, now=40.0) is quiet, "it did run on"


def test_calls_are_taken_over_once_and_few_are_remembered() -> None:
    book, (first, second) = given("a", "b")
    assert book.take("a") is first and book.take("a") is None
    assert book.take_all() == [second] and len(book) == 0
    book, stops = given(*(f"k{number}" for number in range(REMEMBERED + 5)))
    for stop in stops:
        book.found(stop.key, StopState.VERIFIED, None, 0, now=1.0)
    assert book.take("k0") is None and book.take(stops[-1].key) is stops[-1]
