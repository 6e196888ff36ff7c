"""The gateway as the admin port sees it: everything is read off what exists, when somebody asks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from hangup.admin.view import Killed
from hangup.app.exchange import Exchange
from hangup.app.gateway import Gateway
from hangup.app.log import Log
from hangup.core import reasons
from hangup.core.admission import Seat
from hangup.core.call import Call, Phase
from hangup.core.ledger import Histogram, Ledger


class AdminView:
    def __init__(self, gateway: Gateway, log: Log, lag: Histogram) -> None:
        self._gateway = gateway
        self._log = log
        self._lag = lag

    @property
    def ledger(self) -> Ledger:
        return self._gateway.ledger

    def now(self) -> float:
        return time.monotonic()

    def ready(self) -> str | None:
        if self._gateway.draining:
            return "draining"
        return None if any(seat.up and not seat.drained for seat in self.seats()) else "no backend is up"

    # Calls

    def calls(self) -> Iterator[Call]:
        return (exchange.call for exchange in self._gateway.calls.values())

    def find(self, id: str) -> Call | None:
        exchange = self._gateway.calls.get(id)
        if exchange is not None:
            return exchange.call
        return next((call for call in reversed(self._gateway.ended_calls) if call.id == id), None)

    def waits_for(self, call: Call) -> str:
        exchange = self._gateway.calls.get(call.id)
        return "" if exchange is None else _waits_for(exchange)

    def engine_let_go(self, call: Call) -> bool | None:
        """Known as soon as the engine finished or never had the call; otherwise it is for the engine to say."""
        return None if call.tokens_after_end is None else True

    def kill(self, id: str) -> Killed | None:
        exchange = self._gateway.calls.get(id)
        if exchange is None:
            return None
        call, backend = exchange.call, exchange.backend
        works = backend is not None and not call.engine_finished
        aborts = works and backend is not None and backend.adapter.abort(call.id) is not None
        cut = works and exchange.engine is not None
        exchange.end(reasons.KILLED)
        self._log.event("killed", id=id, tenant=call.tenant, backend=call.backend)
        return Killed(id, call.tenant, call.model, call.backend, call.tokens_out, cut, aborts, self.engine_let_go(call))

    def phases(self) -> Iterable[Phase]:
        return (exchange.call.phase for exchange in self._gateway.calls.values())

    def queue_depth(self) -> int:
        return self._gateway.admission.queue.count

    # Backends

    def seats(self) -> Iterable[Seat]:
        return self._gateway.admission.fleet.seats

    def backends(self) -> list[dict[str, Any]]:
        return [
            {
                "name": backend.name,
                "engine": backend.adapter.name,
                "state": _state(backend.seat),
                "in_flight": backend.seat.in_flight,
                "limit": backend.seat.limit,
                "limit_learned": not backend.seat.slots,
                "failures": backend.seat.failures,
            }
            for backend in self._gateway.backends.values()
        ]

    def drain(self, backend: str, on: bool) -> bool:
        return self._gateway.drain_backend(backend, on)

    # The process

    def connections(self) -> int:
        return len(self._gateway.connections)

    def counts(self) -> dict[str, int]:
        return {"connections_refused": self._gateway.connections_refused, "log_lines_dropped": self._log.dropped}

    def aborts(self) -> dict[str, int]:
        aborts = self._gateway.aborts
        return {"sent": aborts.sent, "failed": aborts.failed, "skipped": aborts.skipped}

    def loop_lag(self) -> Histogram:
        return self._lag


def _waits_for(exchange: Exchange) -> str:
    call = exchange.call
    match call.phase:
        case Phase.RECEIVING:
            return "the rest of the request"
        case Phase.WAITING:
            return "a free backend"
        case Phase.SENT:
            return "a connection to the engine" if exchange.engine is None else "the engine's answer"
        case Phase.ANSWERING if exchange.client.stalled:
            return "the client to read"
        case Phase.ANSWERING:
            return "the next token" if call.first_token_at is not None else "the first token"
        case _:
            return ""


def _state(seat: Seat) -> str:
    state = "up" if seat.up else "down"
    return f"draining, {state}" if seat.drained and seat.in_flight else f"drained, {state}" if seat.drained else state
