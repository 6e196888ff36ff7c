"""The end of a process's work with its job store: the last writes, then the claims, then the file, within one limit of time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from hangup.core.deadline import Deadline
from hangup.gateway.jobs.runner import ItemRunner
from hangup.gateway.store.jobs import JobStore
from hangup.gateway.store.worker_thread import StoreFailed

CLOSE_S = 20.0  # for all of it, unless the caller has less time
# Of what is left, each time. After the writes, enough must remain for a transaction that waits for another process's lock:
# otherwise nobody would know whether it wrote something.
_WRITE_SHARE, _CLAIMS_SHARE, _STORE_SHARE = 0.6, 0.5, 0.9


async def close_store(
    store: JobStore,
    runner: ItemRunner,
    *,
    end_tasks: Callable[[], Awaitable[None]],
    give_back: Callable[[], object],
    log_event: Callable[..., None],
    within_s: float,
) -> None:
    """Write what is pending, give back all claims, close the store, and log what was lost. That does not keep the process:
    others run the items again whose results or claims could not be written."""
    deadline = Deadline(time.monotonic() + within_s)
    written = await runner.close(_seconds(deadline, _WRITE_SHARE))
    await end_tasks()
    failure: Exception | None = None if written else TimeoutError()
    if written:  # otherwise the store would refuse the results that are still to be written
        try:
            async with asyncio.timeout(_seconds(deadline, _CLAIMS_SHARE)):
                await store.do(give_back)
        except (StoreFailed, TimeoutError) as error:
            failure = error
    if failure is not None:
        log_event("job_store_failed", error=str(failure) or f"it was not written within {within_s:.1f} s")
    await asyncio.to_thread(store.close, _seconds(deadline, _STORE_SHARE))
    await runner.abandon(deadline.left(time.monotonic()))


def _seconds(deadline: Deadline, share: float) -> float:
    now = time.monotonic()
    return deadline.part(share, now).left(now)
