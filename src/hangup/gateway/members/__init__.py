"""What a gateway process shares with others, whatever carries the messages between them (`core/members` has the decisions).

- `member` is this process's own part: what it reports, and how it uses what it is granted. `quotas` does so for tenants.
- `hub` holds what members reported, and says what to tell them.
- `peers` hands ended calls to the member that judges the engines for all, or answers it; `stop_hub` is the hub's part of that.

`gateway/workers` carries the messages between the processes of one host.
"""
