"""The end of a call in the books: counters, log line, trace, and what it cost."""

from __future__ import annotations

from collections.abc import Iterable

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

Cost = tuple[float, float, Price]  # the call's share of its engine's time, how long such answers are on average, the price


class Accounting:
    """Keeps the counters of this process, and passes each ended call to the log, the trace and the ledger."""

    def __init__(self, lines: CallLines, store: LedgerStore | None, tracer: Tracer | None) -> None:
        self.ledger = Ledger()
        self.store = store
        self.tracer = tracer
        self.lines = lines
        self._prices: dict[str, Price] = {}

    def take_prices(self, backends: Iterable[Backend]) -> None:
        """Takes the prices of the backends that are configured now."""
        prices = {b.name: Price(b.settings.price_per_hour, b.settings.price_per_million_tokens) for b in backends}
        self._prices = {name: price for name, price in prices.items() if any(price)}

    def price_of(self, backend: str) -> Price:
        return self._prices.get(backend, FREE)

    def record_end(self, call: Call) -> None:
        """Counts a call that has ended, and writes its log line and its trace."""
        self.ledger.record(call)
        self.lines.ended(call)
        if self.tracer is not None:
            self.tracer.end(call)

    def record_cost(self, call: Call, ticket: Ticket[Placed] | None) -> None:
        """Adds a call to the ledger; what the gateway answered itself cost nothing, and is left out."""
        if self.store is not None and (call.sent_at is not None or call.outcome is not Outcome.COMPLETED):
            self.store.add_call(call, *self._cost(call, ticket))

    def entry(self, call: Call, ticket: Ticket[Placed] | None) -> Entry:
        """Makes the ledger's entry for an item of a job, to be booked when its result is kept."""
        return entry(call, *self._cost(call, ticket))

    def note_savings(self, call: Call, ticket: Ticket[Placed] | None, stop: PendingStop) -> None:
        """Writes down what the early end of a call is expected to save, if its engine stops."""
        engine_s, expected, price = self._cost(call, ticket)
        stop.account.saved = saved(call, expected, price.of(engine_s, call.tokens_out))

    def _cost(self, call: Call, ticket: Ticket[Placed] | None) -> Cost:
        if ticket is None or ticket.tenant is None:
            return 0.0, 0.0, FREE
        lengths = None if call.engine_finished else ticket.tenant.lengths(ticket.output_max)
        known = lengths is not None and lengths.known  # before that, nobody can tell what the rest would have been
        expected = ticket.tenant.predict(ticket.output_max) * ticket.choices if known else 0.0
        return ticket.engine_s, expected, self._prices.get(call.backend, FREE)
