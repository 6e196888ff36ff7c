"""The job store: tables that hold every acknowledged job until it has ended and its retention has passed.

`schema` defines the tables and `rows` the values read from them. `table` has jobs and items, `files` uploads, `workers` the
processes that run items, `clock` the latest time seen. `postgresql` has what differs on a server. All of it runs in the store's
thread (`hangup.gateway.store.worker_thread`), inside a transaction; callers pass in the wall-clock time.

Theory of operation

Several gateway processes may use one store. Nothing that they keep in memory is a promise: a job is acknowledged to its client
only after the transaction that inserted it is on disk (in SQLite: WAL, `synchronous = FULL`). The store guarantees
that each item of an acknowledged job ends exactly once. It does not guarantee that an item runs only once: an item whose worker
dies runs again.

    submit ──▶ QUEUED ── claim: worker = W, fence + 1 ──▶ CLAIMED ── finish, if the fence matches ──▶ an end state
                 ▲                                          │
                 └── give back: not run, or worker W died ──┘ (ends as cancelled or expired if its job is being cancelled)

Workers. Each process registers a row in `worker` and increments its `beats` every two seconds (`JobRegistry`). Worker ids and
job keys are never reused, so that a late writer cannot match a newer row.

Claims. `JobTable.claim` moves queued items to CLAIMED, sets their worker and increments their fence. SQLite runs one writing
transaction at a time, so two workers cannot claim the same item. PostgreSQL runs several: whoever changes a job or its items
locks the row of the job first, and a claim takes jobs that nobody has locked, if there are any. A worker without a row in
`worker` cannot claim anything, because nobody would requeue its claims.

Fences. The fence counts the claims of an item. `finish` and `give_back` change an item only if it is still CLAIMED under the
fence of the caller's claim. If a worker was declared dead and its item was requeued, the item is QUEUED, or CLAIMED under a
higher fence, or has ended; in each case the late result changes nothing. `finish` then returns None, and `ResultWriter` counts
the result as refused and books its cost as wasted.

Exactly once. An item leaves QUEUED or CLAIMED for an end state, and no statement moves it back. One transaction sets the end
state, stores the result, updates the counts of the job and, with the last item, ends the job. `ResultWriter` books a result in
the ledger only after that transaction, so an item that runs again after a crash is not billed twice. A write may be repeated
after an error that left its outcome unknown: if the first attempt did reach the disk, the second finds the item ended, under
the same fence and with the same result, and counts it as written.

Cancelling. `cancel` ends the queued items at once and marks the job CANCELLING. Claimed items stay CLAIMED until their worker
has stopped them and the reaper has settled the stop (the engine shows it, or nothing could be learned), so a job is shown as
cancelled only when none of its items is claimed. Other processes see the change within a tick and stop the items that they run.

When a process dies. The database discards its unfinished transaction; its claims stay. The other workers, or the next process
to start, declare it dead: at once if it ran on the same host and its process is gone, otherwise when its beats have not moved
for `job_worker_silence_s`. One transaction requeues its claims and deletes its row; a process that shuts down does this for
itself. Claims whose worker has no row are requeued as well. A job whose input lines it was checking is adopted by another
worker, which checks them from the first line. A process that was declared dead while it hung notices at its next beat: it
registers as a new worker, stops its calls and gives back their items; the fences make that harmless where another worker
already has them. An item that the store assigned to a live worker which does not know of it (the claim was committed, but
reported as failed) is given back after two beats.

When the disk is full, the file is locked or cannot be written, or the server is away. The whole transaction is rolled back, and
every caller whose work was in it gets `StoreFailed`. Until a write succeeds again, the gateway refuses new jobs and claims no
items. Running items go on. `ResultWriter` holds results, returned claims and cancels in memory and retries, after pauses that
grow from 1 to 30 seconds; a cancel stops the engines at once and is written later. If the process dies first, what it held is
lost: its items are still CLAIMED on disk, so they are requeued and run again. If the file was deleted or replaced, all work
fails the same way, because anything written to the open file would be lost. A damaged page fails only the work that reads it
(`StoreDamaged`).

Time. Leases and heartbeats use each process's monotonic clock, so a change of the system clock cannot end a job. Retention uses
a `SteadyClock` that resumes from the time in `clock` and limits how fast it follows a clock that was set ahead.
"""

from hangup.gateway.store.jobs.rows import Claim, File, ItemEnd, Job, NewItem, NewJob, Result, Used
from hangup.gateway.store.jobs.store import JobStore
from hangup.gateway.store.jobs.workers import Worker

__all__ = ["Claim", "File", "ItemEnd", "Job", "JobStore", "NewItem", "NewJob", "Result", "Used", "Worker"]
