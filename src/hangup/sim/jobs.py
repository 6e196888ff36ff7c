"""Jobs without end: items are always in line, and one that had to make way comes again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

from hangup.core.admission import Action, Admission, AnyTicket, Ticket
from hangup.sim.clock import Clock
from hangup.sim.engine import Engine, Work
from hangup.sim.load import Request
from hangup.sim.tally import Tally

_AHEAD = 4  # items in line
_TICK_S = 1.0  # as the gateway does it
_OUTPUT_MAX = 4096
_BACKOFF_S = 1.0  # before an item that had to make way comes again: doubled each time, up to
_BACKOFF_S_MAX = 60.0
_TENANT = "jobs"


class Item:
    """One item, through all its attempts."""

    __slots__ = ("engine", "request", "ticket", "work", "yielded")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.yielded = 0  # times that it had to make way
        self.ticket: Ticket[Item] | None = None
        self.work: Work | None = None
        self.engine: Engine | None = None


class Supply:
    def __init__(
        self,
        clock: Clock,
        tally: Tally,
        admission: Admission[Any],
        items: Sequence[Request],
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
            self._put_in_line(Item(next(self._requests)))

    def _put_in_line(self, item: Item) -> None:
        request = item.request
        item.ticket = Ticket(item, prompt=request.prompt, output_max=_OUTPUT_MAX, job=True)
        self._carry_out(self._admission.arrive(item.ticket, _TENANT, self._clock.now))

    def act(self, ticket: AnyTicket, engine: Engine | None) -> None:
        """It starts on the engine, or has to make way on the one that it is on."""
        item: Item = ticket.key
        if engine is not None:
            item.engine = engine
            item.work = Work(item, item.request.prompt, item.request.output, self._first_token, self._ended)
            engine.submit(item.work)
            self._put_in_line(Item(next(self._requests)))
            return
        assert item.engine is not None and item.work is not None
        if self._tally.open(self._clock.now):
            self._tally.jobs_yielded += 1
        computed = item.engine.abort(item.work)
        self._carry_out(self._admission.end(ticket, self._clock.now, int(computed)))
        pause_s = min(_BACKOFF_S * 2**item.yielded, _BACKOFF_S_MAX)
        item.yielded += 1
        self._clock.at(self._clock.now + pause_s, self._again, item)

    def _again(self, item: Item, _: int) -> None:
        self._put_in_line(item)

    def _first_token(self, work: Work) -> None:
        self._carry_out(self._admission.first_token(work.owner.ticket, self._clock.now))

    def _ended(self, work: Work) -> None:
        item: Item = work.owner
        request, ticket, item.ticket = item.request, item.ticket, None
        assert ticket is not None
        if self._tally.open(self._clock.now):
            self._tally.jobs_prompt_tokens += request.prompt
            self._tally.jobs_tokens += request.output
        self._carry_out(self._admission.end(ticket, self._clock.now, request.output, request.prompt, completed=True))
