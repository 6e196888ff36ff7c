"""Follows jobs that run at a hosted provider until they end, and cancels them when their lease expires.

Each job has one task, which does what `core.provider_job` says: look, cancel, give up. All state is in memory: a restart
forgets it, and the gateway follows a job again as soon as a client asks for it. With several workers, one follows a job, and
another one goes on if it dies (`provider_sharing`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Protocol

from hangup.config import JobLimits, ProviderLimits
from hangup.core import reasons
from hangup.core.jobs import Cause, ItemCounts, Kind, Lease
from hangup.core.provider_job import PollPace, ProviderJob, ProviderStep
from hangup.errors import EngineFault, OutOfResources, Refusal
from hangup.gateway.apis import hosted_jobs
from hangup.gateway.apis.hosted_jobs import ProviderAnswer
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.connection import EngineConnection
from hangup.gateway.backends.fetch import FetchCall, Fetched, fetch
from hangup.gateway.http.head import Headers, RequestHead
from hangup.tasks import Tasks

_REQUESTS_MAX = 16  # our own requests in flight, over all providers
_EVENT_END = b"\n\n"
_ANTHROPIC = "anthropic-hosted"
_FORWARDED = (b"anthropic-version", b"anthropic-beta", b"openai-organization", b"openai-project")
_KEYS = (b"authorization", b"x-api-key")
_TRANSIENT = (401, 403, 408, 429)  # refusals that say nothing about the job; worth a retry


class ProviderHost(Protocol):
    """The gateway, as `Provider` sees it."""

    @property
    def limits(self) -> ProviderLimits: ...

    @property
    def backends(self) -> dict[str, Backend]: ...

    def limits_of_tenant(self, tenant: str) -> JobLimits: ...

    def log_event(self, event: str, **fields: object) -> None: ...

    def fault(self, error: Exception) -> None:
        """Log a bug of ours."""


@dataclass(slots=True)
class ProviderRecord:
    """A job at a provider, as far as the gateway knows it."""

    id: str
    kind: Kind
    tenant: str
    backend: str
    state: ProviderJob
    created: float  # wall-clock time, like `ended`
    lease_s: float | None
    headers: Headers = field(repr=False)  # with its owner's key, if we have none; the key is dropped when the job ends
    made_here: bool = True  # we saw its creation and know its tenant; otherwise the first tenant to ask for it owns it
    here: bool = True  # this process follows it; with several workers, another one may
    tally: ItemCounts = ItemCounts()
    model: str | None = None
    expires: float | None = None
    ended: float | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event, repr=False)  # replaced by a new event after each change
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    def shared_fields(self) -> dict[str, Any]:
        """Return what other processes know of it as well."""
        return {name: getattr(self, name) for name in _SHARED_FIELDS}

    def notify_changed(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    async def wait_for_change(self, until: float) -> bool:
        """Wait for a change; return False if there was none until then."""
        try:
            async with asyncio.timeout_at(until):
                await self.changed.wait()
        except TimeoutError:
            return False
        return True


_OF_A_PROCESS = ("here", "changed", "task")
_SHARED_FIELDS = [each.name for each in fields(ProviderRecord) if each.name not in _OF_A_PROCESS]


@dataclass(frozen=True, slots=True)
class ProviderAccount:
    """A tenant, and the headers for requests to the provider on its behalf."""

    tenant: str
    headers: Headers = field(repr=False)

    @classmethod
    def of(cls, tenant: str, head: RequestHead, backend: Backend, *, keyed: bool) -> ProviderAccount:
        """Pick the headers to forward. `keyed`: the client's key is for the gateway, and no provider may see it."""
        names = (*_FORWARDED, *_KEYS) if backend.gets_client_key and not keyed else _FORWARDED
        return cls(tenant, [(name, head.fields[name]) for name in names if name in head.fields])


class JobSharing(Protocol):
    """The other processes that know the same jobs (`provider_sharing`)."""

    def publish(self, job: ProviderRecord) -> None:
        """Tell all others what is known of a job that this process follows."""

    def forget(self, id: str) -> None: ...

    def tell_follower(self, job: ProviderRecord, event: str, *values: object) -> None:
        """Tell the process that follows a job what was learned of it here."""

    def set_listening(self, job: ProviderRecord, on: bool) -> bool:
        """Note a listener of a job that another process follows; return False if that is this one."""

    async def close(self) -> None: ...


