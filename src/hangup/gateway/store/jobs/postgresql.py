"""The job store on PostgreSQL: the schema, and what several gateways that write at a time need.

The statements are those of SQLite (`table`). There, one writing transaction runs at a time; here, the row of a job is the lock
of all that belongs to the job. To keep gateways from waiting for each other in a circle, a transaction takes its locks in this
order: rows of `worker`, then of `job` by key, then `clock`. Grouped work waits for none: it only inserts new rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hangup.core.jobs import ItemState, JobStatus, outcome
from hangup.gateway.store.jobs.files import FileTable
from hangup.gateway.store.jobs.rows import JOB_COLUMNS, Claim, ItemEnd, Job, NewJob, Used
from hangup.gateway.store.jobs.table import CLAIM_ORDER, CLAIMABLE, NEW_JOB_COLUMNS, JobTable, job_values
from hangup.gateway.store.postgresql import PostgresConnection

# Usage is counted per slot of a connection and summed when it is read, so that no gateway waits for another's row.
# `changed` is the transaction of the last change. Numbers from a sequence would not do: a lower one may be committed later.
_FIRST = """
CREATE TABLE job (
    key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    tenant TEXT NOT NULL,
    status TEXT NOT NULL,
    cause TEXT NOT NULL DEFAULT '',
    single INT NOT NULL,
    created DOUBLE PRECISION NOT NULL,
    begun DOUBLE PRECISION,
    cancelling DOUBLE PRECISION,
    ended DOUBLE PRECISION,
    expires DOUBLE PRECISION,
    lease_s DOUBLE PRECISION,
    touched BIGINT NOT NULL DEFAULT 0,
    worker BIGINT,
    queued BIGINT NOT NULL DEFAULT 0,
    claimed BIGINT NOT NULL DEFAULT 0,
    succeeded BIGINT NOT NULL DEFAULT 0,
    errored BIGINT NOT NULL DEFAULT 0,
    cancelled BIGINT NOT NULL DEFAULT 0,
    expired BIGINT NOT NULL DEFAULT 0,
    bytes BIGINT NOT NULL DEFAULT 0,
    about BYTEA NOT NULL,
    changed BIGINT NOT NULL,
    changed_by BIGINT NOT NULL
);
CREATE INDEX job_claimable ON job (tenant, single DESC, key) WHERE ended IS NULL AND queued > 0;
CREATE INDEX job_active ON job (key) WHERE ended IS NULL;
CREATE INDEX job_of_tenant ON job (tenant, kind, key);
CREATE INDEX job_by_change ON job (changed);
CREATE INDEX job_by_end ON job (ended) WHERE ended IS NOT NULL;
CREATE TABLE item (
    job BIGINT NOT NULL REFERENCES job ON DELETE CASCADE,
    n BIGINT NOT NULL,
    state INT NOT NULL DEFAULT 0,
    fence BIGINT NOT NULL DEFAULT 0,
    worker BIGINT,
    custom_id TEXT NOT NULL,
    PRIMARY KEY (job, n)
);
CREATE INDEX item_queued ON item (job, n) WHERE state = 0;
CREATE INDEX item_claimed ON item (worker) WHERE state = 1;
CREATE TABLE ask (
    job BIGINT NOT NULL REFERENCES job ON DELETE CASCADE,
    n BIGINT NOT NULL,
    path TEXT NOT NULL,
    body BYTEA NOT NULL,
    PRIMARY KEY (job, n)
);
CREATE TABLE answer (
    job BIGINT NOT NULL REFERENCES job ON DELETE CASCADE,
    n BIGINT NOT NULL,
    body BYTEA NOT NULL,
    events BYTEA,
    PRIMARY KEY (job, n)
);
CREATE TABLE file (
    key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    purpose TEXT NOT NULL,
    filename TEXT NOT NULL,
    created DOUBLE PRECISION NOT NULL,
    expires DOUBLE PRECISION,
    bytes BIGINT,
    ready INT NOT NULL DEFAULT 0,
    job BIGINT REFERENCES job ON DELETE CASCADE
);
CREATE INDEX file_of_tenant ON file (tenant, key);
CREATE INDEX file_of_job ON file (job) WHERE job IS NOT NULL;
CREATE INDEX file_by_age ON file (created);
CREATE INDEX file_by_expiry ON file (expires) WHERE expires IS NOT NULL;
CREATE TABLE part (
    file BIGINT NOT NULL REFERENCES file ON DELETE CASCADE,
    n BIGINT NOT NULL,
    data BYTEA NOT NULL,
    PRIMARY KEY (file, n)
);
CREATE TABLE worker (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    host TEXT NOT NULL,
    process TEXT NOT NULL,
    beats BIGINT NOT NULL DEFAULT 0
);
CREATE TABLE follower (job BIGINT NOT NULL, worker BIGINT NOT NULL, PRIMARY KEY (job, worker));
CREATE TABLE event (
    job BIGINT NOT NULL REFERENCES job ON DELETE CASCADE,
    first BIGINT NOT NULL,
    data BYTEA NOT NULL,
    PRIMARY KEY (job, first)
);
CREATE TABLE clock (seen DOUBLE PRECISION NOT NULL);
INSERT INTO clock VALUES (0);
CREATE TABLE used (
    tenant TEXT NOT NULL,
    slot INT NOT NULL,
    jobs BIGINT NOT NULL,
    items BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    PRIMARY KEY (tenant, slot)
);

