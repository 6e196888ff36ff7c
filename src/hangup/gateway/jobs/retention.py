"""Deletes what is old in the job store, a little at a time, so that other work is not held up."""

from __future__ import annotations

from functools import partial

from hangup.gateway.store.jobs import JobStore

_UNREADY_S = 86_400.0  # an upload that never ended is deleted after this time at the earliest


async def delete_old(
    store: JobStore, now: float, older_than_s: float, keep_s: float, upload_s: float, tenant: str | None
) -> int:
    """Delete jobs that ended long ago and, unless it is for one tenant, expired files; return the number of jobs.

    `now` is the time of day; files of clients are kept for `keep_s` at least.
    """
    count, more = 0, True
    while more:
        pruned, more = await store.do(partial(store.jobs.prune, now - older_than_s, tenant))
        count += pruned
    if tenant is None:
        created_before, unready_before = now - max(older_than_s, keep_s), now - max(upload_s * 2, _UNREADY_S)
        while await store.do(partial(store.files.prune, now, created_before, unready_before)):
            pass
    while await store.do(store.shrink):
        pass
    return count
