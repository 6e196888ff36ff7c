"""`JobServices`: who runs the jobs, the gateway itself once its store is open, or a hosted provider."""

from __future__ import annotations

from dataclasses import dataclass

from hangup.gateway.jobs.api import JobApi
from hangup.gateway.jobs.provider import Provider


@dataclass(slots=True)
class JobServices:
    api: JobApi | None = None
    provider: Provider | None = None
