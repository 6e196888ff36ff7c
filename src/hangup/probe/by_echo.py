"""Plays a case and judges it by the echo: how long a canary waits for the slot of a client that left."""

from __future__ import annotations

import asyncio
import math
import time
from statistics import median

from hangup.probe.caller import Caller, CallKind
from hangup.probe.cases import Case, Company, Moment
from hangup.probe.connection import ProbeConnection
from hangup.probe.echo import Echo, EchoTrial, QuietTimes, echo_of, is_decided, judge_echo, saturates
from hangup.probe.meet import ANSWER_S, Speed, faster, first_token_time
from hangup.probe.stage import Stage, Unplayable
from hangup.probe.verdict import Judgement, Ruling, untold

_FREE_TOKENS = 12
_FREE_S = 5.0  # how long to wait for free slots, beyond two answers
_TICK_S = 0.05
_LAG_SHARE = 0.1  # of the abandoned answer's rest: a probe that was held up for longer has seen nothing
_HELD_UP_MAX = 4  # trials
_WANTED = 0.65  # of the rest that abandoned answers should have
_CLOCK_EVENTS = 8
_FASTER_MAX = 1.5  # than an engine was; its answers then end too soon for a verdict
_SPEEDS_MAX = 3  # so often a case is played again at a new speed
_SEARCH_LENGTH = 2  # holders of the search last for so many answers


class EchoTrials:
    """Cases on an engine that reports nothing, with a known number of slots."""

    def __init__(self, caller: Caller, stage: Stage, slots: int, quiet: QuietTimes, within_s: float) -> None:
        self._caller = caller
        self._stage = stage
        self._slots = slots
        self._quiet = quiet
        self._within_s = within_s

    async def play(self, case: Case) -> Judgement:
        if case.moment is Moment.QUEUE or case.company in (Company.SLOTS, Company.STORM):
            return untold("an echo tells of one slot; for queues and crowds the engine's figures are needed: --engine-metrics")
        if case.company is Company.BESIDE and self._slots < 2:
            return untold("the engine has one slot: there is no place for another client")
        for _ in range(_SPEEDS_MAX):
            judgement = await self._judged(case)
            if judgement.ruling in (Ruling.UNTOLD, Ruling.NEVER) or await self._answers_last(case):
                return judgement
        return untold("the engine was faster in each trial than before: too unsteady for an echo")

    async def _judged(self, case: Case) -> Judgement:
        trials: list[EchoTrial] = []
        held_up = 0
        while not trials or not is_decided(trials, self._quiet):
            if not await self._all_free():
                return untold("the slots did not become free: other clients use the engine, or it has lost some", len(trials))
            lag = _OwnLag()
            try:
                trial = await self._trial(case)
            finally:
                lag.close()
            if lag.worst_s <= trial.remaining_s * _LAG_SHARE:
                trials.append(trial)
            elif (held_up := held_up + 1) > _HELD_UP_MAX:
                return untold(
                    f"the probe itself was held up for {lag.worst_s:.1f} s: this machine is too busy for an echo", len(trials)
                )
        wanted_s = self._stage.rest_s * _WANTED
        return judge_echo(trials, self._quiet, self._within_s, self._stage.speed.rate, wanted_s)

    async def _trial(self, case: Case) -> EchoTrial:
        scene = await self._stage.place(case, 1, self._slots - 1)
        try:
            (leaver,) = scene.leavers
            left = self._stage.remaining(case, leaver)
            reading_s = self._stage.reading_s(case, leaver)
            remaining_s = reading_s + left / _rate(scene.live, self._stage.speed.rate)
            clock = _StreamClock(scene.live, self._stage.speed.tokens_per_event)
            leaver.leave(case.departure)
            canary_s = await first_token_time(self._caller, timeout_s=remaining_s * 3 + 30)
            lasts_s = clock.duration_s(left)
            remaining_s = remaining_s if lasts_s is None else reading_s + lasts_s
        finally:
            scene.close()
        for call in scene.live:  # the next answers must be long enough for an engine that is faster than it was
            self._stage.speed = faster(self._stage.speed, call)
        if canary_s is None:
            raise Unplayable("a canary was not answered after the departure")
        return EchoTrial(canary_s, remaining_s, reading_s)

    async def _answers_last(self, case: Case) -> bool:
        """Return whether answers still take as long as was reckoned; if not, correct the speed.

        An abandoned answer that ended by itself looks like one that was stopped. With several slots the live streams beside
        it show the engine's pace; with one slot there are none.
        """
        if self._slots > 1:
            return True
        if not await self._all_free():  # the next round says so
            return False
        reckoned, kind = self._stage.speed, CallKind(self._stage.tokens, case.streams)
        call = await self._caller.start(kind)
        try:
            whole = await call.until_end(self._stage.patience_s + self._stage.answer_s * 3)
        finally:
            call.close()
        if case.streams:
            self._stage.speed = faster(reckoned, call)
        elif whole:  # an engine may be faster if it does not stream
            rate = kind.tokens / (time.monotonic() - call.sent_at)
            self._stage.speed = Speed(reckoned.first_token_s, max(reckoned.rate, rate), reckoned.tokens_per_event)
        return self._stage.speed.rate <= reckoned.rate * _FASTER_MAX

    async def _all_free(self) -> bool:
        """Wait until as many canaries as there are slots are answered at once.

        Each is so long that a second one on the same slot would be seen to wait. What the probe itself left behind is over
        after some time in any case. On a machine where canaries vary too much for that, whole answers decide in the end.
        """
        rate, spread = self._stage.speed.rate, self._quiet.spread
        kind = CallKind(min(max(math.ceil(3 * spread * rate), _FREE_TOKENS), self._stage.tokens))
        latest_s = self._quiet.middle + max(spread, 0.5 * kind.tokens / rate)
        deadline = time.monotonic() + self._stage.answer_s * 2 + _FREE_S
        while True:
            times = await self._canaries(kind)
            if all(time_s is not None and time_s <= latest_s for time_s in times):
                return True
            if time.monotonic() > deadline:
                return await self._all_free_for_long()
            await asyncio.sleep(self._stage.answer_s / 10)

    async def _all_free_for_long(self) -> bool:
        times = await self._canaries(CallKind(self._stage.tokens))
        trials = [EchoTrial(ANSWER_S if time_s is None else time_s, self._stage.answer_s) for time_s in times]
        return all(echo_of(trial, self._quiet.middle) is Echo.QUIET for trial in trials)

    async def _canaries(self, kind: CallKind) -> list[float | None]:
        """Send as many canaries as there are slots; return their first-token times once all of them have ended."""
        canaries = (first_token_time(self._caller, kind) for _ in range(self._slots))
        found = await asyncio.gather(*canaries, return_exceptions=True)  # none runs on when another one cannot be sent
        times: list[float | None] = []
        for one in found:
            if isinstance(one, BaseException):
                raise one
            times.append(one)
        return times


