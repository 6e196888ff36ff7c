"""What the admin side may see of the gateway."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from hangup.core.admission import Seat
from hangup.core.call import Phase
from hangup.core.ledger import Histogram, Ledger


class Reapings(Protocol):
    """What the reaper has done and sees."""

    release_s: Histogram
    releases: Counter[tuple[str, str]]  # backend, verified | unverified
    steps: Counter[tuple[str, str]]  # backend, step of the ladder

    def standing(self) -> Iterable[tuple[str, int, int, int]]:
        """For each backend its name, and how many zombies, orphans and ended calls there are of which nothing is known yet."""


class View(Protocol):
    @property
    def ledger(self) -> Ledger: ...

    def ready(self) -> str | None:
        """None when calls can be served, else why not."""

    def seats(self) -> Iterable[Seat]: ...

    def phases(self) -> Iterable[Phase]:
        """The phase of each live call."""

    def queue_depth(self) -> int: ...

    def connections(self) -> int: ...

    def counts(self) -> dict[str, int]:
        """Plain counters by metric name, without the prefix and the suffix."""

    def aborts(self) -> dict[str, int]:
        """Explicit aborts by result."""

    def reaper(self) -> Reapings: ...

    def loop_lag(self) -> Histogram: ...
