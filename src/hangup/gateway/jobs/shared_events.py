"""Carries the events of running jobs between the gateways that share a store.

The gateway that runs a job keeps its events in memory. If a client follows the job at another gateway, that one says so in the
store; the gateway that runs the job then writes its events there, and the other reads them. For a job that is followed where it
runs, or nowhere, nothing is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from hangup.gateway.jobs.event_log import EventLog
from hangup.gateway.store.jobs import JobStore
from hangup.gateway.store.jobs.events import EventRow

EXCHANGE_EVERY_S = 0.5
_ROW_EVENTS_MAX = 1000  # per row of the store


class ActiveJobs(Protocol):
    """What the registry knows of active jobs."""

    others: bool  # whether other processes use the store

    @property
    def worker(self) -> int: ...

    def event_log_of(self, key: int) -> EventLog | None:
        """Return the events of an active job; None if it has ended."""


class SharedEvents:
    """The jobs that clients follow here, and those that run here and are followed elsewhere."""

    def __init__(self, store: JobStore, jobs: ActiveJobs, runs_here: Callable[[int], bool]) -> None:
        self._store = store
        self._jobs = jobs
        self._runs_here = runs_here
        self._listeners: Counter[int] = Counter()  # clients that follow a job here, by job
        self._asked: set[int] = set()  # jobs for which the store knows that we follow them
        self._asked_as = 0  # as which worker
        self._read: dict[int, int] = {}  # by job: up to which row we have read
        self._wanted: set[int] = set()  # jobs that others follow
        self._shared: dict[int, int] = {}  # by job: the number of the last event that we have shared

    def listen(self, key: int) -> None:
        self._listeners[key] += 1

    def stop_listening(self, key: int) -> None:
        self._listeners[key] -= 1
        if not self._listeners[key]:
            del self._listeners[key]

    async def exchange(self, now: float) -> None:
        """Share new events of what runs here and is followed elsewhere; read those of what is followed here."""
        if not self._jobs.others:
            return
        events, worker = self._store.events, self._jobs.worker
        if worker != self._asked_as:  # whoever took us for dead has deleted what we asked for
            self._asked, self._asked_as = set(), worker
        follow = {key for key in self._listeners if not self._runs_here(key)}
        new, gone = follow - self._asked, self._asked - follow
        rows, ended = self._rows_to_share()

        def work() -> tuple[set[int], list[EventRow]]:
            events.add(rows)
            events.remove(ended)
            events.follow(worker, new)
            events.unfollow(worker, gone)
            arrived = [row for key in follow for row in events.after(key, self._read.get(key, -1))]
            return events.followed_by_others(worker), arrived

        self._wanted, arrived = await self._store.do(work)
        self._asked = follow
        for row in rows:
            self._shared[row.job] = max(self._shared.get(row.job, -1), EventLog.load(row.data)[-1].number)
        for key in ended:
            del self._shared[key]
        self._read = {key: first for key, first in self._read.items() if key in follow}
        for row in arrived:
            self._read[row.job] = row.first
            self._deliver(row)

    def _rows_to_share(self) -> tuple[list[EventRow], list[int]]:
        """Return the events that others wait for, and the jobs whose shared events nobody needs any more."""
        rows = []
        for key in self._wanted:
            log = self._jobs.event_log_of(key) if self._runs_here(key) else None
            if log is not None:
                shared = self._shared.setdefault(key, -1)
                new = [event for event in log.events if event.number > shared][:_ROW_EVENTS_MAX]
                rows += [EventRow(key, new[0].number, EventLog.dump_events(new))] if new else []
        return rows, [key for key in self._shared if self._jobs.event_log_of(key) is None]

    def _deliver(self, row: EventRow) -> None:
        log = self._jobs.event_log_of(row.job)
        for event in EventLog.load(row.data) if log is not None else ():
            if log is not None and event.number >= log.next_number:
                log.skip_to(event.number)
                log.add(event.name, event.data)
