"""`ProviderJob`: follows a job that runs at a hosted provider, and decides when to look, when to cancel and when to give up.

    RUNNING ── lease runs out, owner or operator cancels ──▶ CANCELLING ── the provider says so ──▶ CANCELLED │ COMPLETED │ …
       │ look, now and then                                     │ cancel, again if it failed; look, less and less often
       └──────────── follow_s has passed ─▶ given up ◀──────────┘ cancel_s has passed, or the cancel failed too often

A job counts as stopped only when a look at the job itself says so: the answer to a cancel is only a promise. A job with
`given_up` keeps its status, and still ends here if a later look shows its end.
"""

from __future__ import annotations

import math
from enum import Enum, auto
from typing import NamedTuple

from hangup.core.jobs import Cause, JobStatus, Lease


class PollPace(NamedTuple):
    """How often to poll a provider, and for how long."""

    look_s: float  # between two looks at a job that runs
    poll_s: float  # between a cancel and the next look; doubles,
    poll_max_s: float  # up to this
    cancel_s: float  # the longest time from a cancel to the end of the job
    cancel_attempts_max: int
    follow_s: float  # how long to follow a job in total


class ProviderStep(Enum):
    """What to do next."""

    LOOK = auto()  # ask for the job's status, then call `saw`, `deleted` or `look_failed`
    CANCEL = auto()  # send a cancel, then call `cancel_taken` or `cancel_failed`
    GIVE_UP = auto()  # do nothing more


class ProviderJob:
    """One job at a provider."""

    __slots__ = (
        "_attempts",
        "_began_at",
        "_due_at",
        "_missing",
        "_pace",
        "_pause_s",
        "_to_be_sent",
        "cancelling_since",
        "cause",
        "given_up",
        "lease",
        "status",
        "stopped_after_s",
    )

    def __init__(self, pace: PollPace, now: float, lease: Lease | None = None) -> None:
        self.status = JobStatus.RUNNING
        self.cause = Cause.NONE
        self.lease = lease
        self.given_up = False
        self.cancelling_since: float | None = None
        self.stopped_after_s: float | None = None  # from the cancel to the provider's confirmation
        self._pace = pace
        self._began_at = now
        self._due_at = now + pace.look_s
        self._pause_s = pace.poll_s
        self._to_be_sent = False  # the provider has not accepted the cancel yet
        self._attempts = 0
        self._missing = False  # the provider did not know the job when it was last asked

    def __repr__(self) -> str:
        return f"<followed {self.status.value}{' given up' if self.given_up else ''}>"

    @property
    def finished(self) -> bool:
        """Return whether nothing remains to be done."""
        return self.status.ended or self.given_up

    # Next steps

    def due_at(self, now: float) -> float:
        """Return when to call `next` again."""
        if self.finished:
            return math.inf
        if self.cancelling_since is not None:
            return min(self._due_at, self.cancelling_since + self._pace.cancel_s)
        due_at = min(self._due_at, self._began_at + self._pace.follow_s)
        return due_at if self.lease is None else min(due_at, now + self.lease.remaining_s(now))

    def next(self, now: float) -> ProviderStep | None:
        """Return the step to take now, if any."""
        if self.finished:
            return None
        if self.cancelling_since is None and self.lease is not None and self.lease.expired(now):
            self.cancel(Cause.LEASE, now)
        if self._time_is_up(now):
            self.given_up = True
            return ProviderStep.GIVE_UP
        if now < self._due_at:
            return None
        return ProviderStep.CANCEL if self._to_be_sent else ProviderStep.LOOK

    def _time_is_up(self, now: float) -> bool:
        if self.cancelling_since is None:
            return now >= self._began_at + self._pace.follow_s
        return self._attempts >= self._pace.cancel_attempts_max or now >= self.cancelling_since + self._pace.cancel_s

    # Requests

    def cancel(self, cause: Cause, now: float) -> None:
        """Request a cancel that the provider does not know about yet. Repeated requests do nothing, unless the job
        is `given_up`."""
        if self.status.ended or (self.cancelling_since is not None and not self.given_up):
            return
        self._begin_to_cancel(cause, now)
        self._to_be_sent = True

    def _begin_to_cancel(self, cause: Cause, now: float) -> None:
        self.status, self.cause, self.given_up = JobStatus.CANCELLING, cause, False
        self.cancelling_since = self._due_at = now
        self._pause_s, self._attempts = self._pace.poll_s, 0

    # Answers from the provider

    def saw(self, status: JobStatus, now: float) -> None:
        """Note the status that the job itself reports."""
        self._missing = False
        if self.status.ended:
            return
        if status.ended:
            self._ended(status, now)
        elif self.cancelling_since is None and status is JobStatus.CANCELLING:
            self._begin_to_cancel(Cause.CANCELLED, now)  # cancelled by somebody at the provider, not through us
            self._rest(now)
        elif not self._to_be_sent:  # a look must not delay a cancel that is still to be sent
            if self.cancelling_since is None:
                self.status = status
            self._rest(now)

    def missing(self, now: float) -> None:
        """Note that the provider did not know the job. A job that was just accepted may not be known everywhere yet, so
        only a second such answer, a while later, means that it is gone. Until then it is looked at again, even while a cancel
        is pending."""
        if self._missing:
            self.deleted(now)
            return
        self._missing = True
        self._rest(now)
        self._due_at = min(self._due_at, now + self._pause_s)

    def deleted(self, now: float) -> None:
        """Note that the provider does not know the job any more."""
        if not self.status.ended:
            self._ended(JobStatus.CANCELLED, now)

    def look_failed(self, now: float) -> None:
        self._rest(now)

    def look_soon(self, now: float) -> None:
        """Look at the next opportunity: something may have changed."""
        self._due_at = min(self._due_at, now)

    def cancel_taken(self, now: float) -> None:
        """Note that the provider has accepted a cancel, from us or from its owner through us."""
        if self.status.ended:
            return
        if self.cancelling_since is None or self.given_up:
            self._begin_to_cancel(Cause.CANCELLED, now)
        self._to_be_sent = False
        self._due_at = now  # only a look at the job shows whether it stops

    def cancel_failed(self, now: float) -> None:
        """Note that a cancel could not be sent, or that the provider failed on it."""
        if self.status.ended:
            return
        if self.cancelling_since is None or self.given_up:
            self._begin_to_cancel(Cause.CANCELLED, now)
            self._to_be_sent = True
        if self._to_be_sent:  # otherwise another cancel was accepted
            self._attempts += 1
            self._rest(now)

    def _rest(self, now: float) -> None:
        if self.cancelling_since is None:
            self._due_at = now + self._pace.look_s
        else:
            self._due_at = now + self._pause_s
            self._pause_s = min(self._pause_s * 2, self._pace.poll_max_s)

    def _ended(self, status: JobStatus, now: float) -> None:
        if self.cancelling_since is not None:
            self.stopped_after_s = now - self.cancelling_since
        if status not in (JobStatus.CANCELLED, JobStatus.EXPIRED):
            self.cause = Cause.NONE  # it ended before the cancel took effect
        elif status is JobStatus.CANCELLED and self.cause is Cause.NONE:
            self.cause = Cause.CANCELLED
        elif status is JobStatus.EXPIRED:
            self.cause = Cause.WINDOW
        self.status = status
