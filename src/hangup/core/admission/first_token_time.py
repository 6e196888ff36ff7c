"""Learns how long an engine usually takes to the first token of a call with no others ahead of it, by prompt size.

Calls are compared with calls of their own size, octave by octave, because a prompt of 50 tokens and one of 50,000 say nothing
about each other. The usual time is a low quantile of recent samples: one cold start does not raise it, and an engine whose
first-token times scatter has most of them above it without being late.
"""

from __future__ import annotations

import math
from array import array
from typing import Final

_SAMPLES: Final = 32  # samples to keep for each size; once there are that many,
_LOOK: Final = 4  # the quantile is recomputed after every this many
_LOW: Final = 0.25  # the quantile that counts as usual,
_SOME: Final = 16  # from this many samples on; before that it is the median, since the first tokens to come are the quickest
_RISE_MAX: Final = 1.5  # the usual time is at most this many times its best: a slowly growing load must not pass for usual
_FORGET: Final = 1.002  # the best fades by this factor at each recomputation


class FirstTokenTimes:
    """The usual first-token times of one engine, by prompt size."""

    __slots__ = ("_by_size",)

    def __init__(self) -> None:
        self._by_size: dict[int, _Samples] = {}

    def get(self, prompt: int) -> float | None:
        """Return the usual time; None before anything is known. A size never seen is scaled up from a smaller one: time grows
        at most in proportion to size."""
        size = prompt.bit_length()
        known = self._by_size.get(size)
        if known is not None:
            return known.usual
        if not self._by_size:
            return None
        smaller = [other for other in self._by_size if other < size]
        if smaller:
            nearest = max(smaller)
            return self._by_size[nearest].usual * 2.0 ** (size - nearest)
        return self._by_size[min(self._by_size)].usual

    def observe(self, prompt: int, seconds: float) -> float:
        """Learn a time, and return the usual one for such prompts."""
        size = prompt.bit_length()
        known = self._by_size.get(size)
        if known is None:
            known = self._by_size[size] = _Samples(seconds)
        else:
            known.add(seconds)
        return known.usual

    def observe_lower(self, prompt: int, seconds: float) -> None:
        """Learn from a call while the engine queues: only times below the known one say something, and only while few are
        known."""
        known = self._by_size.get(prompt.bit_length())
        if known is None or (seconds < known.usual and known.few):
            self.observe(prompt, seconds)

    def replace(self, prompt: int, seconds: float) -> None:
        """Replace what was known about this size: the engine itself has become slower."""
        self._by_size[prompt.bit_length()] = _Samples(seconds)


class _Samples:
    __slots__ = ("_best", "_new", "_recent", "usual")

    def __init__(self, seconds: float) -> None:
        self._recent = array("d", [seconds])  # no list: its numbers would be all over the memory
        self._best = math.inf
        self._new = 0
        self.usual = seconds

    @property
    def few(self) -> bool:
        return len(self._recent) < _SOME

    def add(self, seconds: float) -> None:
        recent = self._recent
        if len(recent) >= _SAMPLES:
            recent.pop(0)
        recent.append(seconds)
        self._new += 1
        if len(recent) == _SAMPLES and self._new < _LOOK:
            return
        self._new = 0
        usual = sorted(recent)[int((_LOW if len(recent) >= _SOME else 0.5) * len(recent))]
        if len(recent) == _SAMPLES:
            self._best = min(self._best * _FORGET, usual)
        self.usual = min(usual, _RISE_MAX * self._best)
