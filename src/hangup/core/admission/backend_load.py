"""One backend as the admission sees it: what it may run, what it runs, how it is."""

from __future__ import annotations

from collections import OrderedDict

from hangup.core.admission.estimates import Estimates
from hangup.core.admission.limiter import Evidence, LearnedLimit
from hangup.core.admission.ticket import AnyTicket
from hangup.core.engine_time import EngineTime

_SLOTS_PER_READER = 8  # items of jobs without a first token, when they are alone: one for so many slots
NO_LIMIT = 10**9  # calls
SLOTS = "slots"  # limited by what it has, as was set or as it says


class BackendLoad:
    __slots__ = (
        "choices",
        "closed",
        "counted",
        "doubted",
        "drained",
        "entry",
        "estimates",
        "failures",
        "failures_max",
        "held",
        "in_flight",
        "jobs",
        "kv_tokens",
        "kv_used",
        "limiter",
        "name",
        "occupied",
        "paused",
        "paused_until",
        "peak",
        "placed",
        "reading",
        "retired",
        "seen",
        "slots",
        "suspected",
        "time",
        "turn",
        "unstarted",
        "up",
        "waits",
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
        self.slots = slots  # 0: learned
        self.weight = weight
        self.failures_max = failures_max
        self.kv_tokens = kv_tokens  # 0: not known
        self.limiter = LearnedLimit(step_slo_s)
        self.estimates = Estimates()
        self.time = EngineTime()  # whose its time is
        self.in_flight = 0
        self.jobs = 0  # of those, items of jobs
        self.held = 0  # of those, ended and not known to be gone from the engine
        self.occupied = 0  # slots at work on what is not ours, as far as the engine tells
        self.choices = 0  # answers that the others are waiting for
        self.peak = 0  # the most of them since somebody looked
        self.placed = 0  # answers that were ever begun there
        self.unstarted = 0  # without a first token
        self.waits: OrderedDict[AnyTicket, None] = OrderedDict()  # of those, live calls that are not overdue, as they were sent
        self.reading = 0  # prompt tokens of those; not of jobs, which make way
        self.kv_used = 0
        self.failures = 0  # in a row
        self.up = True
        self.seen = False  # it has answered at least once; until then `up` is only a hope
        self.drained = False  # an operator wants no new work there, what runs may finish
        self.retired = False  # taken out of the configuration: no new work, what runs may finish
        self.doubted = False  # it runs what nobody waits for: taken like one that is down
        self.suspected = False  # it may do so: taken when the others are full
        self.closed = False  # in quarantine: no new work at all, what runs may finish
        self.paused = False  # it told us to come back later: no new work
        self.paused_until = 0.0  # until then
        self.turn = 0  # when it was last chosen, to break ties in turn
        self.counted = 0  # its part of the fleet's limit
        self.entry = 0  # number of its valid entry in the heap

    def __repr__(self) -> str:
        return f"<seat {self.name} {self.in_flight}/{self.limit} {'up' if self.up else 'down'}>"

    @property
    def limit(self) -> int:
        # What is held counts as running: it takes one of the slots, and one of the learned most.
        if self.closed or self.drained or self.paused:
            return 0
        limiter = self.limiter
        if self.slots:
            free = self.slots - self.occupied
            return max(free if limiter.refused_max >= free else int(limiter.refused_max), 0)
        return NO_LIMIT if limiter.unlimited else int(min(limiter.limit(self.in_flight, self.unstarted, self.held), NO_LIMIT))

    @property
    def full_of_others(self) -> bool:
        """Whether every slot is at work on what is not ours."""
        return bool(self.slots) and self.occupied >= self.slots

    @property
    def known(self) -> int:
        """How many calls it can run at a time, as far as that has been said or seen."""
        limiter = self.limiter
        return int(min(self.slots, limiter.refused_max) if self.slots else min(limiter.ran, limiter.in_flight_max))

    @property
    def capacity(self) -> int | None:
        """The same, where there is evidence that it cannot run more; None while it may be any number."""
        if self.slots:
            return self.known
        return None if self.limiter.evidence is Evidence.NONE else max(self.known, 1)

    @property
    def limited_by(self) -> str:
        """Why it gets no more calls than that; "none" when it gets every call."""
        if self.paused:
            return Evidence.REFUSED
        if self.slots:
            return SLOTS if self.limiter.refused_max >= self.slots else Evidence.REFUSED
        return self.limiter.evidence

    @property
    def is_open(self) -> bool:
        """Whether nothing shows that calls would wait there."""
        return not self.slots and not self.paused and self.limiter.evidence is Evidence.NONE

    @property
    def well(self) -> bool:
        return self.up and not self.doubted and not self.closed and not self.drained

    def take_peak(self) -> int:
        """The most answers under way at a time since the last look."""
        peak, self.peak = self.peak, self.choices
        return peak

    @property
    def has_room(self) -> bool:
        return self.in_flight < self.limit

    def has_room_without(self, ticket: AnyTicket) -> bool:
        """Whether there would be room if this call of its own were gone."""
        if self.slots:
            return self.in_flight <= self.slots
        # Its end makes room where the number counts; one more prompt can be read only if it was itself not read yet,
        # or if prompts are not read because the engine has no slot for them.
        limiter, unstarted = self.limiter, self.unstarted - ticket.reading
        running = self.in_flight - self.unstarted
        full = running >= limiter.ran
        return self.in_flight <= limiter.in_flight_max and (unstarted < limiter.unstarted_allowed(running) or full)

    def quiet(self, alone: bool) -> bool:
        """Whether an item of a job may be sent there: prompts are read in turn, so a live call would wait for its own.

        Without live calls a few are read at a time, which keeps the engine full; they all make way for one that comes.
        """
        return self.unstarted < (max(1, self.slots // _SLOTS_PER_READER) if alone else 1)

    def fits(self, kv: int) -> bool:
        """An empty engine takes anything: what is too large for it is its own to say."""
        return not self.kv_tokens or not self.in_flight or self.kv_used + kv <= self.kv_tokens

    def failed(self) -> bool:
        """A call or a check found it broken; True if it has just gone down. Tell the fleet."""
        self.failures += 1
        if self.up and self.failures >= self.failures_max:
            self.up = False
            return True
        return False

    def succeeded(self) -> bool:
        """A call or a check found it well; True if it has just come up. Tell the fleet."""
        self.failures = 0
        self.seen = True
        came_up, self.up = not self.up, True
        return came_up
