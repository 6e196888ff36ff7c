"""The reaper's loop over one backend: queries what it runs, lets `PendingStops` decide, and carries out the `Ladder`'s steps.

It queries soon after a call ended early, then at the engine's own pace; and now and then without a reason, to find orphans and
a stuck engine. It never has more than one query in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from hangup.core.admission import HealthEvent, Trust
from hangup.core.members import EndedCall, StopFinding
from hangup.core.reaper import EngineStatus, GivenStops, Ladder, LadderStep, Orphans, PendingStop, PendingStops, Rung, StopState
from hangup.errors import EngineFault, EngineSilent, OutOfResources
from hangup.gateway.backends.aborts import Aborts
from hangup.gateway.backends.adapters import EngineAdapter, Seen
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.fetch import fetch
from hangup.gateway.backends.loop_beats import BEATS, STOOD_STILL_S
from hangup.gateway.backends.spread import spread
from hangup.gateway.reaper import renewal
from hangup.gateway.reaper.due_timer import DueTimer
from hangup.gateway.reaper.peers import SharedBackend, stop_of
from hangup.gateway.reaper.stats import ReaperStats
from hangup.gateway.reaper.trouble import EngineTrouble, WatchHost
from hangup.tasks import TASKS, in_slices

_FIRST_LOOK_S = 0.02  # after a call ended: most engines have stopped it by then
_FRESH_S = 0.5  # for so long after a call ended the quicker pace is worthwhile
_BLIND_PACE_S = 0.05  # pause between checks of pending calls on an engine that reports no status
_AFTER_ABORT_S = 2.0  # an engine that dies this soon after an abort has probably died of it
_FORGOTTEN_S = 30.0  # after its grace period; then an ended call that another process judges is released unverified
_UNCOUNTED_S = 15.0  # if another process does not say for this long what it has there, our calls are judged without it


class BackendWatch:
    def __init__(
        self, backend: Backend, aborts: Aborts, host: WatchHost, stats: ReaperStats, shared: SharedBackend | None = None
    ) -> None:
        self.backend = backend
        self.ladder = Ladder(renewal.ladder_terms(backend))
        self.pending_stops = PendingStops(0.0, prefill_grace_s=backend.limits.prefill_grace_s, shared=backend.settings.shared)
        self.status: EngineStatus | None = None  # the latest
        self._aborts = aborts
        self._host, self._stats = host, stats
        self._shared = shared or SharedBackend(backend.name, None)
        self._given = GivenStops()  # while another process judges the backend
        self._resumed: list[LadderStep] = []  # steps of the process that judged it before, to be finished
        self._adapter: EngineAdapter | None = None
        self._reports_status = False
        self._judged = False  # pending calls are judged by the engine's own status
        self._named: set[str] = set()  # keys of the zombies that were logged
        self._trouble = EngineTrouble(backend, self.pending_stops, host, self._shared)
        self._stood_still_s = BEATS.stood_still_s()  # in all, up to the last look
        self._asked_at = time.monotonic()
        self._answered_at = self._asked_at
        self._aborted_at = 0.0
        self._wake = asyncio.Event()
        self._due = DueTimer(self._grace_over)  # the end of the next grace period
        self._spawned = renewal.owner_of_engine(backend, self._shared.peers, self._log_event)
        self._task = TASKS.keep("reaper", self._run)
        self._shared.publish_replaced()

    def __repr__(self) -> str:
        return f"<watch {self.backend.name} {self.ladder!r} {self.pending_stops!r}>"

    def add(self, stop: PendingStop, *, first_token: bool) -> None:
        """Take a call that ended while the engine worked on it."""
        self._learn()
        stop.silent = not first_token
        self._shared.hand_in(stop)
        if self._shared.leads or self._shared.alone:
            self._take(stop)
        else:
            stop.grace_s = self.pending_stops.grace_s
            self._given.add(stop)

    def _take(self, stop: PendingStop) -> None:
        self.pending_stops.add(stop, first_token=not stop.silent or not self._reports_status)
        self._aborted_at = stop.at
        self._wake.set()
        if stop.due < self._due.at:
            self._due.set(stop.due)

    # Several processes

    def lead(self, calls: Iterable[EndedCall], step: dict[str, Any] | None) -> None:
        """Judge the backend for all from now on, and go on where another process was. `calls` are all that have ended and are
        not known to have stopped."""
        now = self._asked_at = self._answered_at = time.monotonic()
        self._learn()
        self._trouble.stillness.reset()
        self.pending_stops.doubt(now)
        self.take_calls(calls)
        for stop in self._given.take_all():  # handed in, and on their way
            self._take(stop)
        self._resume(step, now)
        self._wake.set()

    def _resume(self, step: dict[str, Any] | None, now: float) -> None:
        """Go on with the ladder; the other process may have died before it told how far the engine can be trusted."""
        quarantined = self.backend.load.health.trust is Trust.QUARANTINED
        if step is None and quarantined:  # nobody knows why any more: the canary decides
            step = self.ladder.record(now) | {"rung": Rung.QUARANTINED.value}
        self._resumed = self.ladder.resume(step, now) if step is not None else []
        if self.ladder.rung in (Rung.QUARANTINED, Rung.CANARY):
            self._apply_health_event(HealthEvent.QUARANTINED)
        elif quarantined:
            self._apply_health_event(HealthEvent.TAKEN_BACK)

    def take_calls(self, calls: Iterable[EndedCall]) -> None:
        """Take ended calls of other processes, and our own that they judged until now."""
        now = time.monotonic()
        for call in calls:
            stop = self._given.take(call.key) or stop_of(call, now)
            stop.silent = call.silent
            self._take(stop)
            stop.aborts = call.aborts
            if call.zombie:  # another process has named it
                stop.zombie_since = now
                self._named.add(stop.key)
                self._stats.remember(self.backend.name, stop)

    def doubt(self) -> None:
        """Allow for work that nobody knows of: another process died, and may have had calls that it had not reported yet."""
        self.pending_stops.doubt(time.monotonic())

    def given_calls(self) -> list[EndedCall]:
        """Return our ended calls that another process judges, or should."""
        return [self._shared.row(stop) for stop in self._given]

    def judge_alone(self) -> None:
        """Judge our own calls from now on, without the others: nobody knows what they have there. So a call is verified only if
        the engine names it, and the ladder waits."""
        self.follow()
        self._shared.alone, self.pending_stops.shared, self._adapter = True, True, None
        self._learn()
        for stop in self._given.take_all():
            self._take(stop)
        self._wake.set()

    def follow(self) -> None:
        """Leave the judgement to another process from now on."""
        self._task.cancel()
        self._shared.alone, self.pending_stops.shared, self._adapter = False, self.backend.settings.shared, None
        self._learn()
        self._due.set(math.inf)
        for stop in self.pending_stops.hand_over():
            if not stop.member:
                self._given.add(stop)
        self.ladder = Ladder(renewal.ladder_terms(self.backend))
        self._resumed = []
        self._task = TASKS.keep("reaper", self._run)

    def stop_judging(self, *, removed: bool) -> None:
        """Tell other processes that their ended calls are not judged here any more; if the backend was removed, not replaced,
        that nothing need be known of it."""
        for stop in self.pending_stops.held:
            if stop.member:
                self._shared.publish(stop, StopState.UNVERIFIED)
        if removed:
            self._shared.publish_replaced()

    def found(self, row: StopFinding) -> PendingStop | None:
        """Take what another process found out about an ended call of ours; return the call if this is news."""
        state = StopState(row.state)
        stop = self._given.found(row.call.key, state, row.tokens_now, row.call.aborts, time.monotonic())
        if stop is not None and state is not StopState.ZOMBIE:
            self._host.release(self.backend, stop)
        return stop

    def take_trust(self, trust: Trust) -> None:
        """Take another process's word for how far the engine can be trusted."""
        health = self.backend.load.health
        if health.trust is not trust:
            health.take_trust(trust)
            self._host.load_changed(self.backend)

    def take_limits(self) -> None:
        """Apply the backend's new limits."""
        self.ladder.terms = renewal.ladder_terms(self.backend)
        self.pending_stops.prefill_grace_s = self.backend.limits.prefill_grace_s
        self._adapter = None  # makes `_learn` compute the grace period again
        self._learn()

    def look(self) -> None:
        """Check the backend soon, instead of at the next interval."""
        self._learn()
        self._wake.set()

    def orphans(self) -> Orphans:
        """Return what the backend runs that neither is nor was ours, and what an operator's command would do about it."""
        return self._trouble.orphans(self.status, self.ladder.terms)

    async def end_orphans(self) -> Orphans:
        """End the orphans, because an operator declares that nobody waits for them. Our own live calls on the engine are not
        harmed."""
        found = await self._trouble.end_orphans(self.status, self.ladder.terms, self._aborts)
        self._wake.set()
        return found

    async def close(self, within_s: float = math.inf) -> None:
        self._due.set(math.inf)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._spawned is not None:
            await self._spawned.close(within_s)

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
        idle = not self._resumed and not self.pending_stops.held and self.ladder.rung is Rung.HEALTHY
        if idle and not self.backend.slots.in_doubt and not (self._reports_status and self._shared.overlaps):
            self._wake.clear()
            while not self._wake.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(spread(max(self.backend.limits.health_interval_s, self.backend.adapter.poll_s))):
                        await self._wake.wait()
                if not self._wake.is_set() and (self._reports_status or self._trouble.may_be_seen):
                    return
            await asyncio.sleep(self._first_look_s())
        await asyncio.sleep(max(0.0, self._asked_at + self._pace_s() - time.monotonic()))

    def _first_look_s(self) -> float:
        patient = self.backend.adapter.disturbed and any(stop.silent for stop in self.pending_stops.held)
        return self.backend.adapter.poll_s if patient else _FIRST_LOOK_S

    def _pace_s(self) -> float:
        adapter, now = self.backend.adapter, time.monotonic()
        if not self._reports_status:
            return _BLIND_PACE_S
        fresh = all(not stop.silent and now - stop.at < _FRESH_S for stop in self.pending_stops.held)
        return adapter.quick_poll_s if adapter.quick_poll_s is not None and fresh else adapter.poll_s

    async def _look(self) -> None:
        self._learn()
        self._allow_for_standstill()
        if not self._shared.leads and not self._shared.alone:
            for stop in self._given.take_forgotten(time.monotonic(), _FORGOTTEN_S):
                self._host.release(self.backend, stop)
            return
        resumed, self._resumed = self._resumed, []
        await self._take_steps(resumed)
        self._asked_at = asked_at = time.monotonic()
        if self._reports_status and self.ladder.rung is not Rung.RESTARTING:
            await self._ask(asked_at)
        else:
            self._answered_at = asked_at
            await self._release(self.pending_stops.take_expired(asked_at), StopState.UNVERIFIED)
        if self._shared.alone:
            return
        now, load = time.monotonic(), self.backend.load
        still_s = await self._trouble.still_s(None if self._unanswered else self.status, now)
        trouble = self._trouble.text(now, still_s, self.ladder, self._answered_at, unanswered=self._unanswered)
        live = load.in_flight - load.held + self._shared.live_calls
        await self._take_steps(self.ladder.advance(now, self.pending_stops.zombies, trouble, live))
        stuck = self.ladder.rung is Rung.QUARANTINED and still_s >= self.backend.limits.still_s and live
        if stuck and await self._may_act():
            await self._abandon(f"No call made progress for {still_s:.0f} s, and the engine did not stop ended calls.")
        self._apply_health_event(self._health_event(time.monotonic()))
        self._due.set(self.pending_stops.next_due(time.monotonic()))

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
        if await self._shared.count_before():
            self._asked_at = asked_at = time.monotonic()
        placed, taken = backend.load.placed, backend.slots.taken
        try:
            answer = await fetch(backend, "GET", backend.adapter.status_path, timeout_s=self.backend.limits.status_timeout_s)
        except EngineSilent:
            now = time.monotonic()
            if now - asked_at > self.backend.limits.status_timeout_s + STOOD_STILL_S:
                # This process stood still, stopped or short of CPU: the engine's answer may be waiting to be read.
                self._trouble.stood_still_until, self._asked_at = now, self._answered_at
                return
            pending.unanswered(asked_at, now)
            self._name_zombies()
            return
        except OutOfResources:  # this process could not ask: that says nothing about the engine
            self._trouble.stood_still_until = time.monotonic()
            self._answered_at = asked_at  # at the usual pace: it fails at once
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
        others = await self._shared.count_after()
        if others is None:
            await self._judge_uncounted(status, asked_at, now)
            return
        load = backend.load
        pinned = backend.pinned == load.in_flight - load.held
        orphans = pending.orphans
        unseen = load.placed - placed + others.placed_between
        if backend.adapter.counts_steps:
            unseen = max(unseen, load.unstarted + others.unstarted)
        live, peak = load.choices + others.live, load.take_peak() + others.peak
        if self._shared.overlaps:  # calls that end at the other backend may still be in the engine's figures
            pending.doubt(now)
        stopped = pending.observe(status, asked_at, now, live, peak, unseen=unseen, pinned=pinned)
        await self._release(stopped, StopState.VERIFIED)
        await self._release(pending.take_expired(now), StopState.UNVERIFIED)
        self._name_zombies()
        self._look_at_slots(status, taken)
        if pending.orphans and not orphans:
            self._log_event("orphans_found", count=pending.orphans, running=status.running, waiting=status.waiting)

    async def _judge_uncounted(self, status: EngineStatus, asked_at: float, now: float) -> None:
        """Judge by the calls' names alone: what others have there is unknown. If that lasts, release calls without a proof."""
        if status.calls is None and self._shared.uncounted_s < _UNCOUNTED_S:
            return
        load, pending = self.backend.load, self.pending_stops
        stopped = pending.observe(status, asked_at, now, load.choices, load.choices, pinned=False, alone=True)
        await self._release(stopped, StopState.VERIFIED)
        await self._release(pending.take_expired(now), StopState.UNVERIFIED)
        self._name_zombies()

    def _look_at_slots(self, status: EngineStatus, taken: frozenset[int]) -> None:
        """Subtract foreign work from the backend's room, and follow a restarted engine that has another number of slots."""
        backend, load, pool = self.backend, self.backend.load, self.backend.slots
        occupied = max(self.pending_stops.orphans if self._judged else 0, self._shared.in_flight_here)
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
        self._judged = judged = self._reports_status and (backend.adapter.names_calls or not self.pending_stops.shared)
        usual = self.backend.limits.release_grace_s or backend.adapter.grace_s
        self.pending_stops.grace_s = usual if judged else backend.adapter.blind_hold_s
        self.pending_stops.lag_s = backend.adapter.lag_s if judged else 0.0

    async def _abandon(self, why: str) -> None:
        count = await self._host.abandon(self.backend, why) + await self._shared.abandon(why)
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

    async def _take_steps(self, steps: Sequence[LadderStep]) -> None:
        """Take steps, unless another process judges the engine by now."""
        if steps and await self._may_act():
            for step in steps:
                await self._carry_out(step)

    async def _may_act(self) -> bool:
        return await self._shared.may_take(self.ladder.record(time.monotonic()), self.pending_stops.zombies)

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
        # The calls may have taken long to leave, so ask again.
        why = await renewal.start_anew(self.backend, self._spawned) if await self._may_act() else "another process may lead"
        if not why:
            self._trouble.stillness.reset()
            await self._release(self.pending_stops.reset(), StopState.RESTARTED)
            self.backend.facts_known = False
            await self._shared.restarted()
        await self._take_steps(self.ladder.restarted(not why, time.monotonic(), why))

    async def _canary(self) -> None:
        why = await renewal.send_canary(self.backend) if self.backend.settings.canary else ""
        await self._take_steps(self.ladder.canary(not why, time.monotonic(), why))

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
        self._shared.publish(stop, how)
        if stop.member:
            return
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
                self._shared.publish(stop, StopState.ZOMBIE)
                since_s = round(time.monotonic() - stop.at, 3)
                self._log_event("zombie_found", id=stop.call_id, slot=stop.slot, since_s=since_s, tokens=stop.tokens_since)

    def _apply_health_event(self, event: HealthEvent) -> None:
        health = self.backend.load.health
        before = health.trust
        if health.apply(event):
            self._host.load_changed(self.backend)
        if health.trust is not before and not health.retired:  # another one may have its name by now
            self._shared.publish_trust(health.trust.value)

    def _health_event(self, now: float) -> HealthEvent:
        """Return what this look means for the backend's health."""
        if self.ladder.rung is not Rung.HEALTHY or (self._unanswered and self.pending_stops.overdue(now)):
            return HealthEvent.FOUND_ZOMBIE
        return HealthEvent.FOUND_LATE if self._may_be_late(now) else HealthEvent.FOUND_CLEAN

    def _may_be_late(self, now: float) -> bool:
        return self._judged and not self._shared.alone and self.pending_stops.late(now)

    def _grace_over(self) -> None:
        """Prefer other backends as soon as a grace period is over, without waiting for the engine's answer. A status that comes
        late, or not at all, convicts the engine later; until then a healthy engine only loses its place in the order of choice.
        """
        now = time.monotonic()
        self._due.set(self.pending_stops.next_due(now))
        if self._may_be_late(now):
            self._apply_health_event(HealthEvent.GRACE_OVER)

    def _log_fault(self, error: Exception) -> None:
        self._log_event("reaper_check_failed", type=type(error).__name__, text=str(error)[:200])

    def _log_event(self, event: str, **fields: object) -> None:
        self._host.log_event(event, backend=self.backend.name, **fields)
