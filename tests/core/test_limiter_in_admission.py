"""Learned limits inside admission: overdue calls, refusals and pauses."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hangup.config import LimitSettings
from hangup.core import reasons
from hangup.core.admission import Admission, BackendLoad, HealthEvent, Ticket
from hangup.core.admission.limiter import Evidence, LearnedLimit
from hangup.core.admission.shared_limit import FIRST_TOKEN, NO_LIMIT, SharedLimit

PROMPT = 100
INF = math.inf


def why(limit: LearnedLimit) -> Evidence:
    return limit.evidence


class TestFleet:
    """Learned limits as the whole fleet shows them: overdue calls, refusals and pauses."""

    LIMITS = LimitSettings(queue_depth_max=100, queue_s=30.0)

    def new_admission(self, names: str = "a", slots: int = 0) -> Admission[Any]:
        return Admission(self.LIMITS, [BackendLoad(name, slots) for name in names], lambda: 0.5)

    def send(self, admission: Admission[Any], now: float, eligible: frozenset[str] | None = None) -> Ticket[Any]:
        ticket = Ticket(object(), prompt=PROMPT, eligible=eligible, queue_by=now + 30.0)
        self.actions = admission.arrive(ticket, "t", now)
        return ticket

    def warm(self, admission: Admission[Any]) -> None:
        for at in range(10):
            ticket = self.send(admission, float(at))
            admission.first_token(ticket, at + 0.1)
            admission.end(ticket, at + 0.2, PROMPT, 5, completed=True)

    def test_an_engine_that_stood_still_once_gets_all_calls_again_though_its_answers_come_in_one_piece(self) -> None:
        admission = self.new_admission()
        [load] = admission.fleet.loads
        now, calls = 0.0, [self.send(admission, 0.0) for _ in range(32)]

        def answer_all() -> None:
            for ticket in [ticket for ticket in calls if ticket.placed_on is not None]:
                admission.first_token(ticket, now)
                admission.end(ticket, now, 8, 8, completed=True)
                calls.remove(ticket)
                calls.append(self.send(admission, now))

        for _ in range(20):
            now += 0.01
            answer_all()
        now += 1.0
        answer_all()
        assert why(load.limiter) is Evidence.LATE and admission.queue.count
        for _ in range(150):
            now += 0.01
            answer_all()
        assert load.in_flight == 32 and why(load.limiter) is Evidence.NONE

    def test_calls_that_are_overdue_close_the_engine_before_a_first_token_comes(self) -> None:
        admission = self.new_admission()
        self.warm(admission)
        [load] = admission.fleet.loads
        for _ in range(20):
            self.send(admission, 20.0)
        assert load.in_flight == 20 == len(load.awaiting_first_token)
        self.send(admission, 20.29)
        assert why(load.limiter) is Evidence.NONE, "late is 2.5 times the usual 0.1 s and 0.05 s: not yet"
        waits = self.send(admission, 20.31)
        assert waits.queued and why(load.limiter) is Evidence.LATE and len(load.awaiting_first_token) == 1

    def test_what_is_late_because_this_process_is_late_says_nothing_about_the_engine(self) -> None:
        admission = self.new_admission()
        self.warm(admission)
        [load] = admission.fleet.loads
        admission.fleet.delayed_s = lambda since: 0.5
        calls = [self.send(admission, 20.0) for _ in range(20)]
        assert not self.send(admission, 20.79).queued, "late is 0.3 s, and 0.5 s in which nobody looked: not yet"
        for ticket in calls:
            admission.first_token(ticket, 20.79)
        assert why(load.limiter) is Evidence.NONE and load.in_flight == 21

    def test_an_engine_that_queues_is_found_out_by_a_process_that_is_late_itself(self) -> None:
        admission = self.new_admission()
        self.warm(admission)
        [load] = admission.fleet.loads
        admission.fleet.delayed_s = lambda since: 0.5
        calls = [self.send(admission, 20.0) for _ in range(20)]
        assert self.send(admission, 20.81).queued and calls[0].overdue and why(load.limiter) is Evidence.LATE

    def test_other_gateways_learn_how_long_the_engine_took_without_our_own_delay(self) -> None:
        limiter = SharedLimit()
        limiter.use(NO_LIMIT)
        admission = self.new_admission()
        [load] = admission.fleet.loads
        load.limiter = limiter
        admission.fleet.delayed_s = lambda since: 0.5
        ticket = self.send(admission, 20.0)
        admission.first_token(ticket, 20.6)
        [seen] = limiter.take_observations(20.6)
        assert seen[1] == FIRST_TOKEN and seen[3] == pytest.approx(0.1)

    def test_a_delay_that_goes_on_is_not_counted_twice(self) -> None:
        admission = self.new_admission()
        self.warm(admission)
        admission.fleet.delayed_s = lambda since: (admission.fleet.now - since) / 2
        calls = [self.send(admission, 20.0) for _ in range(20)]
        for now in (20.4, 20.5, 20.55):
            assert not self.send(admission, now).queued and not calls[0].overdue
        assert self.send(admission, 20.65).queued and calls[0].overdue, "0.3 s of its own, 0.325 s of ours"

    def test_a_first_token_that_was_overdue_is_not_held_against_it_twice(self) -> None:
        admission = self.new_admission()
        self.warm(admission)
        [load] = admission.fleet.loads
        late = [self.send(admission, 20.0) for _ in range(2)]
        self.send(admission, 25.0)
        assert all(ticket.overdue for ticket in late) and why(load.limiter) is Evidence.LATE
        was = load.limiter._late
        admission.first_token(late[0], 25.1)
        assert load.limiter._late == was

    def test_what_is_known_later_counts_for_those_sent_before(self) -> None:
        admission = self.new_admission()
        early = [self.send(admission, 0.0) for _ in range(6)]
        assert early[1].overdue_at == INF
        admission.first_token(early[0], 0.1)
        self.send(admission, 0.2)
        assert not early[1].overdue and early[1].overdue_at == pytest.approx(0.3)
        self.send(admission, 0.31)
        assert early[1].overdue

    def test_a_refused_call_goes_elsewhere_and_the_refusal_counts_those_beside_it(self) -> None:
        admission = self.new_admission("ab")
        calls = [self.send(admission, 0.0) for _ in range(6)]
        at = calls[0].placed_on
        assert at is not None and at.in_flight == 3
        calls[0].tried |= {at.name}
        assert admission.fleet.has_other(calls[0].tried, None)
        [action] = admission.refused(calls[0], 0.1)
        assert action.load is not None and action.load is not at and at.limiter.refused_max == 2 == at.limit

    def test_there_is_no_other_when_the_others_are_paused_or_cannot_answer(self) -> None:
        admission = self.new_admission("ab")
        b = admission.fleet.loads[1]
        assert admission.fleet.has_other(frozenset("a"), None) and not admission.fleet.has_other(frozenset("a"), frozenset("a"))
        admission.pause(b, 1.0)
        assert not admission.fleet.has_other(frozenset("a"), None) and admission.fleet.has_other(frozenset("b"), None)
        assert not admission.fleet.has_other(frozenset("ab"), None)

    def test_a_pause_ends_when_the_first_of_them_comes_back(self) -> None:
        admission = self.new_admission("ab")
        a, b = admission.fleet.loads
        admission.pause(a, 10.0)
        assert admission.fleet.paused_until(None) == 0.0 and admission.fleet.paused_until(frozenset("a")) == 10.0
        admission.pause(b, 20.0)
        assert admission.fleet.paused_until(None) == 10.0 and admission.fleet.paused_until(frozenset("b")) == 20.0
        a.health.apply(HealthEvent.DRAINED)
        assert admission.fleet.paused_until(None) == 20.0, "one that is drained does not come back by itself"
        b.health.apply(HealthEvent.QUARANTINED)
        assert admission.fleet.paused_until(None) == 0.0

    def test_nobody_waits_for_a_pause_that_is_longer_than_he_may_wait(self) -> None:
        admission = self.new_admission()
        [load] = admission.fleet.loads
        admission.pause(load, 31.0)
        self.send(admission, 0.0)
        assert [action.reason for action in self.actions] == [reasons.BACKEND_PAUSED]
        assert admission.retry_after_s("t", reasons.BACKEND_PAUSED, 0.0) == pytest.approx(31.0 * 1.125)
        assert self.send(admission, 1.0).queued, "it is over when that one's time is"

    def test_who_only_a_paused_backend_can_answer_is_told_when_that_one_is_back(self) -> None:
        admission = self.new_admission("ab")
        a = admission.fleet.loads[0]
        admission.pause(a, 60.0)
        self.send(admission, 0.0, frozenset("a"))
        assert [action.reason for action in self.actions] == [reasons.BACKEND_PAUSED]
        assert admission.retry_after_s("t", reasons.BACKEND_PAUSED, 0.0, frozenset("a")) == pytest.approx(60.0 * 1.125)

    def test_a_paused_engine_says_so(self) -> None:
        for slots in (0, 4):
            admission = self.new_admission(slots=slots)
            [load] = admission.fleet.loads
            assert load.limited_by == ("slots" if slots else "none") and load.is_open == (not slots)
            admission.pause(load, 1.0)
            assert load.limit == 0 and load.limited_by == "engine_refused" and not load.is_open
            admission.resume(load, 0.0)
            assert load.limit > 0

    def test_refusals_bind_below_the_slots_that_were_given(self) -> None:
        admission = self.new_admission(slots=4)
        [load] = admission.fleet.loads
        calls = [self.send(admission, 0.0) for _ in range(4)]
        admission.refused(calls[0], 0.1)
        assert load.limit == 3 == load.known_capacity == load.capacity and load.limited_by == "engine_refused"
