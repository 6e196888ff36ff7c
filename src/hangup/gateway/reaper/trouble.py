"""What is wrong with an engine besides zombies: it is stuck, does not report what it runs, or is full of orphans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from hangup.core.admission import Trust
from hangup.core.reaper import (
    EngineStatus,
    Ladder,
    LadderTerms,
    Means,
    Orphans,
    PendingStop,
    PendingStops,
    Rung,
    Stillness,
    Waiting,
)
from hangup.gateway.backends.aborts import Aborts
from hangup.gateway.backends.backend import Backend
from hangup.gateway.reaper.peers import SharedBackend


class WatchHost(Protocol):
    """The reaper's host, which owns the slots and writes the log."""

    def release(self, backend: Backend, stop: PendingStop) -> None:
        """Free the slot of a pending call, if it has one."""

    def load_changed(self, backend: Backend) -> None: ...

    def waiting(self, backend: Backend) -> tuple[Sequence[Waiting], float]:
        """Return the longest waits of live calls for output of the backend, and when it last sent anything."""

    async def abandon(self, backend: Backend, why: str) -> int:
        """Move the backend's live calls elsewhere, or fail them with the reason. Return how many there were."""

    def keys(self, backend: Backend) -> set[str]:
        """Return the keys by which the backend knows our live calls."""

    def log_event(self, event: str, **fields: object) -> None: ...


class EngineTrouble:
    def __init__(self, backend: Backend, pending: PendingStops, host: WatchHost, shared: SharedBackend) -> None:
        self._backend = backend
        self._pending = pending
        self._host = host
        self._shared = shared
        self.orphans_to_end = False  # an operator declared that nobody waits for the orphans
        self.stillness = Stillness()
        self.stood_still_until = -math.inf  # while this process did not run, silence says nothing about the engine
        self._waiting: Sequence[Waiting] = ()  # the longest waits of the backend's live calls, at the last check
        self._last_output_at = -math.inf  # when the backend had last sent anything for one of them

    def text(self, now: float, still_s: float, ladder: Ladder, answered_at: float, *, unanswered: bool) -> str:
        """Return what is wrong besides zombies, or "". `answered_at`: when the engine last said what it runs; `unanswered`: it
        did not answer the last question."""
        limits, pending = self._backend.limits, self._pending
        silent_s = now - max(answered_at, self.stood_still_until)
        if silent_s >= limits.wedge_s and self._backend.load.health.up:
            return f"no status report from the engine for {silent_s:.0f} s"
        if pending.zombies and still_s >= limits.still_s:
            return f"no call made progress for {still_s:.0f} s, and {pending.zombies[0].call_id} still runs"
        # Calls that were moved away from a quarantined engine are pending with a new grace period; that does not make the
        # engine any livelier.
        late = pending.all_late(now) or (ladder.rung is Rung.QUARANTINED and bool(pending.held))
        if unanswered and still_s >= limits.still_s and late:
            return f"no call made progress for {still_s:.0f} s, and no status report from the engine for {silent_s:.0f} s"
        frozen_s = min(pending.frozen_s(now), still_s if self._waiting else now - self._last_output_at)
        if frozen_s >= limits.wedge_s:
            return f"busy for {frozen_s:.0f} s without progress"
        if still_s >= limits.wedge_s:
            return f"busy for {still_s:.0f} s without progress on any call"
        slot = pending.frozen_slot(now)
        if slot is not None and slot[1] >= limits.wedge_s:
            return f"slot {slot[0]} busy for {slot[1]:.0f} s without progress"
        return self._orphaned(now, ladder)

    def _orphaned(self, now: float, ladder: Ladder) -> str:
        """Return why orphans need action, or "": they are worth a restart, or a quarantine if they leave no room."""
        limits, pending = self._backend.limits, self._pending
        if self.orphans_to_end:
            self.orphans_to_end = pending.unexplained > 0
        if self.orphans_to_end:
            return "an operator requested a kill of its orphans"
        if not limits.orphans_s or pending.orphaned_s(now) < limits.orphans_s:
            return ""
        if not ladder.terms.restart and not self.full_of_orphans():
            return ""
        return f"{pending.orphans} orphans ran before this gateway started, and no other client seems to use the engine"

    def orphans(self, status: EngineStatus | None, terms: LadderTerms) -> Orphans:
        """Return what the backend runs that neither is nor was ours, and what an operator's command would do about it."""
        return Orphans.of(
            self._pending.orphans,
            named=status is not None and status.calls is not None and self._backend.facts.can_abort,
            restart=terms.quarantine and terms.restart,
            closes=terms.quarantine and self.full_of_orphans(),
        )

    async def end_orphans(self, status: EngineStatus | None, terms: LadderTerms, aborts: Aborts) -> Orphans:
        """End the orphans, because an operator declares that nobody waits for them."""
        found = self.orphans(status, terms)
        if found.means is Means.ABORT and status is not None and status.calls is not None:
            others = await self._shared.keys()
            if others is None:
                return found._replace(means=Means.NOTHING)
            ours = self._host.keys(self._backend) | others | {stop.key for stop in self._pending.held}
            for key in status.calls.keys() - ours:
                aborts.send(self._backend, key)
        self.orphans_to_end = found.means in (Means.RESTART, Means.QUARANTINE)
        self._host.log_event("orphans_kill_requested", backend=self._backend.name, count=found.calls, means=found.means.value)
        return found

    def full_of_orphans(self) -> bool:
        return 0 < self._backend.load.slots <= self._pending.orphans

    @property
    def may_be_seen(self) -> bool:
        """False if a look would show nothing: nobody has a call there, and the engine does not tell what it runs."""
        backend, shared = self._backend, self._shared
        is_silent = not backend.reports_status and shared.peers is None
        is_idle = not backend.load.in_flight and backend.load.health.trust is Trust.TRUSTED and not shared.live_calls
        return not (is_silent and is_idle)

    async def still_s(self, status: EngineStatus | None, now: float) -> float:
        """Return for how long the engine has sent nothing to any live call; look at calls only if its status is frozen, or None
        because it did not report it."""
        pending = self._pending
        self._waiting = ()
        if status is not None and not status.work:
            self.stillness.reset()
            return -math.inf
        if status is not None and status.shows_progress and pending.frozen_since is None:
            return -math.inf
        others = await self._shared.waiting(now)
        if others is None:
            self._last_output_at = now  # somebody may have received something just now, so nothing is known to be frozen
            return -math.inf
        waiting, last_output_at = self._host.waiting(self._backend)
        self._waiting = [*waiting, *others[0]]
        self._last_output_at = max(last_output_at, others[1], self.stood_still_until)
        return self.stillness.look(self._waiting, self._last_output_at, now)
