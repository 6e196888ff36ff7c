"""Learns how long clients wait before they leave, from their departures.

The method is a survival curve (Kaplan-Meier): of the clients that were still waiting after so many seconds, which share left
then? A call that ended in another way says only that its client was there until then. So a timeout that all clients share shows
as a cliff, however few of them ever had to wait that long, and people who leave one by one show as a slope.
"""

from __future__ import annotations

import math
from array import array
from typing import Final

KINDS_MAX: Final = 32  # kinds of clients of a tenant; all others count as one kind
_FIRST_S: Final = 0.05  # where the first bin ends
_BINS_PER_OCTAVE: Final = 16
_BINS: Final = 15 * _BINS_PER_OCTAVE  # up to about half an hour
# What a bin counts: calls by when we began to watch them; those that ended, and the sum of the times of their ends; the same
# two for clients that left. All bins are in one array, with these five beside each other, so that a call touches little memory.
_BEGAN, _ENDED, _ENDED_S, _DEPARTED, _DEPARTED_S = range(5)
_PER_BIN: Final = 5
_ENOUGH: Final = 6  # departures before anything is concluded
_ENOUGH_ALIKE: Final = 3  # departures from whole streams, if they happen when clients without a first token leave, too
_STAY_SHARE: Final = 0.1  # if a smaller share than this waited longer, the curve ends there
_CLIFF: Final = 1.25  # if all leave within this factor of time, it is a timeout: then its start counts
_ALIKE: Final = 1.1
_LEAST_S: Final = 1.0  # a client that leaves sooner did not lose patience
_MEMORY: Final = 400.0  # calls after which older ones have faded by half
_RECOMPUTE_S: Final = 0.25  # the curve is redrawn this often: that costs more than counting a call


class Patience:
    """The patience of one kind of client, for one kind of wait."""

    __slots__ = (
        "_bins",
        "_limit_s",
        "_live",
        "_recompute_at",
        "_seen",
        "departures",
    )

    def __init__(self) -> None:
        self._bins = array("d")  # empty until something was observed
        self._seen = 0.0
        self._limit_s = math.inf
        self._live: dict[object, tuple[float, float]] = {}  # waiting now: since when, and from which moment of the wait watched
        self._recompute_at = -math.inf
        self.departures = 0

    def watch(self, who: object, since: float, from_s: float) -> None:
        """Note that a client waits. Clients that are still there count as well, or the first to leave would stand for all."""
        self._live[who] = since, from_s

    def unwatch(self, who: object) -> None:
        self._live.pop(who, None)

    def observe(self, from_s: float, to_s: float, *, client_left: bool) -> None:
        """Note that a client waited from one time after its arrival to another, and whether it left then."""
        bins = self._bins
        if not bins:
            bins = self._bins = array("d", bytes(8 * _PER_BIN * _BINS))
        at = _PER_BIN * _bin(to_s)
        bins[_PER_BIN * _bin(from_s) + _BEGAN] += 1
        self._seen += 1
        if client_left:
            self.departures += 1
            bins[at + _DEPARTED] += 1
            bins[at + _DEPARTED_S] += to_s
        else:
            bins[at + _ENDED] += 1
            bins[at + _ENDED_S] += to_s
        if self._seen >= 2 * _MEMORY:
            self._fade()

    def _fade(self) -> None:
        self._bins = array("d", [count / 2 for count in self._bins])
        self._seen /= 2

    def _by_time(self, what: int) -> array[float]:
        """Return one of the counts for all bins."""
        return self._bins[what::_PER_BIN]

    @property
    def limit_s(self) -> float:
        """Return the limit from finished waits alone."""
        return self.limit(-math.inf)

    def limit(self, now: float, like_s: float = math.inf) -> float:
        """Return the time that hardly any client has waited beyond; infinite until there is enough evidence.

        `like_s` is the limit of another wait of the same clients. A few departures at that time here, too, show one timeout for
        both.
        """
        if self.departures < (_ENOUGH if like_s == math.inf else _ENOUGH_ALIKE):
            return math.inf
        if now >= self._recompute_at:
            self._recompute_at = now + _RECOMPUTE_S
            self._limit_s = self._compute_limit(now) if self.departures >= _ENOUGH else math.inf
            if self._limit_s == math.inf and like_s < math.inf and self._breaks_off(like_s, now):
                self._limit_s = like_s
        return self._limit_s

    def _breaks_off(self, at_s: float, now: float) -> bool:
        """Return whether some clients left at about that time and hardly any stayed longer."""
        first, last = _bin(at_s / _ALIKE), _bin(at_s * _CLIFF)
        left = self._by_time(_DEPARTED)
        departed = sum(left[first : last + 1], 0.0)  # compiled, a sum without 0.0 must be an int
        stayed = sum(left[last + 1 :], 0.0) + sum(self._by_time(_ENDED)[last + 1 :], 0.0)
        stayed += sum(now - since > at_s * _CLIFF for since, _ in self._live.values())
        return departed >= _ENOUGH_ALIKE and stayed <= _STAY_SHARE * departed

    def _compute_limit(self, now: float) -> float:
        began, all_ended, ended_s, all_departed_s = map(self._by_time, (_BEGAN, _ENDED, _ENDED_S, _DEPARTED_S))
        still = [0.0] * _BINS  # clients still waiting, by the time waited so far
        for since, from_s in self._live.values():
            if now >= since + from_s:
                began[_bin(from_s)] += 1
                still[_bin(now - since)] += 1
        watched, stay, edge_s = 0.0, 1.0, math.inf  # `edge_s`: when the first of them leave
        for at, departed in enumerate(self._by_time(_DEPARTED)):
            watched += began[at]
            ended = all_ended[at]
            if departed:
                departed_s = all_departed_s[at] / departed
                # A call that ended shortly before the others left was no longer waiting then.
                waited = watched - ended if ended and ended_s[at] / ended < departed_s else watched
                stay *= max(1 - departed / max(waited, departed), 0.0)
                if stay < 1 - _STAY_SHARE:
                    edge_s = min(edge_s, departed_s)
                if stay < _STAY_SHARE:
                    limit_s = edge_s if departed_s <= _CLIFF * edge_s else departed_s
                    return limit_s if limit_s >= _LEAST_S else math.inf
            watched -= ended + departed + still[at]
        return math.inf


def _bin(seconds: float) -> int:
    if seconds <= _FIRST_S:
        return 0
    return min(int(_BINS_PER_OCTAVE * math.log2(seconds / _FIRST_S)) + 1, _BINS - 1)


class TenantPatience:
    """The patience of one tenant's clients, by the name that they give themselves and by whether they read a stream."""

    __slots__ = ("_kinds",)

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, bool], tuple[Patience, Patience]] = {}

    def of(self, client: str, stream: bool) -> tuple[Patience, Patience]:
        """Return the patience until the first token, and the patience for the whole answer."""
        found = self._kinds.get((client, stream))
        if found is None:
            if len(self._kinds) >= 2 * KINDS_MAX:
                client = ""
            found = self._kinds.setdefault((client, stream), (Patience(), Patience()))
        return found
