"""What this process knows of a job that has not ended: its lease, its deadline and its events."""

from __future__ import annotations

import asyncio

from hangup.core import reasons
from hangup.core.jobs import Cause, Lease
from hangup.gateway.jobs.event_log import EventLog
from hangup.gateway.store.jobs import Job

REASON_OF = {
    Cause.CANCELLED: reasons.JOB_CANCELLED,
    Cause.LEASE: reasons.LEASE_EXPIRED,
    Cause.WINDOW: reasons.WINDOW_PASSED,
    Cause.KILLED: reasons.KILLED,
    Cause.CLIENT_GONE: reasons.CLIENT_FIN,
}


class ActiveJob:
    """A job that has not ended, with its lease and its listeners."""

    __slots__ = ("changed", "ends_at", "event_log", "job", "lease", "submitted_here")

    def __init__(self, job: Job, now: float, now_of_day: float) -> None:
        self.job = job
        self.lease = Lease(job.lease_s, now) if job.lease_s is not None else None
        self.ends_at = now + job.expires - now_of_day if job.expires is not None else None
        self.event_log: EventLog | None = None
        self.submitted_here = False  # submitted to this process: no client has seen events of an earlier attempt
        self.changed = asyncio.Event()  # replaced by a new event after each change

    def update(self, job: Job) -> None:
        self.job = job
        self.changed.set()
        self.changed = asyncio.Event()

    def may_be_due_at(self, now: float) -> float | None:
        """Return the earliest time at which the job may have to end, as things are; None if it may live for ever."""
        lease_ends = now + max(self.lease.remaining_s(now), 0.0) if self.lease is not None else None
        times = [at for at in (self.ends_at, lease_ends) if at is not None]
        return min(times, default=None)

    def cancel_cause(self, now: float, known_until: float) -> Cause | None:
        """Return why the job has to end now, if so; of renewals of its lease after `known_until` we may not know yet."""
        if self.ends_at is not None and now >= self.ends_at:
            return Cause.WINDOW
        return Cause.LEASE if self.lease is not None and self.lease.expired(known_until) else None
