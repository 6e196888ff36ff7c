"""Simulates an endless supply of job items: some are always queued, and a preempted item returns later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

from hangup.core.admission import Action, Admission, Ticket
from hangup.sim.clock import VirtualClock
from hangup.sim.engine import SimEngine, SimWork
from hangup.sim.load import TraceRequest
from hangup.sim.tally import RunTally

_AHEAD = 4  # queued items
_TICK_S = 1.0  # as in the gateway
_OUTPUT_MAX = 4096
_BACKOFF_S = 1.0  # before a preempted item returns: doubled each time, up to the maximum
_BACKOFF_S_MAX = 60.0
_TENANT = "jobs"


class SimItem:
    """One item, through all its attempts."""

    __slots__ = ("engine", "request", "ticket", "work", "yielded")

    def __init__(self, request: TraceRequest) -> None:
        self.request = request
        self.yielded = 0  # how often it was preempted
        self.ticket: Ticket[SimItem] | None = None
        self.work: SimWork | None = None
        self.engine: SimEngine | None = None


class Supply:
    def __init__(
        self,
        clock: VirtualClock,
        tally: RunTally,
        admission: Admission[Any],
        items: Sequence[TraceRequest],
        carry_out: Callable[[list[Action[Any]]], None],
    ) -> None:
        self._clock = clock
        self._tally = tally
        self._admission = admission
        self._requests = cycle(items)
        self._carry_out = carry_out
        clock.at(clock.now, self._tick, None)

    def _tick(self, _: None, __: int) -> None:
        self._clock.at(self._clock.now + _TICK_S, self._tick, None)
        self._carry_out(self._admission.dispatch(self._clock.now))
        for _turn in range(_AHEAD - self._admission.jobs.count):
            self._put_in_line(SimItem(next(self._requests)))

    def _put_in_line(self, item: SimItem) -> None:
        request = item.request
        item.ticket = Ticket(item, prompt=request.prompt, output_max=_OUTPUT_MAX, job=True)
        self._carry_out(self._admission.arrive(item.ticket, _TENANT, self._clock.now))

    def act(self, ticket: Ticket[Any], engine: SimEngine | None) -> None:
        """Start the item on the engine; without an engine, preempt it on the one that it runs on."""
        item: SimItem = ticket.key
        if engine is not None:
            item.engine = engine
            item.work = SimWork(item, item.request.prompt, item.request.output, self._first_token, self._ended)
            engine.submit(item.work)
            self._put_in_line(SimItem(next(self._requests)))
            return
        assert item.engine is not None and item.work is not None
        if self._tally.open(self._clock.now):
            self._tally.jobs_yielded += 1
        computed = item.engine.abort(item.work)
        self._carry_out(self._admission.end(ticket, self._clock.now, int(computed)))
        pause_s = min(_BACKOFF_S * 2**item.yielded, _BACKOFF_S_MAX)
        item.yielded += 1
        self._clock.at(self._clock.now + pause_s, self._again, item)

    def _again(self, item: SimItem, _: int) -> None:
        self._put_in_line(item)

    def _first_token(self, work: SimWork) -> None:
        self._carry_out(self._admission.first_token(work.owner.ticket, self._clock.now))

    def _ended(self, work: SimWork) -> None:
        item: SimItem = work.owner
        request, ticket, item.ticket = item.request, item.ticket, None
        assert ticket is not None
        if self._tally.open(self._clock.now):
            self._tally.jobs_prompt_tokens += request.prompt
            self._tally.jobs_tokens += request.output
        self._carry_out(self._admission.end(ticket, self._clock.now, request.output, request.prompt, completed=True))
