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

    def __init__(self, board: JobRegistry, now: Callable[[], float]) -> None:
        self._board = board
        self._now = now

    async def page(self, tenant: str | None, kind: str | None, active: bool, before: str | None, count: int) -> dict[str, Any]:
        """Return a page of jobs, newest first; `before` is the last id of the previous page."""
        store = self._board.store

        def work() -> list[Job]:
            last = store.jobs.find(before) if before else None
            at = last.key if last is not None else None
            return store.jobs.page(tenant, Kind(kind) if kind else None, at, None, count + 1, active=active)

        rows = await store.do(work)
        return {"jobs": [self._shown(job) for job in rows[:count]], "more": len(rows) > count}

    def active(self, count: int) -> tuple[int, list[dict[str, Any]]]:
        """Return how many jobs have not ended, and the newest of them, as far as this process knows."""
        cares = self._board.cares()
        return len(cares), [self._shown(care.job) for care in islice(reversed(list(cares)), count)]

    async def show(self, id: str) -> dict[str, Any] | None:
        job = await self._board.store.do(lambda: self._board.store.jobs.find(id))
        return self._shown(job) if job is not None else None

    async def cancel(self, id: str) -> dict[str, Any] | None:
        """Cancel a job; return its state once its engines have stopped, or after `CANCEL_WAIT_S`."""
        try:
            job = await self._board.find(id, None, None)
            return self._shown(await self._board.cancel(job, Cause.KILLED, CANCEL_WAIT_S))
        except Refusal:  # no such job, or deleted just now
            return None

    async def prune(self, older_than_s: float, tenant: str | None) -> int:
        return await self._board.prune(older_than_s, tenant)

    def counts(self) -> dict[str, Any]:
        """Return counts for the metrics, as far as this process knows."""
        cares = list(self._board.cares())
        runner = self._board.runner
        return {
            "jobs": Counter((care.job.kind, care.job.status) for care in cares),
            "queued": sum(care.job.tally.queued for care in cares),
            "running": runner.running,
            "ended": runner.keeper.ended,
            "refused": runner.keeper.refused,
            "failing": runner.keeper.failing,
            "not_stopped": 0,
            "not_followed": 0,
        }

    def _shown(self, job: Job) -> dict[str, Any]:
        care = self._board.care_for(job)
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
            "lease_left_s": round(care.lease.left_s(self._now()), 1) if care is not None and care.lease is not None else None,
            "items": items(job.tally, self._board.runner.running_of(job.key)),
            "bytes": job.bytes,
            "release": self._board.runner.release_of(job.key),
            "problems": job.about.get("problems"),
        }


def items(tally: ItemCounts, running: int) -> dict[str, int]:
    """Return the progress of a job; `running` is how many of its claimed items have a call."""
    return {"total": tally.total, **asdict(tally), "running": running}
