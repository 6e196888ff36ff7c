"""`BackendHealth`: whether a backend gets calls. Five facts, each from one source, and each with one table of its own.

    reach    ASSUMED_UP ──▶ UP ◀──▶ DOWN       calls and health checks: it answered, or failed too often in a row
                 └──────────────────▲
    trust    TRUSTED ──▶ SUSPECTED ──▶ DEGRADED ──▶ QUARANTINED      the reaper: does the engine stop abandoned work?
                ▲ ◀── a look found nothing ──┘           │
                └─────────────── taken back ─────────────┘
    intake   OPEN ◀──▶ PAUSED                  the engine: it refuses calls, and said when it will take them again
    use      IN_USE ◀──▶ DRAINED               operators; an operator's word survives every recovery of the engine
                └─▶ RETIRED ◀─┘                the configuration no longer has it; this is final
    listing  LISTED ◀──▶ MISSING               discovery: DNS lists its address, or no longer does
                └─ NEW ─┘                      found while others are in use: it must answer a canary first

No event of one source changes the fact of another. So a drained backend that recovers stays drained, and a quarantined one that
answers a health check stays in quarantine until the reaper takes it back.

`apply` is the only way in. What others ask for (`well`, `takes_calls` and so on) is computed there, when something changes,
because admission reads it for each call.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Reach(StrEnum):
    ASSUMED_UP = "assumed_up"  # it has not answered yet, and has not failed too often either
    UP = "up"
    DOWN = "down"  # used only if no other backend is well


class Trust(StrEnum):
    TRUSTED = "trusted"
    SUSPECTED = "suspected"  # it may run abandoned work: used when the others are full
    DEGRADED = "degraded"  # it runs abandoned work: used only as a backend that is down would be
    QUARANTINED = "quarantined"  # no new calls at all; running calls may finish


class CallIntake(StrEnum):
    OPEN = "open"
    PAUSED = "paused"  # the engine asked for a pause: no new calls


class Use(StrEnum):
    IN_USE = "in_use"
    DRAINED = "drained"  # an operator wants no new calls there; running calls may finish
    RETIRED = "retired"  # removed from the configuration: no new calls; running calls may finish


class DnsListing(StrEnum):
    LISTED = "listed"  # always, if its address is configured
    NEW = "new"  # it was just found: no calls before it has answered a canary
    MISSING = "missing"  # DNS does not list it now: no new calls; running calls may finish


class HealthEvent(StrEnum):
    ANSWERED = "answered"  # a call or a check found it healthy
    FAILED = "failed"  # a call or a check found it broken
    FAILED_TOO_OFTEN = "failed_too_often"  # the same, `failures_max` times in a row; `apply` counts
    GRACE_OVER = "grace_over"  # an ended call may still run, by the clock alone
    FOUND_CLEAN = "found_clean"  # the reaper looked: no ended call still runs
    FOUND_LATE = "found_late"  # the reaper looked: an ended call may still run
    FOUND_ZOMBIE = "found_zombie"  # the reaper looked: it runs abandoned work, or is in other trouble
    QUARANTINED = "quarantined"
    TAKEN_BACK = "taken_back"  # the reaper's trouble with it is over
    PAUSED = "paused"  # it refuses calls until a certain time
    RESUMED = "resumed"  # that time has come
    DRAINED = "drained"
    UNDRAINED = "undrained"
    RETIRED = "retired"
    FOUND_NEW = "found_new"  # DNS lists it for the first time
    LISTED = "listed"  # DNS lists it, and it answered a canary, or nothing else could serve
    UNLISTED = "unlisted"


class ImpossibleEventError(Exception):
    """Raised for an event that cannot happen in this state: its sender has lost track of the backend."""


# Each event, and where it leads from each state; None: it cannot happen there.
REACH: Mapping[HealthEvent, Mapping[Reach, Reach]] = {
    HealthEvent.ANSWERED: {Reach.ASSUMED_UP: Reach.UP, Reach.UP: Reach.UP, Reach.DOWN: Reach.UP},
    HealthEvent.FAILED: {Reach.ASSUMED_UP: Reach.ASSUMED_UP, Reach.UP: Reach.UP, Reach.DOWN: Reach.DOWN},
    HealthEvent.FAILED_TOO_OFTEN: {Reach.ASSUMED_UP: Reach.DOWN, Reach.UP: Reach.DOWN, Reach.DOWN: Reach.DOWN},
}
TRUST: Mapping[HealthEvent, Mapping[Trust, Trust]] = {
    HealthEvent.GRACE_OVER: {
        Trust.TRUSTED: Trust.SUSPECTED,
        Trust.SUSPECTED: Trust.SUSPECTED,
        Trust.DEGRADED: Trust.DEGRADED,
        Trust.QUARANTINED: Trust.QUARANTINED,
    },
    HealthEvent.FOUND_CLEAN: {
        Trust.TRUSTED: Trust.TRUSTED,
        Trust.SUSPECTED: Trust.TRUSTED,
        Trust.DEGRADED: Trust.TRUSTED,
        Trust.QUARANTINED: Trust.QUARANTINED,
    },
    HealthEvent.FOUND_LATE: {
        Trust.TRUSTED: Trust.SUSPECTED,
        Trust.SUSPECTED: Trust.SUSPECTED,
        Trust.DEGRADED: Trust.SUSPECTED,
        Trust.QUARANTINED: Trust.QUARANTINED,
    },
    HealthEvent.FOUND_ZOMBIE: {
        Trust.TRUSTED: Trust.DEGRADED,
        Trust.SUSPECTED: Trust.DEGRADED,
        Trust.DEGRADED: Trust.DEGRADED,
        Trust.QUARANTINED: Trust.QUARANTINED,
    },
    HealthEvent.QUARANTINED: dict.fromkeys(Trust, Trust.QUARANTINED),
    HealthEvent.TAKEN_BACK: dict.fromkeys(Trust, Trust.TRUSTED),
}
_EVENTS_TO: Final = {  # from any state
    Trust.TRUSTED: (HealthEvent.TAKEN_BACK,),
    Trust.SUSPECTED: (HealthEvent.TAKEN_BACK, HealthEvent.GRACE_OVER),
    Trust.DEGRADED: (HealthEvent.TAKEN_BACK, HealthEvent.FOUND_ZOMBIE),
    Trust.QUARANTINED: (HealthEvent.QUARANTINED,),
}
INTAKE: Mapping[HealthEvent, Mapping[CallIntake, CallIntake]] = {
    HealthEvent.PAUSED: dict.fromkeys(CallIntake, CallIntake.PAUSED),
    HealthEvent.RESUMED: dict.fromkeys(CallIntake, CallIntake.OPEN),
}
USE: Mapping[HealthEvent, Mapping[Use, Use | None]] = {
    HealthEvent.DRAINED: {Use.IN_USE: Use.DRAINED, Use.DRAINED: Use.DRAINED, Use.RETIRED: None},
    HealthEvent.UNDRAINED: {Use.IN_USE: Use.IN_USE, Use.DRAINED: Use.IN_USE, Use.RETIRED: None},
    HealthEvent.RETIRED: {Use.IN_USE: Use.RETIRED, Use.DRAINED: Use.RETIRED, Use.RETIRED: None},
}
LISTING: Mapping[HealthEvent, Mapping[DnsListing, DnsListing]] = {
    HealthEvent.FOUND_NEW: dict.fromkeys(DnsListing, DnsListing.NEW),
    HealthEvent.LISTED: dict.fromkeys(DnsListing, DnsListing.LISTED),
    HealthEvent.UNLISTED: dict.fromkeys(DnsListing, DnsListing.MISSING),
}


# As constants of the module, because Python 3.11 takes as long for a member of an enum as for a function call.
_ANSWERED: Final = HealthEvent.ANSWERED
_UP: Final = Reach.UP


class BackendHealth:
    """The health of one backend, and what follows from it for new calls."""

    __slots__ = (
        "failures",
        "failures_max",
        "in_service",
        "intake",
        "listing",
        "paused",
        "paused_until",
        "reach",
        "retired",
        "takes_calls",
        "trust",
        "up",
        "use",
        "well",
    )

    def __init__(self, failures_max: int = 3) -> None:
        self.failures_max = failures_max
        self.failures = 0  # in a row
        self.paused_until = 0.0  # when the pause ends; 0 if there is none
        self.reach = Reach.ASSUMED_UP
        self.trust = Trust.TRUSTED
        self.intake = CallIntake.OPEN
        self.use = Use.IN_USE
        self.listing = DnsListing.LISTED
        self._derive()

    def __repr__(self) -> str:
        return f"<health {self.reach} {self.trust} {self.intake} {self.use} {self.listing}>"

    def apply(self, event: HealthEvent, *, until: float = 0.0) -> bool:
        """Apply an event; return whether it matters to new calls, in which case the caller must notify the fleet. `until`: when
        a pause ends."""
        if event is _ANSWERED:
            self.failures = 0
            if self.reach is _UP:  # the usual case
                return False
        elif event is HealthEvent.FAILED:
            self.failures += 1
            if self.failures >= self.failures_max:
                event = HealthEvent.FAILED_TOO_OFTEN
        elif event in INTAKE:
            self.paused_until = until
        before = self.up, self.trust, self.intake, self.use, self.listing
        self._move(event)
        self._derive()
        return before != (self.up, self.trust, self.intake, self.use, self.listing)

    def take_trust(self, trust: Trust) -> None:
        """Take another process's word for how far the engine can be trusted."""
        for event in _EVENTS_TO[trust]:
            self.apply(event)

    def _move(self, event: HealthEvent) -> None:
        if event in REACH:
            self.reach = REACH[event][self.reach]
        elif event in TRUST:
            self.trust = TRUST[event][self.trust]
        elif event in INTAKE:
            self.intake = INTAKE[event][self.intake]
        elif event in LISTING:
            self.listing = LISTING[event][self.listing]
        else:
            use = USE[event][self.use]
            if use is None:
                raise ImpossibleEventError(f"{event} in {self!r}")
            self.use = use

    def _derive(self) -> None:
        self.up = self.reach is not Reach.DOWN  # assumed or known
        self.retired = self.use is Use.RETIRED
        usable = self.use is Use.IN_USE and self.listing is DnsListing.LISTED
        self.in_service = usable and self.trust is not Trust.QUARANTINED  # calls may wait for it
        self.paused = self.intake is CallIntake.PAUSED
        self.takes_calls = self.in_service and not self.paused
        self.well = self.in_service and self.up and self.trust is not Trust.DEGRADED  # preferred to those that are not

    @property
    def ready(self) -> bool:
        """Return whether it has answered, and calls may go there."""
        return self.reach is Reach.UP and self.in_service

    @property
    def answered(self) -> bool:
        """Return whether it is up by its own answer, and not only assumed to be."""
        return self.reach is Reach.UP

    @property
    def quarantined(self) -> bool:
        return self.trust is Trust.QUARANTINED

    @property
    def drained(self) -> bool:
        return self.use is Use.DRAINED
