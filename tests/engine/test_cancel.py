"""Cancels take effect before the next forward and exactly once, and leave nothing behind."""

from __future__ import annotations

import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.fakes import EventRecorder, fake_engine, finish, submit
from hangup.engine.engine import Engine, Submission
from hangup.engine.options import EngineOptions
from hangup.engine.request import Busy, Unfit

SPECS = ["off", "ngram", "mtp", "draft"]


def assert_nothing_is_held(engine: Engine) -> None:
    assert engine.scheduler.running == [] and not engine.scheduler.waiting
    assert engine.scheduler.pool.free == engine.scheduler.pool.count
    assert not engine._tickets


@pytest.mark.parametrize("spec", SPECS)
def test_no_forward_begins_for_a_call_after_its_cancel(spec: str) -> None:
    """A call that is cancelled during a forward (of a prompt, a draft step or a verification) gets no further forward."""
    for at in range(1, 40):
        engine, model = fake_engine(EngineOptions(slots=2, spec=spec, prefill_tokens_max=4, block_tokens=4))
        victim, recorded = submit(engine, prompt=13)
        _, other_recorded = submit(engine, prompt=6)
        tokens_before: list[int] = []

        def during(
            at: int = at, victim: Submission = victim, recorded: EventRecorder = recorded, engine: Engine = engine
        ) -> None:
            if engine.counters.forwards == at:
                victim.cancel()
                on_the_way = [event for client, event in engine._outbox if client is recorded]  # of forwards before this one
                tokens_before.append(len(recorded.events) + len(on_the_way))  # noqa: B023 (it is called in this round alone)

        model.during = during
        finish(engine)
        if victim.sequence.reason != "cancelled":
            break  # it was over before the forward number `at`
        slot = 0  # the victim came first
        later = [slots for _, slots in model.forwards[at:]]
        assert all(slot not in slots for slots in later), f"forward {at}"
        assert [type(e).__name__ for e in recorded.events[tokens_before[0] :]] == ["GenerationEnded"], "only the end"
        assert other_recorded.ended is not None and other_recorded.ended.reason == "length"
        assert_nothing_is_held(engine)
    assert at > 10


@pytest.mark.parametrize("spec", SPECS)
def test_the_mailbox_is_drained_between_any_two_forwards(spec: str) -> None:
    """Other engines had a draft loop that did not check its queue; ours checks before every forward."""
    engine, model = fake_engine(EngineOptions(slots=3, spec=spec, prefill_tokens_max=4))
    drains: list[int] = []
    drain = engine.mailbox.drain

    def counted() -> tuple[list[Submission], list[Submission]]:
        drains.append(len(model.forwards))
        return drain()

    engine.mailbox.drain = counted  # type: ignore[method-assign]
    for _ in range(5):
        submit(engine, prompt=9)
    finish(engine)
    assert len(model.forwards) > 20
    assert set(range(len(model.forwards))) <= set(drains), "before each forward there was a drain"


