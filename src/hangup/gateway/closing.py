"""The shutdown after the drain: stages with one deadline for all. One that fails or takes too long is logged, and the next
begins nevertheless."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable

from hangup.core.deadline import Deadline
from hangup.gateway.log import Log

READ_SHARE = 0.25  # of the time: for clients, to read their last bytes
PARTS_SHARE = 0.8  # of what is left then: for the job store, and for spawned engines, to stop
LEDGER_SHARE = 0.8  # of what is left then: for the ledger, which follows the jobs, and for traces; the log has the rest
_OVERRUN_S = 0.2  # a stage ends itself in time, and says what it lost; this is for one that does not


class ClosingStages:
    def __init__(self, within_s: float, log: Log) -> None:
        self.deadline = Deadline(time.monotonic() + within_s)
        self._log = log

    def part(self, share: float) -> float:
        """Return a share of the seconds that are left."""
        return share * self.deadline.left(time.monotonic())

    async def stage(self, within_s: float | None = None, **works: Awaitable[object] | None) -> None:
        """Do some work at the same time, within what is left."""
        limit_s = self.part(1.0) if within_s is None else within_s
        await asyncio.gather(*(self._one(name, work, limit_s) for name, work in works.items() if work is not None))

    async def _one(self, name: str, work: Awaitable[object], within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s + _OVERRUN_S):
                await work
        except TimeoutError:
            self._log.event("shutdown_late", part=name, after_s=round(within_s, 1))
        except Exception as error:
            self._log.fault(error)
