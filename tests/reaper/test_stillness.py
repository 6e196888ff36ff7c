"""When no call makes progress, and when that is normal."""

from __future__ import annotations

import math

from hangup.core.reaper import Slot, Stillness, Waiting, reading_s
from hangup.gateway.backends.slots import SlotPool


def test_nobody_waits_nobody_is_kept_waiting() -> None:
    assert Stillness().look([], -math.inf, 100.0) == -math.inf


def test_it_counts_from_the_oldest_wait_or_from_the_last_thing_that_came() -> None:
    still = Stillness()
    assert still.look([Waiting(10.0, 0.0), Waiting(14.0, 0.0)], -math.inf, 20.0) == 10.0
    assert still.look([Waiting(10.0, 0.0), Waiting(14.0, 0.0)], 18.0, 20.0) == 2.0


def test_calls_that_gave_up_make_an_engine_no_livelier() -> None:
    """Each client waits five seconds and leaves, and another comes; no call ever makes progress."""
    still = Stillness()
    for second in range(100):
        still_s = still.look([Waiting(second - second % 5, 0.0)], -math.inf, float(second))
    assert still_s == 99.0
    assert still.look([Waiting(98.0, 0.0)], 99.5, 100.0) == 0.5
    still.reset()
    assert still.look([], 99.5, 101.0) == -math.inf


def test_a_prompt_may_take_its_time() -> None:
    slow = reading_s(prompt_tokens=4000, expected_s=None)
    assert slow == 200.0 and reading_s(4000, expected_s=2.0) == 6.0
    assert Stillness().look([Waiting(0.0, slow)], -math.inf, 60.0) < 0
    assert Stillness().look([Waiting(0.0, reading_s(10, None))], -math.inf, 60.0) == 59.5


def busy(*rows: tuple[int, str]) -> tuple[Slot, ...]:
    return tuple(Slot(id, True, task) for id, task in rows)


class TestSlots:
    def test_one_that_is_at_work_for_somebody_else_is_not_given_away(self) -> None:
        pool = SlotPool()
        pool.resize(2)
        assert pool.occupied(busy((1, "before us")), frozenset()) == 1 and pool.in_doubt
        assert pool.take() == 0 and pool.take() is None
        pool.give(0)
        assert pool.occupied(busy((1, "a")), frozenset()) == 0 and pool.in_doubt  # it may be over in a moment
        assert pool.occupied(busy((1, "a")), frozenset()) == 1
        assert pool.take() == 0 and pool.take() is None
        assert pool.occupied(busy((0, "mine"), (1, "b")), pool.taken) == 0  # it does something else now
        assert pool.take() == 1

    def test_one_of_ours_that_ended_while_the_engine_was_asked_is_free(self) -> None:
        pool = SlotPool()
        pool.resize(1)
        slot = pool.take()
        assert slot == 0
        for _ in range(3):
            before = pool.taken
            pool.give(0)
            assert pool.occupied(busy((0, "x")), before) == 0
            assert pool.take() == 0

    def test_fewer_and_more(self) -> None:
        pool = SlotPool()
        pool.resize(4)
        assert [pool.take() for _ in range(4)] == [3, 2, 1, 0]
        pool.resize(2)
        for slot in (3, 1):
            pool.give(slot)
        assert pool.take() == 1 and pool.take() is None
        pool.give(1)
        pool.resize(2)  # asked again meanwhile: what is still held stays so
        assert pool.take() == 1 and pool.take() is None