def test_a_forward_without_a_drain_is_refused() -> None:
    engine, _ = fake_engine(EngineOptions(slots=1, spec="mtp"))
    submit(engine)
    engine.step()
    engine._drain()
    engine._decode(engine.scheduler.running)
    with pytest.raises(AssertionError, match="without draining"):
        engine.model.mtp(*[None] * 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", SPECS)
def test_the_next_call_takes_the_slot_before_the_next_forward(spec: str) -> None:
    engine, model = fake_engine(EngineOptions(slots=1, spec=spec))
    first, _ = submit(engine, tokens=50)
    second, recorded = submit(engine, tokens=3)
    engine.step()
    engine.step()
    first.cancel()
    before = len(model.forwards)
    engine.step()
    assert second.sequence.running and second.sequence.cached > 0, "its prompt was read by the forward that followed"
    assert model.forwards[before] == ("forward", [0])
    finish(engine)
    assert recorded.ended is not None and recorded.ended.tokens == 3


def test_many_cancels_are_one_message() -> None:
    engine, _ = fake_engine(EngineOptions(slots=1))
    ticket, recorded = submit(engine)
    engine.step()
    for _ in range(100):
        ticket.cancel()
    finish(engine)
    ticket.cancel()
    engine.step()
    assert engine.counters.cancels == 1 and engine.counters.cancelled_running == 1
    assert recorded.ended is not None and recorded.ended.reason == "cancelled"


def test_who_leaves_the_waiting_list_costs_nothing() -> None:
    engine, model = fake_engine(EngineOptions(slots=1))
    running, _ = submit(engine)
    engine.step()
    waiting = [submit(engine)[0] for _ in range(10)]
    for ticket in waiting:
        ticket.cancel()
    running.cancel()
    finish(engine)
    assert engine.counters.started == 1 and engine.counters.cancelled_waiting == 10
    assert len(model.forwards) == 1


def test_a_full_engine_refuses_and_takes_again() -> None:
    engine, _ = fake_engine(EngineOptions(slots=2, waiting_max=3))
    tickets = [submit(engine)[0] for _ in range(5)]
    with pytest.raises(Busy):
        submit(engine)
    tickets[4].cancel()
    engine.step()
    submit(engine)
    assert engine.counters.refused == 1
    finish(engine)
    assert_nothing_is_held(engine)


def test_what_cannot_fit_is_refused_at_the_door() -> None:
    engine, _ = fake_engine(EngineOptions(slots=1, blocks=2, block_tokens=8))
    for prompt, tokens in ((64, 1), (0, 5), (5, 0), (5, 30)):
        with pytest.raises(Unfit):
            submit(engine, prompt=prompt, tokens=tokens)


def test_an_answer_ends_with_the_context() -> None:
    engine, _ = fake_engine(EngineOptions(slots=1, spec="mtp"))
    _, recorded = submit(engine, prompt=50, tokens=10_000)
    finish(engine)
    assert recorded.ended is not None and (recorded.ended.reason, recorded.ended.tokens) == ("length", 14)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_happens_nothing_is_lost_and_nothing_is_kept(data: st.DataObject) -> None:
    """Calls and cancels come in any order, also during forwards: each call ends once, and all blocks are returned."""
    spec = data.draw(st.sampled_from(SPECS))
    options = EngineOptions(
        slots=data.draw(st.integers(1, 4)),
        spec=spec,
        waiting_max=4,
        blocks=data.draw(st.integers(8, 40)),
        block_tokens=data.draw(st.sampled_from([1, 4, 16])),
        prefill_tokens_max=data.draw(st.integers(1, 20)),
    )
    engine, model = fake_engine(options)
    chance = random.Random(data.draw(st.integers(0, 10_000)))
    calls: list[tuple[Submission, EventRecorder]] = []

    def during() -> None:
        if calls and chance.random() < 0.15:
            chance.choice(calls)[0].cancel()

    model.during = during
    for _ in range(data.draw(st.integers(1, 30))):
        if chance.random() < 0.6:
            with contextlib.suppress(Busy, Unfit):
                calls.append(submit(engine, prompt=chance.randint(1, 30), tokens=chance.randint(1, 25), temperature=1.0))
        held = [block for sequence in engine.scheduler.running for block in sequence.blocks]
        assert len(held) == len(set(held)) and 0 not in held, "no block has two owners"
        assert len(held) + engine.scheduler.pool.free == engine.scheduler.pool.count
        engine.step()
    finish(engine)
    assert_nothing_is_held(engine)
    counters = engine.counters
    for ticket, recorded in calls:
        assert recorded.ended is not None and recorded.ended.reason == ticket.sequence.reason
    assert counters.submitted == len(calls) == counters.finished + counters.cancelled_running + counters.cancelled_waiting
    assert counters.forwards == len(model.forwards)
    assert counters.accepted <= counters.drafted
