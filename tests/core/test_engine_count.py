"""Compares an engine's token count, over restarts, with the delivered tokens: each token is accounted for, and a wrong count
shows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hangup.core.engine_count import EngineCount, Settled


def test_what_came_too_little_was_for_nobody_and_is_told_once() -> None:
    count = EngineCount()
    assert count.computed is None and not count.note(500)
    assert count.computed == 0
    count.note(620)
    assert count.settle(seen=100) == Settled(20, 0)
    assert count.settle(seen=100) == Settled(0, 0)
    count.note(650)
    assert count.settle(seen=125) == Settled(5, 0)


def test_what_died_uncounted_with_the_engine_is_told_apart() -> None:
    """The engine reported 100 tokens, delivered 130 before it died, and 40 after its restart."""
    count = EngineCount()
    count.note(0)
    count.note(100)
    assert count.note(40)
    assert count.computed == 140
    assert count.settle(seen=170) == Settled(0, 30)
    assert count.settle(seen=170) == Settled(0, 0)


def test_a_count_that_is_behind_without_a_restart_is_not_explained_away() -> None:
    count = EngineCount()
    count.note(0)
    count.note(90)
    assert count.settle(seen=100) == Settled(0, 0)


def test_how_far_it_is_ahead_of_what_came_and_was_named() -> None:
    count = EngineCount()
    assert count.ahead(seen=3) == -3
    count.note(0)
    count.note(100)
    assert count.ahead(seen=70) == 30
    count.name(20)
    assert count.ahead(seen=70) == 10
    assert count.settle(seen=99 - 20) == Settled(1, 0), "a single token gets its name as well"
    assert count.ahead(seen=79) == 0 and count.settle(seen=79) == Settled(0, 0)


_LIVES = st.lists(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=6), min_size=1, max_size=5)


@given(_LIVES)
def test_books_and_counts_agree_whenever_both_rest(lives: list[list[tuple[int, int]]]) -> None:
    """An engine lives several times. Each life has steps of (delivered tokens, tokens for nobody), with a query after each but
    the last, before which the engine dies. Whatever is lost, computed + uncounted = seen + nobody's."""
    count = EngineCount()
    count.note(0)
    seen = nobodys = uncounted = 0
    for life in lives:
        reported = 0
        for at, (came, vain) in enumerate(life):
            seen += came
            reported += came + vain
            if at == len(life) - 1 and at > 0:
                break  # it dies before the next look
            count.note(reported)
            found = count.settle(seen)
            nobodys, uncounted = nobodys + found.nobodys, uncounted + found.uncounted
        count.lost_sight()
        count.note(0)
        found = count.settle(seen)
        nobodys, uncounted = nobodys + found.nobodys, uncounted + found.uncounted
        assert (count.computed or 0) + uncounted == seen + nobodys


def test_one_that_takes_over_begins_with_no_difference() -> None:
    for seen in (0, 100, 5000):
        count = EngineCount()
        count.note(1000)
        count.note(1100)
        count.agree_on(seen)
        assert count.ahead(seen) == 0
        count.note(1130)
        assert count.ahead(seen + 10) == 20
