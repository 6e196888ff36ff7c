"""Brings what became of items back into the store, many at a time, and into the books when the store has it.

A store that fails costs time only: results, and cancels that engines have obeyed already, are held here until it takes them.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from hangup.core.account import Entry
from hangup.core.clocks import Backoff
from hangup.core.jobs import Cause, ItemState
from hangup.gateway.store.database import StoreFailed
from hangup.gateway.store.jobs import Claim, Job, JobStore
from hangup.tasks import DUTIES

_PAUSE_S, _PAUSE_MAX_S = 1.0, 30.0  # before a store that failed is tried again; it doubles


class ResultHost(Protocol):
    def book(self, entry: Entry) -> None: ...

    def told(self, event: str, **fields: Any) -> None: ...

    def fault(self, error: Exception) -> None: ...


class ItemOutcome(NamedTuple):
    claim: Claim
    state: ItemState
    body: bytes | None = None
    events: bytes | None = None
    entry: Entry | None = None  # for the books, once the result is kept


class ResultWriter:
    def __init__(
        self,
        store: JobStore,
        host: ResultHost,
        changed: Callable[[Job], None],
        works: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.failing = False  # the store cannot be written
        self.refused = 0  # results that came too late
        self.ended: Counter[ItemState] = Counter()  # items, by how
        self._store = store
        self._host = host
        self._changed = changed  # told of each job that has changed
        self._works = works  # told when a store that failed works again
        self._loop = loop
        self._cancels: dict[int, Cause] = {}
        self._waiting: list[asyncio.Future[None]] = []  # for the cancels to be on the disk
        self._ended: list[ItemOutcome] = []
        self._given_back: list[Claim] = []
        self._writing = False
        self._pauses = Backoff(_PAUSE_S, _PAUSE_MAX_S)
        self._pause_s = 0.0
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self._task = DUTIES.keep("job results", self._keep)

    @property
    def idle(self) -> bool:
        """Nothing is on its way into the store."""
        return not (self._writing or self._ended or self._given_back or self._cancels)

    def finish(self, ended: ItemOutcome) -> None:
        self._ended.append(ended)
        self._wake.set()

    def give_back(self, claim: Claim) -> None:
        """It was claimed and not run: whoever comes next may."""
        self._given_back.append(claim)
        self._wake.set()

    async def cancel(self, key: int, cause: Cause) -> None:
        """Comes back when it is on the disk. When the store fails it says so, and the cancel is written when it works again."""
        self._cancels.setdefault(key, cause)
        if self.failing:
            raise StoreFailed("the store cannot be written")
        written = self._loop.create_future()
        self._waiting.append(written)
        self._wake.set()
        await written

    def cancelled(self, key: int) -> Cause | None:
        """Why a job is to end, if that is not yet in the store."""
        return self._cancels.get(key)

    def failed(self, failure: StoreFailed) -> None:
        """Some work in the store failed: it is tried after a pause, by writing to it."""
        if not self.failing:
            self._fail(failure)
            self._host.told("job_store_failed", error=str(failure))
        self._wake.set()

    def _fail(self, failure: StoreFailed) -> None:
        self.failing = True
        self._pause_s = self._pauses.failed(self._loop.time())
        waiting, self._waiting = self._waiting, []
        for written in waiting:
            if not written.done():
                written.set_exception(failure)

    async def close(self) -> None:
        """Writes what is left, if the store takes it."""
        self._closing.set()
        self._wake.set()
        await self._task

    async def _keep(self) -> None:
        while self._cancels or self._ended or self._given_back or not self._closing.is_set():
            await self._wake.wait()
            self._wake.clear()
            if self.failing:
                await self._pause()
            self._writing = True
            try:
                await self._write_all()
            except StoreFailed as failure:
                told = self.failing
                self._fail(failure)
                if not told:
                    self._host.told("job_store_failed", error=str(failure))
                if self._closing.is_set():
                    return
                self._wake.set()
                continue
            finally:
                self._writing = False
            if self.failing:
                self.failing = False
                self._host.told("job_store_works")
                try:
                    self._works()
                except Exception as error:
                    self._host.fault(error)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._pause_s):
                await self._closing.wait()
        except TimeoutError:
            return

    async def _write_all(self) -> None:
        """Everything together; if some of it cannot be written at all, each by itself, so that it holds up nothing else."""
        cancels, ended, given_back = dict(self._cancels), self._ended, self._given_back
        waiting, self._waiting = self._waiting, []
        self._ended, self._given_back = [], []
        try:
            try:
                await self._write(cancels, ended, given_back)
            except StoreFailed:
                self._ended, self._given_back = ended + self._ended, given_back + self._given_back
                raise
            except Exception as error:
                self._host.fault(error)
                await self._write_singly(cancels, ended, given_back)
        except StoreFailed:
            self._waiting = waiting + self._waiting  # they are told of it
            raise
        for written in waiting:
            if not written.done():
                written.set_result(None)

    async def _write_singly(self, cancels: dict[int, Cause], ended: list[ItemOutcome], given_back: list[Claim]) -> None:
        pieces: list[tuple[dict[int, Cause], list[ItemOutcome], list[Claim]]] = [
            *(({key: cause}, [], []) for key, cause in cancels.items()),
            *(({}, [one], []) for one in ended),
            *(({}, [], [claim]) for claim in given_back),
        ]
        for at, piece in enumerate(pieces):
            try:
                await self._write(*piece)
            except StoreFailed:
                for _, rest, claims in pieces[at:]:
                    self._ended, self._given_back = self._ended + rest, self._given_back + claims
                raise
            except Exception as error:  # this one is given up
                self._host.fault(error)
                for key in piece[0]:
                    self._cancels.pop(key, None)

    async def _write(self, cancels: dict[int, Cause], ended: list[ItemOutcome], given_back: list[Claim]) -> None:
        cancelled, jobs = await self._store.do(partial(self._written, cancels, ended, given_back, self.failing))
        for key in cancels:
            self._cancels.pop(key, None)
        for job in cancelled:
            self._tell(job)
        for one, job in zip(ended, jobs, strict=True):
            self._kept(one, job)

    def _written(
        self, cancels: dict[int, Cause], ended: list[ItemOutcome], given_back: list[Claim], probe: bool
    ) -> tuple[list[Job | None], list[Job | None]]:
        """In the store's thread. Cancels come first: what they stopped ends for their cause."""
        jobs, now = self._store.jobs, time.time()
        if probe:  # that nothing could be written says nothing when there was nothing to write
            self._store.clock.probe()
        cancelled = [jobs.cancel(key, cause, now) for key, cause in cancels.items()]
        jobs.give_back(given_back, now)
        return cancelled, [jobs.finish(one.claim, one.state, now, one.body, one.events) for one in ended]

    def _kept(self, one: ItemOutcome, job: Job | None) -> None:
        if job is None:
            self.refused += 1
            self._host.told("job_result_refused", job=one.claim.job, item=one.claim.n)
        if one.entry is not None:
            self._host.book(one.entry if job is not None else _in_vain(one.entry))
        if job is not None:
            self.ended[one.state] += 1
            self._tell(job)

    def _tell(self, job: Job | None) -> None:
        if job is None:
            return
        try:
            self._changed(job)
        except Exception as error:  # what is written is written
            self._host.fault(error)


def _in_vain(entry: Entry) -> Entry:
    """Of a result that came too late: another one counts."""
    return entry._replace(cause="fenced", account=entry.account.in_vain())
