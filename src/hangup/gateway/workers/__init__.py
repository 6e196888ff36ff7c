"""Several processes on one port: `hangup serve --workers N`.

    clients ──▶ data port ══╦══ worker 0 ══╗
                            ╠══ worker 1 ══╬══▶ engines          each a whole gateway (`server.py`)
                            ╚══ worker 2 ══╝
                                  │ one Unix socket each: reports, grants, questions of the admin port
    operators ─▶ admin port ── supervisor                        holds what is shared (`core/members`); serves no call

- `supervisor` starts the workers, replaces those that die or hang, and passes on signals.
- `process` is one worker as the supervisor sees it, `channel` the messages between them.
- `server` is the worker itself: a `Server` that gets its sockets and its configuration from the supervisor.
- `link` is the worker's end of the channel: it does what the supervisor asks for; `reports` says what the worker has.
- `store_worker` and `store_admin` are for workers that share their state with other hosts by a store: it has the books then.
- `admin` serves the admin port for the whole; `merge` makes one answer of the workers' answers.
"""
