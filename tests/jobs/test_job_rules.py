"""The rules of a job's life, without store and clock."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.core import reasons
from hangup.core.jobs import AfterEffects, Cause, ItemCounts, ItemState, JobStatus, Kind, Lease, after, outcome
from hangup.core.reasons import REASONS, Outcome
from hangup.gateway.jobs.event_log import EventLog, JobEvent

counts = st.integers(0, 3)
tallies = st.builds(ItemCounts, counts, counts, counts, counts, counts, counts)


@given(st.sampled_from(Kind), st.sampled_from(JobStatus), st.sampled_from(Cause), tallies)
def test_a_job_ends_with_its_last_item_and_not_before(kind: Kind, status: JobStatus, cause: Cause, tally: ItemCounts) -> None:
    end = outcome(kind, status, cause, tally)
    if tally.queued or tally.claimed or status.ended or status is JobStatus.VALIDATING:
        assert end is None
    else:
        assert end is not None and end.ended
        cancels = status is JobStatus.CANCELLING or kind.single  # else single items of a batch were killed
        stopped = (cancels and bool(tally.cancelled or tally.expired)) or not tally.total
        assert (end in (JobStatus.CANCELLED, JobStatus.EXPIRED)) == stopped
        assert end is not JobStatus.EXPIRED or cause is Cause.WINDOW
        assert end is not JobStatus.FAILED or kind.single


def test_a_cancel_that_came_too_late_changes_nothing() -> None:
    assert outcome(Kind.CALL, JobStatus.CANCELLING, Cause.CANCELLED, ItemCounts(succeeded=1)) is JobStatus.COMPLETED
    assert outcome(Kind.CALL, JobStatus.CANCELLING, Cause.CANCELLED, ItemCounts(errored=1)) is JobStatus.FAILED
    assert (
        outcome(Kind.BATCH, JobStatus.CANCELLING, Cause.CANCELLED, ItemCounts(succeeded=2, cancelled=1)) is JobStatus.CANCELLED
    )


@given(
    st.sampled_from(sorted(REASONS)),
    st.sampled_from([0, 200, 400, 429, 499, 500, 502, 503, 504]),
    st.booleans(),
    st.integers(0, 5),
)
def test_every_end_of_a_call_means_something_for_its_item(code: str, status: int, stopping: bool, failures: int) -> None:
    reason = REASONS[code]
    what = after(reason, status, stopping=stopping, failures=failures, failures_max=3)
    assert isinstance(what, AfterEffects)
    if reason.outcome is Outcome.SHED:
        assert what is (AfterEffects.CANCELLED if stopping else AfterEffects.AGAIN), "it had no turn yet"
    if what is AfterEffects.AGAIN:
        assert not stopping, "a job that is being cancelled starts nothing anew"
        no_room = reason.outcome is Outcome.ENGINE_REFUSED and status == 429
        assert no_room or reason.outcome in (Outcome.SHED, Outcome.ENGINE_FAILED) or reason is reasons.PREEMPTED
    if what is AfterEffects.SUCCEEDED:
        assert 200 <= status < 300 or reason is reasons.OUTPUT_TOKENS
    if reason.outcome is Outcome.CLIENT_GONE:
        assert what is AfterEffects.CANCELLED
    if reason.outcome is Outcome.ENGINE_FAILED and failures >= 3:
        assert what is AfterEffects.ERRORED, "engines have had their chances"


AFTER: list[tuple[reasons.Reason, int, bool, int, AfterEffects]] = [
    (reasons.COMPLETED, 200, False, 0, AfterEffects.SUCCEEDED),
    (reasons.COMPLETED, 299, True, 0, AfterEffects.SUCCEEDED),
    (reasons.COMPLETED, 300, False, 0, AfterEffects.ERRORED),
    (reasons.COMPLETED, 199, False, 0, AfterEffects.ERRORED),
    (reasons.ENGINE_REFUSED, 422, False, 0, AfterEffects.ERRORED),
    (reasons.ENGINE_REFUSED, 429, False, 9, AfterEffects.AGAIN),
    (reasons.ENGINE_REFUSED, 429, True, 0, AfterEffects.CANCELLED),
    (reasons.OUTPUT_TOKENS, 200, False, 0, AfterEffects.SUCCEEDED),
    (reasons.TOTAL_TIME, 504, False, 0, AfterEffects.ERRORED),
    (reasons.CLIENT_FIN, 499, False, 0, AfterEffects.CANCELLED),
    (reasons.KILLED, 0, False, 0, AfterEffects.CANCELLED),
    (reasons.INTERNAL, 500, False, 0, AfterEffects.ERRORED),
    (reasons.PREEMPTED, 0, False, 0, AfterEffects.AGAIN),
    (reasons.PREEMPTED, 0, True, 0, AfterEffects.CANCELLED),
    (reasons.TAKEN_OVER, 0, True, 0, AfterEffects.GIVEN_BACK),
    (reasons.DRAINED, 0, False, 0, AfterEffects.GIVEN_BACK),
    (reasons.QUEUE_FULL, 503, False, 0, AfterEffects.AGAIN),
    (reasons.QUEUE_FULL, 503, True, 0, AfterEffects.CANCELLED),
    (reasons.ENGINE_DIED, 502, False, 2, AfterEffects.AGAIN),
    (reasons.ENGINE_DIED, 502, True, 2, AfterEffects.CANCELLED),
    (reasons.ENGINE_DIED, 502, False, 3, AfterEffects.ERRORED),
    (reasons.ENGINE_DIED, 502, True, 3, AfterEffects.ERRORED),
]


@pytest.mark.parametrize(("reason", "status", "stopping", "failures", "what"), AFTER)
def test_what_follows_from_each_end(
    reason: reasons.Reason, status: int, stopping: bool, failures: int, what: AfterEffects
) -> None:
    assert after(reason, status, stopping=stopping, failures=failures, failures_max=3) is what


def test_what_follows_are_states_of_items_or_none_of_them() -> None:
    assert {what.value for what in AfterEffects} - {state.value for state in ItemState} == {
        AfterEffects.AGAIN.value,
        AfterEffects.GIVEN_BACK.value,
    }


@pytest.mark.parametrize("what", [AfterEffects.SUCCEEDED, AfterEffects.ERRORED, AfterEffects.CANCELLED])
def test_what_ends_an_item_is_a_state_of_items(what: AfterEffects) -> None:
    assert ItemState(what).ended


def test_what_a_cancel_makes_of_the_rest() -> None:
    assert Cause.WINDOW.of_items is ItemState.EXPIRED
    assert Cause.LEASE.of_items is Cause.CANCELLED.of_items is Cause.KILLED.of_items is ItemState.CANCELLED


class TestLease:
    def test_it_runs_out_when_nobody_cares(self) -> None:
        lease = Lease(10, now=100)
        assert not lease.expired(109.9) and lease.expired(110)

    def test_whoever_asks_renews_it(self) -> None:
        lease = Lease(10, now=100)
        lease.renew(109)
        assert not lease.expired(118.9) and lease.expired(119)

    def test_a_listener_holds_it_and_it_begins_anew_behind_the_last(self) -> None:
        lease = Lease(10, now=100)
        lease.listen()
        lease.listen()
        assert not lease.expired(math.inf)
        lease.stop_listening(500)
        assert not lease.expired(10_000)
        lease.stop_listening(600)
        assert not lease.expired(609.9) and lease.expired(610)


class TestEventLog:
    def test_a_listener_that_keeps_up_gets_every_event(self) -> None:
        """This holds for far more events than are kept."""

        async def run() -> None:
            log, received, position = EventLog(2600), [], 0
            for n in range(500):
                log.add("chunk", b"x" * 100)
                events, position = await log.next_events(position)
                received += [event.number for event in events]
                assert sum(len(event.data) for event in log.events) <= 1000, n
            log.close()
            assert received == list(range(500))
            assert await log.next_events(position) == ([], position)
            assert [event.number for event in EventLog.load(log.dump())] == list(range(490, 500)), "the newest are kept"
            late, _ = await log.next_events(0)
            assert late == log.events and log.last_dropped == 489

        asyncio.run(run())

    def test_one_event_that_is_larger_than_all_that_is_kept(self) -> None:
        log = EventLog(10)
        log.add("a", b"x" * 5)
        log.add("b", b"x" * 50)
        assert log.events == [JobEvent(1, "b", b"x" * 50)]
