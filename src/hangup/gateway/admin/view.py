"""The interface through which the admin side sees the gateway and acts on it: kill, drain, undrain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from hangup.core.admission import BackendLoad
from hangup.core.call import Call, Phase
from hangup.core.histogram import Histogram
from hangup.core.history import History
from hangup.core.ledger import Ledger
from hangup.tasks import LongTask


class Reapings(Protocol):
    """The reaper's counters and current state."""

    release_s: Histogram
    releases: Counter[tuple[str, str]]  # backend, verified | restarted | unverified
    steps: Counter[tuple[str, str]]  # backend, step of the ladder

    def standing(self) -> Iterable[tuple[str, int, int, int]]:
        """Return for each backend its name and its number of zombies, of orphans, and of other ended calls not known to have
        stopped."""


@dataclass(frozen=True, slots=True)
class Killed:
    """A call that an operator ended, and how its engine was stopped."""

    call: Call
    connection_cut: bool
    abort_sent: bool


class JobsView(Protocol):
    """The jobs of all tenants."""

    async def page(self, tenant: str | None, kind: str | None, active: bool, before: str | None, count: int) -> dict[str, Any]:
        """Return `jobs`, newest first, and whether there are `more`."""

    def active(self, count: int) -> tuple[int, list[dict[str, Any]]]:
        """Return how many jobs have not ended, and the newest of them."""

    async def show(self, id: str) -> dict[str, Any] | None: ...

    async def cancel(self, id: str) -> dict[str, Any] | None: ...

    async def prune(self, older_than_s: float, tenant: str | None) -> int: ...

    def counts(self) -> dict[str, Any]:
        """Return counts of active jobs and items, and the counters for the metrics."""


class SharedStateView(Protocol):
    """What operators see of the state that gateways share."""

    up: bool  # the store can be used
    members: int  # gateways that share it


class GatewayView(Protocol):
    shared_state: SharedStateView | None

    @property
    def ledger(self) -> Ledger: ...

    def now(self) -> float: ...

    def ready(self) -> str | None:
        """Return None if calls can be served, else the reason why not."""

    def not_running(self) -> list[str]:
        """Describe the tasks and threads that should be running and have failed."""

    def tasks(self) -> Iterable[LongTask]:
        """Return the long-running tasks, with how often each failed."""

    def loop_tasks(self) -> int: ...

    def longest_stall_s(self) -> float:
        """Return the longest time for which the event loop was blocked."""

    def loads(self) -> Iterable[BackendLoad]: ...

    def backends(self) -> list[dict[str, Any]]:
        """Return each backend as `GET /api/backends` shows it."""

    def calls(self) -> Iterable[Call]:
        """Return the live calls."""

    def find(self, id: str) -> Call | None:
        """Return a call by its id, live or recently ended."""

    def ids(self, prefix: str, *, live: bool) -> Iterator[str]:
        """Yield the ids of calls that begin so: live ones first, then, unless `live`, those that ended lately."""

    def waits_for(self, call: Call) -> str:
        """Describe what has to happen next in a call."""

    async def find_slots(self) -> None:
        """Query the engines that assign slots themselves and report which call is in which; other engines need no query, or
        never say."""

    def kill(self, id: str) -> Killed | None:
        """End a live call, in its engine too; return None if there is no such call."""

    async def wait_for_stops(self, ended: list[Call], within_s: float | None) -> None:
        """Wait until the outcome of these calls is known, or at most for `within_s`; None: the configured time."""

    def zombies(self) -> list[dict[str, Any]]:
        """Return the latest zombies as `GET /api/zombies` shows them, newest first."""

    def drain(self, backend: str, on: bool) -> bool:
        """Stop sending new calls to a backend, or resume; return False if there is no such backend."""

    async def orphans(self, backend: str, *, end: bool) -> dict[str, Any] | None:
        """Return the orphans of a backend, which no call of ours caused, and what is done about them (`end`) or would be; None
        if there is no such backend."""

    async def report(self, since_s: float, by: str) -> dict[str, Any]:
        """Return the ledger's sums; raise `HangupError` if the query is invalid."""

    def history(self) -> History:
        """Return what happened lately."""

    def events(self) -> list[dict[str, Any]]:
        """Return the latest changes of backends, alarms and steps of the ladder, oldest first."""

    def alarms(self) -> list[dict[str, Any]]:
        """Return the active divergence alarms."""

    def ended(self, count: int) -> list[Call]:
        """Return the calls that ended last, newest first."""

    def jobs(self) -> JobsView | None:
        """Return None if jobs are off."""

    def fault(self, error: Exception) -> None:
        """Log a bug of ours."""

    def phases(self) -> Iterable[Phase]:
        """Return the phase of each live call."""

    def queue_depth(self) -> int: ...

    def connections(self) -> int: ...

    def media_held_bytes(self) -> int:
        """Return the size of the bodies held for calls with audio or image files."""

    def body_bytes(self) -> int:
        """Return the size of incomplete request bodies."""

    def counts(self) -> dict[str, int]:
        """Return plain counters by metric name, without the prefix and the suffix."""

    def aborts(self) -> dict[str, int]:
        """Return the number of explicit aborts by result."""

    def reaper(self) -> Reapings: ...

    def loop_lag(self) -> Histogram: ...
