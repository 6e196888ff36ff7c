"""What a gateway process shares with others, whatever carries the messages between them (`core/members` has the decisions).

- `member` is this process's own part: what it reports, and how it uses what it is granted. `quotas` does so for tenants.
- `hub` holds what members reported, and says what to tell them.

`gateway/workers` carries the messages between the processes of one host.
"""