CREATE FUNCTION add_use(the_tenant TEXT, more_jobs BIGINT, more_items BIGINT, more_bytes BIGINT) RETURNS void LANGUAGE sql AS $$
    INSERT INTO hangup.used
    VALUES (the_tenant, coalesce(nullif(current_setting('hangup.slot', true), ''), '0')::int, more_jobs, more_items, more_bytes)
    ON CONFLICT (tenant, slot) DO UPDATE SET
        jobs = used.jobs + excluded.jobs, items = used.items + excluded.items, bytes = used.bytes + excluded.bytes
$$;

CREATE FUNCTION note_job() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    NEW.changed := pg_current_xact_id()::text::bigint;
    NEW.changed_by := coalesce(nullif(current_setting('hangup.connection', true), ''), '0')::bigint;
    RETURN NEW;
END $$;
CREATE TRIGGER job_noted_first BEFORE INSERT ON job FOR EACH ROW EXECUTE FUNCTION note_job();
CREATE TRIGGER job_noted BEFORE UPDATE OF status, ended, touched, worker, queued, claimed ON job
    FOR EACH ROW EXECUTE FUNCTION note_job();

CREATE FUNCTION count_job() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF TG_OP = 'INSERT' THEN
        PERFORM hangup.add_use(NEW.tenant, (NEW.ended IS NULL)::int, NEW.queued + NEW.claimed, NEW.bytes);
    ELSIF TG_OP = 'DELETE' THEN
        PERFORM hangup.add_use(OLD.tenant, -(OLD.ended IS NULL)::int, -OLD.queued - OLD.claimed, -OLD.bytes);
    ELSE
        PERFORM hangup.add_use(NEW.tenant, (NEW.ended IS NULL)::int - (OLD.ended IS NULL)::int,
            NEW.queued + NEW.claimed - OLD.queued - OLD.claimed, NEW.bytes - OLD.bytes);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER job_counted_first AFTER INSERT OR DELETE ON job FOR EACH ROW EXECUTE FUNCTION count_job();
CREATE TRIGGER job_counted AFTER UPDATE OF ended, queued, claimed, bytes ON job FOR EACH ROW
    WHEN ((NEW.ended IS NULL, NEW.queued + NEW.claimed, NEW.bytes) <> (OLD.ended IS NULL, OLD.queued + OLD.claimed, OLD.bytes))
    EXECUTE FUNCTION count_job();

