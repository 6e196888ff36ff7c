"""How many calls an engine may get: what counts as evidence, how many calls it allows, and when it expires."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hangup.config import LimitSettings
from hangup.core.admission import Admission, BackendLoad, Ticket
from hangup.core.admission.limiter import COLD_MAX, SPARE, Evidence, LearnedLimit, _InVain

PROMPT = 100
INF = math.inf


def see(
    limit: LearnedLimit, now: float, waited_s: float = 0.1, *, late: bool | None = False, ahead: int = 0, free: bool = False
) -> None:
    limit.first_token(PROMPT, waited_s, now, ahead=ahead, free=free, late=late, unqueued=False, visible=True)


def known(times: int = 10, waited_s: float = 0.1) -> LearnedLimit:
    """Return a limiter whose engine has been on time, with a first token each second."""
    limit = LearnedLimit()
    for at in range(times):
        see(limit, float(at), waited_s)
    return limit


def queueing(limit: LearnedLimit, now: float = 100.0, ahead: int = 4) -> LearnedLimit:
    """Let first tokens be late until the limiter believes that the engine queues."""
    for at in range(50):
        if limit.queues is Evidence.LATE:
            return limit
        see(limit, now + at, 1.0, late=True, ahead=ahead)
    raise AssertionError("fifty late first tokens are no evidence")


def why(limit: LearnedLimit) -> Evidence:
    return limit.evidence


class TestUnknown:
    def test_an_engine_that_has_shown_nothing_gets_many_calls(self) -> None:
        limit = LearnedLimit()
        assert limit.limit(0, 0, 0) == limit.unstarted_max == COLD_MAX and not limit.unlimited
        assert why(limit) is Evidence.NONE and limit.in_flight_max == INF

    def test_the_first_token_that_is_seen_opens_it(self) -> None:
        limit = known(1)
        assert limit.unlimited and limit.limit(5, 5, 0) == INF

    def test_of_a_hosted_api_first_tokens_are_no_evidence(self) -> None:
        limit = LearnedLimit()
        limit.forget(by_tokens=False)
        assert limit.unlimited and limit.unstarted_max == INF
        see(limit, 1.0)
        assert limit.overdue_after_s(PROMPT, True) == INF and limit._usual[True].get(PROMPT) == pytest.approx(0.1)

    def test_it_forgets_with_the_engine(self) -> None:
        limit = queueing(known())
        limit.step_slo_s = 0.25
        limit.refused(3, 200.0)
        limit.forget()
        assert why(limit) is Evidence.NONE and limit.unstarted_max == COLD_MAX and limit.refused_max == INF
        assert limit._usual[True].get(PROMPT) is None and limit.step_slo_s == 0.25 and limit.by_tokens and not limit.unlimited


class TestLate:
    def test_late_is_two_and_a_half_times_the_usual_and_a_little(self) -> None:
        limit = LearnedLimit()
        assert limit.overdue_after_s(PROMPT, True) == INF and limit._usual[True].get(PROMPT) is None
        see(limit, 0.0, 0.2)
        assert limit.overdue_after_s(PROMPT, True) == pytest.approx(0.55) and limit._usual[True].get(PROMPT) == 0.2
        assert limit.overdue_after_s(PROMPT, False) == INF, "whole answers are compared with whole answers"

    def test_one_late_token_is_no_evidence_and_many_are(self) -> None:
        limit = known()
        see(limit, 100.0, 1.0, late=True, ahead=4)
        assert why(limit) is Evidence.NONE and limit.unlimited
        queueing(limit, 101.0)
        assert why(limit) is Evidence.LATE and not limit.unlimited and limit.unstarted_max < 6

    def test_the_very_first_may_be_late_without_meaning_anything(self) -> None:
        limit = LearnedLimit()
        for at in range(3):
            see(limit, float(at), late=True, ahead=4)
        assert why(limit) is Evidence.NONE and limit._late == 0.0

    def test_what_says_nothing_changes_nothing(self) -> None:
        limit = known()
        for at in range(50):
            see(limit, 100.0 + at, 5.0, late=None, ahead=4)
        assert why(limit) is Evidence.NONE

    def test_late_ones_among_those_on_time_are_scatter(self) -> None:
        limit = known()
        for at in range(300):
            see(limit, 100.0 + at, late=at % 3 == 0, ahead=4)
        assert why(limit) is Evidence.NONE

    def test_as_many_are_allowed_as_it_reads_at_a_time_and_two(self) -> None:
        """With fifty first tokens a second that take 0.1 s each, the engine reads five prompts at a time."""
        limit = LearnedLimit()
        for at in range(400):
            see(limit, at * 0.02, 0.1)
        limit.engine_reported(10)
        assert limit.unstarted_max == SPARE + 4  # the count is that of a second, fading, and the last one is not in it
        assert limit.limit(20, 6, 0) == 14 + limit.unstarted_max

    def test_it_opens_once_calls_are_on_time(self) -> None:
        limit = queueing(known())
        limit.open_if_on_time()
        assert why(limit) is Evidence.LATE, "they are not"
        at = 200.0
        while limit._late >= 0.4:
            limit.open_if_on_time()
            assert why(limit) is Evidence.LATE
            see(limit, at := at + 1)
        limit.open_if_on_time()
        assert why(limit) is Evidence.NONE and limit.unlimited and limit.unstarted_allowed(0) == INF

    def test_each_on_time_allows_one_more_up_to_what_it_has_run(self) -> None:
        limit = queueing(known())
        limit.note_running(10, 100.0)
        before = limit.unstarted_allowed(0)
        for at in range(3):
            see(limit, 200.0 + at)
        assert limit.unstarted_allowed(0) == before + 3
        assert limit.unstarted_allowed(7) == before + 1, "of ten that it ran, at most one is free for sure"
        see(limit, 210.0, 1.0, late=True)
        assert limit.unstarted_allowed(0) == before + 1, "a late one halves it"

    def test_none_is_sent_to_wait_in_an_engine_whose_slots_seldom_get_free(self) -> None:
        limit = known()
        limit.note_running(8, 20.0)
        queueing(limit)
        assert limit.limit(8, 0, 0) == 8, "it runs all that it has ever run"
        assert limit.limit(8, 0, 2) == 10, "of two that have ended it may still say that they run"
        assert limit.limit(3, 0, 0) == 3 + limit.unstarted_max, "while slots are free it goes by what is being read"

    def test_one_more_is_tried_after_some_first_tokens_and_less_often_in_vain(self) -> None:
        limit = known()
        limit.note_running(8, 20.0)
        queueing(limit)
        now, tries = 200.0, []
        for _ in range(5):
            tokens = 0
            while limit.limit(8, 0, 0) == 8:
                see(limit, now := now + 1.0, late=None)
                tokens += 1
            tries.append(tokens)
            see(limit, now := now + 1.0, 3.0, late=True, ahead=1)  # it had to wait
        assert tries == [4, 8, 16, 32, 32]
        limit.note_running(9, now)
        assert limit.limit(9, 0, 0) == 9 + limit.unstarted_max, "it runs more than that: how many is open again"
        see(limit, now := now + 1.0, 3.0, late=True, ahead=1)
        assert limit.limit(9, 0, 0) == 9

    def test_a_late_one_now_and_then_does_not_put_off_the_next_try(self) -> None:
        """Otherwise an engine that was once taken for full, by chance or for a moment, would keep that limit for ever."""
        limit = known()
        limit.note_running(8, 20.0)
        queueing(limit)
        limit._try_after = limit._tokens_to_try = 32
        for at in range(38):
            late = at % 8 == 7
            see(limit, 200.0 + at, 3.0 if late else 0.1, late=late)
        assert limit.limit(8, 0, 0) == 9

    def test_two_may_wait_in_an_engine_whose_slots_get_free_all_the_time(self) -> None:
        limit = LearnedLimit()
        for at in range(200):
            see(limit, at * 0.1, 0.05)
        limit.note_running(8, 20.0)
        limit.engine_reported(10)
        for at in range(200):
            see(limit, 20 + at * 0.1, 0.05, late=None)
        assert limit.limit(8, 0, 0) == 8 + limit.unstarted_max
        for at in range(200):
            see(limit, 40 + at * 0.2, 0.05, late=None)
        assert limit.limit(8, 0, 0) <= 9

    def test_on_time_but_not_quick_allows_none_more(self) -> None:
        limit = queueing(known())
        before = limit.unstarted_allowed(0)
        see(limit, 200.0, 0.18)
        assert limit.unstarted_allowed(0) == before
        see(limit, 201.0, 0.17)
        assert limit.unstarted_allowed(0) == before + 1

    def test_times_with_many_and_with_few_ahead_are_compared_over_some_calls(self) -> None:
        """Each new time has a weight of a quarter: with many ahead 4, then 5 s; with few 2, then 3 and 4 s."""
        for last, in_vain in ((7.05, True), (6.95, False)):
            vain = _InVain(10)
            for waited_s in (4.0, 8.0):
                assert not vain.see(10, False, waited_s, on_time=False)
            for waited_s in (2.0, 6.0):
                assert not vain.see(5, True, waited_s, on_time=False)
            assert vain.few_s == pytest.approx(3.0)
            assert vain.see(5, True, last, on_time=False) is in_vain  # 0.8 of 5 s

    def test_fewer_calls_that_help_nobody_are_undone(self) -> None:
        limit = queueing(known(), ahead=8)
        for at in range(8):
            see(limit, 200.0 + at, 1.0, late=True, ahead=8)
        for at in range(3):
            assert why(limit) is Evidence.LATE
            see(limit, 300.0 + at, 0.9, late=True, ahead=4, free=True)
        assert why(limit) is Evidence.NONE and limit.unlimited
        assert limit._usual[True].get(PROMPT) == pytest.approx(0.9), "that is what it takes now"

    @pytest.mark.parametrize(
        ("ahead", "waited_s", "free", "late"),
        [
            pytest.param(4, 0.5, True, True, id="fewer do help"),
            pytest.param(4, 0.9, False, True, id="all slots were taken"),
            pytest.param(5, 0.9, True, True, id="more than half were ahead"),
            pytest.param(4, 0.9, True, False, id="it is on time"),
        ],
    )
    def test_it_is_not_undone_when(self, ahead: int, waited_s: float, free: bool, late: bool) -> None:
        limit = queueing(known(), ahead=8)
        for at in range(8):
            see(limit, 200.0 + at, 1.0, late=True, ahead=8)
        for at in range(8):
            see(limit, 300.0 + at, waited_s, late=late, ahead=ahead, free=free)
        assert why(limit) is Evidence.LATE

    def test_with_few_calls_it_cannot_be_told_whether_fewer_help(self) -> None:
        limit = queueing(known(), ahead=3)
        for ahead in (3, 3, 1, 1, 1, 1, 1, 1):
            see(limit, 200.0, 1.0, late=True, ahead=ahead, free=True)
        assert why(limit) is Evidence.LATE

    def test_how_many_were_ahead_is_that_of_the_last_call_sent_before_the_limit(self) -> None:
        """An engine that has become slower gets twelve calls at once. The first shows that it is late; those behind show that
        it is just as late with many calls ahead."""
        limit = queueing(known(), ahead=0)
        for ahead in range(1, 12):
            see(limit, 200.0, 1.0, late=True, ahead=ahead)
        for ahead in (0, 1, 1):
            assert why(limit) is Evidence.LATE
            see(limit, 300.0, 1.0, late=None, ahead=ahead, free=True)
        assert why(limit) is Evidence.NONE


class TestOverdue:
    def test_when_nothing_moves_one_is_enough(self) -> None:
        limit = known()
        limit.overdue(sent_at=50.0, unstarted=SPARE)
        assert why(limit) is Evidence.LATE and not limit.unlimited

    def test_before_anything_is_known_as_well(self) -> None:
        limit = LearnedLimit()
        limit.overdue(sent_at=1.0, unstarted=5)
        assert why(limit) is Evidence.LATE and limit.unstarted_max == SPARE

    def test_it_is_one_of_many_while_others_get_their_first_token(self) -> None:
        limit = known()
        limit.overdue(sent_at=5.0, unstarted=20)
        assert why(limit) is Evidence.NONE

    def test_alone_it_may_just_be_slow(self) -> None:
        limit = known()
        limit.overdue(sent_at=50.0, unstarted=1)
        assert why(limit) is Evidence.NONE


class TestItsOwnWord:
    def test_more_than_two_waiting_are_believed_at_once(self) -> None:
        limit = known()
        limit.engine_reported(SPARE)
        assert why(limit) is Evidence.NONE
        limit.engine_reported(0)
        limit.engine_reported(SPARE)
        assert why(limit) is Evidence.NONE, "it was for a moment, twice"
        limit.engine_reported(SPARE)
        assert why(limit) is Evidence.WAITING
        other = known()
        other.engine_reported(SPARE + 1)
        assert why(other) is Evidence.WAITING and not other.unlimited

    def test_one_that_was_never_seen_to_run_any_still_gets_calls(self) -> None:
        admission: Admission[Any] = Admission(LimitSettings(), [load := BackendLoad("s")], lambda: 0.5)
        tickets = [Ticket(n, prompt=PROMPT) for n in range(4)]
        for ticket in tickets:
            assert admission.arrive(ticket, "t", 1.0)[0].load is load
        admission.engine_reported(load, 5, 2.0)
        for ticket in tickets:  # their clients leave before any first token, and others keep the engine's queue full
            admission.end(ticket, 3.0, client_left=True)
        for at in range(4, 60):
            admission.engine_reported(load, 5, float(at))
        assert [action.load for action in admission.arrive(Ticket("new", prompt=PROMPT), "t", 60.0)] == [load]

    def test_none_waiting_twice_allows_more_whatever_it_was_seen_to_run(self) -> None:
        limit = known()
        limit.engine_reported(5)
        allowed = limit.unstarted_allowed(0)
        limit.engine_reported(0)
        assert limit.unstarted_allowed(0) == allowed
        limit.engine_reported(0)
        assert limit.unstarted_allowed(0) == allowed + 4
        limit.engine_reported(0)
        assert limit.unstarted_allowed(0) == allowed + 8
        limit.open_if_on_time()
        assert why(limit) is Evidence.NONE
        limit.engine_reported(5)
        assert limit.unstarted_allowed(0) == allowed

    def test_none_waiting_shows_no_room_while_calls_wait_here_instead(self) -> None:
        limit = known()
        limit.note_running(8, 1.0)
        limit.engine_reported(5, 13)
        allowed = limit.unstarted_allowed(8)
        for _ in range(4):
            limit.engine_reported(0, 8)
        assert limit.unstarted_allowed(8) == allowed, "it has what it was seen to run, and nothing can wait in it"
        for _ in range(2):
            limit.engine_reported(0, 9)
        assert limit.unstarted_allowed(8) > allowed, "one more was tried, and did not wait"


class TestRefusals:
    def test_it_has_as_many_as_when_it_refused_and_one_at_least(self) -> None:
        limit = known()
        limit.refused(5, 10.0)
        assert limit.limit(9, 1, 0) == limit.in_flight_max == 5 and why(limit) is Evidence.REFUSED and not limit.unlimited
        limit.refused(7, 10.0)
        assert limit.refused_max == 5
        limit.refused(0, 10.0)
        assert limit.refused_max == 1

    def test_one_more_is_tried_a_second_later_and_then_each_second(self) -> None:
        limit = known()
        assert not limit.accepted(4, 9.0), "there was no refusal"
        limit.refused(5, 10.0)
        assert not limit.accepted(5, 10.9)
        assert not limit.accepted(3, 11.0), "it has room as it is"
        assert limit.accepted(4, 11.0) and limit.refused_max == 6
        assert not limit.accepted(6, 11.9)
        assert limit.accepted(6, 12.0) and limit.refused_max == 7

    def test_what_does_not_bind_is_forgotten_after_a_minute(self) -> None:
        limit = known()
        limit.refused(5, 10.0)
        assert not limit.accepted(1, 70.0) and limit.refused_max == 5
        assert not limit.accepted(1, 70.1) and limit.refused_max == INF and why(limit) is Evidence.NONE
        assert not limit.accepted(1, 200.0)

    def test_all_are_refused_if_one_sent_after_a_refusal_is_refused(self) -> None:
        limit = known()
        assert not limit.refuses_all(1.0)
        limit.refused(5, 10.0)
        assert not limit.refuses_all(9.0), "it was on its way"
        assert not limit.refuses_all(10.0) and limit.refuses_all(10.1)
        limit.accepted(1, 11.0)
        assert not limit.refuses_all(12.0), "one was taken since"


class TestSteps:
    @staticmethod
    def slow(slo_s: float = 0.1) -> LearnedLimit:
        limit = LearnedLimit(slo_s)
        see(limit, 0.0)
        limit.step(0.05, 4)
        return limit

    def test_slow_steps_take_a_twentieth(self) -> None:
        limit = self.slow()
        limit.step(0.3, 20)
        assert limit.slow_max == pytest.approx(19) == limit.limit(20, 0, 0) and why(limit) is Evidence.SLOW
        assert not limit.unlimited
        limit.step(0.3, 19)
        assert limit.slow_max == pytest.approx(19 * 0.95)

    @pytest.mark.parametrize(("slo_s", "seconds"), [(0.1, 0.1), (0.01, 0.1), (INF, 9.0)])
    def test_within_its_goal_or_twice_its_best_it_is_not_slow(self, slo_s: float, seconds: float) -> None:
        limit = self.slow(slo_s)
        limit.step(seconds, 20)
        assert limit.slow_max == INF and why(limit) is Evidence.NONE

    def test_fewer_that_do_not_help_are_undone(self) -> None:
        limit = self.slow()
        limit.step(0.3, 20)
        limit.step(0.28, 14)
        assert limit.slow_max == INF
        limit.step(0.3, 20)
        assert limit.slow_max == INF, "that is its best now"

    def test_fewer_that_help_are_kept(self) -> None:
        limit = self.slow()
        limit.step(0.3, 20)
        limit.step(0.2, 14)
        assert limit.slow_max == pytest.approx(19)
        limit.step(0.2, 14)
        assert limit.slow_max == pytest.approx(14 * 0.95), "and from there it goes on"

    def test_it_grows_by_one_or_a_fiftieth_where_it_binds(self) -> None:
        limit = self.slow()
        limit.step(0.3, 20)
        limit.step(0.05, 17)
        assert limit.slow_max == pytest.approx(19)
        limit.step(0.05, 18)
        assert limit.slow_max == pytest.approx(20)
        large = self.slow()
        large.step(0.3, 1000)
        large.step(0.05, 950)
        assert large.slow_max == pytest.approx(950 * 1.02)

    def test_one_call_is_always_allowed(self) -> None:
        limit = self.slow()
        for _ in range(5):
            limit.step(0.3, 1)
        assert limit.slow_max == 1

    def test_the_tighter_word_is_the_evidence(self) -> None:
        limit = self.slow()
        limit.step(0.3, 20)
        limit.refused(5, 1.0)
        assert why(limit) is Evidence.REFUSED and limit.in_flight_max == 5
        limit.engine_reported(9)
        assert why(limit) is Evidence.WAITING


class TestWhatItRuns:
    def test_one_more_is_tried_after_longer_and_longer_pauses(self) -> None:
        limit = known()
        limit.note_running(3, 100.0)
        assert limit.most_running == 3
        assert not limit.try_more(2, 100.0) and not limit.try_more(4, 100.0)
        now, pauses = 100.0, []
        for _ in range(6):
            began = now
            while not limit.try_more(3, now):
                now += 0.5
            pauses.append(now - began)
        assert pauses == [0, 1, 2, 4, 8, 10]
        limit.note_running(4, now)
        assert (
            limit.most_running == 4
            and limit.try_more(4, now)
            and not limit.try_more(4, now + 0.9)
            and limit.try_more(4, now + 1)
        )

    def test_none_is_tried_beyond_what_it_refused(self) -> None:
        limit = known()
        limit.note_running(3, 100.0)
        limit.refused(3, 100.0)
        assert not limit.try_more(3, 101.0)
        limit.refused_max = 4
        assert limit.try_more(3, 101.0)

    def test_it_is_remembered_for_ten_minutes(self) -> None:
        limit = known()
        limit.note_running(8, 100.0)
        limit.note_running(2, 600.0)
        assert limit.most_running == 8
        limit.note_running(2, 701.0)
        limit.note_running(2, 1302.0)
        assert limit.most_running == 2

    def test_a_slot_is_surely_free_below_three_quarters_of_that(self) -> None:
        limit = known()
        assert not limit.has_free_slot(0)
        limit.note_running(8, 100.0)
        assert limit.has_free_slot(5) and not limit.has_free_slot(6)


class TestMany:
    """First tokens that come by the thousand: most of them say nothing new."""

    @staticmethod
    def fast(rate: float, seconds: float) -> LearnedLimit:
        limit = LearnedLimit()
        for at in range(int(rate * seconds)):
            see(limit, at / rate, 0.01)
        return limit

    def test_all_of_them_count_for_the_rate(self) -> None:
        limit = self.fast(20_000, 5)
        assert limit._skipped > 0
        assert limit._reading() == pytest.approx(20_000 * 0.01, rel=0.05)

    def test_one_that_is_late_counts_and_so_do_those_after_it(self) -> None:
        limit = self.fast(20_000, 1)
        for at in range(30):
            assert limit.first_token(PROMPT, 9.0, 1 + at / 1e5, ahead=1, free=False, late=True, unqueued=False, visible=True)
        late = limit._late
        assert limit.first_token(PROMPT, 0.01, 1.0003, ahead=1, free=False, late=False, unqueued=False, visible=True)
        assert 0 < limit._late < late

    def test_another_size_is_learned_at_once(self) -> None:
        limit = self.fast(20_000, 1)
        see(limit, 1.0, 0.01)
        assert limit.first_token(64 * PROMPT, 0.5, 1.0, ahead=0, free=True, late=False, unqueued=False, visible=True)
        assert limit._usual[True].get(64 * PROMPT) == pytest.approx(0.5)
