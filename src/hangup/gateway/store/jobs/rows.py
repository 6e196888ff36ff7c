"""Row types that the job store's tables return and accept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from hangup.core.jobs import Cause, ItemCounts, ItemState, JobStatus, Kind


@dataclass(frozen=True, slots=True)
class Job:
    """A job, with the counts of its items."""

    key: int
    id: str
    kind: Kind
    tenant: str
    status: JobStatus
    cause: Cause
    created: float  # wall-clock time, like the four below
    begun: float | None
    cancelling: float | None
    ended: float | None
    expires: float | None  # when a batch's completion window closes
    lease_s: float | None  # or, of a single call, how long it lives while no client asks for it
    touched: int  # incremented when a client asks for the job
    worker: int | None  # which worker checks its input lines
    tally: ItemCounts
    bytes: int
    about: dict[str, Any]  # what its API needs to render it

    @classmethod
    def from_row(cls, row: tuple[Any, ...]) -> Job:
        key, id, kind, tenant, status, cause, created, begun, cancelling, ended, expires, lease_s, touched, worker = row[:14]
        columns = (created, begun, cancelling, ended, expires, lease_s, touched, worker)
        tally, about = ItemCounts(*row[14:20]), orjson.loads(row[21])
        return cls(key, id, Kind(kind), tenant, JobStatus(status), Cause(cause), *columns, tally, row[20], about)


JOB_COLUMNS = (
    "key, id, kind, tenant, status, cause, created, begun, cancelling, ended, expires, lease_s, touched, worker,"
    " queued, claimed, succeeded, errored, cancelled, expired, bytes, about"
)


class NewItem(NamedTuple):
    """An item as submitted."""

    custom_id: str
    path: str
    body: bytes


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job as submitted. Without items it waits in VALIDATING until `worker` has checked its input lines."""

    id: str
    kind: Kind
    tenant: str
    created: float
    about: dict[str, Any]
    items: list[NewItem] | None
    expires: float | None = None
    lease_s: float | None = None
    worker: int | None = None

    @property
    def use(self) -> Used:
        """How much of the store it takes."""
        items = self.items or ()
        return Used(1, len(items), sum(len(item.body) for item in items))

    def inserted(self, key: int) -> Job:
        """Return the job as it is in the store, under `key`."""
        status = JobStatus.VALIDATING if self.items is None else JobStatus.RUNNING
        use, times = self.use, (self.created, None, None, None, self.expires, self.lease_s)
        tally = ItemCounts(queued=use.items)
        return Job(
            key, self.id, self.kind, self.tenant, status, Cause.NONE, *times, 0, self.worker, tally, use.bytes, self.about
        )


class Claim(NamedTuple):
    """An item that this worker owns; `fence` is unique to this claim, so a late result of an earlier claim cannot match it."""

    job: Job  # the job at the time of the claim, so that the owner need not look it up
    n: int
    fence: int
    custom_id: str
    path: str
    body: bytes

    @property
    def job_id(self) -> str:
        return self.job.id

    @property
    def job_key(self) -> int:
        return self.job.key

    @property
    def single(self) -> bool:
        """Whether the item is the only one of its job."""
        return self.job.kind.single


class ItemEnd(NamedTuple):
    """The end of a claimed item, with its result and its events if it has some."""

    claim: Claim
    state: ItemState
    body: bytes | None
    events: bytes | None


class Result(NamedTuple):
    """An item with its result; `body` is None while it has none."""

    n: int
    custom_id: str
    state: ItemState
    body: bytes | None


class File(NamedTuple):
    """An uploaded file, or a file of batch results."""

    key: int
    id: str
    purpose: str
    filename: str
    created: float
    expires: float | None
    bytes: int | None  # None: not measured yet
    job: int | None  # set if the file is a view of this job's results


class Used(NamedTuple):
    """How much of the store a tenant uses."""

    jobs: int  # not ended
    items: int  # not ended
    bytes: int

    def plus(self, more: Used) -> Used:
        return Used(self.jobs + more.jobs, self.items + more.items, self.bytes + more.bytes)
