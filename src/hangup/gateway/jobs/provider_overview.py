"""Shows jobs at a provider to operators, in the same format as jobs that run here (`overview`)."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from itertools import dropwhile, islice
from typing import Any

from hangup.core.jobs import Cause
from hangup.gateway.jobs.overview import CANCEL_WAIT_S, items_json
from hangup.gateway.jobs.provider import Provider, ProviderRecord

_PATH_OF_KIND = {"batch": "/v1/batches", "response": "/v1/responses", "message_batch": "/v1/messages"}


class ProviderOverview:
    """The jobs at providers, as the admin API shows them."""

    def __init__(self, provider: Provider, now: Callable[[], float]) -> None:
        self._provider = provider
        self._now = now

    async def page(self, tenant: str | None, kind: str | None, active: bool, before: str | None, count: int) -> dict[str, Any]:
        """Return a page of jobs, newest first; `before` is the last id of the previous page."""
        newest = self._provider.newest_first()
        if before and self._provider.find(before) is not None:
            newest = islice(dropwhile(lambda job: job.id != before, newest), 1, None)
        wanted = (
            job
            for job in newest
            if (not tenant or job.tenant == tenant)
            and (not kind or job.kind == kind)
            and not (active and job.state.status.ended)
        )
        rows = list(islice(wanted, count + 1))
        return {"jobs": [self._job_json(job) for job in rows[:count]], "more": len(rows) > count}

    async def show(self, id: str) -> dict[str, Any] | None:
        job = self._provider.find(id)
        return self._job_json(job) if job is not None else None

    async def cancel(self, id: str) -> dict[str, Any] | None:
        """Cancel a job at the provider; return its state once it has stopped, or after `CANCEL_WAIT_S`."""
        job = self._provider.find(id)
        if job is None:
            return None
        self._provider.cancel(job, Cause.KILLED)
        until = asyncio.get_running_loop().time() + CANCEL_WAIT_S
        while not job.state.finished and await job.wait_for_change(until):
            pass
        return self._job_json(job)

    async def prune(self, older_than_s: float, tenant: str | None) -> int:
        before = time.time() - older_than_s
        old = [
            job
            for job in self._provider.jobs()
            if job.ended is not None and job.ended < before and (not tenant or job.tenant == tenant)
        ]
        for job in old:
            self._provider.forget(job)
        return len(old)

    def active(self, count: int) -> tuple[int, list[dict[str, Any]]]:
        """Return how many jobs have not ended, and the newest of them."""
        active = [job for job in self._provider.newest_first() if not job.state.status.ended]
        return len(active), [self._job_json(job) for job in active[:count]]

    def counts(self) -> dict[str, Any]:
        active = [job for job in self._provider.jobs() if not job.state.status.ended]
        return {
            "jobs": Counter((job.kind, job.state.status) for job in active),
            "queued": sum(job.tally.queued for job in active),
            "running": sum(job.tally.claimed for job in active if job.here),
            "ended": Counter(),  # only the provider counts how items end
            "refused": 0,
            "failing": False,
            "held_bytes": 0,
            "not_stopped": self._provider.not_stopped,
            "not_followed": self._provider.not_followed,
        }

    def _job_json(self, job: ProviderRecord) -> dict[str, Any]:
        state = job.state
        lease = state.lease if not state.finished and state.cancelling_since is None else None
        return {
            "id": job.id,
            "kind": job.kind,
            "tenant": job.tenant,
            "status": state.status,
            "cause": state.cause or None,
            "what": _PATH_OF_KIND[job.kind],
            "model": job.model,
            "backend": job.backend,
            "age_s": round((job.ended or time.time()) - job.created, 3),
            "created_at": job.created,
            "ended_at": job.ended,
            "expires_at": job.expires,
            "lease_s": job.lease_s,
            "lease_left_s": round(lease.remaining_s(self._now()), 1) if lease is not None else None,
            "cancel_s": round(state.stopped_after_s, 3) if state.stopped_after_s is not None else None,
            "given_up": state.given_up,
            "items": items_json(job.tally, job.tally.claimed),
            "bytes": None,
            "problems": None,
        }
