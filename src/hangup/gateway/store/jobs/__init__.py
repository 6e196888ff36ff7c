"""The store of jobs: tables in SQLite that hold what was promised to a client, until it is done or given up.

`schema` has the tables, `rows` what is read from them; `table` is jobs and items, `files` uploads, `workers` who claims items.
All of it runs in the store's thread (`hangup.gateway.store.database`), inside a transaction; the time of day is passed in.
"""

from hangup.gateway.store.jobs.rows import Claim, File, Job, NewItem, Result, Used
from hangup.gateway.store.jobs.store import JobStore
from hangup.gateway.store.jobs.workers import Worker

__all__ = ["Claim", "File", "Job", "JobStore", "NewItem", "Result", "Used", "Worker"]
