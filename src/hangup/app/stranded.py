"""Live calls in an engine of which nothing comes: what is known of them, and where they go when it is given up."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from hangup.app.exchange import Exchange
from hangup.core.call import Phase
from hangup.core.reaper import Waiting, reading_s
from hangup.engines.backend import Backend

_WHOLE_S = 60.0  # of an answer that comes as a whole nothing is seen before its end: so long that says nothing


def _inside(exchanges: Iterable[Exchange], backend: Backend) -> Iterator[Exchange]:
    phases = (Phase.SENT, Phase.ANSWERING)
    return (e for e in exchanges if e.backend is backend and e.call.phase in phases and not e.call.engine_finished)


def waiting(exchanges: Iterable[Exchange], backend: Backend) -> tuple[list[Waiting], float]:
    """The calls that wait for something from this engine, and when anything last came from it."""
    now, heard_at, waits = time.monotonic(), backend.heard_at, list[Waiting]()
    estimate = backend.seat.estimates.first_token
    for exchange in _inside(exchanges, backend):
        call, ticket = exchange.call, exchange.ticket
        if exchange.tunnel is not None:  # it may be silent for as long as it likes
            continue
        if call.first_token_at is not None:
            heard_at = max(heard_at, call.progress_at)
            waits.append(Waiting(call.progress_at, 0.0))
        elif call.sent_at is not None and ticket is not None:
            expected = reading_s(ticket.prompt, estimate.predict(ticket.work, now))
            waits.append(Waiting(call.sent_at, expected + (_WHOLE_S if ticket.blind else 0.0)))
    return waits, heard_at


def keys(exchanges: Iterable[Exchange], backend: Backend) -> set[str]:
    """What this engine calls the live calls in it."""
    return {exchange.key for exchange in exchanges if exchange.backend is backend and exchange.key}


def abandon(exchanges: Iterable[Exchange], backend: Backend, why: str) -> int:
    """Calls that have not begun go to another backend, if there is one; the others are told. How many there were."""
    stuck = list(_inside(exchanges, backend))
    for exchange in stuck:
        exchange.leave_wedged(why)
    return len(stuck)
