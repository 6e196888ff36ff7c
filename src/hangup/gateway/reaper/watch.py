"""The reaper's loop over one backend: queries what it runs, lets `PendingStops` decide, and carries out the `Ladder`'s steps.

It queries soon after a call ended early, then at the engine's own pace; and now and then without a reason, to find orphans and
a stuck engine. It never has more than one query in flight.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Protocol

from hangup.core.admission import HealthEvent
from hangup.core.reaper import (
    EngineStatus,
    Ladder,
    LadderStep,
    LadderTerms,
    Means,
    Orphans,
    PendingStop,
    PendingStops,
    Rung,
    Stillness,
    StopState,
    Waiting,
)
from hangup.errors import EngineFault, EngineSilent, OutOfResources
from hangup.gateway.backends.aborts import Aborts
from hangup.gateway.backends.adapters import EngineAdapter, Seen
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.fetch import fetch
from hangup.gateway.backends.health import check
from hangup.gateway.backends.loop_beats import BEATS, STOOD_STILL_S
from hangup.gateway.reaper import canary, restart
from hangup.gateway.reaper.process import Spawned
from hangup.gateway.reaper.stats import ReaperStats
from hangup.tasks import TASKS, in_slices

_FIRST_LOOK_S = 0.02  # after a call ended: most engines have stopped it by then
_FRESH_S = 0.5  # for so long after a call ended the quicker pace is worthwhile
_BLIND_PACE_S = 0.05  # pause between checks of pending calls on an engine that reports no status
_AFTER_ABORT_S = 2.0  # an engine that dies this soon after an abort has probably died of it
_HEALTH_PAUSE_S = 0.2
_JUST_AFTER_S = 0.001


class WatchHost(Protocol):
    """The reaper's host, which owns the slots and writes the log."""

    def release(self, backend: Backend, stop: PendingStop) -> None:
        """Free the slot of a pending call, if it has one."""

    def load_changed(self, backend: Backend) -> None: ...

    def waiting(self, backend: Backend) -> tuple[Sequence[Waiting], float]:
        """Return the live calls that wait for output of the backend, and when it last sent anything."""

    async def abandon(self, backend: Backend, why: str) -> int:
        """Move the backend's live calls elsewhere, or fail them with the reason. Return how many there were."""

    def keys(self, backend: Backend) -> set[str]:
        """Return the keys by which the backend knows our live calls."""

    def log_event(self, event: str, **fields: object) -> None: ...


