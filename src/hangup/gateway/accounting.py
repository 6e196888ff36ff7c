"""Records the end of a call: counters, log line, trace, and cost."""

from __future__ import annotations

from collections.abc import Iterable

from hangup.config import ReportLimits
from hangup.core.account import FREE, Entry, Price, entry, saved
from hangup.core.admission import Ticket
from hangup.core.call import Call
from hangup.core.ledger import Ledger
from hangup.core.reaper import PendingStop
from hangup.core.reasons import Outcome
from hangup.gateway.backends.backend import Backend
from hangup.gateway.call_lines import CallLines
from hangup.gateway.placement import Placed
from hangup.gateway.store.ledger import LedgerStore
from hangup.gateway.tracing import Tracer

Cost = tuple[float, float, Price]  # engine time (s), expected output tokens, price


class Accounting:
    """Keeps the counters of this process, and passes each ended call to the log, the trace and the ledger."""

    def __init__(self, lines: CallLines, store: LedgerStore | None, tracer: Tracer | None, limits: ReportLimits) -> None:
        self.ledger = Ledger(limits.metric_label_sets_max, limits.metric_histograms_max)
        self.store = store
        self.tracer = tracer
        self.lines = lines
        self._prices: dict[str, Price] = {}

    def take_prices(self, backends: Iterable[Backend]) -> None:
        """Use the prices of these backends."""
        prices = {b.name: Price(b.settings.price_per_hour, b.settings.price_per_million_tokens) for b in backends}
        self._prices = {name: price for name, price in prices.items() if any(price)}

    def price_of(self, backend: str) -> Price:
        return self._prices.get(backend, FREE)

    def record_end(self, call: Call) -> None:
        """Count an ended call, and write its log line and its trace."""
        if self.tracer is not None:
            self.tracer.end(call)  # first: only a call whose trace is kept may be an exemplar
        self.ledger.record(call)
        self.lines.ended(call)

    def record_cost(self, call: Call, ticket: Ticket[Placed] | None) -> None:
        """Add a call to the ledger, unless the gateway answered it itself, at no cost."""
        if self.store is None:
            return
        if call.engine_finished and ticket is not None:  # the usual case: there is nothing to estimate
            self.store.add_call(call, ticket.engine_s, 0.0, self._prices.get(call.backend, FREE))
        elif call.sent_at is not None or call.outcome is not Outcome.COMPLETED:
            self.store.add_call(call, *self._cost(call, ticket))

    def entry(self, call: Call, ticket: Ticket[Placed] | None) -> Entry:
        """Return the ledger entry for an item of a job, which the job adds when it stores the result."""
        return entry(call, *self._cost(call, ticket))

    def note_savings(self, call: Call, ticket: Ticket[Placed] | None, stop: PendingStop) -> None:
        """Note in the stop what the early end of the call is expected to save, if the engine does stop."""
        engine_s, expected, price = self._cost(call, ticket)
        stop.account.saved = saved(call, expected, price.of(engine_s, call.tokens_out))

    def _cost(self, call: Call, ticket: Ticket[Placed] | None) -> Cost:
        if ticket is None or ticket.tenant is None:
            return 0.0, 0.0, FREE
        lengths = None if call.engine_finished else ticket.tenant.lengths(ticket.output_max)
        known = lengths is not None and lengths.known  # too few answers seen to estimate the rest
        expected = ticket.tenant.predict(ticket.output_max) * ticket.choices if known else 0.0
        return ticket.engine_s, expected, self._prices.get(call.backend, FREE)
