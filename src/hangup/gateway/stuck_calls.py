"""Lists the live calls that wait for an engine's output, and takes them away from an engine that is stuck."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from hangup.core.admission import Ticket
from hangup.core.call import Call, Phase
from hangup.core.reaper import Waiting, reading_s
from hangup.gateway.backends.backend import Backend
from hangup.gateway.placement import Placed
from hangup.tasks import in_slices

_WHOLE_S = 60.0  # an answer that is not streamed may be silent for this much longer
Waits = tuple[Sequence[Waiting], float]  # the longest waits for an engine's output, and when it last sent any
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


class _Longest:
    """The longest waits of an engine's calls. One object for all of them, because there may be ten thousand."""

    __slots__ = ("last_output_at", "reading_s", "since")

    def __init__(self, last_output_at: float) -> None:
        self.since = math.inf
        self.reading_s = 0.0
        self.last_output_at = last_output_at

    def waits(self) -> Waits:
        return (() if self.since == math.inf else (Waiting(self.since, self.reading_s),)), self.last_output_at


def waiting(flows: Iterable[InEngine]) -> dict[Backend, Waits]:
    """Return, by engine, the longest waits for its output, and when it last sent any; by one look at all calls, because there
    may be as many engines as calls."""
    now, found = time.monotonic(), dict[Backend, _Longest]()
    for flow in flows:
        call, backend = flow.call, flow.backend
        if backend is None or flow.may_be_silent or call.phase not in _PHASES or call.engine_finished:
            continue
        longest = found.get(backend)
        if longest is None:
            longest = found[backend] = _Longest(backend.last_output_at)
        since = call.sent_at
        if call.first_token_at is not None:
            since = call.progress_at
            if since > longest.last_output_at:
                longest.last_output_at = since
        elif since is None or flow.ticket is None:
            continue
        else:
            longest.reading_s = max(longest.reading_s, _reading_s(flow.ticket, backend, now))
        if since < longest.since:
            longest.since = since
    return {backend: longest.waits() for backend, longest in found.items()}


def _reading_s(ticket: Ticket[Placed], backend: Backend, now: float) -> float:
    """Return how long a call's first token may take."""
    expected_s = backend.load.estimates.first_token.predict(ticket.tokens_to_read, now)
    return reading_s(ticket.prompt, expected_s) + (_WHOLE_S if ticket.blind else 0.0)


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
