"""Estimates from recent calls: time to the first token, time per token, length of answers, rates.

Every estimate forgets: its sums decay as new observations come in. And every estimate can say that it does not know, which is
never a reason to refuse a call.
"""

from __future__ import annotations

import math
from typing import Final

_MEMORY: Final = 200.0  # observations after which older ones have faded
_KEEP: Final = 1 - 1 / _MEMORY
_FRESH_S: Final = 30.0  # an estimate without an observation for this long is not used
_ENOUGH: Final = 8  # observations before an estimate is used at all
_RATE_S: Final = 5.0  # seconds over which rates are averaged,
_LONG: Final = 0.8  # and the share of them after which even a few events count
_STEP_GAIN: Final = 0.2
_SPREAD_GAIN: Final = 0.05
_FAR: Final = 2.0  # predictions go this many times beyond the largest prompt seen


class FirstTokenTime:
    """Seconds to the first token as a linear function of the prompt tokens to be read before it: `fixed + each · tokens`."""

    __slots__ = ("_n", "_spread", "_x", "_xx", "_xy", "_y", "at", "largest", "seen")

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._xy = 0.0
        self._spread = 0.0  # mean distance of observations from the line
        self.at = -math.inf
        self.largest = 0.0
        self.seen = 0

    def observe(self, tokens: float, seconds: float, now: float) -> None:
        if self.seen >= _ENOUGH:
            off = seconds - self._line(tokens)
            self._spread += ((off if off > 0 else -off) - self._spread) * _SPREAD_GAIN
        self._n = self._n * _KEEP + 1
        self._x = self._x * _KEEP + tokens
        self._y = self._y * _KEEP + seconds
        self._xx = self._xx * _KEEP + tokens * tokens
        self._xy = self._xy * _KEEP + tokens * seconds
        largest = self.largest * _KEEP
        self.largest = largest if largest > tokens else tokens
        self.at = now
        self.seen += 1

    def predict(self, tokens: float, now: float) -> float | None:
        """Return a cautious prediction (the line plus the usual error). None if too little, or nothing recent, is known, or
        nothing about prompts of this size."""
        if self.seen < _ENOUGH or now - self.at > _FRESH_S or tokens > self.largest * _FAR:
            return None
        return self._line(tokens) + self._spread

    def _line(self, tokens: float) -> float:
        n, mean = self._n, self._y / self._n
        spread = n * self._xx - self._x * self._x
        if spread <= 1e-9 * n * self._xx:
            return mean
        each = (n * self._xy - self._x * self._y) / spread
        if each < 0.0:
            each = 0.0
        fixed = mean - each * self._x / n
        if fixed < 0:
            return tokens * self._xy / self._xx
        return fixed + each * tokens


class StepTime:
    """Seconds per token of one answer."""

    __slots__ = ("at", "mean", "seen")

    def __init__(self) -> None:
        self.mean = 0.0
        self.at = -math.inf
        self.seen = 0

    def observe(self, seconds: float, now: float) -> None:
        self.mean += (seconds - self.mean) * (_STEP_GAIN if self.seen else 1.0)
        self.at = now
        self.seen += 1

    def get(self, now: float) -> float | None:
        return self.mean if self.seen >= _ENOUGH and now - self.at <= _FRESH_S else None


class Lengths:
    """The distribution of answer lengths, as counts over half octaves of tokens."""

    __slots__ = ("_counts", "_sum", "_total", "known", "mean", "seen")

    def __init__(self) -> None:
        self._counts = [0.0] * 48
        self._total = 0.0
        self._sum = 0.0
        self.seen = 0
        self.known = False
        self.mean = 0.0

    def observe(self, tokens: int) -> None:
        self.seen += 1
        self._counts[_SMALL[tokens] if tokens < len(_SMALL) else _half_octave(tokens)] += 1
        self._total += 1
        self._sum += tokens
        if self._total >= 2 * _MEMORY:
            self._counts = [count / 2 for count in self._counts]
            self._total /= 2
            self._sum /= 2
        self.mean = self._sum / self._total
        self.known = self.seen >= _ENOUGH

    def share_within(self, tokens: float) -> float:
        """Return the share of answers that are no longer than `tokens`."""
        if tokens < 1:
            return 0.0
        return sum(self._counts[: _half_octave(tokens) + 1]) / self._total

    def quantile(self, share: float) -> float:
        remaining = share * self._total
        for at, count in enumerate(self._counts):
            remaining -= count
            if remaining <= 0:
                return float(2.0 ** ((at + 1) / 2))
        return math.inf


def _half_octave(tokens: float) -> int:
    return min(int(2 * math.log2(tokens)), 47) if tokens > 1 else 0


_SMALL: Final = bytes(map(_half_octave, range(2048)))  # most answers have fewer tokens


class Rate:
    """Events per second, averaged over recent seconds; only time passed to `pass_time` counts."""

    __slots__ = ("_count", "_seconds")

    def __init__(self) -> None:
        self._count = 0.0
        self._seconds = 0.0

    def pass_time(self, seconds: float) -> None:
        keep = math.exp(-seconds / _RATE_S)
        self._count *= keep
        self._seconds = self._seconds * keep + seconds

    def add(self, count: float = 1.0) -> None:
        self._count += count

    @property
    def per_s(self) -> float | None:
        """Return the rate; None before there is enough evidence."""
        known = self._count >= _ENOUGH or (self._count >= 1 and self._seconds > _LONG * _RATE_S)
        return self._count / self._seconds if known and self._seconds > 0.2 else None


class Peak:
    """The recent maximum of a value: over at least `period_s`, at most twice that.

    If it is updated after each rise and before each fall, it knows every value in between.
    """

    __slots__ = ("_before", "latest", "period_s", "until")

    def __init__(self, period_s: float) -> None:
        self.period_s = period_s
        self.latest = 0  # the maximum in the current period
        self.until = -math.inf  # when the current period ends
        self._before = 0  # the maximum in the previous period

    def note(self, value: int, now: float) -> None:
        if now >= self.until:
            self._before = self.latest if now < self.until + self.period_s else value
            self.latest = value
            self.until = now + self.period_s
        elif value > self.latest:
            self.latest = value

    def get(self, value: int, now: float) -> int:
        """Note the current value and return the maximum."""
        self.note(value, now)
        return max(self._before, self.latest)


class Estimates:
    """The estimates for one backend, or for all of them together."""

    __slots__ = ("first_token", "step")

    def __init__(self) -> None:
        self.first_token = FirstTokenTime()
        self.step = StepTime()
