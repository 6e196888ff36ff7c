"""Learned slots of the whole: how many calls an engine may have whose slots nobody knows, learned from what all members see.

A member reports what it has at such an engine (`LearnedFigures`) and what it saw of its calls there (`Observation`). The hub
learns from that as one gateway with all these calls would (`WholeLimit`), and allots the result like configured slots. While
there is no evidence that an engine queues, everybody may send every call.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from hangup.core.admission import NO_LIMIT, Admission, Evidence, Observation, SharedLimit, WholeLimit
from hangup.core.members.pace import HURRY_S, REPORT_S

_CALM_S = 1.0  # a limit that has held nobody back for so long ends when calls are on time
K = TypeVar("K")


class LearnedFigures(NamedTuple):
    """What a member has at an engine whose slots are learned."""

    backend: str
    in_flight: int
    unstarted: int  # of these, calls without a first token,
    held: int  # ended calls that may still be in the engine,
    running: int  # and the most that the engine was seen to run since the last report
    waiting: int  # calls that wait at this member, for this engine or another
    by_tokens: bool  # late first tokens are evidence


class WholeFigures(NamedTuple):
    """What a member learns of the whole."""

    backend: str
    evidence: str
    limit: int  # calls that the engine may have
    most_running: int  # calls of all members that it was seen to run
    running_elsewhere: int  # calls of the other members,
    unstarted_elsewhere: int  # and those of them without a first token


def learned_figures(admission: Admission[K]) -> list[LearnedFigures]:
    """Say what this member has at the engines whose slots are learned."""
    waiting = admission.queue.count
    return [
        LearnedFigures(
            load.name,
            load.in_flight,
            load.unstarted,
            load.held,
            load.limiter.take_running(load.in_flight, load.unstarted, load.held),
            waiting if load.health.takes_calls else 0,
            load.limiter.by_tokens,
        )
        for load in admission.fleet.loads
        if not load.slots and isinstance(load.limiter, SharedLimit)
    ]


def shared_limits(admission: Admission[K]) -> dict[str, SharedLimit]:
    """Return the limits of the backends whose slots are learned."""
    loads = admission.fleet.loads
    return {load.name: load.limiter for load in loads if not load.slots and isinstance(load.limiter, SharedLimit)}


def take_observations(admission: Admission[K], now: float) -> dict[str, list[Observation]]:
    """Return what this member has seen of its calls since the last time, by backend."""
    limits = shared_limits(admission).items()
    return {name: seen for name, limit in limits if (seen := limit.take_observations(now))}


class _Part:
    """One member's part of an engine's calls."""

    __slots__ = ("_before", "_low", "_since", "figures", "steady", "until")

    def __init__(self, figures: LearnedFigures, now: float) -> None:
        self.figures = figures
        self.steady = self._low = self._before = figures.running
        self._since = now
        self.until = math.inf  # its member is gone, and engines may not have noticed until then

    def note(self, figures: LearnedFigures, now: float) -> None:
        self.figures = figures
        if now >= self._since + REPORT_S:
            self._before, self._low, self._since = self._low, figures.running, now
        else:
            self._low = min(self._low, figures.running)
        # Calls that ran all the time since others have reported as well. A call that has just started may have taken the slot
        # of another member's, whose end the hub does not know yet.
        self.steady = min(self._before, self._low)


class _Engine:
    """All that members have at an engine, and its limit."""

    __slots__ = ("_places", "_places_at", "held", "in_flight", "limit", "parts", "steady", "unstarted", "waited_at", "waiting")

    def __init__(self) -> None:
        self.limit = WholeLimit()
        self.parts: dict[str, _Part] = {}  # by member
        self.in_flight = self.unstarted = self.held = self.steady = self.waiting = 0  # of all parts together
        self.waited_at = -math.inf
        self._places, self._places_at = NO_LIMIT, -math.inf  # the latest result, and its time

    def note(self, member: str, figures: LearnedFigures, now: float) -> None:
        part = self.parts.get(member)
        if part is None:
            part = self.parts[member] = _Part(figures, now)
        else:
            self._count(part, -1)
            part.note(figures, now)
        self._count(part, 1)
        self.limit.by_tokens = figures.by_tokens
        self.limit.note_running(self.steady, now)
        if self.waiting and self.in_flight + self.waiting > self.places(now):  # else a place for it is on its way
            self.waited_at = now
        elif now - self.waited_at > _CALM_S:
            self.limit.open_if_on_time()

    def drop(self, member: str) -> None:
        self._count(self.parts.pop(member), -1)

    def _count(self, part: _Part, sign: int) -> None:
        figures = part.figures
        self.in_flight += sign * figures.in_flight
        self.unstarted += sign * figures.unstarted
        self.held += sign * figures.held
        self.steady += sign * part.steady
        self.waiting += sign * figures.waiting

    def places(self, now: float) -> int:
        """Return how many calls it may have. Each change leads to messages, and these to reports, so it changes seldom."""
        limit = self.limit
        limited = limit.evidence is not Evidence.NONE
        if now >= self._places_at + HURRY_S or limited != (self._places < NO_LIMIT):
            most = limit.limit(self.in_flight, self.unstarted, self.held) if limited else NO_LIMIT
            self._places, self._places_at = max(int(min(most, NO_LIMIT)), 1), now
        return self._places


class LearnedPlaces:
    """The hub's part."""

    def __init__(self) -> None:
        self._engines: dict[str, _Engine] = {}

    def note(self, member: str, rows: Iterable[LearnedFigures], now: float) -> dict[str, int]:
        """Note all that a member has; return how many calls each of these engines may have now."""
        by_backend = {row.backend: row for row in rows}
        changed = {}
        for name, engine in list(self._engines.items()):
            gone = [other for other, part in engine.parts.items() if part.until <= now]
            gone += [member] if name not in by_backend and member in engine.parts else []
            for other in gone:
                engine.drop(other)
            if gone:
                changed[name] = engine.places(now) if engine.parts else NO_LIMIT
                if not engine.parts:
                    del self._engines[name]
        for name, row in by_backend.items():
            engine = self._engines.setdefault(name, _Engine())
            engine.note(member, row, now)
            changed[name] = engine.places(now)
        return changed

    def observe(self, seen: Mapping[str, list[Observation]], now: float) -> dict[str, int]:
        """Learn from what a member saw; return how many calls each of these engines may have now."""
        for name, rows in seen.items():
            engine = self._engines.get(name)
            if engine is not None:
                for row in rows:
                    engine.limit.observe(row, engine.in_flight, now)
        return {name: self._engines[name].places(now) for name in seen if name in self._engines}

    def leave(self, member: str, until: float) -> None:
        """Count what a member had until then: it is gone, and engines may take so long to notice that."""
        for engine in self._engines.values():
            if member in engine.parts:
                engine.parts[member].until = until

    def go_on_from(self, limits: Mapping[str, SharedLimit], now: float) -> None:
        """Begin with what the hub before this one had learned, as far as a member knows it."""
        for name, limit in limits.items():
            self._engines.setdefault(name, _Engine()).limit.go_on_from(limit, now)

    def whole_for(self, member: str, now: float) -> list[WholeFigures]:
        """Return what a member should know of the whole."""
        rows = []
        for name, engine in self._engines.items():
            part = engine.parts.get(member)
            if part is not None:
                mine, limit = part.figures, engine.limit
                running = engine.in_flight - engine.unstarted - (mine.in_flight - mine.unstarted)
                others = (running, engine.unstarted - mine.unstarted)
                rows.append(WholeFigures(name, limit.evidence, engine.places(now), limit.most_running, *others))
        return rows
