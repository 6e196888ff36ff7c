"""Keeps track of active jobs: accepts and cancels them, renews their leases and ends them at their deadlines.

The store is authoritative. The registry holds what this process knows of jobs that have not ended: their leases, their windows,
and the events of those that run here. Other processes may use the same store; the registry sees their changes within a tick.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, ValuesView
from functools import partial
from typing import Any, TypeVar

from hangup.config import JobLimits
from hangup.core import reasons
from hangup.core.call import Call
from hangup.core.clocks import SteadyClock
from hangup.core.jobs import Cause, JobStatus, Kind
from hangup.core.reasons import Reason
from hangup.errors import Refusal
from hangup.gateway.jobs import workers
from hangup.gateway.jobs.active_job import REASON_OF, ActiveJob
from hangup.gateway.jobs.closing import CLOSE_S, close_store
from hangup.gateway.jobs.due_jobs import DueJobs
from hangup.gateway.jobs.event_log import EventLog
from hangup.gateway.jobs.interest import ClientInterest
from hangup.gateway.jobs.item_client import ItemClient
from hangup.gateway.jobs.item_shape import ItemShape
from hangup.gateway.jobs.quotas import JobQuotas
from hangup.gateway.jobs.repeating import Repeating
from hangup.gateway.jobs.retention import delete_old
from hangup.gateway.jobs.runner import ItemRunner, RunnerHost
from hangup.gateway.jobs.shared_events import EXCHANGE_EVERY_S, SharedEvents
from hangup.gateway.store.jobs import Job, JobStore, NewItem, NewJob
from hangup.gateway.store.worker_thread import GroupedWork, StoreFailed
from hangup.tasks import Tasks

R = TypeVar("R")
_TICK_S = 0.5
_HEARTBEAT_EVERY_S = 2.0
_RENEWAL_LAG_S = 2 * _HEARTBEAT_EVERY_S  # until a renewal at another process is known here: written in a beat, read in a tick
_STORE_WAIT_S = 1.0  # how long to wait for the store when this process knows the job, too
_PRUNE_EVERY_S = 600.0
_LOADED_MAX, _COMPARED_MAX = 1000, 500  # active jobs read at a time at the start, and compared with the store per heartbeat
_DAY_S = 86_400.0
_ATTEMPTS_MAX, _EVENTS_MAX = 1000, 1_000_000  # event numbers leave room for so many attempts per claim and events per attempt


class JobRegistry:
    """The active jobs of this process, with the tasks that watch leases, heartbeats and other workers."""

    def __init__(self, store: JobStore, host: RunnerHost, loop: asyncio.AbstractEventLoop, keep_days: float) -> None:
        self.store = store
        self.quotas = JobQuotas(store, host.limits_of_tenant)
        self._host = host
        self._loop = loop
        self._keep_s = keep_days * _DAY_S
        self._active: dict[int, ActiveJob] = {}
        self._due = DueJobs(self._active)
        self._interest = ClientInterest()
        self._to_compare: list[int] = []  # active jobs that are still to be compared with the store; see `_reconcile`
        self.shapes: dict[Kind, ItemShape] = {}
        self._draining = False
        self._repeating = Repeating(self._store_failed, host.fault)
        self._watches = Tasks("job watches")
        # The code that awaits a task reports its refusal; `ResultWriter` reports that the store fails.
        self._tasks = Tasks("job registry", handled=(StoreFailed, Refusal))
        self.others = False  # other processes use the store
        self._version = -1  # of the store; differs once another process may have written
        self._read_at = loop.time()  # since then we may have missed changes
        self._last_change: int | None = None  # number of the last change of a job that we have read
        self._reading = asyncio.Lock()
        self._lost_items: set[tuple[int, int, int]] = set()  # the store says that we have claimed them; unknown here

    async def open(self) -> None:
        """Register as a worker and load all active jobs, including those of earlier and other processes."""
        store = self.store
        self._worker = await store.do(lambda: store.workers.register(workers.this_host(), workers.this_process()))
        self._missing_workers = workers.MissingWorkers(self._host.limits.job_worker_silence_s, _HEARTBEAT_EVERY_S)
        self._runner = ItemRunner(store, self._worker, self._host, self, self._loop)
        self._shared_events = SharedEvents(store, self, lambda key: self._runner.running_of(key) > 0)
        self._pruned_at = self._loop.time()
        try:
            self._clock = SteadyClock(await store.do(store.clock.latest), time.time(), self._loop.time())
            await self._requeue_from_dead_workers()
            self._last_change, _ = await store.do(lambda: store.jobs.changes(None))
            last = await self._load_active(0)
            tenants = await store.do(store.jobs.tenants) if last is not None else []
        except BaseException:  # nothing may go on without an owner: the caller closes the store, and may try again
            await self._runner.close(CLOSE_S)
            await self._runner.abandon()
            await self._tasks.close()
            raise
        # Separate tasks: a store that is slow, or hangs, must neither keep engines at work nor make us look dead.
        self._watches.keep("job leases", partial(self._repeating.run, _TICK_S, self._cancel_due_jobs))
        self._watches.keep("job changes", partial(self._repeating.run, _TICK_S, self._read_changes))
        self._watches.keep("job events", partial(self._repeating.run, EXCHANGE_EVERY_S, self._shared_events.exchange))
        for tenant in tenants:
            self._runner.wake(tenant)
        self.start_task(self._load_more(last))
        self._watches.keep("job heartbeat", partial(self._repeating.run, _HEARTBEAT_EVERY_S, self._heartbeat))

    @property
    def worker(self) -> int:
        return self._worker

    @property
    def runner(self) -> ItemRunner:
        return self._runner

    def active_jobs(self) -> ValuesView[ActiveJob]:
        """Return the jobs that have not ended, newest last."""
        return self._active.values()

    # Requests of clients

    async def submit(
        self,
        id: str,
        kind: Kind,
        tenant: str,
        about: dict[str, Any],
        items: list[NewItem] | None,
        *,
        window_s: float | None = None,
        lease_s: float | None = None,
        add_first_events: Callable[[Job, EventLog], None] | None = None,
    ) -> Job:
        """Accept a job; return once it is on disk. `add_first_events` adds its first events."""
        now = time.time()
        self._check_writable()
        worker = self._worker if items is None else None
        # A clock that was set back would give a window that has passed once the clock is right again.
        expires = max(now, self._clock.latest) + window_s if window_s is not None else None
        new = NewJob(id, kind, tenant, now, about, items, expires, lease_s, worker)
        writing = self.start_task(self._submit(new, add_first_events))
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            self.start_task(self._cancel_unreceived(writing))
            raise

    async def _submit(self, new: NewJob, add_first_events: Callable[[Job, EventLog], None] | None) -> Job:
        """Register the job as soon as the store returns it: its item may have been claimed in the same transaction."""
        try:
            job = await self.store.do(GroupedWork(self.quotas.submit_all, new))
        except StoreFailed:
            self._runner.writer.cancel_if_stored(new.id)
            raise
        self.job_changed(job)
        active = self._active.get(job.key)
        if active is not None:
            active.submitted_here = True
            if add_first_events is not None:
                add_first_events(job, self._event_log(active))
        self._runner.wake(job.tenant, urgent=job.kind.single)
        return job

    async def _cancel_unreceived(self, writing: asyncio.Task[Job]) -> None:
        """Cancel a job whose client disconnected before it received the id: nobody will ever ask for it."""
        await self.cancel(await writing, Cause.CLIENT_GONE)

    def _check_writable(self) -> None:
        if self._runner.writer.failing or self._draining:
            raise Refusal(reasons.JOBS_UNAVAILABLE)

    async def find(self, id: str, tenant: str | None, kind: Kind | None) -> Job:
        """Return a job and renew its lease: an owner who asks still wants the result. Operators (no tenant) do not renew it."""
        job = self._find_active(id, tenant, kind) if self._runner.writer.failing else None
        lookup = partial(self.store.jobs.find, id, tenant, kind)
        try:
            async with asyncio.timeout(_STORE_WAIT_S):
                job = job or await self.store.do(lookup)
        except (StoreFailed, TimeoutError):
            # This process knows the jobs that it runs: a cancel need not wait for a locked store.
            job = self._find_active(id, tenant, kind) or await self.store.do(lookup)
        if job is None:
            raise _no_such(id)
        if job.key not in self._active:
            self.job_changed(job)  # submitted to another process since we last read the store: unknown here does not mean ended
        active = self._active.get(job.key)
        if active is not None and tenant is not None:
            self._renew(active)
        return job

    def _find_active(self, id: str, tenant: str | None, kind: Kind | None) -> Job | None:
        for active in self._active.values():
            job = active.job
            if job.id == id and tenant in (None, job.tenant) and kind in (None, job.kind):
                return job
        return None

    async def cancel(self, job: Job, cause: Cause, wait_s: float = 0.0) -> Job:
        """Stop the running items, drop the queued ones, and wait up to `wait_s` until the engines have stopped.

        Engines come first: a store that cannot be written must not keep them running. It gets the cancel when it works again.
        """
        if not job.status.ended:
            self._runner.hang_up(job.key, REASON_OF[cause])
            try:
                await self._runner.writer.cancel(job.key, cause)
            except StoreFailed as failure:
                raise StoreFailed(f"{failure}; the job is stopped; its cancel is stored when the store works again") from None
        return await self.wait_until_ended(job, wait_s)

    def cancel_reason(self, key: int) -> Reason | None:
        cause = self._runner.writer.cancelled(key)
        return REASON_OF[cause] if cause is not None else None

    async def wait_until_ended(self, job: Job, wait_s: float) -> Job:
        active = self._active.get(job.key)
        deadline = self._loop.time() + wait_s
        while active is not None and not active.job.status.ended:
            try:
                async with asyncio.timeout_at(deadline):
                    await active.changed.wait()
            except TimeoutError:
                break
        if active is not None:
            return active.job
        stored = await self.store.do(lambda: self.store.jobs.find_by_key(job.key))
        if stored is None:
            raise _no_such(job.id)
        return stored

    def active_job(self, job: Job) -> ActiveJob | None:
        return self._active.get(job.key)

    def listen(self, job: Job) -> EventLog | None:
        """Return the events of an active job, or None if it has ended; its lease cannot expire until `stop_listening`."""
        active = self._active.get(job.key)
        if active is None:
            return None
        if active.lease is not None:
            active.lease.listen()
        self._interest.listen(job.key)
        self._shared_events.listen(job.key)
        return self._event_log(active)

    def stop_listening(self, job: Job) -> None:
        self._shared_events.stop_listening(job.key)
        self._interest.stop_listening(job.key)
        active = self._active.get(job.key)
        if active is not None and active.lease is not None:
            active.lease.stop_listening(self._loop.time())

    def _renew(self, active: ActiveJob) -> None:
        if active.lease is not None:
            active.lease.renew(self._loop.time())
            self._interest.ask([active.job.key])

    # Events of items (`ItemEvents`)

    def prepare_item(self, item: ItemClient) -> dict[str, str]:
        active, job = self._active.get(item.claim.job_key), item.claim.job
        if active is not None and job.kind.single:
            event_log = self._event_log(active)
            if not active.submitted_here or item.attempts > 1:
                # A listener of an earlier attempt must get all events of this one, so no number may be used twice.
                event_log.skip_to((item.claim.fence * _ATTEMPTS_MAX + item.attempts) * _EVENTS_MAX)
            item.listener = self.shapes[job.kind].chunk_listener(job, item, event_log)
        headers: dict[str, str] = job.about.get("headers") or {}
        return headers

    def _event_log(self, active: ActiveJob) -> EventLog:
        if active.event_log is None:
            active.event_log = EventLog(self._host.limits.job_events_bytes_max)
        return active.event_log

    def event_log_of(self, key: int) -> EventLog | None:
        active = self._active.get(key)
        return self._event_log(active) if active is not None else None

    def limits_of(self, tenant: str) -> JobLimits:
        return self._host.limits_of_tenant(tenant)

    def render_result(self, item: ItemClient, call: Call) -> tuple[bytes | None, bytes | None]:
        active = self._active.get(item.claim.job_key)
        # If another process has ended the job, the store decides what counts; the result still needs the shape of its kind.
        job = active.job if active is not None else item.claim.job
        body: bytes | None = None
        try:
            body = self.shapes[job.kind].render_result(job, item, call)
        except Exception as error:  # an engine's answer may be anything
            self._host.fault(error)
        return body, active.event_log.dump() if active is not None and active.event_log is not None else None

    def job_changed(self, job: Job) -> None:
        """Take over the state of a job as the store returned it."""
        active = self._active.get(job.key)
        if active is None and not job.status.ended:
            now = self._loop.time()
            active = self._active[job.key] = ActiveJob(job, now, max(self._clock.at(time.time(), now), job.created))
            self._due.add(job.key, now)
        if active is None:
            return
        active.update(job)
        if job.status.ended:
            self._forget(job.key)
            self._host.log_event(
                "job_status_changed", id=job.id, kind=job.kind, tenant=job.tenant, status=job.status, cause=job.cause or None
            )

    def _forget(self, key: int) -> None:
        """Drop a job that has ended, and close its event log."""
        active = self._active.pop(key, None)
        if active is not None and active.event_log is not None:
            active.event_log.close()

    # Periodic work, by `Repeating`

    async def _cancel_due_jobs(self, now: float) -> None:
        """Cancel the jobs whose lease or window has run out, without waiting for the store to take it."""
        # While the store hangs, clients may renew leases at other processes without our knowing.
        known_until = self._read_at - _RENEWAL_LAG_S if self.others else now
        for active in self._due.take(now, _TICK_S):
            cause = active.cancel_cause(now, known_until)
            if cause is not None and self._may_cancel(active.job):
                self.start_task(self.cancel(active.job, cause))

    async def _read_changes(self, now: float) -> None:
        version = await self.store.do(self.store.jobs.version)
        if version != self._version:
            await self._refresh()
            self._version = version
        self._read_at = now
        if now - self._pruned_at >= _PRUNE_EVERY_S and not self._draining:
            self._pruned_at = now
            self.start_task(self.prune(self._keep_s, now=self._clock.at(time.time(), now)))

    def _may_cancel(self, job: Job) -> bool:
        return job.status is not JobStatus.CANCELLING and self._runner.writer.cancelled(job.key) is None

    async def _heartbeat(self, now: float) -> None:
        store = self.store
        touched = self._interest.take() & self._active.keys()
        time_of_day = self._clock.at(time.time(), self._loop.time())

        def work() -> bool:
            registered = store.workers.record_heartbeat(self._worker)
            store.jobs.touch(touched)
            store.clock.record(time_of_day)
            return registered

        try:
            registered = await store.do(work)
        except StoreFailed:
            self._interest.ask(touched)  # retry with the next heartbeat
            raise
        if not registered:
            self._worker = await store.do(lambda: store.workers.register(workers.this_host(), workers.this_process()))
            self._host.log_event("job_claims_expired")
            self._runner.drop_all(self._worker)
        await self._give_back_lost()
        await self._requeue_from_dead_workers()

    async def _give_back_lost(self) -> None:
        """Give back items that the store has assigned to us and that we do not know; nobody would ever end them.

        Either their claim was committed but reported as failed, or a bug of ours lost them. An item that is unknown in two
        successive checks is given back.
        """
        store, worker = self.store, self._worker
        lost = self._runner.unknown(await store.do(lambda: store.jobs.claimed_by(worker)))
        again, self._lost_items = lost & self._lost_items, lost - self._lost_items
        if again:
            requeued = await store.do(lambda: store.jobs.give_back_lost(again, time.time()))
            self._host.log_event("job_items_requeued", items=len(again))
            self._take_over_all(requeued)

    async def _requeue_from_dead_workers(self) -> None:
        """Requeue the items that dead workers had claimed."""
        store = self.store
        workers = await store.do(store.workers.all)
        self.others = any(worker.id != self._worker for worker in workers)
        for dead in self._missing_workers.find_dead(workers, self._worker, self._loop.time()):
            requeued = await store.do(partial(self._give_back, dead))
            self._host.log_event("job_worker_gone", worker=dead)
            self._take_over_all(requeued)
        self._take_over_all(await store.do(lambda: store.jobs.give_back_orphans(time.time())))
        await self._reconcile()

    def _give_back(self, worker: int) -> list[Job]:
        self.store.workers.remove(worker)  # first: from now on it claims nothing more
        return self.store.jobs.give_back_all(worker, time.time())

    async def _load_active(self, after: int) -> int | None:
        """Read some of the active jobs; return the last of them, or None if there are no more."""
        store = self.store
        async with self._reading:
            jobs = await store.do(lambda: store.jobs.active(after, _LOADED_MAX))
            self._note_changes(jobs)
        return jobs[-1].key if len(jobs) == _LOADED_MAX else None

    async def _load_more(self, last: int | None) -> None:
        """Read the other active jobs while calls are served already. Work for each tenant is found without them."""
        while last is not None and not self._repeating.closing:
            try:
                last = await self._load_active(last)
            except StoreFailed as failure:
                self._store_failed(failure)
                await asyncio.sleep(_TICK_S)

    async def _refresh(self) -> None:
        """Read the jobs that changed since the last time, perhaps by other processes."""
        store = self.store
        async with self._reading:  # one at a time: two readers must not process the same changes
            since = self._last_change
            self._last_change, jobs = await store.do(lambda: store.jobs.changes(since))
        self._note_changes(jobs)

    def _note_changes(self, jobs: list[Job]) -> None:
        for job in jobs:
            active = self._active.get(job.key)
            if active is not None and active.job.touched != job.touched and active.lease is not None:
                active.lease.renew(self._loop.time())
            if job.status is JobStatus.CANCELLING:  # stop its items that run here, even if the job is new to us
                self._runner.hang_up(job.key, REASON_OF[job.cause])
            self._take_over(job)

    def _take_over_all(self, jobs: list[Job]) -> None:
        """Run what this process has requeued: `_refresh` does not show it, because a server lists only changes of others."""
        for job in jobs:
            self._take_over(job)

    def _take_over(self, job: Job) -> None:
        self.job_changed(job)
        if job.tally.queued and job.status is JobStatus.RUNNING:
            self._runner.wake(job.tenant)

    async def _reconcile(self) -> None:
        """Adopt batches whose checker has died, and drop jobs that another process has meanwhile ended or even deleted.

        `_refresh` shows what others have ended, but not what they have deleted right after. So some of the active jobs are
        compared each time, in turn, and those to which clients listen always.
        """
        store = self.store
        self._to_compare = self._to_compare or list(self._active)
        some, self._to_compare = self._to_compare[:_COMPARED_MAX], self._to_compare[_COMPARED_MAX:]
        known = {*some, *self._interest.listened} & self._active.keys()
        active, unchecked = await store.do(lambda: (store.jobs.still_active(known), store.jobs.unchecked()))
        for job in unchecked:
            self._adopt_check(job)
        for key in known - active:
            ended = await store.do(partial(store.jobs.find_by_key, key))
            if ended is not None:
                self.job_changed(ended)
            else:
                self._forget(key)

    def _adopt_check(self, job: Job) -> None:
        """Check the lines of a batch whose checker has died."""
        check = self.check_lines
        if check is not None and not self._draining:
            self.start_task(check(job))

    # Checks the input lines of a batch; set by `Batches`.
    check_lines: Callable[[Job], Coroutine[object, object, None]] | None = None

    async def prune(self, older_than_s: float, tenant: str | None = None, now: float | None = None) -> int:
        """Delete jobs that ended long ago and expired files; return the number of jobs."""
        time_of_day = self._clock.at(time.time(), self._loop.time()) if now is None else now
        return await delete_old(self.store, time_of_day, older_than_s, self._keep_s, self._host.limits.upload_s, tenant)

    # Shutdown

    def stop(self) -> None:
        """Refuse new jobs and start no more items; running items may finish."""
        self._draining = True
        self._runner.stop()

    async def close(self, within_s: float = CLOSE_S) -> None:
        """Write what is pending, give back all claims and close the store. Every call must have ended."""
        self.stop()
        self._repeating.close()
        await close_store(
            self.store,
            self._runner,
            end_tasks=self._end_tasks,
            give_back=partial(self._give_back, self._worker),
            log_event=self._host.log_event,
            within_s=within_s,
        )

    async def _end_tasks(self) -> None:
        await self._watches.close()
        await self._tasks.close()

    def _store_failed(self, failure: StoreFailed) -> None:
        self._runner.writer.store_failed(failure)

    def start_task(self, work: Coroutine[object, object, R]) -> asyncio.Task[R]:
        return self._tasks.start(work)


def _no_such(id: str) -> Refusal:
    return Refusal(reasons.NOT_FOUND, f"There is no {id[:80]!r}.")
