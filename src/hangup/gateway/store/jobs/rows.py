"""What is read from the tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from hangup.core.jobs import Cause, ItemCounts, ItemState, JobStatus, Kind


@dataclass(frozen=True, slots=True)
class Job:
    key: int
    id: str
    kind: Kind
    tenant: str
    status: JobStatus
    cause: Cause
    created: float  # times of day
    begun: float | None
    cancelling: float | None
    ended: float | None
    expires: float | None  # a batch's window
    lease_s: float | None  # or how long the job lives without anyone who cares
    touched: int  # grows when somebody cared
    worker: int | None  # who checks its lines
    tally: ItemCounts
    bytes: int
    about: dict[str, Any]  # what its API needs to show it

    @classmethod
    def read(cls, row: tuple[Any, ...]) -> Job:
        key, id, kind, tenant, status, cause, created, begun, cancelling, ended, expires, lease_s, touched, worker = row[:14]
        known = (created, begun, cancelling, ended, expires, lease_s, touched, worker)
        tally, about = ItemCounts(*row[14:20]), orjson.loads(row[21])
        return cls(key, id, Kind(kind), tenant, JobStatus(status), Cause(cause), *known, tally, row[20], about)


JOB_COLUMNS = (
    "key, id, kind, tenant, status, cause, created, begun, cancelling, ended, expires, lease_s, touched, worker,"
    " queued, claimed, succeeded, errored, cancelled, expired, bytes, about"
)


class NewItem(NamedTuple):
    """An item as it is submitted."""

    custom_id: str
    path: str
    body: bytes


class Claim(NamedTuple):
    """An item that is ours to run; `fence` is what a late result of an earlier claim does not have."""

    of: Job  # as it stood with the claim: whoever has the claim knows the job
    n: int
    fence: int
    custom_id: str
    path: str
    body: bytes

    @property
    def job(self) -> str:
        return self.of.id

    @property
    def key(self) -> int:
        return self.of.key

    @property
    def single(self) -> bool:
        """All of its job."""
        return self.of.kind.single


class Result(NamedTuple):
    n: int
    custom_id: str
    state: ItemState
    body: bytes | None


class File(NamedTuple):
    key: int
    id: str
    purpose: str
    filename: str
    created: float
    expires: float | None
    bytes: int | None  # None: not counted yet
    job: int | None  # a view on this job's results


class Used(NamedTuple):
    """What a tenant has in the store."""

    jobs: int  # that have not ended
    items: int  # that have not ended
    bytes: int
