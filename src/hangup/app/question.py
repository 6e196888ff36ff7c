"""A question to an engine that costs it no inference: its version, tokens of a text, a response that it keeps, a preflight.

It goes past the queue to a backend that is well, so that it is answered when every place is taken. Which backend has the
answer is not always known: when one says 404, the next is asked.
"""

from __future__ import annotations

import time
from random import random
from typing import TYPE_CHECKING

from hangup.app.carried import PassedOn
from hangup.core import reasons
from hangup.core.call import Clock
from hangup.core.reasons import Reason
from hangup.engines.backend import Backend
from hangup.engines.connection import EngineConnection

if TYPE_CHECKING:
    from hangup.app.exchange import Exchange

_BACKENDS_MAX = 16  # asked for one answer


class Question(PassedOn):
    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self._tried: set[str] = set()
        self._knowing: frozenset[str] | None = None  # the backends that have its model; None: any
        exchange.passage = self

    def body_arrived(self, body: bytes) -> None:
        self._exchange.call.received(time.monotonic())
        self.ask(body)

    def refuse(self, reason: Reason, detail: str = "") -> None:
        self._exchange.refuse(reason, detail)

    def ask(self, body: bytes) -> None:
        """Sends it to the first backend."""
        exchange = self._exchange
        patience_s = min(exchange.client_total_s, exchange.client_read_s)
        exchange.call.clock = Clock(exchange.limits.total_s, client_total_s=patience_s)
        if exchange.gateway.routing.answers(exchange):
            return
        self._knowing = exchange.gateway.routing.knowing(exchange, body)
        backend = self._choose()
        if backend is None:
            exchange.end(reasons.NO_BACKEND)
        else:
            exchange.pass_on(backend, body)

    def elsewhere(self, status: int = 0) -> Backend | None:
        if status not in (0, 404):
            return None
        self._tried.add(self._exchange.call.backend)
        return self._choose(last_resort=not status)  # an answer is better than a failed attempt

    def stays(self, backend: Backend, connection: EngineConnection | None) -> bool:
        if connection is not None:
            connection.abort()
        return True

    def _choose(self, *, last_resort: bool = True) -> Backend | None:
        """The least busy of those that are well; as a last resort any other."""
        backends = self._exchange.gateway.backends
        names = [name for name in self._knowing or backends if name in backends and name not in self._tried]
        seats = [backends[name].seat for name in names]
        if not last_resort:
            seats = [seat for seat in seats if seat.up]
        if not seats or len(self._tried) >= _BACKENDS_MAX:
            return None
        tie = random()  # noqa: S311 (nobody gains by guessing it)
        at = int(tie * len(seats))
        best = min(seats[at:] + seats[:at], key=lambda seat: (not seat.well, not seat.up, seat.in_flight / seat.weight))
        return backends[best.name]
