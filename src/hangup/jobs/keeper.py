"""Brings what became of items back into the store, many at a time, and into the books when the store has it.

A store that fails costs time only: results are held here until it takes them.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from hangup.core.account import Entry
from hangup.core.jobs import Item
from hangup.store.database import StoreFailed
from hangup.store.jobs import Claim, Job, JobStore

_STORE_PAUSE_S = 1.0  # before a store that failed is tried again


class Host(Protocol):
    def book(self, entry: Entry) -> None: ...

    def told(self, event: str, **fields: Any) -> None: ...


class Ended(NamedTuple):
    claim: Claim
    state: Item
    body: bytes | None = None
    events: bytes | None = None
    entry: Entry | None = None  # for the books, once the result is kept


class Keeper:
    def __init__(
        self,
        store: JobStore,
        host: Host,
        changed: Callable[[Job], None],
        works: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.failing = False  # the store cannot be written
        self.refused = 0  # results that came too late
        self.ended: Counter[Item] = Counter()  # items, by how
        self._store = store
        self._host = host
        self._changed = changed  # told of each job that has changed
        self._works = works  # told when a store that failed works again
        self._ended: list[Ended] = []
        self._given_back: list[Claim] = []
        self._wake = asyncio.Event()
        self._closing = False
        self._task = loop.create_task(self._keep())

    def finish(self, ended: Ended) -> None:
        self._ended.append(ended)
        self._wake.set()

    def give_back(self, claim: Claim) -> None:
        """It was claimed and not run: whoever comes next may."""
        self._given_back.append(claim)
        self._wake.set()

    def failed(self, failure: StoreFailed) -> None:
        if not self.failing:
            self.failing = True
            self._host.told("job_store_failed", error=str(failure))
        self._wake.set()

    async def close(self) -> None:
        """Writes what is left, if the store takes it."""
        self._closing = True
        self._wake.set()
        await self._task

    async def _keep(self) -> None:
        while self._ended or self._given_back or not self._closing:
            await self._wake.wait()
            self._wake.clear()
            ended, self._ended = self._ended, []
            given_back, self._given_back = self._given_back, []
            try:
                jobs = await self._store.do(partial(self._write, ended, given_back))
            except StoreFailed as failure:
                self._ended, self._given_back = ended + self._ended, given_back + self._given_back
                self.failed(failure)
                if self._closing:
                    return
                await asyncio.sleep(_STORE_PAUSE_S)
                continue
            for one, job in zip(ended, jobs, strict=True):
                self._kept(one, job)
            if self.failing:
                self.failing = False
                self._host.told("job_store_works")
                self._works()

    def _write(self, ended: list[Ended], given_back: list[Claim]) -> list[Job | None]:
        """In the store's thread."""
        jobs, now = self._store.jobs, time.time()
        jobs.give_back(given_back, now)
        return [jobs.finish(one.claim, one.state, now, one.body, one.events) for one in ended]

    def _kept(self, one: Ended, job: Job | None) -> None:
        if job is None:
            self.refused += 1
            self._host.told("job_result_refused", job=one.claim.job, item=one.claim.n)
        if one.entry is not None:
            self._host.book(one.entry if job is not None else _in_vain(one.entry))
        if job is not None:
            self.ended[one.state] += 1
            self._changed(job)


def _in_vain(entry: Entry) -> Entry:
    """Of a result that came too late: another one counts."""
    return entry._replace(cause="fenced", account=entry.account.in_vain())
