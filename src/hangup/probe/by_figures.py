"""Plays a case and judges it by the engine's own figures."""

from __future__ import annotations

import asyncio
import math
import time

from hangup.probe.cases import Case, Company, Departure, Moment
from hangup.probe.stage import Scene, Stage
from hangup.probe.verdict import Judgement, Look, Trial, judge, untold
from hangup.probe.watch import EngineWatch, StatusLook

_IDLE_S = 5.0  # how long to wait for an engine that others use
_SETTLE_S = 0.4
_FIRST_PAUSE_S = 0.01  # the first looks come quickly, for a close bound
_UNSEEN_SETTLE_S = 2.5  # figures that never showed the call may simply be old
_UPLOAD_SETTLE_S = 1.0
_FELT = (Departure.FIN, Departure.RST)
# An engine that looks after silent clients only in a second without questions: leave well after the last one, so that this
# second is not made longer, and ask again just before a stop would be late.
_AFTER_LOOK, _BEFORE_LATE = 0.4, 0.9


class FiguresTrial:
    """One case, played once, on an engine that reports what it runs."""

    def __init__(self, stage: Stage, watch: EngineWatch, within_s: float) -> None:
        self._stage = stage
        self._watch = watch
        self._within_s = within_s

    async def play(self, case: Case, leavers: int, live: int) -> tuple[Judgement, Scene | None]:
        """Play the case; return the judgement, and the scene for the caller to clear."""
        others = await self._watch.until_idle(_IDLE_S)
        first = await self._watch.look()
        if others:
            return untold(f"the engine was not idle before: it has {others} calls", leavers), None
        if first is None:
            return untold("the engine's figures could not be read", leavers), None
        scene = await self._stage.place(case, leavers, live)
        try:
            return await self._leave_and_watch(scene, first), scene
        except BaseException:
            scene.close()
            raise

    async def _leave_and_watch(self, scene: Scene, first: StatusLook) -> Judgement:
        before = await self._watch.look()
        seen = before is not None and before.status.work - scene.live_now >= len(scene.leavers)
        if scene.case.moment is Moment.WHOLE and self._watch.is_shy:
            await asyncio.sleep(self._watch.source.silent_pace_s * _AFTER_LOOK)
        left = self._left(scene, self._computed_so_far(scene, first, before))
        computed = sum(self._computed(scene, tokens) for tokens in left)
        left_at = time.monotonic()
        for call in scene.leavers:
            call.leave(scene.case.departure)
        remaining_s = self._remaining_s(scene, max(left))
        looks = await self._looks(scene, left_at, first, self._settle_s(scene, seen), remaining_s * self._waves(scene), seen)
        exact = first.status.tokens is not None
        waited_s = 0.0
        is_dropped = scene.case.moment is Moment.QUEUE and seen and _is_dropped(scene, looks, left_at)
        if scene.case.moment is Moment.QUEUE and not is_dropped:
            freed_at = _freed_at(scene)
            if freed_at is None:
                return untold("the answers of those in front did not end while the queue was watched", len(scene.leavers))
            if not (seen and exact):  # what it did while it waited cannot be seen, or not be told from work
                waited_s = max(freed_at - left_at, 0.0)
                looks = [look.since(waited_s) for look in looks if look.asked_at >= waited_s]
                remaining_s = max(left) / self._stage.speed.rate
        delivered = computed + round(sum(call.tokens(self._stage.speed.tokens_per_event) for call in scene.live))
        trial = Trial(
            len(scene.leavers),
            looks,
            remaining_s,
            sum(left),
            delivered,
            _SETTLE_S * 0.9,
            self._watch.source.lag_s,
            self._stage.rest_s * 0.8,
            exact,
            self._stage.speed.rate,
            reads=scene.case.moment is Moment.PREFILL,
            waits=is_dropped,
            unsteady=self._stage.own_end is not None,
        )
        return judge(trial, self._within_s).after_waiting(waited_s)

    def _computed_so_far(self, scene: Scene, first: StatusLook, before: StatusLook | None) -> int:
        """Return the tokens that the engine counts for the leavers' calls; it may be late, so they can be more."""
        if before is None or before.tokens is None or first.tokens is None or first.status.tokens is None:
            return 0
        live = sum(call.tokens(self._stage.speed.tokens_per_event) for call in scene.live)
        return max(before.tokens - first.tokens - round(live), 0)

    def _left(self, scene: Scene, computed: int) -> list[int]:
        """Return the tokens that each leaver's answer still has to come.

        Nothing comes of an answer that does not stream: how far it is follows from the speed, unless the engine counts more.
        """
        left = [self._stage.remaining(scene.case, call) for call in scene.leavers]
        most = len(left) * (self._stage.own_end or self._stage.tokens) - computed
        if scene.case.moment is Moment.WHOLE and sum(left) > most:
            return [max(most // len(left), 0)] * len(left)
        return left

    def _computed(self, scene: Scene, left: int) -> int:
        """Return the tokens of a leaver's call that were computed before it left, those of its warm-up included."""
        warm_up = 2 if scene.case.moment is Moment.KEEP_ALIVE else 0
        return max((self._stage.own_end or self._stage.tokens) - left, 0) + warm_up

    def _remaining_s(self, scene: Scene, tokens: int) -> float:
        """Return how long the longest abandoned answer would go on; what waits for slots goes on after those."""
        rate = self._stage.speed.rate
        if scene.case.moment is Moment.QUEUE:
            return max((self._stage.remaining(scene.case, call) for call in scene.live), default=0) / rate + tokens / rate
        return max(self._stage.reading_s(scene.case, call) for call in scene.leavers) + tokens / rate

    def _waves(self, scene: Scene) -> int:
        """Return how many rounds a deaf engine would need for what a storm leaves behind."""
        slots = max(self._watch.slots, 1)
        return math.ceil(len(scene.leavers) / slots) if scene.case.company is Company.STORM else 1

    def _settle_s(self, scene: Scene, seen: bool) -> float:
        if scene.case.moment is Moment.UPLOAD:
            return _UPLOAD_SETTLE_S
        if seen:
            return _SETTLE_S + self._watch.source.lag_s
        return _UNSEEN_SETTLE_S

    async def _looks(
        self, scene: Scene, left_at: float, first: StatusLook, settle_s: float, remaining_s: float, seen: bool
    ) -> list[Look]:
        """Ask until the engine has been idle for `settle_s`, or for long after the answers' own end.

        Figures that do not show a call that waits say nothing of it before a slot is free.
        """
        source, looks = self._watch.source, list[Look]()
        is_silent = (
            scene.case.moment in (Moment.WHOLE, Moment.PREFILL, Moment.QUEUE)
            or scene.case.departure not in _FELT  # the next token that is written tells of those
        )
        pace_s = source.silent_pace_s if is_silent else source.pace_s
        limit_s = remaining_s * 1.5 + 4.0 + source.lag_s
        waits = scene.case.moment is Moment.QUEUE
        can_count = first.status.tokens is not None or not scene.live  # slots show too little of those who stay
        idle_since: float | None = None
        pause_s = min(pace_s, self._within_s * _BEFORE_LATE) if is_silent and self._watch.is_shy else _FIRST_PAUSE_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = pace_s if is_silent and self._watch.is_shy else min(pause_s * 1.5, pace_s)
            found = await self._watch.look()
            now = time.monotonic() - left_at
            if found is not None:
                excess = found.status.work - scene.live_now
                tokens = None if found.tokens is None or not can_count else found.tokens - (first.tokens or 0)
                looks.append(Look(found.asked_at - left_at, found.answered_at - left_at, excess, tokens))
                idle_since = (idle_since if idle_since is not None else now) if excess <= 0 else None
            is_settled = idle_since is not None and now - idle_since >= settle_s
            freed_at = _freed_at(scene) if waits else None
            if waits and freed_at is None:
                if (seen and is_settled) or now >= self._stage.patience_s:
                    return looks
                continue
            if freed_at is not None:  # from now on, as if the client had left when a slot was free
                waits, limit_s = False, limit_s + freed_at - left_at
                idle_since = idle_since if seen else None
                continue
            if is_settled or now >= limit_s:
                return looks


def _freed_at(scene: Scene) -> float | None:
    """Return when the first of those who stay had its whole answer, and so a slot was free."""
    return min((call.last_token_at for call in scene.live if call.done and call.last_token_at is not None), default=None)


def _is_dropped(scene: Scene, looks: list[Look], left_at: float) -> bool:
    """Return whether a call that the figures showed was gone before it could get a slot."""
    freed_at = _freed_at(scene)
    waiting = [look for look in looks if freed_at is None or look.answered_at < freed_at - left_at]
    return bool(waiting) and waiting[-1].excess <= 0
