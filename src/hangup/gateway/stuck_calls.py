"""Lists the live calls that wait for an engine's output, and takes them away from an engine that is stuck."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Protocol

from hangup.core.admission import Ticket
from hangup.core.call import Call, Phase
from hangup.core.reaper import Waiting, reading_s
from hangup.gateway.backends.backend import Backend
from hangup.gateway.placement import Placed
from hangup.tasks import in_slices

_WHOLE_S = 60.0  # an answer that is not streamed may be silent for this much longer
Waits = tuple[list[Waiting], float]  # calls that wait for an engine's output, and when it last sent any
_PHASES = (Phase.SENT, Phase.ANSWERING)


class InEngine(Protocol):
    """A call that an engine may be working on."""

    may_be_silent: bool  # it may produce no output for any length of time

    @property
    def call(self) -> Call: ...

    @property
    def ticket(self) -> Ticket[Placed] | None: ...

    @property
    def backend(self) -> Backend | None: ...

    @property
    def engine_key(self) -> str: ...

    def abandon(self, why: str) -> None:
        """Move to another backend if the answer has not begun; otherwise end the call."""

    def fault(self, error: Exception) -> None: ...


def _inside(flows: Iterable[InEngine], backend: Backend) -> Iterator[InEngine]:
    return (flow for flow in flows if _is_inside(flow, backend))


def _is_inside(flow: InEngine, backend: Backend) -> bool:
    return flow.backend is backend and flow.call.phase in _PHASES and not flow.call.engine_finished


def waiting(flows: Iterable[InEngine]) -> dict[Backend, Waits]:
    """Return, by engine, the calls that wait for its output, and when it last sent any; by one look at all calls, because
    there may be as many engines as calls."""
    now, found = time.monotonic(), dict[Backend, Waits]()
    for flow in flows:
        call, ticket, backend = flow.call, flow.ticket, flow.backend
        if backend is None or flow.may_be_silent or not _is_inside(flow, backend):
            continue
        waits, last_output_at = found.get(backend) or ([], backend.last_output_at)
        if call.first_token_at is not None:
            last_output_at = max(last_output_at, call.progress_at)
            waits.append(Waiting(call.progress_at, 0.0))
        elif call.sent_at is not None and ticket is not None:
            estimate = backend.load.estimates.first_token
            expected = reading_s(ticket.prompt, estimate.predict(ticket.tokens_to_read, now))
            waits.append(Waiting(call.sent_at, expected + (_WHOLE_S if ticket.blind else 0.0)))
        found[backend] = waits, last_output_at
    return found


def keys(flows: Iterable[InEngine], backend: Backend) -> set[str]:
    """Return the keys by which this engine knows our live calls."""
    return {flow.engine_key for flow in flows if flow.backend is backend and flow.engine_key}


async def abandon(flows: Iterable[InEngine], backend: Backend, why: str) -> int:
    """Take all live calls away from an engine, in slices if there are many; return how many there were."""

    def leave(flow: InEngine) -> None:
        try:
            if _is_inside(flow, backend):
                flow.abandon(why)
        except Exception as error:  # a bug fails this call only; the others must leave the engine, too
            flow.fault(error)

    stuck = list(_inside(flows, backend))
    await in_slices(leave, stuck)
    return len(stuck)
