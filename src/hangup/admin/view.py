"""What the admin side may see of the gateway."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from hangup.core.admission import Seat
from hangup.core.call import Phase
from hangup.core.ledger import Histogram, Ledger


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

    def loop_lag(self) -> Histogram: ...
