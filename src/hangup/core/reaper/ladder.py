"""Decides what to do about an engine that does not stop abandoned work: in which order, and how often.

    HEALTHY ──▶ DEGRADED ──▶ QUARANTINED ──▶ RESTARTING ──▶ CANARY ──▶ HEALTHY
              │  ▲ abort again, with backoff, a few times; new calls go to other backends if there are any. An engine
              │  │ that has no abort gets the same time
              ▼
             HEALTHY     the trouble went away by itself

Every step has a reason and a limit. A quarantined backend gets no new calls, and its running calls may finish. A restart waits
for them, unless `force` is set. Trouble that ends in quarantine leads to the canary without a restart. Each rung can be turned
off; where the next one is off, the ladder stays on the rung below and keeps watching.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from hangup.core.reaper.pending_stops import PendingStop

_HOUR_S = 3600.0
_CANARIES_MAX = 2  # failed canaries in a row before a restart


class Rung(StrEnum):
    """How far the ladder has gone on a backend."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    QUARANTINED = "quarantined"
    RESTARTING = "restarting"
    CANARY = "canary"


STEPS: tuple[str, ...] = ("abort", "wait", *Rung)  # every `LadderStep.what` there is


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderTerms:
    """How far the ladder may go on a backend."""

    aborts_max: int = 3  # per call, after the first one
    abort_backoff_s: float = 0.5  # doubles
    quarantine: bool = True
    restart: bool = False
    force: bool = False  # restart under live calls, after `restart_wait_s`
    restart_wait_s: float = 30.0
    restarts_per_hour: int = 4
    canary: bool = True
    canary_backoff_s: float = 2.0  # doubles, up to a minute
    wedge_s: float = 30.0


class LadderStep(NamedTuple):
    """One step to take or to report: `what` is "abort", "wait" (where there is no abort), or the rung that was reached."""

    what: str
    reason: str
    stop: PendingStop | None = None


