"""The job table compared with a model in plain Python: whatever workers, owners and crashes do to it, in any order."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from hangup.core.jobs import Cause, ItemState, JobStatus, Kind, outcome
from hangup.core.jobs import ItemCounts as JobTally
from hangup.errors import HangupError
from hangup.gateway.store.database import _migrate, _open
from hangup.gateway.store.jobs import Claim, JobStore, NewItem, postgresql
from hangup.gateway.store.jobs.postgresql import PostgresJobTable
from hangup.gateway.store.jobs.schema import MIGRATIONS
from hangup.gateway.store.jobs.table import JobTable
from hangup.gateway.store.jobs.workers import WorkerTable
from hangup.gateway.store.postgresql import PostgresConnection
from hangup.gateway.store.worker_thread import Connection
from support.postgresql import postgres_server

TENANTS = ("ann", "bob")


@dataclass
class ModelJob:
    id: str
    kind: Kind
    tenant: str
    status: JobStatus
    cause: Cause = Cause.NONE
    items: list[ItemState] = field(default_factory=list)
    owners: list[tuple[int, int] | None] = field(default_factory=list)  # worker and fence of who claimed it
    fences: list[int] = field(default_factory=list)
    answers: dict[int, bytes] = field(default_factory=dict)

    def settle(self) -> None:
        tally = JobTally(*(self.items.count(state) for state in ItemState))
        end = outcome(self.kind, self.status, self.cause, tally)
        if end is not None:
            self.status = end


class Jobs(RuleBasedStateMachine):
    """Two workers, either of which may be declared dead; each remembers claims that it may have lost."""

    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.db, self.table = self.open()
        self.workers_table = WorkerTable(self.db)
        self.jobs: dict[int, ModelJob] = {}
        self.workers = [self.workers_table.register("here", str(n)) for n in range(2)]
        self.now = 1000.0
        self.submitted = 0

    def open(self) -> tuple[Connection, JobTable]:
        self.file = _open("", MIGRATIONS)
        return self.file, JobTable(self.file)

    def teardown(self) -> None:
        self.file.close()

    @rule(kind=st.sampled_from(Kind), tenant=st.sampled_from(TENANTS), count=st.integers(1, 5))
    def submit(self, kind: Kind, tenant: str, count: int) -> None:
        count = 1 if kind.single else count
        self.submitted += 1
        id = f"job{self.submitted}"
        items = [NewItem(f"c{n}", "/v1/x", b"%d" % n) for n in range(count)]
        job = self.table.submit(id, kind, tenant, self.now, {"a": 1}, items)
        self.jobs[job.key] = ModelJob(
            id, kind, tenant, JobStatus.RUNNING, items=[ItemState.QUEUED] * count, owners=[None] * count, fences=[0] * count
        )

    @rule(tenant=st.sampled_from(TENANTS), who=st.integers(0, 1))
    def submit_unchecked(self, tenant: str, who: int) -> None:
        self.submitted += 1
        id = f"job{self.submitted}"
        job = self.table.submit(id, Kind.BATCH, tenant, self.now, {}, None, worker=self.workers[who])
        self.jobs[job.key] = ModelJob(id, Kind.BATCH, tenant, JobStatus.VALIDATING)

    @precondition(lambda self: any(job.status is JobStatus.VALIDATING for job in self.jobs.values()))
    @rule(data=st.data(), what=st.sampled_from(["lines", "lines", "good", "bad", "anew"]), count=st.integers(1, 3))
    def check(self, data: st.DataObject, what: str, count: int) -> None:
        """Lines are checked in pieces, by one worker and then another; in the end the job runs or has failed."""
        key = data.draw(st.sampled_from([key for key, job in self.jobs.items() if job.status is JobStatus.VALIDATING]))
        job = self.jobs[key]
        if what == "lines":
            first = len(job.items)
            self.table.add_items(key, first, [NewItem(f"c{n}", "/v1/x", b"%d" % n) for n in range(first, first + count)])
            job.items += [ItemState.QUEUED] * count
            job.owners += [None] * count
            job.fences += [0] * count
        elif what == "anew" or not job.items:
            before = self.table.get(key).worker
            assert not self.table.start_checking(key, self.workers[0], -1), "somebody else has it"
            assert self.table.start_checking(key, self.workers[0], before)
            job.items, job.owners, job.fences = [], [], []
        else:
            problems = [{"line": 1}] if what == "bad" else []
            unchanged = self.table.finish_check(key, -1, self.now, problems)
            assert unchanged is not None and unchanged.status is JobStatus.VALIDATING, "not theirs to end"
            worker = self.table.get(key).worker
            assert worker is not None
            self.table.finish_check(key, worker, self.now, problems)
            if problems:
                job.items, job.owners, job.fences, job.status = [], [], [], JobStatus.FAILED
            else:
                job.status = JobStatus.RUNNING

    @rule(target=claims, who=st.integers(0, 1), tenant=st.sampled_from(TENANTS), count=st.integers(1, 4))
    def claim(self, who: int, tenant: str, count: int) -> object:
        claimed = self.table.claim(self.workers[who], tenant, count, 1 << 20, self.now)
        expected = [
            (key, n)
            for key, job in sorted(self.jobs.items(), key=lambda pair: (not pair[1].kind.single, pair[0]))
            if job.tenant == tenant and job.status is JobStatus.RUNNING
            for n, state in enumerate(job.items)
            if state is ItemState.QUEUED
        ]
        assert [(c.job_key, c.n) for c in claimed] == expected[:count], "single ones first, then in order"
        for c in claimed:
            job = self.jobs[c.job_key]
            job.fences[c.n] += 1
            assert c.fence == job.fences[c.n] and c.body == b"%d" % c.n and c.job_id == job.id
            job.items[c.n] = ItemState.CLAIMED
            job.owners[c.n] = (self.workers[who], c.fence)
        return multiple(*claimed)

    @rule(claim=claims, state=st.sampled_from([ItemState.SUCCEEDED, ItemState.ERRORED, ItemState.CANCELLED, ItemState.EXPIRED]))
    def finish(self, claim: Claim, state: ItemState) -> None:
        """Any worker that ever claimed an item may finish it, whether it still owns it or not, and twice."""
        job = self.jobs.get(claim.job_key)
        ours = job is not None and job.items[claim.n] is ItemState.CLAIMED and job.fences[claim.n] == claim.fence
        body = b"answer %d" % claim.fence if state in (ItemState.SUCCEEDED, ItemState.ERRORED) else None
        again = (  # the very same is there already: whoever repeats a write that was not answered has written it
            job is not None
            and job.fences[claim.n] == claim.fence
            and (job.items[claim.n], job.answers.get(claim.n)) == (state, body)
        )
        done = self.table.finish(claim, state, self.now, body)
        assert (done is not None) == (ours or again), "a late result is refused, a timely one is taken"
        if ours and job is not None:
            job.items[claim.n] = state
            if body is not None:
                job.answers[claim.n] = body
            job.settle()

    @rule(claim=consumes(claims))
    def give_back(self, claim: Claim) -> None:
        job = self.jobs.get(claim.job_key)
        if job is None:
            return
        if job.items[claim.n] is ItemState.CLAIMED and job.fences[claim.n] == claim.fence:
            job.items[claim.n] = job.cause.of_items if job.status is JobStatus.CANCELLING else ItemState.QUEUED
            job.settle()
        self.table.give_back([claim], self.now)

    @rule(who=st.integers(0, 1))
    def worker_dies(self, who: int) -> None:
        gone = self.workers[who]
        for job in self.jobs.values():
            for n, owner in enumerate(job.owners):
                if job.items[n] is ItemState.CLAIMED and owner is not None and owner[0] == gone:
                    job.items[n] = job.cause.of_items if job.status is JobStatus.CANCELLING else ItemState.QUEUED
            job.settle()
        self.table.give_back_all(gone, self.now)
        self.workers_table.remove(gone)
        assert not self.workers_table.record_heartbeat(gone)
        assert self.table.claim(gone, TENANTS[0], 9, 1 << 20, self.now) == [], "one that was given up gets nothing"
        self.workers[who] = self.workers_table.register("here", "again")
        assert self.workers[who] != gone, "a worker's number is never used again"

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), cause=st.sampled_from([Cause.CANCELLED, Cause.LEASE, Cause.WINDOW]))
    def cancel(self, data: st.DataObject, cause: Cause) -> None:
        key = data.draw(st.sampled_from(sorted(self.jobs)))
        job = self.jobs[key]
        self.table.cancel(key, cause, self.now)
        if job.status in (JobStatus.RUNNING, JobStatus.VALIDATING):
            job.status, job.cause = JobStatus.CANCELLING, cause
            job.items = [cause.of_items if state is ItemState.QUEUED else state for state in job.items]
            job.settle()

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.jobs)))
        self.table.delete(key)
        if self.jobs[key].status.ended:
            del self.jobs[key]

    @rule()
    def time_passes(self) -> None:
        self.now += 10

    @invariant()
    def the_table_is_as_the_model(self) -> None:
        for key, model in self.jobs.items():
            job = self.table.get(key)
            assert (job.status, job.cause) == (model.status, model.cause)
            assert job.tally == JobTally(*(model.items.count(state) for state in ItemState)), "the tally adds up"
            assert (job.ended is not None) == model.status.ended
            rows = self.table.results(key, 0, 100)
            assert [row.state for row in rows] == model.items, "complete, and in order"
            assert {row.n: row.body for row in rows if row.body is not None} == model.answers
        assert [job.key for job in self.table.active()] == [k for k, m in sorted(self.jobs.items()) if not m.status.ended]
        for tenant in TENANTS:
            used = self.table.used(tenant)
            mine = [job for job in self.jobs.values() if job.tenant == tenant]
            assert used.jobs == sum(not job.status.ended for job in mine)
            assert used.items == sum(not state.ended for job in mine for state in job.items)
            stored = self.db.execute("SELECT coalesce(sum(bytes), 0) FROM job WHERE tenant = ?", (tenant,)).fetchone()[0]
            assert used.bytes == stored


Jobs.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestJobs = Jobs.TestCase


class JobsOnServer(Jobs):
    """The same on PostgreSQL; each example is a transaction that is rolled back."""

    def open(self) -> tuple[Connection, JobTable]:
        db = _server_connection()
        db.execute("BEGIN")
        return db, PostgresJobTable(db)

    def teardown(self) -> None:
        self.db.execute("ROLLBACK")


JobsOnServer.TestCase.settings = settings(max_examples=15, stateful_step_count=40, deadline=None)


class TestJobsOnServer(JobsOnServer.TestCase):  # type: ignore[misc, valid-type]
    @classmethod
    def setUpClass(cls) -> None:
        postgres_server()  # or skip

    @classmethod
    def tearDownClass(cls) -> None:
        _server_connection().close()
        _server_connection.cache_clear()


@cache
def _server_connection() -> PostgresConnection:
    connection = PostgresConnection(postgres_server().new_database(), "jobs", postgresql.MIGRATIONS)
    connection.connect()
    return connection


class TestPages:
    def test_jobs_and_their_neighbours(self, store_path: str) -> None:
        asyncio.run(self.pages(JobStore(store_path)))

    async def pages(self, store: JobStore) -> None:
        try:
            await store.do(lambda: self.look(store))
        finally:
            await asyncio.to_thread(store.close)

    def look(self, store: JobStore) -> None:
        table = store.jobs
        keys = [table.submit(f"j{n}", Kind.BATCH, "ann", n, {}, [NewItem("", "/", b"")]).key for n in range(5)]
        table.submit("other", Kind.BATCH, "bob", 9, {}, [NewItem("", "/", b"")])
        ids = [job.id for job in table.page("ann", Kind.BATCH, None, None, 3)]
        assert ids == ["j4", "j3", "j2"], "the newest first"
        assert [job.id for job in table.page("ann", Kind.BATCH, keys[2], None, 3)] == ["j1", "j0"]
        assert [job.id for job in table.page("ann", Kind.BATCH, None, keys[2], 3)] == ["j3", "j4"]
        assert table.find("j1", "bob") is None, "another tenant's jobs do not exist"
        assert table.find("j1", None) is not None


class TestVersions:
    def test_a_file_is_brought_up_to_date_step_by_step(self, tmp_path: Path) -> None:
        path = str(tmp_path / "jobs.sqlite")
        db = _open(path, ("CREATE TABLE one (x);\n",))
        db.execute("INSERT INTO one VALUES (7)")
        db.close()
        db = _open(path, ("CREATE TABLE one (x);\n", "ALTER TABLE one ADD y DEFAULT 3;\n"))
        assert db.execute("SELECT x, y FROM one").fetchall() == [(7, 3)]
        db.close()

    def test_one_from_the_future_is_left_alone(self, tmp_path: Path) -> None:
        path = str(tmp_path / "jobs.sqlite")
        db = sqlite3.connect(path)
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
        db.close()
        with pytest.raises(HangupError, match="newer version") as raised:
            _open(path, MIGRATIONS)
        db = sqlite3.connect(path, isolation_level=None, timeout=0)
        db.execute("BEGIN IMMEDIATE")  # its lock was released, although the error still refers to all that was open
        db.close()
        assert raised.tb is not None

    def test_a_step_that_fails_leaves_nothing_behind(self, tmp_path: Path) -> None:
        db = sqlite3.connect(tmp_path / "x.sqlite", isolation_level=None)
        with pytest.raises(sqlite3.OperationalError):
            _migrate(db, "x", ("CREATE TABLE one (x);\nNONSENSE;\n",))
        db.execute("ROLLBACK")
        assert db.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
        db.close()
