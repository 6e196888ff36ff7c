"""Adds up what all members have in one engine, so that the engine's own counts can be judged against the sum.

An engine's report is true at some moment between question and answer, or a little earlier. Members count themselves twice,
before the engine is asked and after it has answered:

    leader ── count ──▶ members ── tallies ──▶ leader ── status? ──▶ engine
    leader ◀─ tallies ── members ◀── count ── leader ◀── status ────┘

Whatever a member had at the time of the report is in its second tally: as live, as part of its peak, or as an ended call that
it reported before. Calls that it started between the two may be missing in the engine's report. If a member does not answer,
or leaves in between, there is no sum, and nobody is judged.

Each count has a number. A peak is the most since the last count that led to a sum, so an answer that is lost loses no peak.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_SEGMENTS_MAX = 64


class Tally(NamedTuple):
    """What one member has in one engine."""

    live: int  # answers that its calls wait for
    peak: int  # the most at a time since the last count that led to a sum
    placed: int  # answers that it ever requested
    unstarted: int  # calls without a first token
    calls: int  # calls in flight that have not ended


class Sum(NamedTuple):
    """What all members have in one engine."""

    live: int = 0
    peak: int = 0  # at least the most that they had at a time
    placed_between: int = 0  # answers requested while the engine was asked
    unstarted: int = 0
    calls: int = 0


class PeakLog:
    """A member's peaks in one engine, between the leader's counts."""

    def __init__(self) -> None:
        self._term = -1
        self._segments: deque[tuple[int, int]] = deque()  # number of the count that ended it, and the peak in it

    def peak_since(self, term: int, number: int, since: int, peak: int) -> int:
        """Note the `peak` since the last count, and return the one since the count that is numbered `since`."""
        if term != self._term:
            self._term = term
            self._segments.clear()
        self._segments.append((number, peak))
        while self._segments[0][0] <= since and len(self._segments) > 1:
            self._segments.popleft()
        if len(self._segments) > _SEGMENTS_MAX:  # nobody gets an answer: keep the peaks, not when they were
            (_, first), (at, second) = self._segments.popleft(), self._segments.popleft()
            self._segments.appendleft((at, max(first, second)))
        return max(peak for _, peak in self._segments)


class WholeCount:
    """The leader's counts of all members in one engine."""

    def __init__(self) -> None:
        self._number = 0
        self.since = 0  # number of the last count that led to a sum
        self._before: tuple[int, dict[str, Tally]] | None = None  # the first count of this look

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def note_before(self, number: int, expected: Iterable[str], tallies: Mapping[str, Tally]) -> bool:
        """Note the count before the engine is asked; return whether everybody answered."""
        complete = all(member in tallies for member in expected)
        self._before = (number, dict(tallies)) if complete else None
        return complete

    def add_up(self, number: int, expected: Iterable[str], tallies: Mapping[str, Tally]) -> Sum | None:
        """Add up the count after the engine has answered; None if a member is missing, or left meanwhile with its calls."""
        before, self._before = self._before, None
        if before is None or number <= before[0] or not all(member in tallies for member in {*expected, *before[1]}):
            return None
        self.since = number
        return Sum(
            live=sum(tally.live for tally in tallies.values()),
            peak=sum(max(tally.live, tally.peak) for tally in tallies.values()),
            placed_between=sum(tally.placed - _placed(before[1], member) for member, tally in tallies.items()),
            unstarted=sum(tally.unstarted for tally in tallies.values()),
            calls=sum(tally.calls for tally in tallies.values()),
        )


def _placed(tallies: Mapping[str, Tally], member: str) -> int:
    """Return what a member had requested by then; one that came later, nothing."""
    return tallies[member].placed if member in tallies else 0