class Ladder:
    """The escalation on one backend."""

    def __init__(self, terms: LadderTerms) -> None:
        self.terms = terms
        self.can_abort = True
        self.rung = Rung.HEALTHY
        self.since = -math.inf
        self.reason = ""
        self._restarts: list[float] = []  # when, within the last hour
        self._next: dict[str, float] = {}  # when each zombie's next abort is due
        self._not_before = -math.inf  # no restart and no canary before this time, after one that failed
        self._tries = 0

    def __repr__(self) -> str:
        return f"<ladder {self.rung.value} {self.reason}>"

    def advance(self, now: float, zombies: Sequence[PendingStop], trouble: str, live: int) -> list[LadderStep]:
        """Return the steps to take now. `trouble` names anything wrong besides zombies, or is ""."""
        match self.rung:
            case Rung.HEALTHY:
                if not zombies and not trouble:
                    return []
                steps = [self._go(Rung.DEGRADED, now, trouble or _named(zombies))]
                return steps + self._degraded(now, zombies, trouble)
            case Rung.DEGRADED:
                return self._degraded(now, zombies, trouble)
            case Rung.QUARANTINED:
                return self._quarantined(now, zombies, trouble, live)
            case _:
                return []

    def _degraded(self, now: float, zombies: Sequence[PendingStop], trouble: str) -> list[LadderStep]:
        if not zombies and not trouble:
            self._next.clear()
            return [self._go(Rung.HEALTHY, now, "the engine has recovered")]
        terms, steps, used_up = self.terms, list[LadderStep](), bool(trouble)
        self._next = {z.key: self._next.get(z.key, now) for z in zombies}
        for zombie in zombies:
            if now < self._next[zombie.key]:
                continue
            if zombie.aborts >= terms.aborts_max:
                used_up = True
                continue
            self._next[zombie.key] = now + terms.abort_backoff_s * 2**zombie.aborts
            zombie.aborts += 1
            what = "abort" if self.can_abort else "wait"
            steps.append(LadderStep(what, f"{what} {zombie.aborts} of {terms.aborts_max}", zombie))
        if used_up and terms.quarantine:
            steps.append(self._go(Rung.QUARANTINED, now, trouble or _named(zombies)))
        return steps

    def _quarantined(self, now: float, zombies: Sequence[PendingStop], trouble: str, live: int) -> list[LadderStep]:
        if now < self._not_before:
            return []
        if not trouble and self._tries >= _CANARIES_MAX and self._may_restart(now):
            trouble = self.reason  # the engine reports no trouble, yet answers no canary
        if not zombies and not trouble:
            return [self._to_canary(now, "the engine has recovered")]
        waited = now - self.since >= self.terms.restart_wait_s
        if not self._may_restart(now) or (live and not (self.terms.force and waited)):
            return []
        self._restarts = [at for at in self._restarts if at > now - _HOUR_S] + [now]
        return [self._go(Rung.RESTARTING, now, trouble or _named(zombies))]

    def _may_restart(self, now: float) -> bool:
        recent = sum(at > now - _HOUR_S for at in self._restarts)
        return self.terms.restart and recent < self.terms.restarts_per_hour

    def restarted(self, ok: bool, now: float, why: str = "") -> list[LadderStep]:
        """Note the result of a restart."""
        assert self.rung is Rung.RESTARTING, self
        if ok:
            return [self._to_canary(now, "restarted")]
        return [self._back_off(now, f"the restart failed: {why}")]

    def canary(self, ok: bool, now: float, why: str = "") -> list[LadderStep]:
        """Note the result of our own test call; it decides whether the backend gets clients' calls again."""
        assert self.rung is Rung.CANARY, self
        if not ok:
            return [self._back_off(now, f"the canary failed: {why}")]
        self._tries = 0
        return [self._go(Rung.HEALTHY, now, "the canary succeeded" if self.terms.canary else "recovered; the canary is off")]

    # Another process goes on where this one was

    def record(self, now: float) -> dict[str, Any]:
        """Return how far the ladder went, in plain values and without times of a clock that others do not have."""
        return {
            "rung": self.rung.value,
            "reason": self.reason,
            "since_s": now - self.since if self.since > -math.inf else None,
            "restarts_s": [now - at for at in self._restarts],
            "wait_s": max(self._not_before - now, 0.0),
            "tries": self._tries,
        }

    def resume(self, record: dict[str, Any], now: float) -> list[LadderStep]:
        """Go on from another one's record. A restart that was under way there may have failed half-way: it is not done again
        unless the engine turns out to need it. A canary is sent again."""
        self.rung, self.reason, self._tries = Rung(record["rung"]), record["reason"], record["tries"]
        self.since = now - record["since_s"] if record["since_s"] is not None else -math.inf
        self._restarts = [now - age_s for age_s in record["restarts_s"]]
        self._not_before = now + record["wait_s"] if record["wait_s"] else -math.inf
        self._next.clear()
        if self.rung is Rung.RESTARTING:
            return self.restarted(False, now, "the gateway process that ran it has died")
        return [LadderStep(self.rung.value, self.reason)] if self.rung is Rung.CANARY else []

    def _to_canary(self, now: float, reason: str) -> LadderStep:
        self._next.clear()
        return self._go(Rung.CANARY, now, reason)

    def _back_off(self, now: float, reason: str) -> LadderStep:
        self._not_before = now + min(self.terms.canary_backoff_s * 2**self._tries, 60.0)
        self._tries = min(self._tries + 1, 10)
        return self._go(Rung.QUARANTINED, now, reason)

    def _go(self, rung: Rung, now: float, reason: str) -> LadderStep:
        self.rung, self.since, self.reason = rung, now, reason
        return LadderStep(rung.value, reason)


def _named(zombies: Sequence[PendingStop]) -> str:
    first = min(zombies, key=lambda zombie: zombie.at)
    slot = "" if first.slot is None else f" in slot {first.slot}"
    still = " and others still run" if len(zombies) > 1 else " still runs"  # how many changes while this reason stands
    return f"{first.call_id}{slot}{still}"
