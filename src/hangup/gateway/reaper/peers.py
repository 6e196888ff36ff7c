"""An engine that gets more calls than those of one backend: other gateway processes send some, and one of them judges it for
all; or a reload has replaced its backend, whose calls may finish."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from hangup.core.admission import BackendLoad
from hangup.core.members import EndedCall, StopFinding, Sum, Tally, WholeCount
from hangup.core.reaper import PendingStop, StopState, Waiting
from hangup.gateway.reaper.process import EngineOwner

_NOBODY = Sum()


class Answers(NamedTuple):
    """What the other processes said."""

    expected: tuple[str, ...]  # all that may have calls
    rows: dict[str, Any]  # by process


class Peers(Protocol):
    """The other gateway processes with the same engines, and the way to reach them."""

    @property
    def leads(self) -> bool:
        """Return whether this process judges the engines for all."""

    def hand_in(self, call: EndedCall) -> None:
        """Tell whoever leads, now or later, of a call of ours that ended."""

    def publish(self, rows: Sequence[StopFinding]) -> None:
        """Tell those that had the calls what was found out about them."""

    def publish_trust(self, backend: str, trust: str) -> None:
        """Tell all how far a backend can be trusted."""

    def publish_replaced(self, backend: str) -> None:
        """Tell all that a backend was replaced or removed: what was known of its engine does not count any more."""

    async def may_take(self, backend: str, step: dict[str, Any], rows: Sequence[StopFinding]) -> bool:
        """Record a step before it is taken; return False if this process leads no longer."""

    async def ask(self, what: str, backend: str, fields: dict[str, Any]) -> Answers:
        """Ask all others."""

    def engine_owner(self, backend: str, stop_s: Callable[[], float]) -> EngineOwner:
        """Return who runs the engine of a backend with `spawn`, for all of them."""


class SharedBackend:
    """One backend's part of it; without peers, a process alone.

    `other_loads` returns those of other backends of this process at the same engine.
    """

    def __init__(self, name: str, peers: Peers | None, other_loads: Callable[[], Sequence[BackendLoad]] = list) -> None:
        self._name = name
        self.peers = peers
        self._other_loads = other_loads
        self._placed_before: dict[BackendLoad, int] = {}  # by the other backends here, before the engine was asked
        self._counts = WholeCount()
        self.alone = False  # the others cannot be reached
        self._uncounted_since: float | None = None  # since when somebody has not answered
        self._live_calls = 0  # of other processes, by the last count; at least one if somebody did not answer

    @property
    def leads(self) -> bool:
        return self.peers is None or self.peers.leads

    # What all have there

    @property
    def overlaps(self) -> bool:
        """True if another backend of this process was at the engine at the last count, or is now."""
        return bool(self._placed_before or self._other_loads())

    @property
    def in_flight_here(self) -> int:
        """The calls of other backends of this process."""
        return sum(load.in_flight for load in self._other_loads())

    @property
    def live_calls(self) -> int:
        """The live calls of all others."""
        return self._live_calls + sum(load.in_flight - load.held for load in self._other_loads())

    async def count_before(self) -> bool:
        """Count what the others have, before the engine is asked; return whether there are other processes."""
        self._placed_before = {load: load.placed for load in self._other_loads()}
        if self.peers is None or self.alone:
            return False
        self._counts.note_before(*await self._count(self.peers))
        return True

    async def count_after(self) -> Sum | None:
        """Count what the others have, after the engine has answered; None if its answer cannot be judged."""
        if self.peers is None or self.alone:
            return self._with_others_here(_NOBODY)
        total = self._counts.add_up(*await self._count(self.peers))
        if total is not None:
            self._uncounted_since = None
        elif self._uncounted_since is None:
            self._uncounted_since = time.monotonic()
        return self._with_others_here(total) if total is not None else None

    def _with_others_here(self, total: Sum) -> Sum:
        """Add what other backends of this process have."""
        loads = self._other_loads()
        if not loads:
            return total
        choices = sum(load.choices for load in loads)
        return total._replace(
            live=total.live + choices,
            peak=total.peak + choices,
            placed_between=total.placed_between + sum(load.placed - self._placed_before.get(load, 0) for load in loads),
            unstarted=total.unstarted + sum(load.unstarted for load in loads),
        )

    @property
    def uncounted_s(self) -> float:
        """For how long nobody could say how many calls all have there."""
        return time.monotonic() - self._uncounted_since if self._uncounted_since is not None else 0.0

    async def _count(self, peers: Peers) -> tuple[int, tuple[str, ...], dict[str, Tally]]:
        number = self._counts.next_number()
        expected, rows = await peers.ask("count", self._name, {"number": number, "since": self._counts.since})
        tallies = {member: Tally(*row) for member, row in rows.items()}
        unknown = any(member not in tallies for member in expected)
        self._live_calls = max(sum(tally.calls for tally in tallies.values()), unknown)
        return number, expected, tallies

    async def waiting(self, now: float) -> tuple[list[Waiting], float] | None:
        """Return the longest wait of the others' calls, and when the backend last sent anything to one of them; None if
        somebody does not answer."""
        waits, last_output_at = list[Waiting](), -math.inf
        if self.peers is not None:
            expected, rows = await self.peers.ask("waiting", self._name, {})
            if not all(member in rows for member in expected):
                return None
            for waited_s, reading_s, output_s in rows.values():
                if waited_s is not None:
                    waits.append(Waiting(now - waited_s, reading_s))
                if output_s is not None:
                    last_output_at = max(last_output_at, now - output_s)
        return waits, last_output_at

    async def abandon(self, why: str) -> int:
        """Take the others' calls away from the backend; return how many there were."""
        if self.peers is None:
            return 0
        return sum((await self.peers.ask("abandon", self._name, {"why": why})).rows.values())

    async def restarted(self) -> None:
        """Let the others look anew at an engine that was restarted."""
        if self.peers is not None:
            await self.peers.ask("restarted", self._name, {})

    async def keys(self) -> set[str] | None:
        """Return the keys of the others' live calls; None if somebody does not answer."""
        if self.peers is None:
            return set()
        expected, rows = await self.peers.ask("keys", self._name, {})
        return {key for row in rows.values() for key in row} if all(member in rows for member in expected) else None

    # Ended calls

    def hand_in(self, stop: PendingStop) -> None:
        if self.peers is not None:
            self.peers.hand_in(self.row(stop))

    def publish(self, stop: PendingStop, state: StopState) -> None:
        """Tell what was found out about an ended call, whosever it was."""
        if self.peers is not None:
            self.peers.publish([self._found(stop, state)])

    def publish_trust(self, trust: str) -> None:
        if self.peers is not None and self.peers.leads:
            self.peers.publish_trust(self._name, trust)

    def publish_replaced(self) -> None:
        if self.peers is not None and self.peers.leads:
            self.peers.publish_replaced(self._name)

    async def may_take(self, step: dict[str, Any], zombies: Iterable[PendingStop]) -> bool:
        """Record a step of the ladder before it is taken; return False if another process leads by now."""
        if self.peers is None:
            return True
        return await self.peers.may_take(self._name, step, [self._found(stop, StopState.ZOMBIE) for stop in zombies])

    def _found(self, stop: PendingStop, state: StopState) -> StopFinding:
        return StopFinding(self.row(stop), state.value, stop.tokens_now)

    def row(self, stop: PendingStop) -> EndedCall:
        return EndedCall(
            key=stop.key,
            backend=self._name,
            id=stop.call_id,
            age_s=time.monotonic() - stop.at,
            silent=stop.silent,
            tokens=stop.tokens,
            choices=stop.choices,
            reading_s=stop.reading_s,
            abort_sent=stop.abort_sent,
            tenant=stop.tenant,
            model=stop.model,
            cause=stop.cause,
            member=stop.member,
            zombie=stop.zombie_since is not None,
            aborts=stop.aborts,
        )


def stop_of(call: EndedCall, now: float) -> PendingStop:
    """Return another process's ended call, to be judged here."""
    return PendingStop(
        call.id,
        now - call.age_s,
        key=call.key,
        tokens=call.tokens,
        choices=call.choices,
        reading_s=call.reading_s,
        abort_sent=call.abort_sent,
        tenant=call.tenant,
        model=call.model,
        cause=call.cause,
        member=call.member,
    )
