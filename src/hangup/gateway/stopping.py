"""Ends attempts: releases connection, key and slot exactly once, and gives work that may still run to the reaper.

Attempt ──┬── finish     the engine is done: its connection can serve another call
          ├── withdraw   the engine refused the call or never got it: there is nothing to stop
          └── abort      the engine must stop ──▶ PendingStop ──▶ reaper ──▶ released: slot and place go to the next call
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hangup.core.admission import Ticket
from hangup.core.call import Call
from hangup.core.reaper import PendingStop, Waiting
from hangup.core.reasons import Outcome
from hangup.gateway import stuck_calls
from hangup.gateway.backends.aborts import Aborts
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.connection import EngineConnection
from hangup.gateway.call_lines import CallLines
from hangup.gateway.log import Log
from hangup.gateway.placement import Placed, Placement
from hangup.gateway.reaper import Peers, Reaper
from hangup.gateway.stuck_calls import InEngine, Waits

_LOOK_PAUSE: Final = 20  # after a look at all live calls, in terms of the CPU time that it took,
_LOOK_PAUSE_S_MAX: Final = 0.5  # and at most this


class Attempt:
    """One try of one call at one backend, and all that it holds there."""

    __slots__ = ("abort_sent", "backend", "connection", "key", "slot")

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.connection: EngineConnection | None = None
        self.key = ""  # the engine's id for this attempt; "" until it was sent
        self.slot: int | None = None  # the slot that is pinned for it there
        self.abort_sent: bool | None = None  # whether its engine got an abort by id; None while it was not stopped

    def __repr__(self) -> str:
        return f"<attempt {self.key or 'not sent'} at {self.backend!r}>"


@dataclass(slots=True)
class _Held:
    """The place that an ended call holds until its engine has stopped."""

    kv: int  # its share of the engine's KV cache
    on_confirmed: Callable[[], None] | None = None


class Stopping:
    """Ends attempts, and is the reaper's host, which gives it access to calls and places."""

    def __init__(
        self,
        live: Mapping[str, InEngine],
        placement: Placement,
        log: Log,
        lines: CallLines,
        stories_max: int,
        peers: Peers | None = None,
    ) -> None:
        self.aborts = Aborts()
        self.reaper = Reaper(self.aborts, self, stories_max, peers)
        self.released = asyncio.Event()  # set and cleared at once, to wake all that wait for a release
        self._held: dict[PendingStop, _Held] = {}  # released once, when the reaper is done with the stop
        self._live = live
        self._waits: dict[Backend, Waits] = {}  # by the last look at all live calls,
        self._waits_until = -math.inf  # and until when to use that
        self._placement = placement
        self._log = log
        self._lines = lines  # log lines that wait for the outcome of a stop

    # Ending an attempt

    def finish(self, attempt: Attempt, *, reusable: bool) -> None:
        """Release an attempt that the engine has finished."""
        if attempt.slot is not None:
            attempt.backend.unpin(attempt.slot)
            attempt.slot = None
        if attempt.connection is not None:
            attempt.connection.release(reusable=reusable)
            attempt.connection = None

    def withdraw(self, attempt: Attempt) -> None:
        """Release an attempt that the engine does no work for."""
        attempt.backend.unpin(attempt.slot)
        attempt.slot = None
        if attempt.connection is not None:
            attempt.connection.abort()
            attempt.connection = None

    def stop_early(self, attempt: Attempt) -> None:
        """Stop the engine's work ahead of `abort`."""
        if attempt.key and attempt.abort_sent is None:
            attempt.abort_sent = self.aborts.stop(attempt.backend, attempt.key, attempt.connection)
            attempt.connection = None

    def abort(
        self, attempt: Attempt, call: Call, ticket: Ticket[Placed] | None, choices: int, *, keep_place: bool
    ) -> PendingStop | None:
        """Abort the engine's work on a call, and return the stop, which the reaper watches until the engine is seen to have
        stopped; None if there is nothing to watch. `keep_place`: the ticket's place stays taken until then."""
        backend, key, slot = attempt.backend, attempt.key, attempt.slot
        if not key:
            self.withdraw(attempt)
            return None
        self.stop_early(attempt)
        if attempt.connection is not None:  # opened to ask again, after the early stop; nothing was sent on it
            attempt.connection.abort()
            attempt.connection = None
        now = time.monotonic()
        reads_s = None
        if ticket is not None and ticket.awaits_first_token:
            reads_s = backend.load.estimates.first_token.predict(ticket.tokens_to_read, now)
        stop = PendingStop(
            call.id,
            now,
            key=key,
            slot=slot,
            tokens=call.tokens_out,
            choices=choices,
            reading_s=reads_s,
            abort_sent=bool(attempt.abort_sent),
            tenant=call.tenant,
            model=call.model,
            cause=(call.outcome or Outcome.ENGINE_FAILED).value,
        )
        call.pending_stops += (stop,)
        if not self.reaper.add(backend, stop, first_token=call.first_token_at is not None):
            self.withdraw(attempt)
            return None
        backend.leave_pinned(slot)
        attempt.slot = None  # the stop owns it from here on
        if keep_place and ticket is not None and ticket.placed_on is not None:
            self._held[stop] = _Held(ticket.kv)
        return stop

    def when_confirmed(self, stop: PendingStop, callback: Callable[[], None]) -> None:
        """Call back once the engine has stopped; at once if it already has."""
        held = self._held.get(stop)
        if held is None:
            callback()
        else:
            held.on_confirmed = callback

    # Called by the reaper

    def release(self, backend: Backend, stop: PendingStop) -> None:
        """Free what a stopped call held, because the reaper is done with it."""
        backend.free_slot(stop.slot)  # first: a bug in what follows must not keep the slot or the place
        held = self._held.pop(stop, None)
        try:
            if held is not None:  # else its call went to another backend, or the stop was confirmed before
                try:
                    self._placement.release_held(backend.load, held.kv)
                finally:
                    if held.on_confirmed is not None:
                        held.on_confirmed()
        finally:
            self.released.set()
            self.released.clear()
            self._lines.stop_confirmed(stop)

    def load_changed(self, backend: Backend) -> None:
        self._placement.backend_changed(backend)

    def waiting(self, backend: Backend) -> tuple[Sequence[Waiting], float]:
        """Return the longest waits for the backend's output, and when it last sent any. With thousands of live calls the
        answer may be a little old, because each look at them takes milliseconds."""
        now = time.monotonic()
        if now >= self._waits_until:
            began = time.thread_time()
            self._waits = stuck_calls.waiting(self._live.values())
            self._waits_until = now + min(_LOOK_PAUSE * (time.thread_time() - began), _LOOK_PAUSE_S_MAX)
        waits, last_output_at = self._waits.get(backend) or ((), backend.last_output_at)
        return waits, max(last_output_at, backend.last_output_at)

    def keys(self, backend: Backend) -> set[str]:
        return stuck_calls.keys(self._live.values(), backend)

    async def abandon(self, backend: Backend, why: str) -> int:
        return await stuck_calls.abandon(self._live.values(), backend, why)

    def log_event(self, event: str, **fields: object) -> None:
        self._log.event(event, **fields)

    # Shutdown

    async def close(self, within_s: float = math.inf) -> None:
        await self.reaper.close(within_s)
        self._lines.close()
        await self.aborts.close()
