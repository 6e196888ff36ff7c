"""Writes results, returned claims and cancels to the job store, many at a time, and then records results in the ledger.

A failing store only costs time: results, and cancels that have already stopped their engines, wait here until it works again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from hangup.config import JobLimits
from hangup.core.account import Entry
from hangup.core.clocks import Backoff
from hangup.core.jobs import Cause, ItemState
from hangup.gateway.store.jobs import Claim, ItemEnd, Job, JobStore
from hangup.gateway.store.worker_thread import StoreFailed, StoreLocked
from hangup.tasks import TASKS

_LOCK_PAUSE_S = 0.1  # before another attempt at the end of the process, if another one holds the store's lock
_PAUSE_S, _PAUSE_MAX_S = 1.0, 30.0  # before a failed store is tried again; doubles each time
_REFUSED_JOBS_MAX = 10_000  # remembered until the store works again


class ResultHost(Protocol):
    """The gateway, as `ResultWriter` sees it."""

    @property
    def limits(self) -> JobLimits: ...

    def record_cost(self, entry: Entry) -> None: ...

    def log_event(self, event: str, **fields: object) -> None: ...

    def fault(self, error: Exception) -> None: ...


class ItemOutcome(NamedTuple):
    """The end of an item, to be written."""

    claim: Claim
    state: ItemState
    body: bytes | None = None
    events: bytes | None = None
    entry: Entry | None = None  # for the ledger, once the result is stored

    @property
    def size(self) -> int:
        return len(self.body or b"") + len(self.events or b"")


class ResultWriter:
    """The queue of pending writes, and the task that writes them."""

    def __init__(
        self,
        store: JobStore,
        host: ResultHost,
        on_changed: Callable[[Job], None],
        on_recovered: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.failing = False  # the store cannot be written
        self.held_bytes = 0  # of results that are not written yet
        self.refused = 0  # results refused because their claim was stale
        self.ended_by_state: Counter[ItemState] = Counter()  # ended items, by end state
        self._store = store
        self._host = host
        self._on_changed = on_changed  # called with each job that has changed
        self._on_recovered = on_recovered  # called when items may start again: a failed store works, or what waited is written
        self._loop = loop
        self._cancels: dict[int, Cause] = {}
        self._refused_jobs: set[str] = set()  # ids of jobs that may be in the store although their clients were refused
        self._cancel_waiters: list[asyncio.Future[None]] = []  # resolved when the cancels are on disk
        self._outcomes: list[ItemOutcome] = []
        self._given_back: list[Claim] = []
        self._writing = False
        self._in_doubt = 0  # results in the write that is under way
        self._holds_up = False  # somebody was told to wait, and `_on_recovered` must follow
        self._backoff = Backoff(_PAUSE_S, _PAUSE_MAX_S)
        self._pause_s = 0.0
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self._task = TASKS.keep("job results", self._run)

    @property
    def idle(self) -> bool:
        """Whether no write is pending."""
        return not (self._writing or self._has_pending())

    def _has_pending(self) -> bool:
        return bool(self._outcomes or self._given_back or self._cancels)

    @property
    def full(self) -> bool:
        """Whether so much waits to be written that no further item should start."""
        return self.held_bytes > self._host.limits.job_results_held_bytes_max

    def hold_up_if_full(self) -> bool:
        """Return `full`. If true, `on_recovered` is called when an item may start, however the bytes rose above the limit."""
        self._holds_up = self._holds_up or self.full
        return self.full

    def finish(self, outcome: ItemOutcome) -> None:
        self._outcomes.append(outcome)
        self.held_bytes += outcome.size
        self._wake.set()

    def give_back(self, claim: Claim) -> None:
        """Return a claim that was not run, so that any worker may claim the item."""
        self._given_back.append(claim)
        self._wake.set()

    async def cancel(self, key: int, cause: Cause) -> None:
        """Return once the cancel is on disk. If the store fails, raise, and write the cancel when it works again."""
        self._cancels.setdefault(key, cause)
        if self.failing:
            raise StoreFailed("the store cannot be written")
        written = self._loop.create_future()
        self._cancel_waiters.append(written)
        self._wake.set()
        await written

    def cancel_if_stored(self, id: str) -> None:
        """Cancel a job that its client was refused: if the connection is lost during a commit, the job may be stored."""
        if len(self._refused_jobs) < _REFUSED_JOBS_MAX:
            self._refused_jobs.add(id)
            self._wake.set()

    def cancelled(self, key: int) -> Cause | None:
        """Return the cause of a cancel that is not yet in the store, or None."""
        return self._cancels.get(key)

    def store_failed(self, failure: StoreFailed) -> None:
        """Note that other work in the store failed; after a pause, a write tests whether it works again."""
        if not self.failing:
            self._fail(failure)
            self._host.log_event("job_store_failed", error=str(failure))
        self._wake.set()

    def _fail(self, failure: StoreFailed) -> None:
        self.failing = True
        self._pause_s = self._backoff.failed(self._loop.time())
        self._fail_cancels(failure)

    def _fail_cancels(self, failure: StoreFailed) -> None:
        """Tell those who wait for a cancel to be written."""
        waiting, self._cancel_waiters = self._cancel_waiters, []
        for written in waiting:
            if not written.done():
                written.set_exception(failure)

    async def close(self) -> None:
        """Write what is pending; give up if the store fails, but wait for a lock of another process."""
        self._closing.set()
        self._wake.set()
        await self._task

    async def abandon(self) -> None:
        """Leave what is not written, because the store is closed or its disk hangs, and log how much that is.

        Other processes run the items again. A result in doubt may be on the disk; then it is missing in the ledger.
        """
        results, in_doubt, cancels = len(self._outcomes), self._in_doubt, len(self._cancels)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._fail_cancels(StoreFailed("the store is closed"))
        if results or in_doubt or cancels:
            self._host.log_event("job_results_lost", results=results, in_doubt=in_doubt, cancels=cancels)

    async def _run(self) -> None:
        if not self.idle:  # restarted after a failure, which used up the wake-up of what is pending
            self._wake.set()
        while self._has_pending() or not self._closing.is_set():
            await self._wake.wait()
            self._wake.clear()
            if self.failing:
                await self._pause()
            self._writing = True
            try:
                await self._write_all()
            except StoreFailed as failure:
                was_failing = self.failing
                self._fail(failure)
                if not was_failing:
                    self._host.log_event("job_store_failed", error=str(failure))
                if self._closing.is_set():
                    if not isinstance(failure, StoreLocked) or not self._has_pending():
                        return
                    await asyncio.sleep(_LOCK_PAUSE_S)
                self._wake.set()
                continue
            finally:
                self._writing = False
            recovered = self.failing or (self._holds_up and not self.full)
            if self.failing:
                self.failing = False
                self._host.log_event("job_store_recovered")
            if recovered:
                self._holds_up = False
                try:
                    self._on_recovered()
                except Exception as error:
                    self._host.fault(error)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._pause_s):
                await self._closing.wait()
        except TimeoutError:
            return

    async def _write_all(self) -> None:
        """Write everything at once; if part of it cannot be written, write each piece alone, so that it blocks no other."""
        cancels, outcomes, given_back = dict(self._cancels), self._outcomes, self._given_back
        waiting, self._cancel_waiters = self._cancel_waiters, []
        self._outcomes, self._given_back = [], []
        self._in_doubt = len(outcomes)
        try:
            try:
                await self._write(cancels, outcomes, given_back)
            except StoreFailed:
                self._outcomes, self._given_back = outcomes + self._outcomes, given_back + self._given_back
                raise
            except Exception as error:
                self._host.fault(error)
                await self._write_one_by_one(cancels, outcomes, given_back)
        except StoreFailed:
            self._cancel_waiters = waiting + self._cancel_waiters  # `_fail` passes the failure on to them
            raise
        finally:
            self._in_doubt = 0
        for written in waiting:
            if not written.done():
                written.set_result(None)

    async def _write_one_by_one(self, cancels: dict[int, Cause], outcomes: list[ItemOutcome], given_back: list[Claim]) -> None:
        pieces: list[tuple[dict[int, Cause], list[ItemOutcome], list[Claim]]] = [
            *(({key: cause}, [], []) for key, cause in cancels.items()),
            *(({}, [outcome], []) for outcome in outcomes),
            *(({}, [], [claim]) for claim in given_back),
        ]
        for at, piece in enumerate(pieces):
            try:
                await self._write(*piece)
            except StoreFailed:
                for _, unwritten, claims in pieces[at:]:
                    self._outcomes, self._given_back = self._outcomes + unwritten, self._given_back + claims
                raise
            except Exception as error:  # drop this piece
                self._host.fault(error)
                self.held_bytes -= sum(outcome.size for outcome in piece[1])
                for key in piece[0]:
                    self._cancels.pop(key, None)

    async def _write(self, cancels: dict[int, Cause], outcomes: list[ItemOutcome], given_back: list[Claim]) -> None:
        """Write these. Once they are on disk nothing may raise: whatever raises is written again."""
        refused = list(self._refused_jobs)
        write = partial(self._write_in_thread, cancels, outcomes, given_back, refused, probe=self.failing)
        cancelled, jobs = await self._store.do(write)
        self._refused_jobs.difference_update(refused)
        self.held_bytes -= sum(outcome.size for outcome in outcomes)
        for key in cancels:
            self._cancels.pop(key, None)
        for job in cancelled:
            self._notify_changed(job)
        for outcome, job in zip(outcomes, jobs, strict=True):
            try:
                self._record(outcome, job)
            except Exception as error:
                self._host.fault(error)
            self._notify_changed(job)

    def _write_in_thread(
        self,
        cancels: dict[int, Cause],
        outcomes: list[ItemOutcome],
        given_back: list[Claim],
        refused: list[str],
        *,
        probe: bool,
    ) -> tuple[list[Job | None], list[Job | None]]:
        """Write in the store's thread. Cancels come first: what they stopped must end with their cause."""
        jobs, now = self._store.jobs, time.time()
        stored = [job.key for job in map(jobs.find, refused) if job is not None]
        cancels = {**dict.fromkeys(stored, Cause.CLIENT_GONE), **cancels}
        jobs.lock({*cancels, *(claim.job_key for claim in given_back), *(outcome.claim.job_key for outcome in outcomes)})
        cancelled = [jobs.cancel(key, cause, now) for key, cause in cancels.items()]
        jobs.give_back(given_back, now)
        written = jobs.finish_all([ItemEnd(ended.claim, ended.state, ended.body, ended.events) for ended in outcomes], now)
        if probe:  # with nothing to write, success would not show that the store works
            self._store.clock.probe()
        return cancelled, written

    def _record(self, outcome: ItemOutcome, job: Job | None) -> None:
        """Count a written outcome and record its cost; without a job, the store refused it."""
        if outcome.entry is not None:
            self._host.record_cost(outcome.entry if job is not None else _as_wasted(outcome.entry))
        if job is not None:
            self.ended_by_state[outcome.state] += 1
        else:
            self.refused += 1
            self._host.log_event("job_result_refused", job=outcome.claim.job_id, item=outcome.claim.n)

    def _notify_changed(self, job: Job | None) -> None:
        if job is None:
            return
        try:
            self._on_changed(job)
        except Exception as error:  # the write itself has succeeded
            self._host.fault(error)


def _as_wasted(entry: Entry) -> Entry:
    """Return a refused result's entry as wasted: the result of another claim counts."""
    return entry._replace(cause="fenced", account=entry.account.as_wasted())
