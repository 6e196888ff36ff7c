"""The divergence alarm: an engine that is busy, and too little comes of it.

Per backend:

- *exact*, where the engine counts its tokens: how far its counter has run ahead of the tokens that we saw come. An engine
  that counts late (at a call's end) falls behind and catches up again; so what counts is not that the lead grows but that
  it grows beyond the highest it has ever been.
- *statistical*, where we only know that it is busy: busy while it has no call of ours, or fewer tokens per busy second
  than it has shown to give with as many calls in flight, or with fewer.

Two more need no figures but what the engine says it runs: it *runs* something all the time while it has no call of ours at all,
or the reaper has found *zombies* in it, all the time. So a wedge, which yields nothing, is seen as well.

An idle engine proves nothing, a warm-up is waited out, and a verdict must hold for a while before it counts, and be gone
for a while before it is taken back.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

_WARM_UP_S = 120.0  # after a start or a restart
_LEARN_S = 300.0  # busy seconds before a baseline is believed
_MEMORY_S = 1800.0  # busy seconds over which a baseline follows
_ALONE_MAX = 0.5  # share of the window in which an engine may be busy without a call of ours
_ALONE_SURE = 0.95  # the same, where the engine itself says that it runs something: this is no matter of degree
_TOKENS_MIN = 100  # a lead smaller than this is never worth an alarm
_BUSY_MIN = 0.5  # share of the window in which an engine must have been busy to be judged


@dataclass(frozen=True, slots=True)
class AlarmTerms:
    window_s: float = 20.0  # what is looked at
    hold_s: float = 20.0  # how long it must last, and how long it must be gone
    share_max: float = 0.25  # tokens for nobody, as a share of those computed
    yield_min: float = 0.4  # tokens per busy second, as a share of the baseline


class CounterSample(NamedTuple):
    computed: int | None  # the engine's own count of tokens, if it has one
    busy: float | None  # how busy it is just now, 0 to 1, if anybody knows
    seen: int  # tokens that we saw come from it, so far
    unseen: int  # tokens that calls in flight may have had without our seeing them: whole answers on their way
    call_s: float  # seconds of all calls that it had, added up so far
    served_s: float  # seconds in which it had any call, so far
    zombies: int = 0  # calls that it has not let go of
    runs: bool = False  # it says that it runs something
    textless: bool = False  # for calls that give no tokens


class DivergenceFinding(NamedTuple):
    signal: str  # exact | statistical | zombies | alone
    # exact: tokens for nobody in the window; statistical: the missing share of the usual yield; zombies: how many; alone: the
    # share of the window in which it ran something and had no call of ours
    excess: float


class _Tick(NamedTuple):
    at: float
    lead: int  # computed - seen
    computed: int | None
    seen: int
    busy_s: float  # since the tick before
    call_s: float  # so far
    served_s: float  # so far
    zombies: int
    runs: bool
    textless: bool


class DivergenceAlarm:
    """One backend's alarm. `observe` answers True when it has just gone off, False when it has just ended."""

    def __init__(self, terms: AlarmTerms | None = None) -> None:
        self.terms = terms or AlarmTerms()
        self.finding: DivergenceFinding | None = None  # the alarm, while it lasts
        self._baseline: dict[int, tuple[float, float]] = {}  # tokens per busy second, busy seconds learned from
        self._suspected_since: float | None = None
        self._well_since: float | None = None
        self.restarted(-math.inf)

    def restarted(self, now: float) -> None:
        """The engine was started anew: its counters begin again, and it may warm up."""
        self._ticks: deque[_Tick] = deque()
        self._high = -math.inf  # the highest lead that is older than the window
        self._quiet_until = now + _WARM_UP_S

    def observe(self, sample: CounterSample, now: float) -> bool | None:
        if self._ticks and not _follows(sample.computed, self._ticks[-1].computed):
            self.restarted(now)
        self._take(sample, now)
        found = self._exact(sample) if sample.computed is not None else None
        found = found or self._haunted() or (self._statistical(now) if sample.computed is None else None)
        return self._settle(found, now)

    def _haunted(self) -> DivergenceFinding | None:
        """By what it runs, in every look of a whole window."""
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
        busy_s = sum(tick.busy_s for tick in self._ticks) - first.busy_s
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
        """Tokens per busy second with about as many calls; where that is not known, with fewer: more never give less."""
        known = [at for at, (_, learned_s) in self._baseline.items() if at <= level and learned_s >= _LEARN_S]
        return self._baseline[max(known)][0] if known else 0.0

    def _learn(self, level: int, rate: float, busy_s: float) -> None:
        usual, learned_s = self._baseline.get(level, (rate, 0.0))
        learned_s += busy_s
        gain = busy_s / min(learned_s, _MEMORY_S) if learned_s else 0.0
        self._baseline[level] = (usual + (rate - usual) * gain, learned_s)

    def _settle(self, found: DivergenceFinding | None, now: float) -> bool | None:
        """Hysteresis: a finding must last, and so must its absence."""
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
    """Whether a count goes on where it was: one that falls, or was not there, begins anew."""
    return computed is before if computed is None or before is None else computed >= before
