"""The job store's schema, as migrations. Never change a released migration; append a new one."""

from __future__ import annotations

# Keys are never reused (AUTOINCREMENT), so that a late result cannot land in another job.
# Triggers keep a tenant's usage in `used`, so that a quota check takes constant time.
# Request bodies (`ask`) and results (`answer`) have their own tables: `item` rows change often and must stay small.
_FIRST = """
CREATE TABLE job (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    tenant TEXT NOT NULL,
    status TEXT NOT NULL,
    cause TEXT NOT NULL DEFAULT '',
    single INTEGER NOT NULL,
    created REAL NOT NULL,
    begun REAL,
    cancelling REAL,
    ended REAL,
    expires REAL,
    lease_s REAL,
    touched INTEGER NOT NULL DEFAULT 0,
    worker INTEGER,
    queued INTEGER NOT NULL DEFAULT 0,
    claimed INTEGER NOT NULL DEFAULT 0,
    succeeded INTEGER NOT NULL DEFAULT 0,
    errored INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    expired INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0,
    about BLOB NOT NULL
);
CREATE INDEX job_active ON job (tenant, single DESC, key) WHERE ended IS NULL;
CREATE INDEX job_of_tenant ON job (tenant, kind, key);
CREATE TABLE item (
    job INTEGER NOT NULL REFERENCES job ON DELETE CASCADE,
    n INTEGER NOT NULL,
    state INTEGER NOT NULL DEFAULT 0,
    fence INTEGER NOT NULL DEFAULT 0,
    worker INTEGER,
    custom_id TEXT NOT NULL,
    PRIMARY KEY (job, n)
) WITHOUT ROWID;
CREATE INDEX item_queued ON item (job, n) WHERE state = 0;
CREATE INDEX item_claimed ON item (worker) WHERE state = 1;
CREATE TABLE ask (
    job INTEGER NOT NULL REFERENCES job ON DELETE CASCADE,
    n INTEGER NOT NULL,
    path TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (job, n)
);
CREATE TABLE answer (
    job INTEGER NOT NULL REFERENCES job ON DELETE CASCADE,
    n INTEGER NOT NULL,
    body BLOB NOT NULL,
    events BLOB,
    PRIMARY KEY (job, n)
);
CREATE TABLE file (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    purpose TEXT NOT NULL,
    filename TEXT NOT NULL,
    created REAL NOT NULL,
    expires REAL,
    bytes INTEGER,
    ready INTEGER NOT NULL DEFAULT 0,
    job INTEGER REFERENCES job ON DELETE CASCADE
);
CREATE INDEX file_of_tenant ON file (tenant, key);
CREATE TABLE part (
    file INTEGER NOT NULL REFERENCES file ON DELETE CASCADE,
    n INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (file, n)
);
CREATE TABLE used (
    tenant TEXT PRIMARY KEY,
    jobs INTEGER NOT NULL,
    items INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TRIGGER job_added AFTER INSERT ON job BEGIN
    INSERT INTO used VALUES (new.tenant, new.ended IS NULL, new.queued + new.claimed, new.bytes)
    ON CONFLICT DO UPDATE SET jobs = jobs + excluded.jobs, items = items + excluded.items, bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER job_changed AFTER UPDATE OF ended, queued, claimed, bytes ON job BEGIN
    UPDATE used SET
        jobs = jobs + (new.ended IS NULL) - (old.ended IS NULL),
        items = items + new.queued + new.claimed - old.queued - old.claimed,
        bytes = bytes + new.bytes - old.bytes
    WHERE tenant = new.tenant;
END;
CREATE TRIGGER job_deleted AFTER DELETE ON job BEGIN
    UPDATE used SET jobs = jobs - (old.ended IS NULL), items = items - old.queued - old.claimed, bytes = bytes - old.bytes
    WHERE tenant = old.tenant;
END;
CREATE TRIGGER file_added AFTER INSERT ON file WHEN new.job IS NULL BEGIN
    INSERT INTO used VALUES (new.tenant, 0, 0, new.bytes) ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER file_changed AFTER UPDATE OF bytes ON file WHEN new.job IS NULL BEGIN
    UPDATE used SET bytes = bytes + new.bytes - old.bytes WHERE tenant = new.tenant;
END;
CREATE TRIGGER file_deleted AFTER DELETE ON file WHEN old.job IS NULL BEGIN
    UPDATE used SET bytes = bytes - old.bytes WHERE tenant = old.tenant;
END;
CREATE TABLE worker (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    host TEXT NOT NULL,
    process TEXT NOT NULL,
    beats INTEGER NOT NULL DEFAULT 0
);
"""

# `change` numbers every change of a job, so that a process can read what others changed. The indexes find rows to delete:
# by job, age, expiry or end.
_SECOND = """
CREATE TABLE clock (seen REAL NOT NULL);
INSERT INTO clock SELECT coalesce(max(coalesce(ended, created)), 0) FROM job;
CREATE INDEX file_of_job ON file (job) WHERE job IS NOT NULL;
CREATE INDEX file_by_age ON file (created);
CREATE INDEX file_by_expiry ON file (expires) WHERE expires IS NOT NULL;
CREATE INDEX job_by_end ON job (ended) WHERE ended IS NOT NULL;
CREATE TABLE change (n INTEGER NOT NULL);
INSERT INTO change VALUES (0);
ALTER TABLE job ADD changed INTEGER NOT NULL DEFAULT 0;
CREATE INDEX job_by_change ON job (changed);
CREATE TRIGGER job_noted AFTER UPDATE OF status, ended, touched, worker, queued, claimed ON job BEGIN
    UPDATE change SET n = n + 1;
    UPDATE job SET changed = (SELECT n FROM change) WHERE key = new.key;
END;
CREATE TRIGGER job_noted_first AFTER INSERT ON job BEGIN
    UPDATE change SET n = n + 1;
    UPDATE job SET changed = (SELECT n FROM change) WHERE key = new.key;
END;
"""

# Who follows which job, and the events of running jobs that are followed in another process than runs them.
_THIRD = """
CREATE TABLE follower (job INTEGER NOT NULL, worker INTEGER NOT NULL, PRIMARY KEY (job, worker)) WITHOUT ROWID;
CREATE TABLE event (
    job INTEGER NOT NULL REFERENCES job ON DELETE CASCADE,
    first INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (job, first)
);
"""

MIGRATIONS = (_FIRST, _SECOND, _THIRD)