CREATE FUNCTION count_file() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF TG_OP = 'INSERT' THEN
        PERFORM hangup.add_use(NEW.tenant, 0, 0, NEW.bytes);
    ELSIF TG_OP = 'DELETE' THEN
        PERFORM hangup.add_use(OLD.tenant, 0, 0, -OLD.bytes);
    ELSE
        PERFORM hangup.add_use(NEW.tenant, 0, 0, NEW.bytes - OLD.bytes);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER file_counted_first AFTER INSERT ON file FOR EACH ROW WHEN (NEW.job IS NULL) EXECUTE FUNCTION count_file();
CREATE TRIGGER file_counted AFTER UPDATE OF bytes ON file FOR EACH ROW WHEN (NEW.job IS NULL) EXECUTE FUNCTION count_file();
CREATE TRIGGER file_counted_last AFTER DELETE ON file FOR EACH ROW WHEN (OLD.job IS NULL) EXECUTE FUNCTION count_file();
"""

# Submissions are counted once for each statement, and need no trigger to note their change.
_SECOND = """
DROP TRIGGER job_noted_first ON job;
ALTER TABLE job ALTER COLUMN changed SET DEFAULT pg_current_xact_id()::text::bigint;
ALTER TABLE job ALTER COLUMN changed_by
    SET DEFAULT coalesce(nullif(current_setting('hangup.connection', true), ''), '0')::bigint;
DROP TRIGGER job_counted_first ON job;
CREATE TRIGGER job_counted_last AFTER DELETE ON job FOR EACH ROW EXECUTE FUNCTION count_job();
CREATE FUNCTION count_new_jobs() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    PERFORM hangup.add_use(tenant, sum((ended IS NULL)::int)::bigint, sum(queued + claimed)::bigint, sum(bytes)::bigint)
    FROM new_jobs GROUP BY tenant;
    RETURN NULL;
END $$;
CREATE TRIGGER jobs_counted_first AFTER INSERT ON job REFERENCING NEW TABLE AS new_jobs
    FOR EACH STATEMENT EXECUTE FUNCTION count_new_jobs();
"""

MIGRATIONS = (_FIRST, _SECOND)
_END_STATES = (ItemState.SUCCEEDED, ItemState.ERRORED, ItemState.CANCELLED, ItemState.EXPIRED)


# What costs a statement each in SQLite, which is in this process, is one statement here: each is a round trip.
_SUBMIT = f"""
WITH given AS (
    SELECT * FROM unnest(
        ?1::text[], ?2::text[], ?3::text[], ?4::text[], ?5::int[], ?6::float8[], ?7::float8[], ?8::float8[], ?9::bigint[],
        ?10::bigint[], ?11::bigint[], ?12::bytea[]
    ) WITH ORDINALITY AS given ({NEW_JOB_COLUMNS}, number)
),
new AS (INSERT INTO job ({NEW_JOB_COLUMNS}) SELECT {NEW_JOB_COLUMNS} FROM given ORDER BY number RETURNING key, id),
numbered AS (SELECT key, number FROM new JOIN given USING (id)),
parts AS (
    SELECT * FROM unnest(?13::bigint[], ?14::bigint[], ?15::text[], ?16::text[], ?17::bytea[])
        AS parts (number, n, custom_id, path, body)
),
items AS (INSERT INTO item (job, n, custom_id) SELECT key, n, custom_id FROM parts JOIN numbered USING (number)),
asks AS (INSERT INTO ask SELECT key, n, path, body FROM parts JOIN numbered USING (number))
SELECT key FROM numbered ORDER BY number
"""  # noqa: S608 - names of ours
_USED_BY = f"""
SELECT tenant, {", ".join(f"sum({column})::bigint" for column in Used._fields)}
FROM used WHERE tenant = ANY(?) GROUP BY tenant
"""  # noqa: S608
_CLAIM_SINGLE = """
UPDATE item SET state = 1, fence = fence + 1, worker = ?1 FROM ask
WHERE item.job = ANY(?2) AND item.state = 0 AND ask.job = item.job AND ask.n = item.n
RETURNING item.job, item.n, fence, custom_id, path, body
"""
_COUNT_SINGLE = f"""
UPDATE job SET queued = queued - 1, claimed = claimed + 1, begun = coalesce(begun, ?1) WHERE key = ANY(?2)
RETURNING {JOB_COLUMNS}
"""  # noqa: S608
_FINISH = f"""
WITH given AS (
    SELECT * FROM unnest(?1::bigint[], ?2::bigint[], ?3::bigint[], ?4::int[], ?5::bytea[], ?6::bytea[])
        AS given (job, n, fence, state, body, events)
),
done AS (
    UPDATE item SET state = given.state, worker = NULL FROM given
    WHERE item.job = given.job AND item.n = given.n AND item.fence = given.fence AND item.state = 1
    RETURNING given.*
),
answers AS (INSERT INTO answer SELECT job, n, body, events FROM done WHERE body IS NOT NULL),
counts AS (
    SELECT done.job, count(*) AS ended, array_agg(n) AS numbers,
        {", ".join(f"count(*) FILTER (WHERE state = {int(state)}) AS more_{state.name.lower()}" for state in _END_STATES)},
        coalesce(sum(length(body) + coalesce(length(events), 0)), 0) AS size
    FROM done GROUP BY done.job
)
UPDATE job SET claimed = claimed - counts.ended, bytes = bytes + counts.size,
    {", ".join(f"{state.name.lower()} = {state.name.lower()} + more_{state.name.lower()}" for state in _END_STATES)}
