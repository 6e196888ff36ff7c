"""Who has the jobs: this gateway, once its store is open, or a hosted provider."""

from __future__ import annotations

from dataclasses import dataclass

from hangup.jobs.desk import Desk
from hangup.jobs.provider import Provider


@dataclass(slots=True)
class JobServices:
    desk: Desk | None = None
    provider: Provider | None = None
