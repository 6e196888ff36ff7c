"""Measures the current time per token from a sample of running calls: ended calls would show it too late."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple, Protocol

from hangup.core.admission import BackendLoad, Ticket
from hangup.core.call import Call
from hangup.gateway.client.client import ResponseSink
from hangup.gateway.placement import Placed, Placement

_PACE_S = 1.0  # between two samples
_CALLS_MAX = 64  # calls in a sample
_LOOKS_MAX = 1024  # calls to look at for a sample, including unsuitable ones


class Paced(Protocol):
    """The part of a live call that concerns its pace."""

    @property
    def call(self) -> Call: ...

    @property
    def client(self) -> ResponseSink: ...

    @property
    def ticket(self) -> Ticket[Placed] | None: ...

    @property
    def stalls(self) -> int: ...


class _Seen(NamedTuple):
    tokens: int  # per choice
    at: float
    stalls: int


class PaceWatch:
    """Samples running calls once a second."""

    def __init__(self, live: Mapping[str, Paced], placement: Placement, loop: asyncio.AbstractEventLoop) -> None:
        self._live = live
        self._placement = placement
        self._loop = loop
        self._seen: dict[Paced, _Seen] = {}  # state at the last sample
        self._timer = loop.call_later(_PACE_S, self._look)

    def close(self) -> None:
        self._timer.cancel()
        self._seen.clear()

    def _look(self) -> None:
        self._timer = self._loop.call_later(_PACE_S, self._look)  # first, so that an exception cannot end the sampling
        seen: dict[Paced, _Seen] = {}
        steps: list[tuple[BackendLoad, float, float]] = []
        for flow in islice(self._live.values(), _LOOKS_MAX):
            call, ticket = flow.call, flow.ticket
            if ticket is None or ticket.placed_on is None or call.first_token_at is None or flow.client.stalled:
                continue
            now = seen[flow] = _Seen(call.tokens_out // ticket.choices, call.progress_at, flow.stalls)
            before = self._seen.get(flow, now)
            if now.tokens > before.tokens and now.stalls == before.stalls:  # the engine's pace, not a slow reader's
                steps.append((ticket.placed_on, (now.at - before.at) / (now.tokens - before.tokens), now.at))
            if len(seen) == _CALLS_MAX:
                break
        self._seen = seen
        self._placement.steps_seen(steps)
