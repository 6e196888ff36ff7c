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

    __slots__ = ("changed", "ends_at", "event_log", "job", "lease", "submitted_here", "touched")

    def __init__(self, job: Job, now: float, now_of_day: float) -> None:
        self.job = job
        self.lease = Lease(job.lease_s, now) if job.lease_s is not None else None
        self.ends_at = now + job.expires - now_of_day if job.expires is not None else None
        self.event_log: EventLog | None = None
        self.submitted_here = False  # submitted to this process: no client has seen events of an earlier attempt
        self.touched = False  # a client asked for the job, and the store does not know it yet
        self.changed = asyncio.Event()  # replaced by a new event after each change

    def update(self, job: Job) -> None:
        self.job = job
        self.changed.set()
        self.changed = asyncio.Event()

    def cancel_cause(self, now: float, known_until: float) -> Cause | None:
        """Return why the job has to end now, if so; of renewals of its lease after `known_until` we may not know yet."""
        if self.ends_at is not None and now >= self.ends_at:
            return Cause.WINDOW
        return Cause.LEASE if self.lease is not None and self.lease.expired(known_until) else None

    def take_touched(self) -> bool:
        """Return whether other processes must renew the lease, and start over: a client has asked since, or listens."""
        touched = self.touched or (self.lease is not None and self.lease.held)
        self.touched = False
        return touched
