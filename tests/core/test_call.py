"""The life of a call: any order of events leads to exactly one end, and the call holds nothing after it."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hangup.core import reasons
from hangup.core.call import DETAIL_CHARS_MAX, Call, CallTimeLimits, Ending, EngineAction, Phase, Tell
from hangup.core.ledger import Ledger
from hangup.core.reasons import REASONS, Outcome, Reason

ANY_REASON = st.sampled_from(sorted(REASONS.values(), key=lambda r: r.code))


def test_a_new_call_has_cost_nothing() -> None:
    call = Call("x", 1.0)
    assert call.attempts == call.status == call.bytes_in == call.tokens_out == 0
    assert call.phase is Phase.RECEIVING and not (call.stream or call.tokens_exact or call.engine_finished)


class Life(RuleBasedStateMachine):
    """Does to a call what sockets, timers and operators do, in any order, and tracks what the call holds."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.call = Call("x", self.now)
        self.call.clock = CallTimeLimits(total_s=60, first_token_s=20, gap_s=10, queue_s=5, client_total_s=50, client_read_s=15)
        self.ledger = Ledger()
        self.endings: list[Ending] = []
        self.engine_works = False
        self.client_has_head = False

    @rule(seconds=st.floats(0, 30))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.call.phase is Phase.RECEIVING)
    @rule()
    def body_arrives(self) -> None:
        self.call.received(self.now)

    @precondition(lambda self: self.call.phase is Phase.WAITING)
    @rule()
    def is_sent(self) -> None:
        self.call.sent("b", self.now)
        self.engine_works = True

    @precondition(lambda self: self.call.phase is Phase.SENT)
    @rule()
    def backend_fails_before_its_first_byte(self) -> None:
        self.call.fell_back(self.now)
        self.engine_works = False

    @precondition(lambda self: self.call.phase is Phase.SENT)
    @rule(begin=st.booleans())
    def engine_answers(self, begin: bool) -> None:
        self.call.answered(self.now)
        if begin:
            self.call.client_answer_began(200)
            self.client_has_head = True

    @precondition(lambda self: self.call.phase is Phase.ANSWERING)
    @rule(tokens=st.integers(0, 3))
    def tokens_come(self, tokens: int) -> None:
        self.call.progressed(tokens, self.now)

    @precondition(lambda self: self.call.phase is Phase.ANSWERING)
    @rule()
    def engine_finishes(self) -> None:
        self.call.engine_finished = True
        self.engine_works = False
        self.end(reasons.COMPLETED)

    @rule(reason=ANY_REASON)
    def someone_ends_it(self, reason: Reason) -> None:
        if reason is not reasons.COMPLETED:
            self.end(reason)

    @rule()
    def the_timer_fires(self) -> None:
        reason = self.call.overdue(self.now)
        if reason is not None:
            self.end(reason)

    def end(self, reason: Reason) -> None:
        phase = self.call.phase
        ending = self.call.end(reason, self.now)
        if ending is None:
            assert phase is Phase.ENDED
            return
        assert phase is not Phase.ENDED
        self.endings.append(ending)
        self.ledger.record(self.call)
        # What the ending says about the engine is what the driver knows of it.
        assert (ending.engine is EngineAction.ABORT) == self.engine_works
        self.engine_works = False
        if reason.outcome is Outcome.CLIENT_GONE:
            assert ending.tell is Tell.NOTHING
        elif ending.tell is Tell.STATUS:
            assert not self.client_has_head
            assert self.call.status == reason.status
        elif ending.tell is Tell.ERROR_EVENT:
            assert self.client_has_head

    @invariant()
    def one_end(self) -> None:
        assert len(self.endings) == (self.call.phase is Phase.ENDED)
        assert sum(self.ledger.calls.values()) == len(self.endings)

    @invariant()
    def nothing_is_held_after_the_end(self) -> None:
        if self.call.ended:
            assert not self.engine_works
            assert self.call.outcome is not None
            assert self.call.overdue(self.now + 1e6) is None

    @invariant()
    def the_timer_never_sleeps_past_a_limit(self) -> None:
        """Check that `next_due` announced everything that is overdue, and that everything it announces is overdue by then."""
        if self.call.ended:
            return
        due = self.call.next_due()
        if self.call.phase is not Phase.RECEIVING:
            assert self.call.overdue(due) is not None
        if self.call.overdue(self.now) is not None:
            assert due <= self.now


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=300, stateful_step_count=30, deadline=None)


