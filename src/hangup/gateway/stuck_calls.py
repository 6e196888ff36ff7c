"""Live calls in an engine of which nothing comes: what is known of them, and where they go when it is given up."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Protocol

from hangup.core.admission import Ticket
from hangup.core.call import Call, Phase
from hangup.core.reaper import Waiting, reading_s
from hangup.gateway.backends.backend import Backend
from hangup.gateway.placement import Placed

_WHOLE_S = 60.0  # of an answer that comes as a whole nothing is seen before its end: so long that says nothing
_PHASES = (Phase.SENT, Phase.ANSWERING)


class InEngine(Protocol):
    """A call that an engine may be working on."""

    may_be_silent: bool  # nothing need come of it for as long as it likes

    @property
    def call(self) -> Call: ...

    @property
    def ticket(self) -> Ticket[Placed] | None: ...

    @property
    def backend(self) -> Backend | None: ...

    @property
    def engine_key(self) -> str: ...

    def abandon(self, why: str) -> None:
        """Goes to another backend if it has not begun, and ends if it has."""

    def fault(self, error: Exception) -> None: ...


def _inside(flows: Iterable[InEngine], backend: Backend) -> Iterator[InEngine]:
    return (f for f in flows if f.backend is backend and f.call.phase in _PHASES and not f.call.engine_finished)


def waiting(flows: Iterable[InEngine], backend: Backend) -> tuple[list[Waiting], float]:
    """Lists the calls that wait for something from this engine, and tells when anything last came from it."""
    now, last_output_at, waits = time.monotonic(), backend.last_output_at, list[Waiting]()
    estimate = backend.load.estimates.first_token
    for flow in _inside(flows, backend):
        call, ticket = flow.call, flow.ticket
        if flow.may_be_silent:
            continue
        if call.first_token_at is not None:
            last_output_at = max(last_output_at, call.progress_at)
            waits.append(Waiting(call.progress_at, 0.0))
        elif call.sent_at is not None and ticket is not None:
            expected = reading_s(ticket.prompt, estimate.predict(ticket.tokens_to_read, now))
            waits.append(Waiting(call.sent_at, expected + (_WHOLE_S if ticket.blind else 0.0)))
    return waits, last_output_at


def keys(flows: Iterable[InEngine], backend: Backend) -> set[str]:
    """Lists the names that this engine knows our live calls by."""
    return {flow.engine_key for flow in flows if flow.backend is backend and flow.engine_key}


def abandon(flows: Iterable[InEngine], backend: Backend, why: str) -> int:
    """Takes all calls away from an engine; returns how many there were."""
    stuck = list(_inside(flows, backend))
    for flow in stuck:
        try:
            flow.abandon(why)
        except Exception as error:  # a bug costs this call, and leaves no other in the engine
            flow.fault(error)
    return len(stuck)