class Provider:
    """All jobs that the gateway follows at providers."""

    def __init__(self, host: ProviderHost, loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._loop = loop
        self._jobs: dict[str, ProviderRecord] = {}  # the oldest first
        self._request_slots = asyncio.Semaphore(_REQUESTS_MAX)
        self._tasks = Tasks("provider jobs")
        self._closed = False
        self._abandoned_answers = 0  # answers that we await after their clients have left
        self.held_bytes = 0  # of uploads in progress
        self.not_stopped = 0  # cancelled jobs that the provider did not stop in time
        self.not_followed = 0  # jobs beyond `provider_jobs_max`
        self.sharing: JobSharing | None = None  # with several processes

    # Known jobs

    def find(self, id: str) -> ProviderRecord | None:
        return self._jobs.get(id)

    def jobs(self) -> Iterable[ProviderRecord]:
        return self._jobs.values()

    def newest_first(self) -> Iterator[ProviderRecord]:
        return reversed(self._jobs.values())

    def forget(self, job: ProviderRecord) -> None:
        """Remove a job that has ended."""
        self.drop(job.id)
        if self.sharing is not None:
            self.sharing.forget(job.id)

    # Jobs that other processes know as well

    def drop(self, id: str) -> None:
        self._jobs.pop(id, None)

    def learn(self, known: dict[str, Any]) -> ProviderRecord:
        """Take over what the process that follows a job knows of it."""
        job = self._jobs.get(known["id"])
        if job is None:
            job = self._jobs[known["id"]] = ProviderRecord(**known, here=False)
        elif not job.here:
            for name, value in known.items():
                setattr(job, name, value)
            job.notify_changed()
        return job

    def adopt(self, known: dict[str, Any]) -> None:
        """Follow a job whose process has ended. Its client may have asked there for it just now, and may listen elsewhere."""
        job = self.learn(known)
        if job.here:
            return
        now, job.here = self._loop.time(), True
        if job.lease_s is not None:
            job.state.lease = Lease(job.lease_s, now)
        self._host.log_event("job_taken_over", id=job.id, kind=job.kind, tenant=job.tenant, backend=job.backend)
        self.look_soon(job)

    def leave_to_other(self, known: dict[str, Any]) -> None:
        """Follow a job no longer, because another process did so first."""
        job = self._jobs.get(known["id"])
        if job is not None:
            job.here = False
            if job.task is not None:
                job.task.cancel()
            self.learn(known)

    def account_of(self, job: ProviderRecord, headers: Headers | None = None) -> ProviderAccount:
        return ProviderAccount(job.tenant, job.headers if headers is None else headers)

    def look_soon(self, job: ProviderRecord) -> None:
        job.state.look_soon(self._loop.time())
        self._job_changed(job)

    def _passed_on(self, job: ProviderRecord, event: str, *values: object) -> bool:
        """Tell whoever follows a job, if that is another process; return whether it is."""
        if not job.here and self.sharing is not None:
            self.sharing.tell_follower(job, event, *values)
        return not job.here

    def backend_for(self, kind: Kind | None, job: ProviderRecord | None) -> Backend | None:
        """Return the backend for a request about jobs: the job's own, else always the same, so that jobs are found again."""
        backends = self._host.backends
        if job is not None and job.backend in backends:
            return backends[job.backend]
        anthropic = kind is Kind.MESSAGES
        fitting = (b for b in backends.values() if (b.adapter.name == _ANTHROPIC) == anthropic)
        return next(fitting, None) or next(iter(backends.values()), None)

    def check_quota(self, tenant: str) -> None:
        most = self._host.limits_of_tenant(tenant).jobs_max
        count = sum(job.tenant == tenant and not job.state.finished for job in self._jobs.values())
        if count >= most:
            raise Refusal(reasons.JOB_QUOTA, f"Tenant quota exceeded: {count} unfinished jobs; at most {most} are allowed.")

    def reserve_upload(self, size: int) -> int:
        """Reserve `size` bytes for an upload, or refuse; the caller subtracts them from `held_bytes` afterwards."""
        if self.held_bytes + size > self._host.limits.provider_uploads_bytes_max:
            raise Refusal(reasons.QUEUE_FULL, "Too many uploads to the provider are in progress; retry later.")
        self.held_bytes += size
        return size

    # News from forwarded requests

    def follow(
        self,
        answer: ProviderAnswer,
        kind: Kind,
        backend: Backend,
        owner: ProviderAccount,
        lease_s: float | None,
        *,
        made_here: bool = True,
    ) -> ProviderRecord | None:
        """Follow a job that the provider accepted, or that a client asked for and we did not know; None if too many."""
        if not self._make_room():
            self.not_followed += 1
            self._host.log_event("job_not_followed", id=answer.id, kind=kind, tenant=owner.tenant, backend=backend.name)
            return None
        now = self._loop.time()
        lease = Lease(lease_s, now) if lease_s is not None else None
        state = ProviderJob(_pace(self._host.limits), now, lease)
        job = ProviderRecord(answer.id, kind, owner.tenant, backend.name, state, time.time(), lease_s, owner.headers, made_here)
        self._jobs[job.id] = job
        self._host.log_event("job_followed", id=job.id, kind=kind, tenant=job.tenant, backend=job.backend, lease_s=lease_s)
        self.update(job, answer)
        return job

    def _make_room(self) -> bool:
        if len(self._jobs) < self._host.limits.provider_jobs_max:
            return True
        ended = next((job for job in self._jobs.values() if job.state.finished), None)
        if ended is not None:
            self.forget(ended)
        return ended is not None

    def update(self, job: ProviderRecord, answer: ProviderAnswer) -> None:
        """Update a job from an answer of the provider, whoever asked."""
        if self._passed_on(job, "update", answer):
            return
        job.tally, job.model, job.expires = answer.tally, answer.model or job.model, answer.expires or job.expires
        job.state.saw(answer.status, self._loop.time())
        self._job_changed(job)

    def mark_gone(self, job: ProviderRecord) -> None:
        if self._passed_on(job, "gone"):
            return
        job.state.deleted(self._loop.time())
        self._job_changed(job)

    def _missing(self, job: ProviderRecord) -> None:
        job.state.missing(self._loop.time())
        self._job_changed(job)

    def renew_lease(self, job: ProviderRecord, owner: ProviderAccount) -> None:
        """Renew the lease of a job that its owner asked for."""
        if self._passed_on(job, "renew", owner.headers):
            return
        if not job.state.finished:
            job.headers = owner.headers
        if job.state.lease is not None:
            job.state.lease.renew(self._loop.time())
            self._publish(job)

    def set_listening(self, job: ProviderRecord, on: bool) -> None:
        """Note that a stream of the job's events begins or ends; the lease cannot expire meanwhile."""
        if self.sharing is not None and self.sharing.set_listening(job, on):
            return
        lease, now = job.state.lease, self._loop.time()
        if lease is not None and on:
            lease.listen()
        elif lease is not None:
            lease.stop_listening(now)
        if not on:
            job.state.look_soon(now)  # in most cases the job has ended
            self._job_changed(job)

    def note_client_cancel(self, job: ProviderRecord, owner: ProviderAccount, accepted: bool) -> None:
        """Note that the owner sent a cancel to the provider; `accepted` if the provider accepted it."""
        if self._passed_on(job, "client_cancel", owner.headers, accepted):
            return
        if accepted:
            job.state.cancel_taken(self._loop.time())
        else:
            job.state.cancel_failed(self._loop.time())
        if not job.state.finished:
            job.headers = owner.headers
        self._job_changed(job)

    def cancel(self, job: ProviderRecord, cause: Cause) -> None:
        if self._passed_on(job, "cancel", cause):
            return
        job.state.cancel(cause, self._loop.time())
        self._job_changed(job)

    def cancel_after_disconnect(
        self,
        connection: EngineConnection,
        kind: Kind,
        backend: Backend,
        owner: ProviderAccount,
        lease_s: float | None,
        *,
        stream: bool,
    ) -> None:
        """Read the provider's answer after its client disconnected, and cancel the job in it, since nobody knows its id."""
        limits = self._host.limits
        if self._abandoned_answers >= limits.provider_jobs_max:  # each holds a connection
            connection.abort()
            why = f"already waiting for {self._abandoned_answers} answers to clients that disconnected (provider_jobs_max)"
            self.log_unfollowed(kind, backend, owner, why)
            return
        self._abandoned_answers += 1
        fetch_call = FetchCall.take_over(connection, limits.body_bytes_max, _EVENT_END if stream else b"")
        self._tasks.start(self._read_and_cancel(fetch_call, kind, backend, owner, lease_s))

    async def _read_and_cancel(
        self, fetch_call: FetchCall, kind: Kind, backend: Backend, owner: ProviderAccount, lease_s: float | None
    ) -> None:
        try:
            response = await fetch_call.rest(self._host.limits.provider_answer_s)
        except EngineFault as fault:
            self.log_unfollowed(kind, backend, owner, fault.detail)
            return
        finally:
            self._abandoned_answers -= 1
        answer = hosted_jobs.read_answer(kind, response.body) if 200 <= response.head.status < 300 else None
        if answer is not None and not answer.status.ended:
            job = self.follow(answer, kind, backend, owner, lease_s)
            if job is not None:
                self.cancel(job, Cause.CLIENT_GONE)

    def log_unfollowed(self, kind: Kind, backend: Backend, owner: ProviderAccount, why: str) -> None:
        """Log that the provider may run a job that nobody follows."""
        self._host.log_event("job_answer_invalid", kind=kind, tenant=owner.tenant, backend=backend.name, error=why)

    # Following

    def _job_changed(self, job: ProviderRecord) -> None:
        state = job.state
        if state.status.ended and job.ended is None:
            job.ended = time.time()
            self._log_end(job)
        job.notify_changed()
        self._publish(job)
        if not state.finished and job.task is None and not self._closed:
            job.task = self._tasks.keep("provider jobs", partial(self._follow, job))
            job.task.add_done_callback(lambda _: self._follow_ended(job))

    def _publish(self, job: ProviderRecord) -> None:
        if self.sharing is not None and job.here and not self._closed:
            self.sharing.publish(job)

    def _log_end(self, job: ProviderRecord) -> None:
        took = job.state.stopped_after_s
        self._host.log_event(
            "job_status_changed",
            id=job.id,
            kind=job.kind,
            tenant=job.tenant,
            backend=job.backend,
            status=job.state.status,
            cause=job.state.cause or None,
            cancel_s=round(took, 3) if took is not None else None,
        )

    async def _follow(self, job: ProviderRecord) -> None:
        state = job.state
        while not state.finished:
            now = self._loop.time()
            match state.next(now):
                case ProviderStep.LOOK | ProviderStep.CANCEL as step:
                    try:
                        await (self._poll(job) if step is ProviderStep.LOOK else self._send_cancel(job))
                    except OutOfResources:  # this process could not ask, so a cancel counts as not attempted
                        state.look_failed(self._loop.time())
                    self._publish(job)
                case ProviderStep.GIVE_UP:
                    self._report_given_up(job)
                    self._publish(job)
                case None:
                    await job.wait_for_change(state.due_at(now))

    def _follow_ended(self, job: ProviderRecord) -> None:
        """Clean up after the task of a job; start it again if a cancel came in just as it ended."""
        job.task = None
        if not job.here:
            return
        if job.state.status.ended:  # one that we gave up on may be cancelled again, and needs its key
            job.headers = [pair for pair in job.headers if pair[0] not in _KEYS]
            self._publish(job)
        elif not job.state.finished:
            self._job_changed(job)

    async def _poll(self, job: ProviderRecord) -> None:
        response = await self._request(job, "GET", hosted_jobs.look_path(job.kind, job.id))
        answer = None
        if response is not None and response.head.status == 404:
            self._missing(job)
            return
        if response is not None and response.head.status == 200:
            answer = hosted_jobs.read_answer(job.kind, response.body)
        if answer is None:
            job.state.look_failed(self._loop.time())
        else:
            self.update(job, answer)

    async def _send_cancel(self, job: ProviderRecord) -> None:
        response = await self._request(job, "POST", hosted_jobs.cancel_path(job.kind, job.id))
        status = response.head.status if response is not None else 0
        if status == 404:
            self._missing(job)
        elif status >= 500 or status in _TRANSIENT or not status:
            self._host.log_event("job_cancel_failed", id=job.id, backend=job.backend, status=status or None)
            job.state.cancel_failed(self._loop.time())
        else:
            # Other refusals count as taken, too: an ended job cannot be cancelled, and the next look will show that.
            job.state.cancel_taken(self._loop.time())
        job.notify_changed()

    async def _request(self, job: ProviderRecord, method: str, path: str) -> Fetched | None:
        backend, limits = self._host.backends.get(job.backend), self._host.limits
        if backend is None:
            return None  # removed from the configuration
        try:
            async with self._request_slots:
                return await fetch(
                    backend,
                    method,
                    path,
                    timeout_s=limits.provider_answer_s,
                    headers=job.headers,
                    bytes_max=limits.body_bytes_max,
                )
        except OutOfResources:
            raise
        except EngineFault:
            return None

    def _report_given_up(self, job: ProviderRecord) -> None:
        since = job.state.cancelling_since
        if since is None:
            self._host.log_event("job_follow_timed_out", id=job.id, backend=job.backend)
            return
        self.not_stopped += 1
        after_s = round(self._loop.time() - since, 3)
        self._host.log_event("job_cancel_timed_out", id=job.id, tenant=job.tenant, backend=job.backend, cancel_s=after_s)

    # Shutdown

    async def close(self) -> None:
        self._closed = True
        if self.sharing is not None:
            await self.sharing.close()
        remaining = sum(not job.state.finished for job in self._jobs.values())
        if remaining and self.sharing is None:  # otherwise another process takes them over
            self._host.log_event("provider_jobs_unfinished", count=remaining)
        await self._tasks.close()


def _pace(limits: ProviderLimits) -> PollPace:
    return PollPace(
        limits.provider_look_s,
        limits.provider_poll_s,
        limits.provider_poll_max_s,
        limits.provider_cancel_s,
        limits.provider_cancel_attempts_max,
        limits.provider_follow_s,
    )
