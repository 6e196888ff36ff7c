"""The store of jobs: tables in SQLite that hold what was promised to a client, until it is done or given up.

`schema` has the tables, `rows` what is read from them; `table` is jobs and items, `files` uploads, `workers` who claims items.
All of it runs in the store's thread (`hangup.store.database`), inside a transaction; the time of day is passed in.
"""

from hangup.store.jobs.rows import Asked, Claim, File, Job, Result, Used
from hangup.store.jobs.store import JobStore
from hangup.store.jobs.workers import Worker

__all__ = ["Asked", "Claim", "File", "Job", "JobStore", "Result", "Used", "Worker"]
