"""Jobs: batches, background responses and asynchronous calls, in front of any engine.

    api ──▶ files, batches, responses, messages, calls      one API each: parse requests, render answers
              ▼
            registry         active jobs, their leases and their deadlines
              ▼
            runner ──▶ result_writer      claims items from the store and runs each as a gateway call; writes the results back
              ▼
            item_client      the client of such a call: collects the answer, and hangs up when the job is cancelled

Every acknowledged job is in the store (`hangup.gateway.store.jobs`); the state in this package may be lost with the process.

If a hosted provider runs the jobs (`jobs = "provider"`), only `provider` and `provider_overview` are in use. `provider` learns
of jobs from the requests that the gateway forwards, and follows them:

    gateway.kinds.provider ──▶ provider ──▶ core.provider_job      when to poll, to cancel, to give up
"""
