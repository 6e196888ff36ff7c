"""Jobs: batches, background responses and asynchronous calls, in front of any engine.

    desk ──▶ files, batches, responses, messages, calls      an API each: what is asked for, what is shown
      │          ▼
      │        board       which jobs there are, who cares for them, when their time is up
      │          ▼
      │        runner      claims items from the store and runs each as a call of the gateway's; keeper takes back what comes
      │          ▼
      └──────  errand      the client of such a call: takes the answer, and hangs up when nobody cares any more

What was promised is in the store (`hangup.gateway.store.jobs`); what is here can be lost with the process.

Where a hosted provider has the jobs (`jobs = "provider"`), none of this is there but `provider`, which follows what passes:

    app.passage ──▶ provider ──▶ core.followed      when to look, to cancel, to give up
"""
