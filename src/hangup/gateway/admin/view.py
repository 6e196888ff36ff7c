"""What the admin side may see of the gateway, and what it may do to it: kill, drain, undrain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from hangup.core.admission import BackendLoad
from hangup.core.call import Call, Phase
from hangup.core.ledger import Histogram, Ledger
from hangup.tasks import LongTask


class Reapings(Protocol):
    """What the reaper has done and sees."""

    release_s: Histogram
    releases: Counter[tuple[str, str]]  # backend, verified | restarted | unverified
    steps: Counter[tuple[str, str]]  # backend, step of the ladder

    def standing(self) -> Iterable[tuple[str, int, int, int]]:
        """For each backend its name, and how many zombies, orphans and ended calls there are of which nothing is known yet."""


@dataclass(frozen=True, slots=True)
class Killed:
    """A call that an operator has ended, and what was done to its engine."""

    call: Call
    connection_cut: bool
    abort_sent: bool


class JobsView(Protocol):
    """Jobs of all tenants."""

    async def page(self, tenant: str | None, kind: str | None, active: bool, before: str | None, count: int) -> dict[str, Any]:
        """`jobs`, the newest first, and whether there are `more`."""

    def active(self, count: int) -> tuple[int, list[dict[str, Any]]]:
        """How many have not ended, and the newest of them."""

    async def show(self, id: str) -> dict[str, Any] | None: ...

    async def cancel(self, id: str) -> dict[str, Any] | None: ...

    async def prune(self, older_than_s: float, tenant: str | None) -> int: ...

    def counts(self) -> dict[str, Any]:
        """Those under way, for the metrics."""


class GatewayView(Protocol):
    @property
    def ledger(self) -> Ledger: ...

    def now(self) -> float: ...

    def ready(self) -> str | None:
        """None when calls can be served, else why not."""

    def not_running(self) -> list[str]:
        """Tasks and threads that should be running and have failed, in words."""

    def tasks(self) -> Iterable[LongTask]:
        """Those that must go on, and how often each failed."""

    def loop_tasks(self) -> int: ...

    def longest_stall_s(self) -> float:
        """For which the event loop did not come round."""

    def seats(self) -> Iterable[BackendLoad]: ...

    def backends(self) -> list[dict[str, Any]]:
        """Each backend as `GET /api/backends` shows it."""

    def calls(self) -> Iterable[Call]:
        """Those that are live."""

    def find(self, id: str) -> Call | None:
        """A call by its id, live or ended lately."""

    def waits_for(self, call: Call) -> str:
        """What has to happen next in a call, in words."""

    async def find_slots(self) -> None:
        """Asks those engines that know which call is in which slot of theirs; others say it by themselves, or never."""

    def kill(self, id: str) -> Killed | None:
        """Ends a live call, in its engine too; None when there is no such call."""

    async def until_let_go(self, ended: list[Call], within_s: float | None) -> None:
        """Waits until nothing is left to be learned of these calls' engines; for that long, or as long as is set, at most."""

    def zombies(self) -> list[dict[str, Any]]:
        """The last zombies as `GET /api/zombies` shows them, the latest first."""

    def drain(self, backend: str, on: bool) -> bool:
        """Gives a backend no new calls, or again; False when there is no such backend."""

    def orphans(self, backend: str, *, end: bool) -> dict[str, Any] | None:
        """What a backend runs that no call of ours has caused, and what is (`end`) or would be done about it; None when there
        is no such backend."""

    async def report(self, since_s: float, by: str) -> dict[str, Any]:
        """The ledger's sums; HangupError says what is wrong with the question."""

    def history(self) -> list[dict[str, float]]:
        """The last looks at the engines, oldest first."""

    def alarms(self) -> list[dict[str, Any]]:
        """The divergence alarms that last."""

    def ended(self, count: int) -> list[Call]:
        """The calls that ended last, the latest first."""

    def jobs(self) -> JobsView | None:
        """None where there are none."""

    def fault(self, error: Exception) -> None:
        """A bug of ours goes to the log."""

    def phases(self) -> Iterable[Phase]:
        """The phase of each live call."""

    def queue_depth(self) -> int: ...

    def connections(self) -> int: ...

    def media_held_bytes(self) -> int:
        """Of bodies of calls with audio or image files."""

    def body_bytes(self) -> int:
        """Of request bodies that have not come whole yet."""

    def counts(self) -> dict[str, int]:
        """Plain counters by metric name, without the prefix and the suffix."""

    def aborts(self) -> dict[str, int]:
        """Explicit aborts by result."""

    def reaper(self) -> Reapings: ...

    def loop_lag(self) -> Histogram: ...
