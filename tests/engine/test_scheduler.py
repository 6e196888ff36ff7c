"""The scheduler on its own: order, fairness, blocks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hangup.engine.request import SubmittedRequest
from hangup.engine.scheduler import BlockPool, Decode, Prefill, Scheduler, Sequence


def sequence(prompt: int, tokens: int = 4) -> Sequence:
    return Sequence(SubmittedRequest(prompt=tuple(range(prompt)), tokens_max=tokens))


def make_scheduler(slots: int = 2, blocks: int = 100, chunk: int = 8) -> Scheduler:
    return Scheduler(slots, BlockPool(blocks, 4), context=64, prefill_tokens_max=chunk)


def test_slots_are_given_in_order_of_arrival() -> None:
    scheduler = make_scheduler()
    rows = [sequence(4) for _ in range(4)]
    for row in rows:
        scheduler.add(row)
    assert scheduler.admit() == 2 and scheduler.running == rows[:2] and list(scheduler.waiting) == rows[2:]
    scheduler.end(rows[0], "cancelled")
    scheduler.end(rows[2], "cancelled")
    assert scheduler.admit() == 1 and scheduler.running == [rows[3], rows[1]]


def test_nobody_overtakes_a_call_that_waits_for_blocks() -> None:
    scheduler = make_scheduler(slots=3, blocks=8)
    first, large, small = sequence(16), sequence(20), sequence(1)
    for row in (first, large, small):
        scheduler.add(row)
    assert scheduler.admit() == 1 and scheduler.admit() == 0
    scheduler.end(first, "stop")
    assert scheduler.admit() == 2 and scheduler.pool.free == 0


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(8, 64))
def test_every_prompt_moves_in_every_prefill(prompts: list[int], chunk: int) -> None:
    """However long the other prompts are, each gets its share, and no part of the limit stays unused."""
    scheduler = make_scheduler(slots=8, blocks=1000, chunk=chunk)
    for prompt in prompts:
        scheduler.add(sequence(prompt))
    scheduler.admit()
    plan = scheduler.schedule()
    assert isinstance(plan, Prefill)
    counts = [count for _, count in plan.chunks]
    assert len(counts) == len(prompts) and min(counts) >= 1
    assert sum(counts) == min(chunk, sum(prompts))


def test_prompts_and_answers_take_turns() -> None:
    scheduler = make_scheduler()
    talking, reading = sequence(2), sequence(60)
    for row in (talking, reading):
        scheduler.add(row)
    scheduler.admit()
    talking.tokens.append(1)
    kinds = [type(scheduler.schedule()) for _ in range(4)]
    assert kinds == [Prefill, Decode, Prefill, Decode]


def test_an_end_counts_once() -> None:
    scheduler = make_scheduler()
    row = sequence(3)
    scheduler.add(row)
    scheduler.admit()
    assert scheduler.end(row, "cancelled") and not scheduler.end(row, "stop")
    assert row.reason == "cancelled" and scheduler.pool.free == scheduler.pool.count
