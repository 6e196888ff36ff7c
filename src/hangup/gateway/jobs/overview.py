"""Shows the jobs of all tenants to operators, in one format, and lets them cancel and prune jobs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from typing import Any

from hangup.core.jobs import Cause, ItemCounts, Kind
from hangup.errors import Refusal
from hangup.gateway.jobs.registry import JobRegistry
from hangup.gateway.store.jobs import Job

CANCEL_WAIT_S = 5.0


class JobsOverview:
    """The jobs in the store, as the admin API shows them."""

    def __init__(self, registry: JobRegistry, now: Callable[[], float]) -> None:
        self._registry = registry
        self._now = now

    async def page(self, tenant: str | None, kind: str | None, active: bool, before: str | None, count: int) -> dict[str, Any]:
        """Return a page of jobs, newest first; `before` is the last id of the previous page."""
        store = self._registry.store

        def work() -> list[Job]:
            last = store.jobs.find(before) if before else None
            at = last.key if last is not None else None
            return store.jobs.page(tenant, Kind(kind) if kind else None, at, None, count + 1, active=active)

        rows = await store.do(work)
        return {"jobs": [self._job_json(job) for job in rows[:count]], "more": len(rows) > count}

    def active(self, count: int) -> tuple[int, list[dict[str, Any]]]:
        """Return how many jobs have not ended, and the newest of them, as far as this process knows."""
        active_jobs = self._registry.active_jobs()
        return len(active_jobs), [self._job_json(active.job) for active in islice(reversed(list(active_jobs)), count)]

    async def show(self, id: str) -> dict[str, Any] | None:
        job = await self._registry.store.do(lambda: self._registry.store.jobs.find(id))
        return self._job_json(job) if job is not None else None

    async def cancel(self, id: str) -> dict[str, Any] | None:
        """Cancel a job; return its state once its engines have stopped, or after `CANCEL_WAIT_S`."""
        try:
            job = await self._registry.find(id, None, None)
            return self._job_json(await self._registry.cancel(job, Cause.KILLED, CANCEL_WAIT_S))
        except Refusal:  # no such job, or deleted just now
            return None

    async def prune(self, older_than_s: float, tenant: str | None) -> int:
        return await self._registry.prune(older_than_s, tenant)

    def counts(self) -> dict[str, Any]:
        """Return counts for the metrics, as far as this process knows."""
        active_jobs = list(self._registry.active_jobs())
        runner = self._registry.runner
        return {
            "jobs": Counter((active.job.kind, active.job.status) for active in active_jobs),
            "queued": sum(active.job.tally.queued for active in active_jobs),
            "running": runner.running,
            "ended": runner.writer.ended_by_state,
            "refused": runner.writer.refused,
            "failing": runner.writer.failing,
            "held_bytes": runner.writer.held_bytes,
            "not_stopped": 0,
            "not_followed": 0,
        }

    def _job_json(self, job: Job) -> dict[str, Any]:
        active = self._registry.active_job(job)
        lease = active.lease if active is not None else None
        request = job.about.get("request") or job.about
        return {
            "id": job.id,
            "kind": job.kind,
            "tenant": job.tenant,
            "status": job.status,
            "cause": job.cause or None,
            "what": job.about.get("endpoint") or job.about.get("path") or "/v1/messages",
            "model": request.get("model"),
            "age_s": round((job.ended or time.time()) - job.created, 3),
            "created_at": job.created,
            "ended_at": job.ended,
            "expires_at": job.expires,
            "lease_s": job.lease_s,
            "lease_left_s": round(lease.remaining_s(self._now()), 1) if lease is not None else None,
            "items": items_json(job.tally, self._registry.runner.running_of(job.key)),
            "bytes": job.bytes,
            "release": self._registry.runner.stop_state_of(job.key),
            "problems": job.about.get("problems"),
        }


def items_json(tally: ItemCounts, running: int) -> dict[str, int]:
    """Return the progress of a job; `running` is how many of its claimed items have a call."""
    return {"total": tally.total, **asdict(tally), "running": running}
