"""`Fleet`: all backends as admission sees them, and the choice of the least loaded one that has room.

The choice costs the same for a thousand backends as for one: backends with room are in a heap, and a backend whose load changes
gets a new entry, which invalidates its old one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

from hangup.core.admission.backend_load import BackendLoad
from hangup.core.admission.estimates import Estimates
from hangup.core.admission.health import Trust
from hangup.core.admission.limiter import SPARE, Evidence
from hangup.core.admission.ticket import NOBODY, AnyTicket

_LOOK_PAST = 4  # backends without enough cache to skip before giving up
_LAST = 1e9  # larger than any load: a backend that may run abandoned work comes after all others with room
_CAPACITY_S = 0.05  # how old the sum of all capacities may be, if there are
_FEW = 16  # this many backends or more


class Fleet:
    """The backends (`BackendLoad`, called `seat` in the code), and the room that they have."""

    def __init__(self, seats: Iterable[BackendLoad] = ()) -> None:
        self.seats: list[BackendLoad] = []
        self._by_name: dict[str, BackendLoad] = {}
        self.in_flight = 0
        self.limit = 0  # of all backends together
        self.now = 0.0  # the time of the last event
        self._heap: list[tuple[float, int, int, BackendLoad]] = []
        self._entries = 0
        self._turn = 0
        self._any_up = False
        self._any_paused = False
        self._odd: list[BackendLoad] = []  # their limit does not apply to jobs: it is learned, or the backend is out of use
        self._only: BackendLoad | None = None
        self._together = Estimates()
        self.estimates = self._together  # over all backends
        self.has_kv = False  # whether the size of any cache is known,
        self.smallest_cache = 0  # and the least of those
        self._capacity: int | None = None  # of all backends together
        self._capacity_at = -math.inf
        self.set(seats)

    def set(self, seats: Iterable[BackendLoad]) -> None:
        """Set the configured backends; a retired one still releases its calls."""
        self.seats = list(seats)
        self._by_name = {seat.name: seat for seat in self.seats}
        self.refresh()

    def refresh(self) -> None:
        """Recompute everything after backends went up or down, were drained, or left the configuration."""
        self._only = self.seats[0] if len(self.seats) == 1 else None
        self.estimates = self._only.estimates if self._only is not None else self._together
        self._any_up = any(seat.health.well for seat in self.seats)
        self._any_paused = any(seat.health.paused for seat in self.seats)
        self._odd = [seat for seat in self.seats if not seat.slots or not seat.health.well]
        caches = [seat.kv_tokens for seat in self.seats if seat.kv_tokens]
        self.has_kv, self.smallest_cache = bool(caches), min(caches, default=0)
        self._capacity_at = -math.inf
        self._heap.clear()
        self.limit = 0
        for seat in self.seats:
            seat.counted = 0
            self.changed(seat)

    def changed(self, seat: BackendLoad) -> None:
        """Update the fleet after the load or the limit of a backend has changed."""
        # Backends that are down are used only when there is no other, so that a wrong verdict costs a failed attempt
        # and never an outage.
        limit = seat.limit
        if seat.health.retired:
            return
        self.limit += limit - seat.counted
        seat.counted = limit
        if self._only is not None:
            return
        self._entries += 1
        seat.entry = self._entries
        if seat.in_flight < limit and (seat.health.well or not self._any_up):
            heapq.heappush(self._heap, (_order(seat), seat.turn, seat.entry, seat))
            if len(self._heap) > 64 + 4 * len(self.seats):
                self._heap = [item for item in self._heap if item[2] == item[3].entry]
                heapq.heapify(self._heap)

    def best(self, kv: int = 0, tried: frozenset[str] = NOBODY, seats: frozenset[str] | None = None) -> BackendLoad | None:
        """Return the backend for the next call: none of `tried`, and one of `seats` unless that is None."""
        if tried or seats is not None:
            return self._best_of(kv, tried, seats)
        only = self._only
        if only is not None:  # the usual case: there is nothing to choose
            if only.waits:
                self.look_for_overdue(only)
            return only if only.in_flight < only.counted and (not only.kv_tokens or only.fits(kv)) else None
        heap = self._heap
        while heap:
            top = heap[0]
            seat = top[3]
            if top[2] != seat.entry or (seat.waits and self.look_for_overdue(seat)):
                heapq.heappop(heap)
            elif not seat.kv_tokens or seat.fits(kv):
                return seat
            else:
                return self._look_past(kv)
        return None

    def _look_past(self, kv: int, alone: bool | None = None) -> BackendLoad | None:
        """Try the next few backends: the least loaded one has no cache left for the call, or is not quiet."""
        passed: list[tuple[float, int, int, BackendLoad]] = []
        found = None
        while self._heap and found is None and len(passed) < _LOOK_PAST:
            item = heapq.heappop(self._heap)
            if item[2] == item[3].entry:
                passed.append(item)
                fits = item[3].fits(kv) and (alone is None or item[3].quiet(alone))
                found = item[3] if fits else None
        for item in passed:
            heapq.heappush(self._heap, item)
        return found

    def _among(self, tried: frozenset[str], seats: frozenset[str] | None) -> list[BackendLoad]:
        if seats is None:
            return [seat for seat in self.seats if seat.name not in tried]
        return [seat for name in seats if name not in tried and (seat := self._by_name.get(name)) is not None]

    def _best_of(self, kv: int, tried: frozenset[str], seats: frozenset[str] | None) -> BackendLoad | None:
        """Choose for a call that failed elsewhere, or that only some backends can answer; such calls are few, so scan."""
        left = self._among(tried, seats)
        left = [seat for seat in left if seat.health.well] or left
        for seat in left:
            if seat.waits:
                self.look_for_overdue(seat)
        return min((s for s in left if s.has_room and s.fits(kv)), key=lambda s: (_order(s), s.turn, s.name), default=None)

    def quiet(
        self, alone: bool, kv: int = 0, tried: frozenset[str] = NOBODY, seats: frozenset[str] | None = None
    ) -> BackendLoad | None:
        """Return the backend for the next item of a job; `alone` when there are no live calls."""
        if tried or seats is not None:
            left = [seat for seat in self._among(tried, seats) if seat.has_room and seat.fits(kv)]
            left = [seat for seat in left if seat.health.well and seat.quiet(alone)]
            return min(left, key=lambda seat: (seat.in_flight / seat.weight, seat.turn, seat.name), default=None)
        best = self.best(kv)
        if best is None or best.quiet(alone):
            return best if best is not None and best.health.well else None
        return self._look_past(kv, alone)

    def places(self, seats: frozenset[str] | None = None) -> tuple[int, int]:
        """Return how many calls the backends in use can run, and how many they have; of `seats`, or of all."""
        if seats is not None:
            among = [seat for seat in self._among(NOBODY, seats) if seat.health.well]
            return sum(seat.known for seat in among), sum(seat.in_flight for seat in among)
        most, taken = self.limit, self.in_flight
        for seat in self._odd:
            most -= seat.counted
            if seat.health.well:
                most += seat.known
            else:
                taken -= seat.in_flight
        return most, taken

    def paused_until(self, seats: frozenset[str] | None) -> float:
        """Return when the first of the backends that could take a call does so again; 0 if one does now."""
        if seats is None and not self._any_paused:
            return 0.0
        usable = [seat for seat in self._among(NOBODY, seats) if seat.health.in_service]
        return min((seat.health.paused_until if seat.health.paused else 0.0 for seat in usable), default=0.0)

    def is_cold(self, seats: frozenset[str] | None) -> bool:
        """Return whether there is a healthy backend with no evidence that calls would wait there."""
        among = self.seats if seats is None else self._among(NOBODY, seats)
        return any(seat.is_open and seat.health.well for seat in among)

    @property
    def capacity(self) -> int | None:
        """Return how many calls the backends in use can run, if there is evidence for each; None while there is not."""
        if self.now - self._capacity_at > _CAPACITY_S or len(self.seats) < _FEW:
            self._capacity_at = self.now
            parts = [seat.capacity for seat in self.seats if seat.health.well]
            self._capacity = None if None in parts else sum(part for part in parts if part is not None)
        return self._capacity

    def load_of(self, seats: frozenset[str] | None) -> tuple[int, int | None]:
        """Return how many calls these backends have, and how many they can run, if that is known."""
        if seats is None:
            return self.in_flight, self.capacity
        among = [seat for seat in self._among(NOBODY, seats) if seat.health.well]
        parts = [seat.capacity for seat in among]
        known = None if None in parts else sum(part for part in parts if part is not None)
        return sum(seat.in_flight for seat in among), known

    def takes(self, seat: BackendLoad, tried: frozenset[str], seats: frozenset[str] | None = None) -> bool:
        """Return whether such a call would be sent to this backend if it had room."""
        if seat.health.retired or seat.name in tried or (seats is not None and seat.name not in seats):
            return False
        any_up = self._any_up if seats is None else any(other.health.well for other in self._among(tried, seats))
        return seat.health.well or (seat.health.in_service and not any_up)

    def usable(self, tried: frozenset[str] = NOBODY, seats: frozenset[str] | None = None) -> bool:
        """Return whether there is any backend that such a call could wait for."""
        among = self.seats if seats is None and not tried else self._among(tried, seats)
        return any(seat.health.in_service for seat in among)

    def estimates_of(self, seats: frozenset[str] | None) -> Estimates:
        """Return the estimates for a call: those of all backends, or of one that can answer it if not all can."""
        if seats is None:
            return self.estimates
        one = min(self._among(NOBODY, seats), key=lambda seat: seat.name, default=None)
        return one.estimates if one is not None else self.estimates

    def take(self, seat: BackendLoad, ticket: AnyTicket, now: float) -> None:
        """Put a call on a backend."""
        self._turn += 1
        seat.turn = self._turn
        seat.in_flight += 1
        self.in_flight += 1
        seat.kv_used += ticket.kv
        seat.choices += ticket.choices
        seat.placed += ticket.choices
        if seat.choices > seat.peak:
            seat.peak = seat.choices
        ticket.seat = seat
        ticket.sent_at = now
        ticket.engine_mark = seat.time.enter(now)
        if not ticket.blind:
            self._read(seat, ticket, now)
        self.changed(seat)

    def _read(self, seat: BackendLoad, ticket: AnyTicket, now: float) -> None:
        """Start to wait for the call's first token."""
        limiter, ahead = seat.limiter, seat.unstarted
        ticket.reading = True
        ticket.late = False
        ticket.behind = ahead
        ticket.free = limiter.has_free_slot(seat.in_flight - seat.held)
        ticket.unqueued = ticket.free and (not ahead or (ahead < SPARE and limiter.queues is not Evidence.NONE))
        seat.unstarted += 1
        seat.reading += ticket.ahead
        ticket.work = seat.reading
        if not seat.slots and not ticket.job:
            ticket.late_at = now + limiter.late_after_s(ticket.prompt, not ticket.whole)
            seat.waits[ticket] = None

    def look_for_overdue(self, seat: BackendLoad) -> bool:
        """Look for calls whose first token is overdue, which shows that the engine queues before a late token does. Return
        whether any was found."""
        waits, limiter, found = seat.waits, seat.limiter, False
        while waits:
            ticket = next(iter(waits))
            if ticket.late_at == math.inf:  # nothing was known yet when it was sent
                ticket.late_at = ticket.sent_at + limiter.late_after_s(ticket.prompt, not ticket.whole)
            if ticket.late_at > self.now:
                break
            del waits[ticket]
            ticket.late = True
            if not ticket.unqueued:
                limiter.overdue(ticket.sent_at, seat.unstarted)
                found = True
        if found:
            self.changed(seat)
        return found

    def first_token(self, ticket: AnyTicket, now: float) -> None:
        """Note that the engine has read the call's prompt and begun to answer."""
        seat = ticket.seat
        assert seat is not None
        ticket.reading = False
        ticket.first_token_at = now
        seat.unstarted -= 1
        seat.reading -= ticket.ahead
        if not seat.slots:
            self._learn_from(seat, ticket, now)
        if not ticket.job and not ticket.whole:  # an item may have waited in the engine's queue, which no live call should
            waited = now - ticket.sent_at
            seat.estimates.first_token.observe(ticket.work, waited, now)
            if self._only is None:
                self._together.first_token.observe(ticket.work, waited, now)
        seat.limiter.accepted(seat.in_flight, now)
        self.changed(seat)

    def _learn_from(self, seat: BackendLoad, ticket: AnyTicket, now: float) -> None:
        limiter, waited = seat.limiter, now - ticket.sent_at
        seat.waits.pop(ticket, None)
        late = ticket.late or now > ticket.late_at
        if not ticket.whole:
            limiter.runs(seat.in_flight - seat.held - seat.unstarted, now)
        elif not late:  # the engine was working on all calls that it had
            limiter.runs(seat.in_flight - seat.held, now)
        if ticket.job:
            return
        said = None if ticket.late or ticket.unqueued else late
        limiter.first_token(
            ticket.prompt,
            waited,
            now,
            ahead=ticket.behind,
            free=ticket.free,
            late=said,
            unqueued=ticket.unqueued,
            visible=not ticket.whole,
        )

    def engine_told(self, seat: BackendLoad, waiting: int) -> None:
        """Note how many calls wait in the engine, by its own figures."""
        if not seat.slots:
            seat.limiter.told(waiting, seat.in_flight)
            self.changed(seat)

    def nobody_waits(self, seat: BackendLoad) -> None:
        """Drop the learned limit of a backend if it holds nobody back and calls are on time."""
        if seat.limiter.queues is not Evidence.NONE:
            seat.limiter.open_if_on_time()
            self.changed(seat)

    def has_other(self, tried: frozenset[str], seats: frozenset[str] | None) -> bool:
        """Return whether a refused call could go to another backend now."""
        return any(seat.health.well and not seat.health.paused for seat in self._among(tried, seats))

    def refused(self, seat: BackendLoad, now: float) -> None:
        """Note that a backend refused a call, which still counts as in flight."""
        seat.limiter.refused(seat.in_flight - 1, now)
        self.changed(seat)

    def step(self, seat: BackendLoad, seconds: float, now: float) -> bool:
        """Note the current time per token on this backend; return whether that changes its limit."""
        seat.estimates.step.observe(seconds, now)
        if self._only is None:
            self._together.step.observe(seconds, now)
        if seat.slots:
            return False
        before = seat.limiter.slow_max
        seat.limiter.step(seat.estimates.step.mean, seat.in_flight)
        if seat.limiter.slow_max == before:
            return False
        self.changed(seat)
        return True

    def release(self, ticket: AnyTicket, now: float, hold: bool = False) -> BackendLoad:
        """Take an ended call off its backend. With `hold`, its place and its cache stay taken until `let_go`."""
        seat = ticket.seat
        assert seat is not None and seat.in_flight > 0, f"{ticket} was released more often than taken"
        ticket.seat = None
        ticket.engine_s += seat.time.leave(ticket.engine_mark, now)
        seat.choices -= ticket.choices
        if hold:
            seat.held += 1
        else:
            seat.in_flight -= 1
            self.in_flight -= 1
            seat.kv_used -= ticket.kv
        if ticket.reading:
            ticket.reading = False
            seat.waits.pop(ticket, None)
            seat.unstarted -= 1
            seat.reading -= ticket.ahead
        ticket.first_token_at = 0.0
        self.changed(seat)
        return seat

    def let_go(self, seat: BackendLoad, kv: int) -> None:
        """Free a place that was held."""
        assert seat.held > 0, f"{seat} holds nothing"
        seat.held -= 1
        seat.in_flight -= 1
        self.in_flight -= 1
        seat.kv_used -= kv
        self.changed(seat)


def _order(seat: BackendLoad) -> float:
    """Return the key by which the lowest backend is chosen first."""
    return seat.in_flight / seat.weight + (0.0 if seat.health.trust is Trust.TRUSTED else _LAST)