@given(st.lists(ANY_REASON, min_size=1, max_size=6))
def test_the_first_reason_wins(given_reasons: list[Reason]) -> None:
    call = Call("x", 0.0)
    endings = [call.end(reason, float(index)) for index, reason in enumerate(given_reasons)]
    assert endings[0] is not None
    assert not any(endings[1:])
    assert call.reason is given_reasons[0]
    assert call.ended_at == 0.0


@pytest.mark.parametrize(
    ("clock", "phase", "at", "reason"),
    [
        (CallTimeLimits(total_s=10), Phase.WAITING, 10, reasons.TOTAL_TIME),
        (CallTimeLimits(total_s=10, client_total_s=10), Phase.WAITING, 10, reasons.CLIENT_DEADLINE),
        (CallTimeLimits(queue_s=3), Phase.WAITING, 3, reasons.QUEUE_TIME),
        (CallTimeLimits(first_token_s=3), Phase.SENT, 3, reasons.FIRST_TOKEN_TIME),
        (CallTimeLimits(first_token_s=3), Phase.ANSWERING, 3, reasons.FIRST_TOKEN_TIME),
        (CallTimeLimits(client_read_s=3), Phase.SENT, 3, reasons.CLIENT_DEADLINE),
        (CallTimeLimits(gap_s=3), Phase.ANSWERING, math.inf, None),
    ],
)
def test_limits(clock: CallTimeLimits, phase: Phase, at: float, reason: Reason | None) -> None:
    call = Call("x", 0.0)
    call.clock = clock
    call.received(0.0)
    if phase in (Phase.SENT, Phase.ANSWERING):
        call.sent("b", 0.0)
    if phase is Phase.ANSWERING:
        call.answered(0.0)
    assert call.next_due() == at
    if reason is not None:
        assert call.overdue(at - 0.001) is None
        assert call.overdue(at) is reason


def test_gap_runs_from_the_last_token() -> None:
    call = Call("x", 0.0)
    call.clock = CallTimeLimits(first_token_s=1, gap_s=5, client_read_s=7)
    call.received(0.0)
    call.sent("b", 0.0)
    call.answered(0.5)
    call.progressed(1, 0.9)
    assert call.next_due() == 5.9
    call.progressed(1, 4.0)
    assert call.next_due() == 9.0
    assert call.overdue(9.0) is reasons.GAP_TIME


def test_every_reason_has_its_own_code_and_a_known_outcome() -> None:
    assert all(code == reason.code for code, reason in REASONS.items())
    assert {reason.outcome for reason in REASONS.values()} == set(Outcome)
    assert len(Outcome) == 10


@pytest.mark.parametrize(
    ("reason", "begun", "has_all", "tell"),
    [
        (reasons.CLIENT_FIN, True, False, Tell.NOTHING),
        (reasons.COMPLETED, True, False, Tell.FINISH),
        (reasons.OUTPUT_TOKENS, True, False, Tell.FINISH),
        (reasons.OUTPUT_TOKENS, False, False, Tell.FINISH),
        (reasons.TOTAL_TIME, True, False, Tell.ERROR_EVENT),
        (reasons.TOTAL_TIME, False, False, Tell.STATUS),
        (reasons.TOTAL_TIME, True, True, Tell.FINISH),
    ],
)
def test_what_the_client_is_told(reason: Reason, begun: bool, has_all: bool, tell: Tell) -> None:
    call = Call("x", 0.0)
    call.received(0.0)
    call.sent("b", 0.0)
    call.answered(0.0)
    if begun:
        call.client_answer_began(200)
    call.client_has_all = has_all
    ending = call.end(reason, 1.0)
    assert ending is not None and ending.tell is tell


def test_what_is_told_about_the_end_has_an_end_itself() -> None:
    """The detail may quote the engine, and hangup keeps ended calls for a while, so its length is bounded."""
    call = Call("c", 0.0)
    ending = call.end(reasons.ENGINE_ERROR, 1.0, "x" * 10**6)
    assert ending is not None and len(ending.detail) == len(call.detail) == DETAIL_CHARS_MAX
