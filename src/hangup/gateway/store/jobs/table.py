"""Stores jobs and their items.

Every change of an item updates the counts of its job in the same transaction, and ends the job with its last item.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import orjson

from hangup.core.jobs import Cause, ItemState, JobStatus, Kind, outcome
from hangup.gateway.store.jobs.rows import JOB_COLUMNS, Claim, ItemEnd, Job, NewItem, NewJob, Result, Used
from hangup.gateway.store.worker_thread import Connection

_STATE_COLUMNS = ("queued", "claimed", "succeeded", "errored", "cancelled", "expired")  # ordered as `ItemState`
_READ_BYTES = 8 * 1024 * 1024  # of results per query; the last may exceed it
_ROWS_PER_QUERY = 100  # jobs, or items of a job, read per query
_PRUNED_ITEMS_MAX, _PRUNED_BYTES_MAX = 1000, 16 * 1024 * 1024  # deleted per transaction, with requests and results
NEW_JOB_COLUMNS = "id, kind, tenant, status, single, created, expires, lease_s, worker, queued, bytes, about"
_INSERT_JOB = f"INSERT INTO job ({NEW_JOB_COLUMNS}) VALUES ({', '.join('?' * 12)})"  # noqa: S608 - names of ours
_USED = "SELECT jobs, items, bytes FROM used WHERE tenant = ?"
CLAIMABLE = "SELECT key FROM job WHERE tenant = ?1 AND ended IS NULL AND status = ?2 AND queued > 0"
CLAIM_ORDER = "ORDER BY single DESC, key LIMIT ?3"
# The next queued items of job ?1 with their requests: at most ?2, and as many as fit into ?3 bytes, but at least one.
_NEXT_ITEMS = """
SELECT next.n, next.fence, next.custom_id, path, body FROM (
    SELECT n, fence, custom_id, sum(size) OVER (ORDER BY n) - size AS size_before FROM (
        SELECT item.n, fence + 1 AS fence, custom_id, length(body) AS size FROM item JOIN ask USING (job, n)
        WHERE job = ?1 AND state = 0 ORDER BY item.n LIMIT ?2
    ) AS sized
) AS next JOIN ask ON ask.job = ?1 AND ask.n = next.n WHERE size_before < ?3 ORDER BY next.n
"""
# The items of job ?1 from number ?2 on, with their results: at most ?3, and as many as fit into ?4 bytes, but at least one.
_NEXT_RESULTS = """
SELECT next.n, custom_id, state, body FROM (
    SELECT n, custom_id, state, sum(size) OVER (ORDER BY n) - size AS size_before FROM (
        SELECT item.n, custom_id, state, coalesce(length(body), 0) AS size FROM item LEFT JOIN answer USING (job, n)
        WHERE job = ?1 AND item.n >= ?2 ORDER BY item.n LIMIT ?3
    ) AS sized
) AS next LEFT JOIN answer ON answer.job = ?1 AND answer.n = next.n WHERE size_before < ?4 ORDER BY next.n
"""


def _given(column: str, at: int) -> str:
    """Return a condition on a column that holds for all rows if value `at` is NULL."""
    return f"(CAST(?{at} AS TEXT) IS NULL OR {column} = ?{at})"


class JobTable:
    """The tables `job`, `item`, `ask` and `answer`."""

    def __init__(self, db: Connection) -> None:
        self._db = db

    # Reading

    def find(self, id: str, tenant: str | None = None, kind: Kind | None = None) -> Job | None:
        """Return a job by id, or None. Operators pass no `tenant` and see the jobs of all tenants."""
        return self._select_one(f"id = ?1 AND {_given('tenant', 2)} AND {_given('kind', 3)}", id, tenant, kind)

    def find_by_key(self, key: int) -> Job | None:
        return self._select_one("key = ?", key)

    def get(self, key: int) -> Job:
        """Return a job that is known to exist."""
        job = self.find_by_key(key)
        assert job is not None
        return job

    def active(self, after: int = 0, count: int = 1 << 31) -> list[Job]:
        """Return jobs that have not ended, oldest first, from the one after key `after` on."""
        return self._select("ended IS NULL AND key > ? ORDER BY key LIMIT ?", after, count)

    def still_active(self, keys: Iterable[int]) -> set[int]:
        """Return which of these jobs have not ended."""
        active = "SELECT key FROM job WHERE ended IS NULL AND key IN (SELECT value FROM json_each(?))"
        return {key for (key,) in self._db.execute(active, (orjson.dumps(list(keys)).decode(),))}

    def unchecked(self) -> list[Job]:
        """Return jobs whose input lines were being checked by a worker that is gone."""
        return self._select(
            "ended IS NULL AND status = ? AND NOT EXISTS (SELECT 1 FROM worker WHERE id = job.worker)", JobStatus.VALIDATING
        )

    def changes(self, since: int | None) -> tuple[int, list[Job]]:
        """Return jobs, including ended ones, that others changed after `since`, and from where to read on; None: only that."""
        (last,) = self._db.execute("SELECT n FROM change").fetchone()
        return last, self._select("changed > ? ORDER BY key", since) if since is not None else []

    def page(
        self,
        tenant: str | None,
        kind: Kind | None,
        before: int | None,
        after: int | None,
        count: int,
        *,
        active: bool = False,
    ) -> list[Job]:
        """Return jobs older than `before`, newest first; or, if `after` is given, jobs newer than `after`, oldest first."""
        where = f"{_given('tenant', 1)} AND {_given('kind', 2)} AND key < ?3 AND key > ?4"
        where += " AND ended IS NULL" if active else ""
        order = "ASC" if after is not None else "DESC"
        return self._select(
            f"{where} ORDER BY key {order} LIMIT ?5", tenant, kind, before if before is not None else 1 << 62, after or 0, count
        )

    def tenants(self) -> list[str]:
        """Return the tenants with jobs that have not ended."""
        return [tenant for (tenant,) in self._db.execute("SELECT tenant FROM used GROUP BY tenant HAVING sum(jobs) > 0")]

    def used(self, tenant: str) -> Used:
        return self.used_by([tenant])[tenant]

    def used_by(self, tenants: Iterable[str]) -> dict[str, Used]:
        """Return how much of the store each tenant uses."""
        rows = {name: self._db.execute(_USED, (name,)).fetchone() for name in tenants}
        return {name: Used(*row) if row is not None else Used(0, 0, 0) for name, row in rows.items()}

    def results(self, key: int, start: int, count: int) -> list[Result]:
        """Return up to `count` items in input order, from number `start` on, with their results so far; fewer if those are
        large: a reader must not hold all of them at once."""
        rows = self._db.execute(_NEXT_RESULTS, (key, start, count, _READ_BYTES))
        return [Result(n, custom_id, ItemState(state), body) for n, custom_id, state, body in rows]

    def events(self, key: int) -> bytes | None:
        row = self._db.execute("SELECT events FROM answer WHERE job = ? AND n = 0", (key,)).fetchone()
        return row[0] if row is not None else None

    def version(self) -> int:
        """Return a number that differs once another process may have written to the store."""
        (version,) = self._db.execute("PRAGMA data_version").fetchone()
        return int(version)

    # Submitting

    def submit(
        self,
        id: str,
        kind: Kind,
        tenant: str,
        now: float,
        about: dict[str, Any],
        items: Iterable[NewItem] | None,
        *,
        expires: float | None = None,
        lease_s: float | None = None,
        worker: int | None = None,
    ) -> Job:
        """Insert a job; see `NewJob`."""
        items = list(items) if items is not None else None
        return self.submit_all([NewJob(id, kind, tenant, now, about, items, expires, lease_s, worker)])[0]

    def submit_all(self, jobs: list[NewJob]) -> list[Job]:
        """Insert jobs, and return them in the same order."""
        return [self._end_if_done(job, job.created) for job in self._insert_jobs(jobs)]

    def _insert_jobs(self, jobs: list[NewJob]) -> list[Job]:
        inserted = []
        for new in jobs:
            ((key,),) = self._db.execute(f"{_INSERT_JOB} RETURNING key", job_values(new)).fetchall()
            self._insert_items(key, 0, new.items or [])
            inserted.append(new.inserted(key))
        return inserted

    def add_items(self, key: int, first: int, items: Iterable[NewItem]) -> None:
        """Append items to a job, numbered from `first`."""
        items = list(items)
        size = sum(len(item.body) for item in items)
        self._db.execute("UPDATE job SET queued = queued + ?, bytes = bytes + ? WHERE key = ?", (len(items), size, key))
        self._insert_items(key, first, items)

    def _insert_items(self, key: int, first: int, items: list[NewItem]) -> None:
        if not items:
            return
        self._db.executemany(
            "INSERT INTO item (job, n, custom_id) VALUES (?, ?, ?)",
            [(key, n, item.custom_id) for n, item in enumerate(items, first)],
        )
        self._db.executemany(
            "INSERT INTO ask VALUES (?, ?, ?, ?)", [(key, n, item.path, item.body) for n, item in enumerate(items, first)]
        )

    def start_checking(self, key: int, worker: int, before: int | None) -> bool:
        """Take over the check of a job's lines from worker `before` and start afresh; return False if another worker has it."""
        changed = self._db.execute(
            "UPDATE job SET worker = ?1, queued = 0, bytes = 0 WHERE key = ?2 AND status = ?3"
            " AND coalesce(worker, 0) = coalesce(?4, 0) AND EXISTS (SELECT 1 FROM worker WHERE id = ?1)",
            (worker, key, JobStatus.VALIDATING, before),
        ).rowcount
        if changed:
            self._db.execute("DELETE FROM ask WHERE job = ?", (key,))
            self._db.execute("DELETE FROM item WHERE job = ?", (key,))
        return bool(changed)

    def is_checker(self, key: int, worker: int) -> bool:
        """Return whether this worker still owns the check of the job's lines."""
        job = self._locked(key)
        return job is not None and job.status is JobStatus.VALIDATING and job.worker == worker

    def finish_check(self, key: int, worker: int, now: float, problems: list[dict[str, Any]]) -> Job | None:
        """End the check: the job runs, or fails with `problems`. Return None if it was deleted meanwhile."""
        job = self._locked(key)
        if job is None or job.status is not JobStatus.VALIDATING or job.worker != worker:
            return job
        if problems:
            self._db.execute("DELETE FROM ask WHERE job = ?", (key,))
            self._db.execute("DELETE FROM item WHERE job = ?", (key,))
            about = orjson.dumps({**job.about, "problems": problems})
            self._db.execute(
                "UPDATE job SET status = ?, ended = ?, queued = 0, bytes = 0, about = ? WHERE key = ?",
                (JobStatus.FAILED, now, about, key),
            )
        else:
            self._db.execute("UPDATE job SET status = ?, begun = ? WHERE key = ?", (JobStatus.RUNNING, now, key))
            self._end_if_done(self.get(key), now)
        return self.get(key)

    # Running

    def claim(self, worker: int, tenant: str, count: int, bytes_max: int, now: float) -> list[Claim]:
        """Claim the next items of a tenant: single calls first, then batch by batch; at least one item, however large.

        A worker that was declared dead gets none, because nobody would requeue its claims.
        """
        return self._claim_from(self._claimable(worker, tenant, count), worker, count, bytes_max, now)

    def _claim_from(self, keys: list[int], worker: int, count: int, bytes_max: int, now: float) -> list[Claim]:
        claims: list[Claim] = []
        for key in keys:
            rows = self._db.execute(_NEXT_ITEMS, (key, count - len(claims), bytes_max)).fetchall()
            if not rows:
                continue
            self._db.execute(
                "UPDATE item SET state = 1, fence = fence + 1, worker = ? WHERE job = ? AND state = 0 AND n >= ? AND n <= ?",
                (worker, key, rows[0][0], rows[-1][0]),  # exactly these rows: none between them is queued
            )
            job = self._count(key, ItemState.QUEUED, ItemState.CLAIMED, len(rows), begun=now)
            claims += [Claim(job, *row) for row in rows]
            bytes_max -= sum(len(row[-1]) for row in rows)
            if bytes_max <= 0 or len(claims) >= count:
                break
        return claims

    def _claimable(self, worker: int, tenant: str, count: int) -> list[int]:
        """Return the next jobs of a tenant that have queued items, if the worker is alive."""
        rows = self._db.execute(
            f"{CLAIMABLE} AND EXISTS (SELECT 1 FROM worker WHERE id = ?4) {CLAIM_ORDER}",  # noqa: S608 - ours
            (tenant, JobStatus.RUNNING, count, worker),
        ).fetchall()
        return [key for (key,) in rows]

    def finish(
        self, claim: Claim, state: ItemState, now: float, body: bytes | None = None, events: bytes | None = None
    ) -> Job | None:
        """End an item and store its result; return None if the claim is stale, that is, the worker no longer owns the item."""
        self.lock((claim.job_key,))
        changed = self._db.execute(
            "UPDATE item SET state = ?, worker = NULL WHERE job = ? AND n = ? AND fence = ? AND state = 1",
            (state, claim.job_key, claim.n, claim.fence),
        ).rowcount
        if not changed:
            return self._written_before(ItemEnd(claim, state, body, events))
        size = 0
        if body is not None:
            size = len(body) + len(events or b"")
            self._db.execute("INSERT INTO answer VALUES (?, ?, ?, ?)", (claim.job_key, claim.n, body, events))
        return self._end_if_done(self._count(claim.job_key, ItemState.CLAIMED, state, 1, bytes=size), now)

    def _written_before(self, end: ItemEnd) -> Job | None:
        """Return the job if this very result is stored: an earlier attempt to write it was reported as failed, but was not."""
        claim = end.claim
        row = self._db.execute(
            "SELECT state, body FROM item LEFT JOIN answer USING (job, n) WHERE job = ? AND n = ? AND fence = ?",
            (claim.job_key, claim.n, claim.fence),
        ).fetchone()
        return self.find_by_key(claim.job_key) if row == (end.state, end.body) else None

    def finish_all(self, outcomes: list[ItemEnd], now: float) -> list[Job | None]:
        """End several items; see `finish`."""
        return [self.finish(claim, state, now, body, events) for claim, state, body, events in outcomes]

    def give_back(self, claims: Iterable[Claim], now: float) -> None:
        """Requeue items that were claimed but not run."""
        claims = list(claims)
        self.lock(claim.job_key for claim in claims)
        for claim in claims:
            self._requeue(claim.job_key, "n = ? AND fence = ? AND state = 1", (claim.n, claim.fence), now)

    def give_back_all(self, worker: int, now: float) -> list[Job]:
        """Requeue all items that a worker has claimed, and return their jobs; items of a job that is being cancelled end."""
        keys = self._db.execute("SELECT DISTINCT job FROM item WHERE worker = ? AND state = 1", (worker,)).fetchall()
        self.lock(key for (key,) in keys)
        found = [self._requeue(key, "worker = ? AND state = 1", (worker,), now) for (key,) in keys]
        return [job for job in found if job is not None]

    def claimed_by(self, worker: int) -> set[tuple[int, int, int]]:
        """Return the items that a worker has claimed, as (job, number, fence)."""
        rows = self._db.execute("SELECT job, n, fence FROM item WHERE worker = ? AND state = 1", (worker,))
        return set(rows.fetchall())

    def give_back_lost(self, items: Iterable[tuple[int, int, int]], now: float) -> list[Job]:
        """Requeue items whose worker does not know that it has claimed them, and return their jobs."""
        items = list(items)
        self.lock(key for key, _, _ in items)
        found = [self._requeue(key, "n = ? AND fence = ? AND state = 1", (n, fence), now) for key, n, fence in items]
        return [job for job in found if job is not None]

    def give_back_orphans(self, now: float) -> list[Job]:
        """Requeue items whose worker is not in the table, since nobody else would, and return their jobs."""
        keys = self._db.execute(
            "SELECT DISTINCT job, worker FROM item WHERE state = 1 AND NOT EXISTS (SELECT 1 FROM worker WHERE id = item.worker)"
        ).fetchall()
        self.lock(key for key, _ in keys)
        of_worker = "coalesce(worker, 0) = coalesce(?, 0) AND state = 1"
        found = [self._requeue(key, of_worker, (worker,), now) for key, worker in keys]
        return [job for job in found if job is not None]

    def _requeue(self, key: int, where: str, values: tuple[Any, ...], now: float) -> Job | None:
        """Requeue items; return their job as it is then, or None if there were none."""
        job = self.find_by_key(key)  # the caller has locked it
        if job is None:  # it ended and was deleted since
            return None
        state = job.cause.of_items if job.status is JobStatus.CANCELLING else ItemState.QUEUED
        changed = self._db.execute(
            f"UPDATE item SET state = ?, worker = NULL WHERE job = ? AND {where}",  # noqa: S608 - ours
            (state, key, *values),
        ).rowcount
        return self._end_if_done(self._count(key, ItemState.CLAIMED, state, changed), now) if changed else None

    # Ending

    def cancel(self, key: int, cause: Cause, now: float) -> Job | None:
        """End queued items at once and mark the job CANCELLING, so that workers stop its claimed items.

        Does nothing if the job is being cancelled already or has ended. Return None if it was deleted meanwhile.
        """
        job = self._locked(key)
        if job is None or job.status.ended or job.status is JobStatus.CANCELLING:
            return job
        changed = self._db.execute("UPDATE item SET state = ? WHERE job = ? AND state = 0", (cause.of_items, key)).rowcount
        if changed:
            self._count(key, ItemState.QUEUED, cause.of_items, changed)
        self._db.execute(
            "UPDATE job SET status = ?, cause = ?, cancelling = ? WHERE key = ?", (JobStatus.CANCELLING, cause, now, key)
        )
        return self._end_if_done(self.get(key), now)

    def touch(self, keys: Iterable[int]) -> None:
        """Record that clients have asked for these jobs, so that other processes renew the leases, too."""
        keys = list(keys)
        self.lock(keys)
        self._db.executemany("UPDATE job SET touched = touched + 1 WHERE key = ?", [(key,) for key in keys])

    def delete(self, key: int) -> None:
        """Delete an ended job with its items and results."""
        self._db.execute("DELETE FROM job WHERE key = ? AND ended IS NOT NULL", (key,))

    def prune(self, ended_before: float, tenant: str | None = None) -> tuple[int, bool]:
        """Delete old jobs, oldest first; return how many, and whether there are more.

        All other work waits for this transaction, so each call deletes little: of a large batch, some items at a time.
        """
        rows = self._db.execute(
            f"SELECT key FROM job WHERE ended < ?1 AND {_given('tenant', 2)}"  # noqa: S608 - ours
            f" ORDER BY ended LIMIT ?3{self._skip_locked}",
            (ended_before, tenant, _ROWS_PER_QUERY),
        ).fetchall()
        items_budget, bytes_budget, jobs = _PRUNED_ITEMS_MAX, _PRUNED_BYTES_MAX, 0
        for (key,) in rows:
            while items_budget > 0 and bytes_budget > 0:
                count, bytes = self._prune_items(key, min(items_budget, _ROWS_PER_QUERY))
                items_budget, bytes_budget = items_budget - count, bytes_budget - bytes
                if not count:
                    self._db.execute("DELETE FROM job WHERE key = ?", (key,))
                    jobs += 1
                    break
            else:
                return jobs, True
        return jobs, len(rows) == _ROWS_PER_QUERY

    def _prune_items(self, key: int, count: int) -> tuple[int, int]:
        """Delete the last `count` items of a job with requests and results; return how many, and their bytes."""
        rows = self._db.execute(
            "SELECT item.n, coalesce(length(ask.body), 0) + coalesce(length(answer.body), 0) + coalesce(length(events), 0)"
            " FROM item LEFT JOIN ask USING (job, n) LEFT JOIN answer USING (job, n) WHERE job = ? ORDER BY n DESC LIMIT ?",
            (key, count),
        ).fetchall()
        if rows:
            for table in ("answer", "ask", "item"):
                self._db.execute(f"DELETE FROM {table} WHERE job = ? AND n >= ?", (key, rows[-1][0]))  # noqa: S608 - ours
        return len(rows), sum(size for _, size in rows)

    # Counting

    def _count(
        self, key: int, from_: ItemState, to: ItemState, count: int, *, bytes: int = 0, begun: float | None = None
    ) -> Job:
        """Count items of a job that went from one state to another; return the job."""
        source, target = _STATE_COLUMNS[from_], _STATE_COLUMNS[to]
        (row,) = self._db.execute(
            f"UPDATE job SET {source} = {source} - ?1, {target} = {target} + ?1, bytes = bytes + ?2,"  # noqa: S608 - ours
            f" begun = coalesce(begun, ?3) WHERE key = ?4 RETURNING {JOB_COLUMNS}",
            (count, bytes, begun, key),
        ).fetchall()
        return Job.from_row(row)

    def _end_if_done(self, job: Job, now: float) -> Job:
        end = outcome(job.kind, job.status, job.cause, job.tally)
        if end is None:
            return job
        self._db.execute("UPDATE job SET status = ?, ended = ?, worker = NULL WHERE key = ?", (end, now, job.key))
        return self._ended(job, end, now)

    def _ended(self, job: Job, end: JobStatus, now: float) -> Job:
        """Return a job that was just ended as it is now, with its files."""
        if job.kind is Kind.BATCH:
            self._add_result_files(job, now)
        return replace(job, status=end, ended=now, worker=None)

    def _add_result_files(self, job: Job, now: float) -> None:
        """Create the output and error files of a batch; they are views of its items' results."""
        tally = job.tally
        for part, count in (("output", tally.succeeded), ("error", tally.ended - tally.succeeded)):
            if count:
                id = result_file(job.id, part)
                self._db.execute(
                    "INSERT INTO file (id, tenant, purpose, filename, created, ready, job) VALUES (?, ?, ?, ?, ?, 1, ?)",
                    (id, job.tenant, "batch_output", f"{job.id}_{part}.jsonl", now, job.key),
                )

    # Locks: needed where several processes write at a time, which SQLite does not allow

    _skip_locked = ""  # ends a query whose rows are about to be changed, unless another process has them

    def lock(self, keys: Iterable[int]) -> None:
        """Keep other processes from changing these jobs and their items until the transaction ends."""

    def _locked(self, key: int) -> Job | None:
        self.lock((key,))
        return self.find_by_key(key)

    def _select_one(self, where: str, *values: Any) -> Job | None:
        row = self._db.execute(f"SELECT {JOB_COLUMNS} FROM job WHERE {where}", values).fetchone()  # noqa: S608 - ours
        return Job.from_row(row) if row is not None else None

    def _select(self, where: str, *values: Any) -> list[Job]:
        return [Job.from_row(row) for row in self._db.execute(f"SELECT {JOB_COLUMNS} FROM job WHERE {where}", values)]  # noqa: S608


def job_values(new: NewJob) -> tuple[Any, ...]:
    """Return a new job's values, in the order of `NEW_JOB_COLUMNS`."""
    job = new.inserted(0)
    return (
        job.id,
        job.kind,
        job.tenant,
        job.status,
        int(job.kind.single),
        job.created,
        job.expires,
        job.lease_s,
        job.worker,
        job.tally.queued,
        job.bytes,
        orjson.dumps(job.about),
    )


def result_file(job: str, part: str) -> str:
    """Return the id of a batch's output or error file."""
    return f"file-{job.removeprefix('batch_')}-{part}"
