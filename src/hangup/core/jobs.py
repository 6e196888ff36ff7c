"""Jobs: work that may outlive its connection, but never its owner. This module defines their states and transitions.

    job    VALIDATING ──▶ RUNNING ──▶ COMPLETED │ FAILED
                │            └──────▶ CANCELLING ──▶ CANCELLED │ EXPIRED │ COMPLETED, if it completed first
                └──▶ FAILED
    item   QUEUED ──▶ CLAIMED ──▶ SUCCEEDED │ ERRORED │ CANCELLED │ EXPIRED
              ▲          │
              └──────────┘ its worker is gone: it runs again

A job has one item (a call) or many (a batch). It ends with its last item. A job is reported as cancelled only when no item is
claimed any more: the worker that claimed an item returns it once the engine has stopped working on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from hangup.core import reasons
from hangup.core.reasons import Outcome, Reason


class Kind(StrEnum):
    """The APIs through which a job can be created."""

    CALL = "call"  # `Prefer: respond-async`
    RESPONSE = "response"  # OpenAI, `background: true`
    BATCH = "batch"  # OpenAI
    MESSAGES = "message_batch"  # Anthropic

    @property
    def single(self) -> bool:
        """Return whether the job has one item, whose outcome is the job's."""
        return self in (Kind.CALL, Kind.RESPONSE)


class ItemState(IntEnum):
    """The states of a job's item."""

    QUEUED = 0
    CLAIMED = 1
    SUCCEEDED = 2
    ERRORED = 3
    CANCELLED = 4
    EXPIRED = 5  # the batch's completion window passed before it could run

    @property
    def ended(self) -> bool:
        return self > ItemState.CLAIMED


class JobStatus(StrEnum):
    """The states of a job."""

    VALIDATING = "validating"
    RUNNING = "running"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def ended(self) -> bool:
        return self not in (JobStatus.VALIDATING, JobStatus.RUNNING, JobStatus.CANCELLING)


class Cause(StrEnum):
    """Why a job is cancelled."""

    NONE = ""
    CANCELLED = "cancelled"
    LEASE = "lease_expired"
    WINDOW = "window_passed"
    KILLED = "killed"
    CLIENT_GONE = "client_gone"  # its client hung up before it received the job's id

    @property
    def of_items(self) -> ItemState:
        """Return the final state of the items that have not ended."""
        return ItemState.EXPIRED if self is Cause.WINDOW else ItemState.CANCELLED


@dataclass(frozen=True, slots=True)
class ItemCounts:
    """How many of a job's items are in which state, in the order of `ItemState`."""

    queued: int = 0
    claimed: int = 0
    succeeded: int = 0
    errored: int = 0
    cancelled: int = 0
    expired: int = 0

    @property
    def total(self) -> int:
        return self.queued + self.claimed + self.ended

    @property
    def ended(self) -> int:
        return self.succeeded + self.errored + self.cancelled + self.expired


def outcome(kind: Kind, status: JobStatus, cause: Cause, tally: ItemCounts) -> JobStatus | None:
    """Return the status in which a job ends, or None if it has not come to its end."""
    if status.ended or status is JobStatus.VALIDATING or tally.queued or tally.claimed:
        return None
    stopped = status is JobStatus.CANCELLING or kind.single  # a running batch may have single killed items
    if (stopped and (tally.expired or tally.cancelled)) or not tally.total:  # no items: cancelled before they were known
        return JobStatus.EXPIRED if cause is Cause.WINDOW else JobStatus.CANCELLED
    return JobStatus.FAILED if kind.single and tally.errored else JobStatus.COMPLETED


TOO_MANY = 429  # Too Many Requests


class AfterEffects(IntEnum):
    """What to do with an item when its call has ended."""

    SUCCEEDED = ItemState.SUCCEEDED
    ERRORED = ItemState.ERRORED
    CANCELLED = ItemState.CANCELLED  # once the engine has stopped working on it
    AGAIN = -1
    GIVEN_BACK = -2  # another worker may run it, or this one later


def after(reason: Reason, status: int, *, stopping: bool, failures: int, failures_max: int) -> AfterEffects:
    """Decide what to do with an item whose call has ended.

    `status` is that of the answer, if there was one; `stopping`: its job is being cancelled; `failures`: how often engines
    failed on it.
    """
    if reason is reasons.TAKEN_OVER:
        return AfterEffects.GIVEN_BACK
    if reason is reasons.PREEMPTED:
        return AfterEffects.CANCELLED if stopping else AfterEffects.AGAIN
    match reason.outcome:
        case Outcome.ENGINE_REFUSED if status == TOO_MANY:  # the engine has no room now, which says nothing about the item
            return AfterEffects.CANCELLED if stopping else AfterEffects.AGAIN
        case Outcome.COMPLETED:
            return AfterEffects.SUCCEEDED if 200 <= status < 300 else AfterEffects.ERRORED
        case Outcome.ENGINE_REFUSED:
            return AfterEffects.ERRORED
        case Outcome.CLIENT_GONE:
            return AfterEffects.CANCELLED
        case Outcome.KILLED:
            return AfterEffects.ERRORED if reason is reasons.INTERNAL else AfterEffects.CANCELLED
        case Outcome.DRAINED:
            return AfterEffects.GIVEN_BACK
        case Outcome.SHED:
            return AfterEffects.CANCELLED if stopping else AfterEffects.AGAIN
        case Outcome.ENGINE_FAILED if failures < failures_max:
            return AfterEffects.CANCELLED if stopping else AfterEffects.AGAIN
        case _:
            return AfterEffects.SUCCEEDED if reason is reasons.OUTPUT_TOKENS else AfterEffects.ERRORED


class Lease:
    """The lease of a job: it must be renewed, or the job ends. It cannot expire while a client listens.

    Time is the process's own, so that a change of the wall clock cannot end a job.
    """

    __slots__ = ("_listeners", "_renewed_at", "lease_s")

    def __init__(self, lease_s: float, now: float) -> None:
        self.lease_s = lease_s
        self._renewed_at = now
        self._listeners = 0

    def renew(self, now: float) -> None:
        self._renewed_at = now

    def listen(self) -> None:
        self._listeners += 1

    def stop_listening(self, now: float) -> None:
        self._listeners = max(self._listeners - 1, 0)
        self._renewed_at = now

    @property
    def held(self) -> bool:
        return self._listeners > 0

    def remaining_s(self, now: float) -> float:
        return self.lease_s if self._listeners else self._renewed_at + self.lease_s - now

    def expired(self, now: float) -> bool:
        return self.remaining_s(now) <= 0