class BackendWatch:
    def __init__(self, backend: Backend, aborts: Aborts, host: WatchHost, stats: ReaperStats) -> None:
        self.backend = backend
        self.ladder = Ladder(_terms(backend))
        self.pending_stops = PendingStops(0.0, prefill_grace_s=backend.limits.prefill_grace_s, shared=backend.settings.shared)
        self.status: EngineStatus | None = None  # the latest
        self._aborts = aborts
        self._host = host
        self._stats = stats
        self._adapter: EngineAdapter | None = None
        self._reports_status = False
        self._judged = False  # pending calls are judged by the engine's own status
        self._named: set[str] = set()  # keys of the zombies that were logged
        self._orphans_to_end = False  # an operator declared that nobody waits for the orphans
        self._stillness = Stillness()
        self._waiting: Sequence[Waiting] = ()  # the backend's live calls at the last check
        self._last_output_at = -math.inf  # when the backend had last sent anything for one of them
        self._stood_still_until = -math.inf  # while this process did not run, silence says nothing about the engine
        self._stood_still_s = BEATS.stood_still_s()  # in all, up to the last look
        self._asked_at = time.monotonic()
        self._answered_at = self._asked_at
        self._aborted_at = 0.0
        self._wake = asyncio.Event()
        self._due = math.inf  # the end of the next grace period
        self._due_timer: asyncio.TimerHandle | None = None  # fires then
        self._spawned = Spawned(backend, self._log_event) if backend.settings.spawn else None
        self._task = TASKS.keep("reaper", self._run)

    def __repr__(self) -> str:
        return f"<watch {self.backend.name} {self.ladder!r} {self.pending_stops!r}>"

    def add(self, stop: PendingStop, *, first_token: bool) -> None:
        """Take a call that ended while the engine worked on it."""
        self._learn()
        self.pending_stops.add(stop, first_token=first_token or not self._reports_status)
        self._aborted_at = stop.at
        self._wake.set()
        if stop.due < self._due:
            self._look_again_at(stop.due)

    def take_limits(self) -> None:
        """Apply the backend's new limits."""
        self.ladder.terms = _terms(self.backend)
        self.pending_stops.prefill_grace_s = self.backend.limits.prefill_grace_s
        self._adapter = None  # makes `_learn` compute the grace period again
        self._learn()

    def look(self) -> None:
        """Check the backend soon, instead of at the next interval."""
        self._learn()
        self._wake.set()

    def orphans(self) -> Orphans:
        """Return what the backend runs that neither is nor was ours, and what an operator's command would do about it."""
        return Orphans.of(
            self.pending_stops.orphans,
            named=self.status is not None and self.status.calls is not None and self.backend.facts.can_abort,
            restart=self.ladder.terms.quarantine and self.ladder.terms.restart,
            closes=self.ladder.terms.quarantine and self._full_of_orphans(),
        )

    def end_orphans(self) -> Orphans:
        """End the orphans, because an operator declares that nobody waits for them. Our own live calls on the engine are not
        harmed."""
        found = self.orphans()
        if found.means is Means.ABORT and self.status is not None and self.status.calls is not None:
            ours = self._host.keys(self.backend) | {stop.key for stop in self.pending_stops.held}
            for key in self.status.calls.keys() - ours:
                self._aborts.send(self.backend, key)
        self._orphans_to_end = found.means in (Means.RESTART, Means.QUARANTINE)
        self._log_event("orphans_kill_requested", count=found.calls, means=found.means.value)
        self._wake.set()
        return found

    async def close(self) -> None:
        self._look_again_at(math.inf)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._spawned is not None:
            await self._spawned.close()

    # The loop

    async def _run(self) -> None:
        while True:
            await self._pause()
            try:
                await self._look()
            except Exception as error:  # a bug of ours must not end the loop
                self._log_fault(error)

    async def _pause(self) -> None:
        """Wait until there is something to check and the engine may be queried again."""
        if not self.pending_stops.held and self.ladder.rung is Rung.HEALTHY and not self.backend.slots.in_doubt:
            self._wake.clear()
            try:
                async with asyncio.timeout(max(self.backend.limits.health_interval_s, self.backend.adapter.poll_s)):
                    await self._wake.wait()
            except TimeoutError:
                return
            await asyncio.sleep(self._first_look_s())
        await asyncio.sleep(max(0.0, self._asked_at + self._pace_s() - time.monotonic()))

    def _first_look_s(self) -> float:
        adapter = self.backend.adapter
        return adapter.poll_s if adapter.disturbed and any(stop.silent for stop in self.pending_stops.held) else _FIRST_LOOK_S

    def _pace_s(self) -> float:
        adapter, now = self.backend.adapter, time.monotonic()
        if not self._reports_status:
            return _BLIND_PACE_S
        fresh = all(not stop.silent and now - stop.at < _FRESH_S for stop in self.pending_stops.held)
        return adapter.quick_poll_s if adapter.quick_poll_s is not None and fresh else adapter.poll_s

    async def _look(self) -> None:
        self._learn()
        self._allow_for_standstill()
        self._asked_at = asked_at = time.monotonic()
        if self._reports_status and self.ladder.rung is not Rung.RESTARTING:
            await self._ask(asked_at)
        else:
            self._answered_at = asked_at
            await self._release(self.pending_stops.take_expired(asked_at), StopState.UNVERIFIED)
        now = time.monotonic()
        load = self.backend.load
        still_s = self._still_s(now)
        trouble = self._trouble(now, still_s)
        live = load.in_flight - load.held
        for step in self.ladder.advance(now, self.pending_stops.zombies, trouble, live):
            await self._carry_out(step)
        if self.ladder.rung is Rung.QUARANTINED and still_s >= self.backend.limits.still_s and live:
            await self._abandon(f"No call made progress for {still_s:.0f} s, and the engine did not stop ended calls.")
        self._apply_health_event(self._health_event(time.monotonic()))
        self._look_again_at(self.pending_stops.next_due(time.monotonic()))

    def _allow_for_standstill(self) -> None:
        """Give the engine as much more time as this process stood still: it may have told the engine only after that."""
        total_s = BEATS.stood_still_s()
        if total_s > self._stood_still_s:
            self.pending_stops.extend(total_s - self._stood_still_s)
            self._stood_still_s = total_s

    @property
    def _unanswered(self) -> bool:
        """True if the last query was not answered, whatever the engine reported before."""
        return self._answered_at < self._asked_at

    async def _ask(self, asked_at: float) -> None:
        backend, pending = self.backend, self.pending_stops
        placed, taken = backend.load.placed, backend.slots.taken
        try:
            answer = await fetch(backend, "GET", backend.adapter.status_path, timeout_s=self.backend.limits.status_timeout_s)
        except EngineSilent:
            now = time.monotonic()
            if now - asked_at > self.backend.limits.status_timeout_s + STOOD_STILL_S:
                # This process stood still, stopped or short of CPU: the engine's answer may be waiting to be read.
                self._stood_still_until, self._asked_at = now, self._answered_at
                return
            pending.unanswered(asked_at, now)
            self._name_zombies()
            return
        except OutOfResources:  # this process could not ask: that says nothing about the engine
            self._stood_still_until, self._answered_at = time.monotonic(), asked_at  # at the usual pace: it fails at once
            return
        except EngineFault as fault:
            await self._engine_unreachable(fault)
            return
        self._allow_for_standstill()
        now = time.monotonic()
        seen = Seen(answer.head.status, "", answer.body)
        self.status = status = backend.adapter.read_status(seen)
        self._answered_at = now
        if status is None:
            await self._release(pending.take_expired(now), StopState.UNVERIFIED)
            return
        load = backend.load
        pinned = backend.pinned == load.in_flight - load.held
        orphans = pending.orphans
        unseen = max(load.placed - placed, load.unstarted if backend.adapter.counts_steps else 0)
        stopped = pending.observe(status, asked_at, now, load.choices, load.take_peak(), unseen=unseen, pinned=pinned)
        await self._release(stopped, StopState.VERIFIED)
        await self._release(pending.take_expired(now), StopState.UNVERIFIED)
        self._name_zombies()
        self._look_at_slots(status, taken)
        if pending.orphans and not orphans:
            self._log_event("orphans_found", count=pending.orphans, running=status.running, waiting=status.waiting)

    def _look_at_slots(self, status: EngineStatus, taken: frozenset[int]) -> None:
        """Subtract foreign work from the backend's room, and follow a restarted engine that has another number of slots."""
        backend = self.backend
        load, pool = backend.load, backend.slots
        occupied = self.pending_stops.orphans if self._judged else 0
        if status.slots is not None and pool.count:
            if len(status.slots) != pool.count:
                pool.resize(len(status.slots))
                backend.facts_known = False
            occupied = pool.occupied(status.slots, taken)
        if load.occupied != occupied:
            load.occupied = occupied
            self._host.load_changed(backend)

    def _learn(self) -> None:
        """Update what depends on the adapter: the backend may have been recognised since."""
        backend = self.backend
        self.ladder.can_abort = backend.facts.can_abort
        if backend.adapter is self._adapter and backend.reports_status == self._reports_status:
            return
        self._adapter, self._reports_status = backend.adapter, backend.reports_status
        self._judged = judged = self._reports_status and (backend.adapter.names_calls or not backend.settings.shared)
        usual = self.backend.limits.release_grace_s or backend.adapter.grace_s
        self.pending_stops.grace_s = usual if judged else backend.adapter.blind_hold_s
        self.pending_stops.lag_s = backend.adapter.lag_s if judged else 0.0

    def _trouble(self, now: float, still_s: float) -> str:
        """Return what is wrong besides zombies, or ""."""
        limits, pending = self.backend.limits, self.pending_stops
        silent_s = now - max(self._answered_at, self._stood_still_until)
        if silent_s >= limits.wedge_s and self.backend.load.health.up:
            return f"no status report from the engine for {silent_s:.0f} s"
        if pending.zombies and still_s >= limits.still_s:
            return f"no call made progress for {still_s:.0f} s, and {pending.zombies[0].call_id} still runs"
        # Calls that were moved away from a quarantined engine are pending with a new grace period; that does not make the
        # engine any livelier.
        late = pending.all_late(now) or (self.ladder.rung is Rung.QUARANTINED and bool(pending.held))
        if self._unanswered and still_s >= limits.still_s and late:
            return f"no call made progress for {still_s:.0f} s, and no status report from the engine for {silent_s:.0f} s"
        frozen_s = min(pending.frozen_s(now), still_s if self._waiting else now - self._last_output_at)
        if frozen_s >= limits.wedge_s:
            return f"busy for {frozen_s:.0f} s without progress"
        if still_s >= limits.wedge_s:
            return f"busy for {still_s:.0f} s without progress on any call"
        slot = pending.frozen_slot(now)
        if slot is not None and slot[1] >= limits.wedge_s:
            return f"slot {slot[0]} busy for {slot[1]:.0f} s without progress"
        return self._orphaned(now)

    def _orphaned(self, now: float) -> str:
        """Return why orphans need action, or "": they are worth a restart, or a quarantine if they leave no room."""
        limits, pending = self.backend.limits, self.pending_stops
        if self._orphans_to_end:
            self._orphans_to_end = pending.unexplained > 0
        if self._orphans_to_end:
            return "an operator requested a kill of its orphans"
        if not limits.orphans_s or pending.orphaned_s(now) < limits.orphans_s:
            return ""
        if not self.ladder.terms.restart and not self._full_of_orphans():
            return ""
        return f"{pending.orphans} orphans ran before this gateway started, and no other client seems to use the engine"

    def _full_of_orphans(self) -> bool:
        return 0 < self.backend.load.slots <= self.pending_stops.orphans

    def _still_s(self, now: float) -> float:
        """Return for how long the engine has sent nothing to any live call; look at calls only if its status is frozen."""
        status, pending = None if self._unanswered else self.status, self.pending_stops
        self._waiting = ()
        if status is not None and not status.work:
            self._stillness.reset()
            return -math.inf
        if status is not None and status.shows_progress and pending.frozen_since is None:
            return -math.inf
        self._waiting, last_output_at = self._host.waiting(self.backend)
        self._last_output_at = max(last_output_at, self._stood_still_until)
        return self._stillness.look(self._waiting, self._last_output_at, now)

    async def _abandon(self, why: str) -> None:
        count = await self._host.abandon(self.backend, why)
        if count:
            self._log_event("calls_evicted", calls=count, reason=why)

    async def _engine_unreachable(self, fault: EngineFault) -> None:
        """Handle an engine that refuses connections or closed ours: a process that is gone has no work."""
        now = time.monotonic()
        if self.pending_stops.held and now - self._aborted_at < _AFTER_ABORT_S:
            self._log_event("engine_died_after_abort", after_s=round(now - self._aborted_at, 3), error=fault.detail)
        self._answered_at = now  # the health check handles a backend that is down
        self.pending_stops.unexplained = 0
        await self._release(self.pending_stops.take_expired(now), StopState.UNVERIFIED)

    # Actions

    async def _carry_out(self, step: LadderStep) -> None:
        self._stats.steps[self.backend.name, step.what] += 1
        stop = step.stop
        self._log_event("ladder_step_taken", step=step.what, reason=step.reason, id=stop.call_id if stop is not None else None)
        if step.what == "abort" and stop is not None:
            self._aborted_at = time.monotonic()
            self._aborts.send(self.backend, stop.key)
        elif step.what == Rung.QUARANTINED:
            self._apply_health_event(HealthEvent.QUARANTINED)
        elif step.what == Rung.RESTARTING:
            await self._restart()
        elif step.what == Rung.CANARY:
            await self._canary()
        elif step.what == Rung.HEALTHY:
            self._apply_health_event(HealthEvent.TAKEN_BACK)

    async def _restart(self) -> None:
        await self._abandon("hangup is restarting the engine.")
        why = await self._start_anew()
        if not why:
            self._stillness.reset()
            await self._release(self.pending_stops.reset(), StopState.RESTARTED)
            self.backend.facts_known = False
        for step in self.ladder.restarted(not why, time.monotonic(), why):
            await self._carry_out(step)

    async def _start_anew(self) -> str:
        settings, limits = self.backend.settings, self.backend.limits
        if self._spawned is not None:
            why = await self._spawned.restart()
        else:
            why = await restart.run(
                restart.command(settings.restart_command, settings), settings.hidden_variables, limits.restart_s
            )
        if why:
            return why
        fault: str | None = ""
        try:
            async with asyncio.timeout(limits.restart_s):
                while fault := await _checked(self.backend):  # noqa: ASYNC110 (nobody will tell)
                    await asyncio.sleep(_HEALTH_PAUSE_S)
        except TimeoutError:
            return f"still unhealthy after {limits.restart_s:g} s: {fault}"
        return ""

    async def _canary(self) -> None:
        why = await self._send_canary() if self.backend.settings.canary else ""
        for step in self.ladder.canary(not why, time.monotonic(), why):
            await self._carry_out(step)

    async def _send_canary(self) -> str:
        while True:
            try:
                return await canary.send(self.backend, self.backend.limits.canary_s)
            except OutOfResources:  # nothing was learned about the engine, which a few failed canaries would restart
                await asyncio.sleep(_HEALTH_PAUSE_S)

    async def _release(self, stops: Iterable[PendingStop], how: StopState) -> None:
        await in_slices(partial(self._release_one, how), stops)

    def _release_one(self, how: StopState, stop: PendingStop) -> None:
        stop.release(how, now := time.monotonic())
        self._stats.releases[self.backend.name, how] += 1
        if how is StopState.VERIFIED:
            self._stats.release_s.observe(now - stop.at)
        if stop.zombie_since is not None:
            what = {"after_s": round(now - stop.at, 3), "tokens": stop.tokens_after, "tokens_exact": stop.tokens_exact}
            self._log_event("zombie_gone", id=stop.call_id, slot=stop.slot, **what)
        try:
            self._host.release(self.backend, stop)
        except Exception as error:  # the others are not pending any more either, and nobody else would free their slots
            self._log_fault(error)

    def _name_zombies(self) -> None:
        known = self._named
        self._named = {stop.key for stop in self.pending_stops.zombies}  # by key, because a client may reuse an id
        for stop in self.pending_stops.zombies:
            if stop.key not in known:
                self._stats.remember(self.backend.name, stop)
                since_s = round(time.monotonic() - stop.at, 3)
                self._log_event("zombie_found", id=stop.call_id, slot=stop.slot, since_s=since_s, tokens=stop.tokens_since)

    def _apply_health_event(self, event: HealthEvent) -> None:
        if self.backend.load.health.apply(event):
            self._host.load_changed(self.backend)

    def _health_event(self, now: float) -> HealthEvent:
        """Return what this look means for the backend's health."""
        if self.ladder.rung is not Rung.HEALTHY or (self._unanswered and self.pending_stops.overdue(now)):
            return HealthEvent.FOUND_ZOMBIE
        return HealthEvent.FOUND_LATE if self._may_be_late(now) else HealthEvent.FOUND_CLEAN

    def _may_be_late(self, now: float) -> bool:
        return self._judged and self.pending_stops.late(now)

    def _grace_over(self) -> None:
        """Prefer other backends as soon as a grace period is over, without waiting for the engine's answer. A status that comes
        late, or not at all, convicts the engine later; until then a healthy engine only loses its place in the order of choice.
        """
        now = time.monotonic()
        self._look_again_at(self.pending_stops.next_due(now))
        if self._may_be_late(now):
            self._apply_health_event(HealthEvent.GRACE_OVER)

    def _look_again_at(self, due: float) -> None:
        if self._due_timer is not None:
            self._due_timer.cancel()
        self._due, self._due_timer = due, None
        if due < math.inf:
            delay_s = max(0.0, due - time.monotonic()) + _JUST_AFTER_S
            self._due_timer = asyncio.get_running_loop().call_later(delay_s, self._grace_over)

    def _log_fault(self, error: Exception) -> None:
        self._log_event("reaper_check_failed", type=type(error).__name__, text=str(error)[:200])

    def _log_event(self, event: str, **fields: object) -> None:
        self._host.log_event(event, backend=self.backend.name, **fields)


async def _checked(backend: Backend) -> str | None:
    try:
        return await check(backend)
    except OutOfResources as lack:
        return lack.detail


def _terms(backend: Backend) -> LadderTerms:
    settings, limits = backend.settings, backend.limits
    return LadderTerms(
        aborts_max=limits.abort_again_max if settings.abort_again else 0,
        abort_backoff_s=limits.abort_backoff_s,
        quarantine=settings.quarantine,
        restart=bool(settings.restart_command or settings.spawn),
        force=settings.restart_force,
        restart_wait_s=limits.restart_wait_s,
        restarts_per_hour=limits.restarts_per_hour_max,
        canary=settings.canary,
        wedge_s=limits.wedge_s,
    )
