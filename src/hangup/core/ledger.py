"""`Ledger`: totals of where every call and every token went, kept in memory for the metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from hangup.core.call import Call
from hangup.core.reasons import Outcome

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

TOKENS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131072)


# As constants of the module, because Python 3.11 takes as long for a member of an enum as for a function call.
_COMPLETED, _REFUSED = Outcome.COMPLETED, Outcome.REFUSED


class Histogram:
    """Counts by upper bound; the last bucket holds everything above."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


@dataclass(slots=True)
class Ledger:
    """The gateway's totals. `record` is called once for each call, at its end."""

    calls: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # route, outcome, cause
    tokens: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # tenant, backend, delivered | wasted | zombie
    first_token_s: Histogram = field(default_factory=Histogram)
    total_s: Histogram = field(default_factory=Histogram)
    queue_s: Histogram = field(default_factory=Histogram)
    tokens_out: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    tokens_in: Histogram = field(default_factory=lambda: Histogram(TOKENS))

    def record(self, call: Call) -> None:
        reason = call.reason
        assert reason is not None and call.ended_at is not None
        self.calls[call.route, reason.outcome, reason.code] += 1
        if call.tokens_out:
            fate = "delivered" if delivered(call) else "wasted"
            self.tokens[call.tenant, call.backend, fate] += call.tokens_out
        if reason.outcome is _REFUSED:
            return
        self.total_s.observe(call.ended_at - call.started_at)
        if call.sent_at is not None and call.received_at is not None:
            self.queue_s.observe(call.sent_at - call.received_at)
        if call.tokens_in is not None:
            self.tokens_in.observe(call.tokens_in)
        if call.first_token_at is not None:
            self.tokens_out.observe(call.tokens_out)
            self.first_token_s.observe(call.first_token_at - call.started_at)


def delivered(call: Call) -> bool:
    """Return whether the client got the tokens that were counted.

    Tokens of a stream were delivered as they came, however it ended. An answer that is sent as a whole was delivered only if it
    was finished.
    """
    if call.stream:
        return True
    outcome = call.outcome
    return outcome is _COMPLETED or (outcome is Outcome.CAP and call.status == 200)