class _OwnLag:
    """How late this process itself was: while it waits for a CPU, it reads no tokens and takes no times."""

    def __init__(self) -> None:
        self.worst_s = 0.0
        self._due = time.monotonic()
        self._tick()

    def _tick(self) -> None:
        now = time.monotonic()
        self.worst_s = max(self.worst_s, now - self._due)
        self._due = now + _TICK_S
        self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def close(self) -> None:
        self.worst_s = max(self.worst_s, time.monotonic() - self._due)
        self._timer.cancel()


class _StreamClock:
    """Tells from live streams how long so many tokens take just now: a busy machine slows them down like all others."""

    def __init__(self, live: list[ProbeConnection], tokens_per_event: float) -> None:
        self._events = [(call, call.events) for call in live]
        self._tokens_per_event = tokens_per_event
        self._began_at = time.monotonic()

    def duration_s(self, tokens: int) -> float | None:
        """Return how long these tokens take at the pace since the start; None if the streams went on for too short a time."""
        now, rates = time.monotonic(), list[float]()
        for call, before in self._events:
            until = (call.last_token_at if call.ended else None) or now
            if call.events - before >= _CLOCK_EVENTS:
                rates.append((call.events - before) * self._tokens_per_event / max(until - self._began_at, 1e-6))
        return tokens / median(rates) if rates else None


async def find_slots(caller: Caller, stage: Stage, quiet: QuietTimes, clients: int) -> int:
    """Add live streams one by one until one more call has to wait; return how many there were, or 0 if none has to."""
    holders: list[ProbeConnection] = []
    try:
        slots = await _count_holders(caller, stage, quiet, clients, holders)
        for holder in holders:  # they end by themselves: an abandoned one could be taken for a live one later
            await holder.until_end(stage.answer_s * _SEARCH_LENGTH * 3)
        return slots
    finally:
        for holder in holders:
            holder.close()


async def is_held_back(caller: Caller, stage: Stage, quiet: QuietTimes, slots: int) -> bool:
    """Hold all slots with live streams; return whether another call then waits until one of them ends."""
    holders = await stage.hold(slots)
    try:
        clock = _StreamClock(holders, stage.speed.tokens_per_event)
        left = stage.tokens - max(holder.events for holder in holders) * stage.speed.tokens_per_event
        canary_s = await first_token_time(caller, timeout_s=stage.answer_s * 3 + 30)
        remaining_s = clock.duration_s(round(left)) or left / stage.speed.rate
        for holder in holders:  # they end by themselves: nobody has left yet
            await holder.until_end(stage.answer_s * 3)
    finally:
        for holder in holders:
            holder.close()
    return canary_s is not None and saturates(EchoTrial(canary_s, remaining_s), quiet)


async def _count_holders(caller: Caller, stage: Stage, quiet: QuietTimes, clients: int, holders: list[ProbeConnection]) -> int:
    for _ in range(clients):
        holders += await stage.hold(1, stage.tokens * _SEARCH_LENGTH)
        left = stage.tokens * _SEARCH_LENGTH - holders[0].events * stage.speed.tokens_per_event
        remaining_s = left / _rate(holders, stage.speed.rate)
        if remaining_s < stage.answer_s / 2:
            return 0
        canary_s = await first_token_time(caller, timeout_s=remaining_s * 3 + 30)
        if canary_s is not None and saturates(EchoTrial(canary_s, remaining_s), quiet):
            return len(holders)
    return 0


def _rate(live: list[ProbeConnection], usual: float) -> float:
    """Return the tokens a second of one stream, as the live ones have it just now."""
    now = time.monotonic()
    seen = [
        (call.events - 1) / (now - call.first_token_at)
        for call in live
        if call.first_token_at is not None and call.events > 8 and not call.ended
    ]
    return min(max(median(seen), usual * 0.3), usual * 1.2) if seen else usual
