"""A job that runs at a hosted provider, followed from here: when to look, when to cancel, when to give up.

    RUNNING ── lease runs out, owner or operator cancels ──▶ CANCELLING ── the provider says so ──▶ CANCELLED │ COMPLETED │ …
       │ look, now and then                                     │ cancel, again if it failed; look, ever more seldom
       └──────────── follow_s has passed ─▶ given up ◀──────────┘ cancel_s has passed, or the cancel failed too often

That a job has stopped is believed when a look at the job itself says so: the answer to a cancel is only a promise. A job that
was given up keeps its status, and ends here if anybody still hears of its end.
"""

from __future__ import annotations

import math
from enum import Enum, auto
from typing import NamedTuple

from hangup.core.jobs import Cause, JobStatus, Lease


class PollPace(NamedTuple):
    """How often a provider is asked, and for how long."""

    look_s: float  # between two looks at a job that runs
    poll_s: float  # between a cancel and the next look; doubles,
    poll_max_s: float  # up to this
    cancel_s: float  # from a cancel to the end of the job
    cancel_attempts_max: int
    follow_s: float  # for which a job is followed in all


class ProviderStep(Enum):
    LOOK = auto()  # ask how the job stands, then `saw`, `gone` or `look_failed`
    CANCEL = auto()  # tell the provider, then `cancel_taken` or `cancel_failed`
    GIVE_UP = auto()  # nothing more is done


class ProviderJob:
    __slots__ = (
        "_attempts",
        "_began_at",
        "_due_at",
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
        self.stopped_after_s: float | None = None  # from the cancel to the provider's word
        self._pace = pace
        self._began_at = now
        self._due_at = now + pace.look_s
        self._pause_s = pace.poll_s
        self._to_be_sent = False  # a cancel that the provider has not taken
        self._attempts = 0

    def __repr__(self) -> str:
        return f"<followed {self.status.value}{' given up' if self.given_up else ''}>"

    @property
    def over(self) -> bool:
        """Nothing is to be done any more."""
        return self.status.ended or self.given_up

    # What is to be done

    def due_at(self, now: float) -> float:
        """When `next` is to be asked again."""
        if self.over:
            return math.inf
        if self.cancelling_since is not None:
            return min(self._due_at, self.cancelling_since + self._pace.cancel_s)
        due_at = min(self._due_at, self._began_at + self._pace.follow_s)
        return due_at if self.lease is None else min(due_at, now + self.lease.left_s(now))

    def next(self, now: float) -> ProviderStep | None:
        if self.over:
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

    # What is wanted

    def cancel(self, cause: Cause, now: float) -> None:
        """Somebody wants it stopped, and the provider does not know yet. Once is enough, unless it was given up."""
        if self.status.ended or (self.cancelling_since is not None and not self.given_up):
            return
        self._begin_to_cancel(cause, now)
        self._to_be_sent = True

    def _begin_to_cancel(self, cause: Cause, now: float) -> None:
        self.status, self.cause, self.given_up = JobStatus.CANCELLING, cause, False
        self.cancelling_since = self._due_at = now
        self._pause_s, self._attempts = self._pace.poll_s, 0

    # What was heard, by whoever asked

    def saw(self, status: JobStatus, now: float) -> None:
        """The job itself says how it stands."""
        if self.status.ended:
            return
        if status.ended:
            self._ended(status, now)
        elif self.cancelling_since is None and status is JobStatus.CANCELLING:
            self._begin_to_cancel(Cause.ASKED, now)  # by somebody who did not ask us
            self._rest(now)
        elif not self._to_be_sent:  # which nobody's looking may put off
            if self.cancelling_since is None:
                self.status = status
            self._rest(now)

    def gone(self, now: float) -> None:
        """The provider does not know it any more."""
        if not self.status.ended:
            self._ended(JobStatus.CANCELLED, now)

    def look_failed(self, now: float) -> None:
        self._rest(now)

    def look_soon(self, now: float) -> None:
        """Something may have changed."""
        self._due_at = min(self._due_at, now)

    def cancel_taken(self, now: float) -> None:
        """The provider has been told to stop it, by us or by its owner through us."""
        if self.status.ended:
            return
        if self.cancelling_since is None or self.given_up:
            self._begin_to_cancel(Cause.ASKED, now)
        self._to_be_sent = False
        self._due_at = now  # whether that is true is for the job to say

    def cancel_failed(self, now: float) -> None:
        """The provider could not be told, or failed at it."""
        if self.status.ended:
            return
        if self.cancelling_since is None or self.given_up:
            self._begin_to_cancel(Cause.ASKED, now)
            self._to_be_sent = True
        if self._to_be_sent:  # else it was taken at another time
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
            self.cause = Cause.NONE  # its end was quicker
        elif status is JobStatus.CANCELLED and self.cause is Cause.NONE:
            self.cause = Cause.ASKED
        elif status is JobStatus.EXPIRED:
            self.cause = Cause.WINDOW
        self.status = status
