"""The divergence alarm: detects an engine that is busy while too few of its tokens reach us.

For each backend it uses one of two signals:

- *exact*, where the engine counts its tokens: how far its counter has run ahead of the tokens that we received. An engine that
  counts late (at a call's end) falls behind and catches up again; so a growing lead alone is no sign, only a lead that grows
  beyond the highest that it has ever been.
- *statistical*, where we know only that it is busy: busy while it has no call of ours, or fewer tokens per busy second than it
  has shown with as many calls in flight, or with fewer.

Two more signals need no counters, only the engine's report of what it runs: it *runs* something all the time while it has no
call of ours at all, or the reaper has found *zombies* in it, all the time. So a wedged engine, which yields nothing, is
detected as well.

An idle engine proves nothing, and a warm-up is waited out. A finding must last for a while before the alarm goes off, and be
gone for a while before the alarm ends.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

_WARM_UP_S = 120.0  # after a start or a restart
_LEARN_S = 300.0  # busy seconds before a baseline is used
_MEMORY_S = 1800.0  # busy seconds over which a baseline adapts
_ALONE_MAX = 0.5  # share of the window in which an engine may be busy without a call of ours
_ALONE_SURE = 0.95  # the same, where the engine itself reports running work, which is not a matter of degree
_TOKENS_MIN = 100  # a lead smaller than this is never worth an alarm
_BUSY_MIN = 0.5  # share of the window in which an engine must have been busy to be judged


@dataclass(frozen=True, slots=True)
class AlarmTerms:
    """When the alarm goes off."""

    window_s: float = 20.0  # the period that is judged
    hold_s: float = 20.0  # how long a finding must last, and how long it must be gone
    share_max: float = 0.25  # tokens for nobody, as a share of those computed
    yield_min: float = 0.4  # tokens per busy second, as a share of the baseline


class CounterSample(NamedTuple):
    """What is known about an engine at one moment."""

    computed: int | None  # the engine's own token count, if it has one
    busy: float | None  # how busy it is now, 0 to 1, if known
    seen: int  # tokens received from it so far
    unseen: int  # tokens that calls in flight may have had without our seeing them: whole answers in progress
    call_s: float  # call-seconds: the durations of all its calls so far, added up
    served_s: float  # seconds so far in which it had any call
    zombies: int = 0  # ended calls that it has not stopped
    runs: bool = False  # it reports running work
    textless: bool = False  # it runs calls that yield no tokens


class DivergenceFinding(NamedTuple):
    """What is wrong, and by how much."""

    signal: str  # exact | statistical | zombies | alone
    # exact: tokens for nobody in the window; statistical: the missing share of the usual yield; zombies: how many; alone: the
    # share of the window in which it ran something and had no call of ours
    excess: float


class _Tick(NamedTuple):
    at: float
    lead: int  # computed - seen
    computed: int | None
    seen: int
    busy_s: float  # since the previous tick
    call_s: float  # so far
    served_s: float  # so far
    zombies: int
    runs: bool
    textless: bool


class DivergenceAlarm:
    """One backend's alarm. `observe` returns True when it has just gone off, False when it has just ended."""

    def __init__(self, terms: AlarmTerms | None = None) -> None:
        self.terms = terms or AlarmTerms()
        self.finding: DivergenceFinding | None = None  # set while the alarm lasts
        self._baseline: dict[int, tuple[float, float]] = {}  # by load level: tokens per busy second, busy seconds learned from
        self._suspected_since: float | None = None
        self._well_since: float | None = None
        self.restarted(-math.inf)

    def restarted(self, now: float) -> None:
        """Start over after a restart of the engine: its counters begin again, and it may warm up."""
        self._ticks: deque[_Tick] = deque()
        self._high = -math.inf  # the highest lead before the window
        self._quiet_until = now + _WARM_UP_S

    def observe(self, sample: CounterSample, now: float) -> bool | None:
        if self._ticks and not _follows(sample.computed, self._ticks[-1].computed):
            self.restarted(now)
        self._take(sample, now)
        found = self._exact(sample) if sample.computed is not None else None
        found = found or self._zombie_finding() or (self._statistical(now) if sample.computed is None else None)
        return self._settle(found, now)

    def _zombie_finding(self) -> DivergenceFinding | None:
        """Look for zombies, or work without a call of ours, in every sample of a whole window."""
        first, last = self._ticks[0], self._ticks[-1]
        span_s = last.at - first.at
        if span_s < self.terms.window_s:
            return None
        if all(tick.zombies for tick in self._ticks):
            return DivergenceFinding("zombies", float(last.zombies))
        alone = 1 - (last.served_s - first.served_s) / span_s
        return DivergenceFinding("alone", alone) if alone >= _ALONE_SURE and all(tick.runs for tick in self._ticks) else None

    def _take(self, sample: CounterSample, now: float) -> None:
        ticks = self._ticks
        busy_s = (sample.busy or 0.0) * (now - ticks[-1].at) if ticks else 0.0
        lead = (sample.computed or 0) - sample.seen
        tick = _Tick(now, lead, sample.computed, sample.seen, busy_s, sample.call_s, sample.served_s, *sample[6:])
        ticks.append(tick)
        while len(ticks) > 2 and ticks[1].at <= now - self.terms.window_s:
            self._high = max(self._high, ticks.popleft().lead)

    def _exact(self, sample: CounterSample) -> DivergenceFinding | None:
        if self._high == -math.inf:
            return None
        first, last = self._ticks[0], self._ticks[-1]
        excess = last.lead - sample.unseen - max(self._high, first.lead)
        allowed = max(_TOKENS_MIN, self.terms.share_max * ((last.computed or 0) - (first.computed or 0)))
        return DivergenceFinding("exact", float(excess)) if excess > allowed else None

    def _statistical(self, now: float) -> DivergenceFinding | None:
        first, last = self._ticks[0], self._ticks[-1]
        span_s = last.at - first.at
        if span_s < self.terms.window_s or now < self._quiet_until:
            return None
        busy_s = sum((tick.busy_s for tick in self._ticks), 0.0) - first.busy_s
        alone_s = busy_s - (last.served_s - first.served_s)
        if alone_s > _ALONE_MAX * span_s and self._baseline:
            return DivergenceFinding("statistical", alone_s / span_s)
        if busy_s < _BUSY_MIN * span_s or any(tick.textless for tick in self._ticks):
            return None
        rate = (last.seen - first.seen) / busy_s
        level = round(2 * math.log2(1 + (last.call_s - first.call_s) / span_s))
        usual = self._usual(level)
        if usual and rate < self.terms.yield_min * usual:
            return DivergenceFinding("statistical", 1 - rate / usual)
        if self.finding is None:
            self._learn(level, rate, last.busy_s)
        return None

    def _usual(self, level: int) -> float:
        """Return the usual tokens per busy second with about as many calls, or, where that is unknown, with fewer: more calls
        never yield less."""
        known = [at for at, (_, learned_s) in self._baseline.items() if at <= level and learned_s >= _LEARN_S]
        return self._baseline[max(known)][0] if known else 0.0

    def _learn(self, level: int, rate: float, busy_s: float) -> None:
        usual, learned_s = self._baseline.get(level, (rate, 0.0))
        learned_s += busy_s
        gain = busy_s / min(learned_s, _MEMORY_S) if learned_s else 0.0
        self._baseline[level] = (usual + (rate - usual) * gain, learned_s)

    def _settle(self, found: DivergenceFinding | None, now: float) -> bool | None:
        """Apply hysteresis: a finding must last, and so must its absence."""
        if found is None:
            self._suspected_since = None
            if self.finding is None:
                return None
            self._well_since = now if self._well_since is None else self._well_since
            if now - self._well_since < self.terms.hold_s:
                return None
            self.finding = self._well_since = None
            return False
        self._well_since = None
        self._suspected_since = now if self._suspected_since is None else self._suspected_since
        if self.finding is not None:
            self.finding = found
            return None
        if now - self._suspected_since < self.terms.hold_s:
            return None
        self.finding = found
        return True


def _follows(computed: int | None, before: int | None) -> bool:
    """Return whether a count continues: one that falls, appears or disappears starts over."""
    return computed is before if computed is None or before is None else computed >= before