FROM counts WHERE key = counts.job RETURNING numbers, {", ".join(f"job.{column}" for column in JOB_COLUMNS.split(", "))}
"""  # noqa: S608
_END = """
UPDATE job SET status = given.status, ended = ?1, worker = NULL FROM unnest(?2::bigint[], ?3::text[]) AS given (job, status)
WHERE key = given.job
"""


class PostgresJobTable(JobTable):
    """The tables `job`, `item`, `ask` and `answer`."""

    _skip_locked = " FOR UPDATE SKIP LOCKED"

    def __init__(self, db: PostgresConnection) -> None:
        super().__init__(db)
        self._connection = db
        self._version = 0
        self._transaction = 0  # in which the following are locked
        self._locked_keys: set[int] = set()

    def lock(self, keys: Iterable[int]) -> None:
        if self._transaction != self._connection.transactions:
            self._transaction, self._locked_keys = self._connection.transactions, set()
        ordered = sorted(set(keys) - self._locked_keys)
        if ordered:
            self._db.execute("SELECT key FROM job WHERE key = ANY(?) ORDER BY key FOR UPDATE", (ordered,))
            self._locked_keys.update(ordered)

    def _insert_jobs(self, jobs: list[NewJob]) -> list[Job]:
        parts = [(at, n, *item) for at, new in enumerate(jobs, 1) for n, item in enumerate(new.items or ())]
        values = (*_columns([job_values(new) for new in jobs], 12), *_columns(parts, 5))
        rows = self._db.execute(_SUBMIT, values) if jobs else ()
        return [new.inserted(key) for new, (key,) in zip(jobs, rows, strict=True)]

    def _claim_from(self, keys: list[int], worker: int, count: int, bytes_max: int, now: float) -> list[Claim]:
        """Claim the items of single calls together, then those of batches one batch after the other."""
        single: list[int] = []
        for key, bytes in self._db.execute(
            "SELECT key, bytes FROM job WHERE key = ANY(?) AND single = 1 ORDER BY key", (keys,)
        ):
            if bytes_max <= 0:
                break
            single.append(key)
            bytes_max -= bytes
        claims: list[Claim] = []
        if single:
            items = {row[0]: row[1:] for row in self._db.execute(_CLAIM_SINGLE, (worker, single))}
            jobs = map(Job.from_row, self._db.execute(_COUNT_SINGLE, (now, single)))
            claims = sorted((Claim(job, *items[job.key]) for job in jobs), key=lambda claim: claim.job_key)
        rest = [key for key in keys if key not in set(single)]
        if bytes_max > 0 and len(claims) < count:
            claims += super()._claim_from(rest, worker, count - len(claims), bytes_max, now)
        return claims

    def finish_all(self, outcomes: list[ItemEnd], now: float) -> list[Job | None]:
        self.lock(outcome.claim.job_key for outcome in outcomes)
        rows = [(end.claim.job_key, end.claim.n, end.claim.fence, int(end.state), end.body, end.events) for end in outcomes]
        jobs: dict[int, Job] = {}
        accepted: set[tuple[int, int]] = set()
        for numbers, *row in self._db.execute(_FINISH, _columns(rows, 6)) if rows else ():
            job = Job.from_row(tuple(row))
            jobs[job.key] = job
            accepted.update((job.key, n) for n in numbers)
        ends = {
            key: end for key, job in jobs.items() if (end := outcome(job.kind, job.status, job.cause, job.tally)) is not None
        }
        if ends:
            self._db.execute(_END, (now, list(ends), [str(end) for end in ends.values()]))
        for key, end in ends.items():
            jobs[key] = self._ended(jobs[key], end, now)
        written: list[Job | None] = []
        for ended in outcomes:
            at = (ended.claim.job_key, ended.claim.n)
            written.append(jobs[at[0]] if at in accepted else self._written_before(ended))
            accepted.discard(at)
        return written

    def finish(
        self, claim: Claim, state: ItemState, now: float, body: bytes | None = None, events: bytes | None = None
    ) -> Job | None:
        return self.finish_all([ItemEnd(claim, state, body, events)], now)[0]

    def version(self) -> int:
        """Return another number each time: to read the changes costs no more than to ask whether there are some."""
        self._version += 1
        return self._version

    def changes(self, since: int | None) -> tuple[int, list[Job]]:
        """See `JobTable`. Transactions before the returned one have ended; later ones are read the next time, perhaps again."""
        (oldest,) = self._db.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint").fetchone()
        if since is None:
            return oldest, []
        return oldest, self._select("changed >= ? AND changed_by <> ? ORDER BY key", since, self._connection.number)

    def still_active(self, keys: Iterable[int]) -> set[int]:
        rows = self._db.execute("SELECT key FROM job WHERE ended IS NULL AND key = ANY(?)", (list(keys),))
        return {key for (key,) in rows}

    def used_by(self, tenants: Iterable[str]) -> dict[str, Used]:
        names = list(tenants)
        found = {name: Used(*counts) for name, *counts in self._db.execute(_USED_BY, (names,))}
        return {name: found.get(name, Used(0, 0, 0)) for name in names}

    def _claimable(self, worker: int, tenant: str, count: int) -> list[int]:
        """Return jobs that no other gateway changes at the moment; wait for one if there is no other."""
        if self._db.execute("SELECT id FROM worker WHERE id = ? FOR SHARE", (worker,)).fetchone() is None:
            return []
        query = f"{CLAIMABLE} {CLAIM_ORDER}"
        rows = self._db.execute(f"{query}{self._skip_locked}", (tenant, JobStatus.RUNNING, count)).fetchall()
        rows = rows or self._db.execute(f"{query} FOR UPDATE", (tenant, JobStatus.RUNNING, 1)).fetchall()
        return [key for (key,) in rows]


class PostgresFileTable(FileTable):
    """The tables `file` and `part`."""

    _skip_locked = " FOR UPDATE SKIP LOCKED"


def _columns(rows: Sequence[Sequence[object]], count: int) -> list[list[object]]:
    return [[row[at] for row in rows] for at in range(count)]
