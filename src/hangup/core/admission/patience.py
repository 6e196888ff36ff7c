"""How long clients wait before they leave, learned from departures.

A survival curve (Kaplan and Meier's): of those who were still waiting after so many seconds, which share left then? A call that
ended otherwise says only that its client was there until its end. So a timeout that all clients have shows as a
cliff, however few of them were ever kept waiting that long, and people who leave one by one show as a slope.
"""

from __future__ import annotations

import math

_FIRST_S = 0.05  # where the first bin ends
_BINS_PER_OCTAVE = 16
_BINS = 15 * _BINS_PER_OCTAVE  # up to about half an hour
_ENOUGH = 6  # departures before anything is concluded
_STAY_SHARE = 0.1  # fewer than so many have ever waited longer: then nobody does
_LEAST_S = 1.0  # who leaves sooner than that did not lose patience
_MEMORY = 400.0  # calls after which older ones have faded by half
_REFRESH = 2  # calls after which the curve is drawn anew


class Patience:
    """Of one kind of client, for one kind of wait."""

    __slots__ = ("_began", "_ended", "_ended_s", "_left", "_left_s", "_limit_s", "_seen", "_stale", "departures")

    def __init__(self) -> None:
        self._began = [0.0] * _BINS  # calls by the moment from which they were watched,
        self._ended = [0.0] * _BINS  # those by the moment at which they ended,
        self._ended_s = [0.0] * _BINS  # and the sum of those moments,
        self._left = [0.0] * _BINS  # and the same of those who left
        self._left_s = [0.0] * _BINS
        self._seen = 0.0
        self._stale = 0
        self._limit_s = math.inf
        self.departures = 0

    def observe(self, from_s: float, to_s: float, *, left: bool) -> None:
        """A client was seen to wait from one moment after its arrival to another; whether it left then."""
        at = _bin(to_s)
        self._began[_bin(from_s)] += 1
        self._seen += 1
        self._stale += 1
        if left:
            self.departures += 1
            self._left[at] += 1
            self._left_s[at] += to_s
        else:
            self._ended[at] += 1
            self._ended_s[at] += to_s
        if self._seen >= 2 * _MEMORY:
            self._fade()

    def _fade(self) -> None:
        for counts in (self._began, self._ended, self._ended_s, self._left, self._left_s):
            counts[:] = [count / 2 for count in counts]
        self._seen /= 2

    @property
    def limit_s(self) -> float:
        """The time that hardly any client has waited beyond; infinite while nothing says so."""
        if self._stale >= _REFRESH:
            self._stale = 0
            self._limit_s = self._draw() if self.departures >= _ENOUGH else math.inf
        return self._limit_s

    def _draw(self) -> float:
        watched, stay = 0.0, 1.0
        for at, left in enumerate(self._left):
            watched += self._began[at]
            ended = self._ended[at]
            if left:
                left_s = self._left_s[at] / left
                # Who ended shortly before the others left was no longer waiting then.
                waited = watched - ended if ended and self._ended_s[at] / ended < left_s else watched
                stay *= max(1 - left / max(waited, left), 0.0)
                if stay < _STAY_SHARE:
                    return left_s if left_s >= _LEAST_S else math.inf
            watched -= ended + left
        return math.inf


def _bin(seconds: float) -> int:
    if seconds <= _FIRST_S:
        return 0
    return min(int(_BINS_PER_OCTAVE * math.log2(seconds / _FIRST_S)) + 1, _BINS - 1)


class PatienceBook:
    """Of all kinds of clients of one tenant: by what they call themselves, and whether they read a stream."""

    __slots__ = ("_kinds",)
    KINDS_MAX = 32  # of clients; the rest are one kind

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, bool], tuple[Patience, Patience]] = {}

    def of(self, client: str, stream: bool) -> tuple[Patience, Patience]:
        """Until the first token, and for all of it."""
        found = self._kinds.get((client, stream))
        if found is None:
            if len(self._kinds) >= 2 * self.KINDS_MAX:
                client = ""
            found = self._kinds.setdefault((client, stream), (Patience(), Patience()))
        return found
