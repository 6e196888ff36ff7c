"""Following a job at a provider, in virtual time: what hangup requests, how often, and when it stops."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from hangup.core.jobs import Cause, JobStatus, Lease
from hangup.core.provider_job import PollPace, ProviderJob, ProviderStep

PACE = PollPace(look_s=60, poll_s=1, poll_max_s=8, cancel_s=100, cancel_attempts_max=3, follow_s=1000)


class World:
    """Carries out the actions when they are due, and records them."""

    def __init__(self, lease_s: float | None = None) -> None:
        self.now = 0.0
        self.job = ProviderJob(PACE, 0.0, Lease(lease_s, 0.0) if lease_s is not None else None)
        self.done: list[tuple[float, ProviderStep]] = []
        self.cancel_failures = 0
        self.runs_until = math.inf
        self.stops_after_s = math.inf
        self.told_at: float | None = None

    def run(self, until: float) -> None:
        while self.now < until and not self.job.finished:
            step = self.job.next(self.now)
            if step is None:
                due_at = self.job.due_at(self.now)
                assert due_at > self.now, "time goes on"
                self.now = min(due_at, until)
                continue
            self.done.append((self.now, step))
            if step is ProviderStep.LOOK:
                self.job.saw(self.status(), self.now)
            elif step is ProviderStep.CANCEL and self.cancel_failures:
                self.cancel_failures -= 1
                self.job.cancel_failed(self.now)
            elif step is ProviderStep.CANCEL:
                self.told_at = self.now
                self.job.cancel_taken(self.now)

    def status(self) -> JobStatus:
        if self.now >= self.runs_until:
            return JobStatus.COMPLETED
        if self.told_at is not None and self.now >= self.told_at + self.stops_after_s:
            return JobStatus.CANCELLED
        return JobStatus.RUNNING

    def times(self, step: ProviderStep) -> list[float]:
        return [at for at, what in self.done if what is step]


def test_a_job_that_runs_is_looked_at_now_and_then() -> None:
    world = World()
    world.runs_until = 150
    world.run(1000)
    assert world.done == [(60, ProviderStep.LOOK), (120, ProviderStep.LOOK), (180, ProviderStep.LOOK)]
    assert world.job.status is JobStatus.COMPLETED and world.job.cause is Cause.NONE and world.job.stopped_after_s is None


def test_it_is_not_followed_for_ever() -> None:
    world = World()
    world.run(5000)
    assert world.done[-1] == (1000, ProviderStep.GIVE_UP) and world.job.status is JobStatus.RUNNING and world.job.given_up
    assert world.job.due_at(world.now) == math.inf and world.job.next(world.now) is None


def test_a_lease_that_runs_out_cancels_at_once_and_looks_ever_more_seldom() -> None:
    world = World(lease_s=20)
    world.stops_after_s = 21
    world.run(1000)
    assert world.done[0] == (20, ProviderStep.CANCEL)
    assert world.times(ProviderStep.LOOK) == [20, 21, 23, 27, 35, 43]
    assert (world.job.status, world.job.cause, world.job.stopped_after_s) == (JobStatus.CANCELLED, Cause.LEASE, 23)


def test_a_lease_that_is_renewed_does_not() -> None:
    world = World(lease_s=20)
    lease = world.job.lease
    assert lease is not None
    for at in range(10, 200, 10):
        world.run(at)
        lease.renew(world.now)
    lease.listen()
    world.run(500)
    lease.stop_listening(world.now)
    assert not world.times(ProviderStep.CANCEL)
    world.run(521)
    assert world.times(ProviderStep.CANCEL) == [520]


def test_the_answer_to_a_cancel_is_only_a_promise() -> None:
    world = World()
    world.job.cancel_taken(0)
    assert world.job.status is JobStatus.CANCELLING and world.job.next(0) is ProviderStep.LOOK


def test_one_that_never_stops_is_given_up_and_stays_cancelling() -> None:
    world = World()
    world.job.cancel(Cause.KILLED, 0)
    world.run(5000)
    assert world.done[-1] == (100, ProviderStep.GIVE_UP)
    assert (world.job.status, world.job.cause, world.job.given_up) == (JobStatus.CANCELLING, Cause.KILLED, True)
    world.job.saw(JobStatus.CANCELLED, 400)
    assert world.job.status is JobStatus.CANCELLED and world.job.stopped_after_s == 400, "heard of by somebody else"


def test_given_up_is_not_for_ever_for_one_who_cancels_again() -> None:
    world = World()
    world.job.cancel(Cause.CANCELLED, 0)
    world.run(5000)
    world.job.cancel(Cause.KILLED, world.now)
    assert not world.job.finished and world.job.next(world.now) is ProviderStep.CANCEL


def test_a_cancel_that_fails_is_sent_again_with_ever_longer_pauses() -> None:
    world = World()
    world.cancel_failures, world.stops_after_s = 2, 0
    world.job.cancel(Cause.CANCELLED, 0)
    world.run(1000)
    assert world.times(ProviderStep.CANCEL) == [0, 1, 3] and world.job.status is JobStatus.CANCELLED


def test_but_not_more_often_than_allowed() -> None:
    world = World()
    world.cancel_failures = 99
    world.job.cancel_failed(0)  # its owner's own
    world.run(1000)
    assert world.times(ProviderStep.CANCEL) == [1, 3] and world.done[-1] == (3, ProviderStep.GIVE_UP)


def test_no_poll_of_the_owners_puts_off_a_cancel() -> None:
    world = World(lease_s=5)
    world.run(5)
    assert world.job.next(5) is ProviderStep.CANCEL
    world.job.saw(JobStatus.RUNNING, 5)
    assert world.job.next(5) is ProviderStep.CANCEL


def test_cancelled_elsewhere() -> None:
    world = World()
    world.job.saw(JobStatus.CANCELLING, 10)
    assert world.job.status is JobStatus.CANCELLING and world.job.due_at(10) == 11
    world.stops_after_s, world.told_at = 0, 10
    world.run(100)
    assert world.done == [(11, ProviderStep.LOOK)] and world.job.cause is Cause.CANCELLED


def test_an_end_that_was_quicker_than_the_cancel() -> None:
    world = World()
    world.job.cancel(Cause.LEASE, 0)
    world.runs_until = 0
    world.run(100)
    assert world.job.status is JobStatus.COMPLETED and world.job.cause is Cause.NONE


def test_what_the_provider_forgot_has_ended() -> None:
    world = World()
    world.job.deleted(5)
    assert world.job.status is JobStatus.CANCELLED and world.job.next(5) is None


def test_what_the_provider_does_not_know_yet_is_not_gone() -> None:
    """The provider may not know a new job everywhere yet, so hangup sends the cancel again."""
    job = World().job
    job.cancel(Cause.CLIENT_GONE, 0)
    assert job.next(0) is ProviderStep.CANCEL
    job.missing(0)
    assert not job.finished and job.next(0.5) is None and job.next(job.due_at(0.5)) is ProviderStep.CANCEL
    job.saw(JobStatus.RUNNING, 2)
    job.missing(3)
    assert not job.finished, "it was seen in between"
    job.missing(9)
    assert job.status is JobStatus.CANCELLED


def test_one_that_runs_and_is_missing_is_looked_for_soon() -> None:
    job = World().job
    job.missing(60)
    assert not job.finished and job.due_at(60) == 61
    job.missing(61)
    assert job.finished


HEARD = st.one_of(
    st.sampled_from([*JobStatus]).map(lambda status: ("saw", status)),
    st.sampled_from([*Cause]).map(lambda cause: ("cancel", cause)),
    st.sampled_from(["deleted", "missing", "look_failed", "look_soon", "cancel_taken", "cancel_failed", "do"]).map(
        lambda name: (name, None)
    ),
)


@given(st.lists(st.tuples(st.floats(0, 50), HEARD), max_size=60), st.sampled_from([None, 30.0]))
def test_whatever_is_heard_in_whatever_order(events: list[tuple[float, tuple[str, object]]], lease_s: float | None) -> None:
    """The job ends once, always has a next action until then, and exceeds no limit."""
    job, now = ProviderJob(PACE, 0.0, Lease(lease_s, 0.0) if lease_s else None), 0.0
    steps = 0
    for pause_s, (what, argument) in events:
        now += pause_s
        before = job.status
        if what == "do":
            step = job.next(now)
            steps += step is not None
            if step is ProviderStep.GIVE_UP:
                assert job.given_up
        elif argument is not None:
            getattr(job, what)(argument, now)
        else:
            getattr(job, what)(now)
        assert not before.ended or job.status is before, "an end is an end"
        assert job.status is not JobStatus.CANCELLING or job.cancelling_since is not None
        assert job.finished == (job.due_at(now) == math.inf)
        if not job.finished:
            assert job.due_at(now) <= now + max(PACE.look_s, PACE.poll_max_s), "somebody looks after it"
    for _ in range(10_000):
        if job.finished:
            return
        now = max(now, job.due_at(now))
        match job.next(now):
            case ProviderStep.LOOK:
                job.look_failed(now)
            case ProviderStep.CANCEL:
                job.cancel_failed(now)
    raise AssertionError("it is followed for ever")
