"""`BackendLoad`: one backend as admission sees it: its limit, its load and its health."""

from __future__ import annotations

import math
from collections import OrderedDict
from itertools import islice
from typing import Final, Protocol

from hangup.core.admission.estimates import Estimates
from hangup.core.admission.health import BackendHealth
from hangup.core.admission.limiter import Evidence, LearnedLimit
from hangup.core.admission.shared_limit import NO_LIMIT, SharedLimit
from hangup.core.engine_time import EngineTime

_SLOTS_PER_READER: Final = 8  # without live calls, one job item may be without a first token for every this many slots
SLOTS: Final = "slots"  # limited by its slots, as configured or as the engine reports


class UnstartedCall(Protocol):
    """A call without a first token, as its backend sees it."""

    prompt: int
    whole: bool
    awaits_first_token: bool
    sent_at: float
    overdue_at: float
    overdue: bool
    unqueued: bool


class BackendLoad:
    """The load, the limit and the health of one backend."""

    __slots__ = (
        "allotted",
        "awaiting_first_token",
        "choices",
        "entered",
        "estimates",
        "health",
        "heap_entry",
        "held",
        "in_flight",
        "jobs",
        "kv_tokens",
        "kv_used",
        "limit_counted",
        "limiter",
        "name",
        "occupied",
        "peak",
        "placed",
        "slots",
        "time",
        "turn",
        "unread_tokens",
        "unstarted",
        "weight",
    )

    def __init__(
        self,
        name: str,
        slots: int = 0,
        weight: float = 1.0,
        failures_max: int = 3,
        kv_tokens: int = 0,
        step_slo_s: float = 0.1,
    ) -> None:
        self.name = name
        self.slots = slots  # 0: the limit is learned
        self.allotted = NO_LIMIT  # of these slots, those that this process may use: others send calls there as well
        self.weight = weight
        self.kv_tokens = kv_tokens  # 0: unknown
        self.limiter = LearnedLimit(step_slo_s)
        self.estimates = Estimates()
        self.health = BackendHealth(failures_max)
        self.time = EngineTime()  # how its time is split among calls
        self.in_flight = 0
        self.jobs = 0  # of those in flight, items of jobs
        self.held = 0  # of those in flight, ended calls that may still be in the engine
        self.occupied = 0  # slots busy with work that is not ours, by the engine's report
        self.choices = 0  # answers that the calls in flight, without those held, wait for
        self.peak = 0  # the most `choices` since the last look
        self.placed = 0  # all answers ever requested there
        self.unstarted = 0  # calls without a first token
        self.awaiting_first_token: OrderedDict[UnstartedCall, None] = (
            OrderedDict()
        )  # of those, live calls not overdue, in the order sent
        self.unread_tokens = 0  # prompt tokens of `unstarted`, without jobs, which yield
        self.kv_used = 0
        self.turn = 0  # when it was last chosen, to break ties round-robin; those without a call queue (`BackendGroup`)
        self.limit_counted = 0  # its part of the fleet's limit
        self.heap_entry = 0  # number of its valid entry in each heap,
        self.entered = (math.inf, 0)  # and the highest load and turn that these say; infinite if one may be missing

    def share(self) -> None:
        """Use only what is allotted: other gateways send calls there as well."""
        self.allotted = 0
        by_tokens = self.limiter.by_tokens
        self.limiter = SharedLimit(self.limiter.step_slo_s)
        self.limiter.by_tokens = by_tokens

    def allot(self, places: int) -> None:
        """Use so many places from now on: of its slots, or of those that all gateways together have learned it has."""
        # A backend without a limit may have told this gateway its slots just now: then the next grant counts.
        self.allotted = places if places < NO_LIMIT else self.in_flight
        if isinstance(self.limiter, SharedLimit):
            self.limiter.use(places)

    def __repr__(self) -> str:
        return f"<backend {self.name} {self.in_flight}/{self.limit} {self.health!r}>"

    @property
    def limit(self) -> int:
        # A held call counts as running: it takes a slot, and a place within the learned limit.
        if not self.health.takes_calls:
            return 0
        limiter = self.limiter
        if self.slots:
            free = self.slots - self.occupied
            if self.allotted < free:
                free = self.allotted
            return max(free if limiter.refused_max >= free else int(limiter.refused_max), 0)
        if limiter.unlimited:
            return NO_LIMIT
        most = limiter.limit(self.in_flight, self.unstarted, self.held)
        return int(most) if most < NO_LIMIT else NO_LIMIT

    @property
    def full_of_others(self) -> bool:
        """Return whether every slot is busy with work that is not ours."""
        return bool(self.slots) and self.occupied >= self.slots

    @property
    def known_capacity(self) -> int:
        """Return how many calls it can run at a time, as far as configured, reported or seen."""
        limiter = self.limiter
        if self.slots:
            return int(min(self.slots, self.allotted, limiter.refused_max))
        return int(min(limiter.most_running, limiter.in_flight_max))

    @property
    def capacity(self) -> int | None:
        """Return `known_capacity` if there is evidence that the engine cannot run more; None while there is none."""
        if self.slots:
            return self.known_capacity
        return None if self.limiter.evidence is Evidence.NONE else max(self.known_capacity, 1)

    @property
    def limited_by(self) -> str:
        """Return why it gets no more calls; "none" if it gets every call."""
        if self.health.paused:
            return Evidence.REFUSED
        if self.slots:
            return SLOTS if self.limiter.refused_max >= self.slots else Evidence.REFUSED
        return self.limiter.evidence

    @property
    def is_open(self) -> bool:
        """Return whether there is no evidence that calls would wait there."""
        if self.slots or self.health.paused:
            return False
        return self.limiter.unlimited or self.limiter.evidence is Evidence.NONE

    def take_peak(self) -> int:
        """Return the most answers under way at a time since the last look, and start over."""
        peak, self.peak = self.peak, self.choices
        return peak

    def longest_wait_s(self, waiting: int, now: float) -> float:
        """Return how long the oldest of `waiting` calls in the engine's queue has waited; infinite if it is none of the calls
        that were sent lately.

        Engines serve calls in the order in which they came, so those that wait are those sent last.
        """
        oldest = next(islice(reversed(self.awaiting_first_token), waiting - 1, None), None) if waiting else None
        return math.inf if oldest is None else now - oldest.sent_at

    @property
    def has_room(self) -> bool:
        return self.in_flight < self.limit

    def has_room_without(self, ticket: UnstartedCall) -> bool:
        """Return whether there would be room without this call, which the backend has now."""
        if self.slots:
            return self.in_flight <= self.slots and self.in_flight <= self.allotted
        # The call's end makes room where the number of calls is limited. One more prompt can be read only if this call's
        # own prompt was not read yet, or if prompts wait because the engine has no slot for them.
        limiter, unstarted = self.limiter, self.unstarted - ticket.awaits_first_token
        running = self.in_flight - self.unstarted
        full = running >= limiter.most_running
        return self.in_flight <= limiter.in_flight_max and (unstarted < limiter.unstarted_allowed(running) or full)

    def can_take_job(self, alone: bool) -> bool:
        """Return whether an item of a job may be sent there: prompts are read in turn, so a live call would have to wait for
        it.

        Without live calls, a few items are read at a time, which keeps the engine full; they all yield to a live call that
        comes.
        """
        return self.unstarted < (max(1, self.slots // _SLOTS_PER_READER) if alone else 1)

    def fits(self, kv: int) -> bool:
        """Return whether the cache has room. An empty engine takes anything: it decides itself what is too large."""
        return not self.kv_tokens or not self.in_flight or self.kv_used + kv <= self.kv_tokens
