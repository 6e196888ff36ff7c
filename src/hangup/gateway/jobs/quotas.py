"""Checks what a tenant may keep in the job store, and submits jobs that stay within it. Runs in the store's thread."""

from __future__ import annotations

from collections.abc import Callable

from hangup.config import JobLimits
from hangup.core import reasons
from hangup.errors import Refusal
from hangup.gateway.store.jobs import Job, JobStore, NewJob, Used


class JobQuotas:
    def __init__(self, store: JobStore, limits_of_tenant: Callable[[str], JobLimits]) -> None:
        self._store = store
        self._limits_of_tenant = limits_of_tenant

    def check(self, tenant: str, *, items: int = 0, size: int = 0) -> None:
        """Raise if this would exceed the tenant's quota."""
        refusal = self._refusal(tenant, self._store.jobs.used(tenant).plus(Used(0, items, size)))
        if refusal is not None:
            raise refusal

    def submit_all(self, jobs: list[NewJob]) -> list[Job | Exception]:
        """Insert the jobs that are within their tenants' quotas, each beside those before it; refuse the others."""
        used = self._store.jobs.used_by({job.tenant for job in jobs})
        refusals, accepted = list[Refusal | None](), list[NewJob]()
        for job in jobs:
            after = used[job.tenant].plus(job.use)
            refusals.append(self._refusal(job.tenant, after))
            if refusals[-1] is None:
                used[job.tenant] = after
                accepted.append(job)
        inserted = iter(self._store.jobs.submit_all(accepted))
        return [refusal or next(inserted) for refusal in refusals]

    def _refusal(self, tenant: str, used: Used) -> Refusal | None:
        limits = self._limits_of_tenant(tenant)
        for what, count, most in (
            ("jobs", used.jobs, limits.jobs_max),
            ("items", used.items, limits.job_items_max),
            ("bytes", used.bytes, limits.job_bytes_max),
        ):
            if count > most:
                return Refusal(reasons.JOB_QUOTA, f"Tenant quota exceeded: {count} {what} of jobs; at most {most} are allowed.")
        return None
