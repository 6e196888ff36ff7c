"""`Fleet`: all backends as admission sees them, and the choice of the least loaded one that has room.

The choice costs the same for a thousand backends as for one, also where only some of them can answer a call: each such set that
is in use has a queue and a heap of its own (`BackendGroup`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

from hangup.core.admission.backend_group import NOT_ENTERED, BackendGroup, Entry, order
from hangup.core.admission.backend_load import BackendLoad
from hangup.core.admission.estimates import Estimates
from hangup.core.admission.limiter import LATE_S, SPARE, Evidence
from hangup.core.admission.shared_limit import NO_LIMIT, SharedLimit
from hangup.core.admission.tenant_queue import NOBODY
from hangup.core.admission.ticket import K, Ticket

_LOOK_PAST: Final = 4  # backends without enough cache to skip before giving up
_CAPACITY_S: Final = 0.05  # how old the sum of all capacities may be, if there are
_FEW: Final = 16  # this many backends or more
_NONE: Final = Evidence.NONE  # Python 3.11 takes as long for a member of an enum as for a function call
_AT_ONCE_S: Final = 0.001  # from the first token to the end of an answer that came in one piece
_SCANNED_MAX: Final = 8  # so few eligible backends need no group: they are compared one by one
_GROUPS_MAX: Final = 16  # each load that changes must be entered into all groups that it is in
_LEARN_S = 0.001  # the estimate over all backends learns from one first token in this time: that is enough
_GROUP_KEPT_S: Final = 1.0  # at least, so that more sets than groups do not make and drop groups all the time


class Fleet:
    """The backends (`BackendLoad`), and the room that they have."""

    def __init__(self, loads: Iterable[BackendLoad] = ()) -> None:
        self.loads: list[BackendLoad] = []
        self._by_name: dict[str, BackendLoad] = {}
        self.in_flight = 0
        self.limit = 0  # of all backends together
        self.now = 0.0  # the time of the last event
        self.delayed_s: Callable[[float], float] = _never_delayed  # how long this process was kept from its work since then
        self._all = BackendGroup(())
        self._groups: dict[frozenset[str], BackendGroup] = {}  # by the names of their backends
        self._groups_of: dict[BackendLoad, list[BackendGroup]] = {}
        self._entries = 0
        self._turn = 0
        self._any_paused = False
        self._own_job_limit: list[
            BackendLoad
        ] = []  # their limit does not apply to jobs: it is learned, or the backend is out of use
        self._only: BackendLoad | None = None
        self._overall = Estimates()
        self.estimates = self._overall  # over all backends
        self.has_kv = False  # whether the size of any cache is known,
        self.smallest_cache = 0  # and the least of those
        self._capacity: int | None = None  # of all backends together
        self._capacity_at = -math.inf
        self.set_loads(loads)

    def set_loads(self, loads: Iterable[BackendLoad]) -> None:
        """Set the configured backends; a retired one still releases its calls."""
        self.loads = list(loads)
        self._by_name = {load.name: load for load in self.loads}
        self.refresh()

    def refresh(self) -> None:
        """Recompute everything after backends went up or down, were drained, or left the configuration."""
        self._only = self.loads[0] if len(self.loads) == 1 else None
        self.estimates = self._only.estimates if self._only is not None else self._overall
        self._all = BackendGroup(self.loads)
        self._groups.clear()
        self._groups_of.clear()
        self._any_paused = any(load.health.paused for load in self.loads)
        self._own_job_limit = [load for load in self.loads if not load.slots or not load.health.well]
        caches = [load.kv_tokens for load in self.loads if load.kv_tokens]
        self.has_kv, self.smallest_cache = bool(caches), min(caches, default=0)
        self._capacity_at = -math.inf
        self.limit = 0
        for load in sorted(self.loads, key=_turn_of):
            load.limit_counted = 0
            load.entered = NOT_ENTERED
            self.load_changed(load)

    def load_changed(self, load: BackendLoad) -> None:
        """Update the fleet after the load or the limit of a backend has changed."""
        limit = load.limit_counted
        if limit != NO_LIMIT or not load.limiter.unlimited or load.slots or not load.health.takes_calls:
            limit = load.limit
            if load.health.retired:
                return
            self.limit += limit - load.limit_counted
            load.limit_counted = limit
        # else the usual case: it gets every call, before and now
        if self._only is not None or load.in_flight >= limit:
            return  # its entries are dropped when they come to the top
        now = (order(load), load.turn)
        if now < load.entered:  # else its entries are corrected when they come to the top
            self._entries += 1
            load.heap_entry, load.entered = self._entries, now
            entry = (*now, load.heap_entry, load)
            self._all.add(entry)
            if self._groups:
                for group in self._groups_of.get(load, ()):
                    group.add(entry)

    def _load_rose(self, load: BackendLoad) -> None:
        """Update the fleet after a backend got a call, or its first token: unless its limit changes, there is nothing to do,
        because entries that say too little are corrected when they come to the top."""
        if load.limit_counted != NO_LIMIT or not load.limiter.unlimited or load.slots or not load.health.takes_calls:
            self.load_changed(load)

    def best(self, kv: int = 0, tried: frozenset[str] = NOBODY, eligible: frozenset[str] | None = None) -> BackendLoad | None:
        """Return the backend for the next call: none of `tried`, and one of `eligible` unless that is None."""
        if tried:
            best = self.best(kv, NOBODY, eligible)  # usually it was not tried
            return best if best is not None and best.name not in tried else self._best_of(kv, tried, eligible)
        if eligible is not None:
            group = self._group(eligible)
            return self._best_of(kv, tried, eligible) if group is None else self._best_in(group, kv)
        only = self._only
        if only is not None:  # the usual case: there is nothing to choose
            if only.awaiting_first_token:
                overdue_at = next(iter(only.awaiting_first_token)).overdue_at
                if overdue_at <= self.now or overdue_at == math.inf:
                    self.look_for_overdue(only)
            return only if only.in_flight < only.limit_counted and (not only.kv_tokens or only.fits(kv)) else None
        return self._best_in(self._all, kv)

    def _best_in(self, group: BackendGroup, kv: int) -> BackendLoad | None:
        while (top := group.top()) is not None:
            load = top[3]
            if load.awaiting_first_token and self.look_for_overdue(load):
                continue  # the group has changed: the top may be another entry now
            return load if not load.kv_tokens or load.fits(kv) else self._look_past(group, kv)
        return None

    def _look_past(self, group: BackendGroup, kv: int, alone: bool | None = None) -> BackendLoad | None:
        """Try the next few backends: the least loaded one has no cache left for the call, or is not quiet."""
        passed: list[Entry] = []
        found = None
        while found is None and len(passed) < _LOOK_PAST and (top := group.take()) is not None:
            passed.append(top)
            fits = top[3].fits(kv) and (alone is None or top[3].can_take_job(alone))
            found = top[3] if fits else None
        group.put_back(passed)
        return found

    def _group(self, eligible: frozenset[str]) -> BackendGroup | None:
        """Return the group of these backends; None if they are to be compared one by one."""
        if len(eligible) <= _SCANNED_MAX:
            return None
        group = self._groups.get(eligible)
        if group is None:
            if len(self._groups) >= _GROUPS_MAX and not self._drop_oldest_group():
                return None
            members = self._among(NOBODY, eligible)
            group = self._groups[eligible] = BackendGroup(members, self.now)
            for load in sorted(members, key=_turn_of):
                self._groups_of.setdefault(load, []).append(group)
                load.entered = NOT_ENTERED
                self.load_changed(load)
        return group

    def _drop_oldest_group(self) -> bool:
        eligible = next(iter(self._groups))
        group = self._groups[eligible]
        if self.now - group.made_at < _GROUP_KEPT_S:
            return False
        for load in self._among(NOBODY, eligible):
            self._groups_of[load].remove(group)
        del self._groups[eligible]
        return True

    def _among(self, tried: frozenset[str], eligible: frozenset[str] | None) -> list[BackendLoad]:
        if eligible is None:
            return [load for load in self.loads if load.name not in tried]
        return [load for name in eligible if name not in tried and (load := self._by_name.get(name)) is not None]

    def _best_of(self, kv: int, tried: frozenset[str], eligible: frozenset[str] | None) -> BackendLoad | None:
        """Choose for a call that failed elsewhere, or that few backends can answer, by comparing all candidates."""
        candidates = self._among(tried, eligible)
        candidates = [load for load in candidates if load.health.well] or candidates
        for load in candidates:
            if load.awaiting_first_token:
                self.look_for_overdue(load)
        return min((s for s in candidates if s.has_room and s.fits(kv)), key=lambda s: (order(s), s.turn, s.name), default=None)

    def best_for_job(
        self, alone: bool, kv: int = 0, tried: frozenset[str] = NOBODY, eligible: frozenset[str] | None = None
    ) -> BackendLoad | None:
        """Return the backend for the next item of a job; `alone` when there are no live calls."""
        if tried or eligible is not None:
            candidates = [load for load in self._among(tried, eligible) if load.has_room and load.fits(kv)]
            candidates = [load for load in candidates if load.health.well and load.can_take_job(alone)]
            return min(candidates, key=lambda load: (load.in_flight / load.weight, load.turn, load.name), default=None)
        best = self.best(kv)
        if best is None or best.can_take_job(alone):
            return best if best is not None and best.health.well else None
        return self._look_past(self._all, kv, alone)

    def places(self, eligible: frozenset[str] | None = None) -> tuple[int, int]:
        """Return how many calls the backends in use can run, and how many they have; of `eligible`, or of all."""
        if eligible is not None:
            among = [load for load in self._among(NOBODY, eligible) if load.health.well]
            return sum(load.known_capacity for load in among), sum(load.in_flight for load in among)
        capacity, in_flight = self.limit, self.in_flight
        for load in self._own_job_limit:
            capacity -= load.limit_counted
            if load.health.well:
                capacity += load.known_capacity
            else:
                in_flight -= load.in_flight
        return capacity, in_flight

    def paused_until(self, eligible: frozenset[str] | None) -> float:
        """Return when the first of the backends that could take a call does so again; 0 if one does now."""
        if eligible is None and not self._any_paused:
            return 0.0
        usable = [load for load in self._among(NOBODY, eligible) if load.health.in_service]
        return min((load.health.paused_until if load.health.paused else 0.0 for load in usable), default=0.0)

    def is_cold(self, eligible: frozenset[str] | None) -> bool:
        """Return whether there is a healthy backend with no evidence that calls would wait there."""
        for load in self.loads if eligible is None else self._among(NOBODY, eligible):
            if load.is_open and load.health.well:
                return True
        return False

    @property
    def capacity(self) -> int | None:
        """Return how many calls the backends in use can run, if there is evidence for each; None while there is not."""
        if self.now - self._capacity_at > _CAPACITY_S or len(self.loads) < _FEW:
            self._capacity_at = self.now
            parts = [load.capacity for load in self.loads if load.health.well]
            self._capacity = None if None in parts else sum(part for part in parts if part is not None)
        return self._capacity

    def in_flight_and_capacity(self, eligible: frozenset[str] | None) -> tuple[int, int | None]:
        """Return how many calls these backends have, and how many they can run, if that is known."""
        if eligible is None:
            return self.in_flight, self.capacity
        among = [load for load in self._among(NOBODY, eligible) if load.health.well]
        parts = [load.capacity for load in among]
        known = None if None in parts else sum(part for part in parts if part is not None)
        return sum(load.in_flight for load in among), known

    def would_take(self, load: BackendLoad, tried: frozenset[str], eligible: frozenset[str] | None = None) -> bool:
        """Return whether such a call would be sent to this backend if it had room."""
        if load.health.retired or load.name in tried or (eligible is not None and load.name not in eligible):
            return False
        any_up = self._all.any_well if eligible is None else any(other.health.well for other in self._among(tried, eligible))
        return load.health.well or (load.health.in_service and not any_up)

    def usable(self, tried: frozenset[str] = NOBODY, eligible: frozenset[str] | None = None) -> bool:
        """Return whether there is any backend that such a call could wait for."""
        for load in self.loads if eligible is None and not tried else self._among(tried, eligible):
            if load.health.in_service:
                return True
        return False

    def estimates_of(self, eligible: frozenset[str] | None) -> Estimates:
        """Return the estimates for a call: those of all backends, or of one that can answer it if not all can."""
        if eligible is None:
            return self.estimates
        one = min(self._among(NOBODY, eligible), key=lambda load: load.name, default=None)
        return one.estimates if one is not None else self.estimates

    def place(self, load: BackendLoad, ticket: Ticket[K], now: float) -> None:
        """Put a call on a backend."""
        self._turn += 1
        load.turn = self._turn
        load.in_flight += 1
        self.in_flight += 1
        load.kv_used += ticket.kv
        load.choices += ticket.choices
        load.placed += ticket.choices
        if load.choices > load.peak:
            load.peak = load.choices
        ticket.placed_on = load
        ticket.sent_at = now
        ticket.engine_mark = load.time.enter(now)
        if not ticket.blind:
            self._await_first_token(load, ticket, now)
        self._load_rose(load)

    def _await_first_token(self, load: BackendLoad, ticket: Ticket[K], now: float) -> None:
        """Start to wait for the call's first token."""
        limiter = load.limiter
        ahead = load.unstarted + limiter.unstarted_elsewhere
        ticket.awaits_first_token = True
        ticket.overdue = False
        ticket.calls_ahead = ahead
        ticket.had_free_slot = limiter.has_free_slot(load.in_flight - load.held)
        ticket.unqueued = ticket.had_free_slot and (not ahead or (ahead < SPARE and limiter.queues is not _NONE))
        load.unstarted += 1
        load.unread_tokens += ticket.blocking_tokens
        ticket.tokens_to_read = load.unread_tokens
        if not load.slots and not ticket.job:
            ticket.overdue_at = now + limiter.overdue_after_s(ticket.prompt, not ticket.whole)
            load.awaiting_first_token[ticket] = None

    def look_for_overdue(self, load: BackendLoad) -> bool:
        """Look for calls whose first token is overdue, which shows that the engine queues before a late token does. Return
        whether any was found."""
        waits, limiter, found = load.awaiting_first_token, load.limiter, False
        while waits:
            ticket = next(iter(waits))
            if ticket.overdue_at == math.inf:  # nothing was known yet when it was sent
                ticket.overdue_at = ticket.sent_at + limiter.overdue_after_s(ticket.prompt, not ticket.whole)
            if ticket.overdue_at > self.now or ticket.overdue_at + self.delayed_s(ticket.sent_at) > self.now:
                break
            del waits[ticket]
            ticket.overdue = True
            if not ticket.unqueued:
                limiter.overdue(ticket.sent_at, load.unstarted)
                found = True
        if found:
            self.load_changed(load)
        return found

    def first_token(self, ticket: Ticket[K], now: float) -> None:
        """Note that the engine has read the call's prompt and begun to answer."""
        load = ticket.placed_on
        assert load is not None
        ticket.awaits_first_token = False
        ticket.first_token_at = now
        load.unstarted -= 1
        load.unread_tokens -= ticket.blocking_tokens
        learned = bool(load.slots) or self._learn_from(load, ticket, now)
        # An item of a job may have waited in the engine's queue, which no live call should.
        if learned and not ticket.job and not ticket.whole:
            waited = now - ticket.sent_at
            load.estimates.first_token.observe(ticket.tokens_to_read, waited, now)
            if self._only is None and now - self._overall.first_token.at >= _LEARN_S:
                self._overall.first_token.observe(ticket.tokens_to_read, waited, now)
        load.limiter.accepted(load.in_flight, now)
        self._load_rose(load)

    def _learn_from(self, load: BackendLoad, ticket: Ticket[K], now: float) -> bool:
        """Learn what a first token says about its backend's limit; return False if it says nothing new."""
        limiter, waited = load.limiter, now - ticket.sent_at
        load.awaiting_first_token.pop(ticket, None)
        late = ticket.overdue
        # It may only seem late, here or to others who know other usual times: while this process did not look, it was late.
        if not late and (now > ticket.overdue_at or (waited > LATE_S and isinstance(limiter, SharedLimit))):
            waited = max(waited - self.delayed_s(ticket.sent_at), 0.0)
            late = waited > ticket.overdue_at - ticket.sent_at
        if not ticket.whole:
            limiter.note_running(load.in_flight - load.held - load.unstarted, now)
        elif not late:  # the engine was working on all calls that it had
            limiter.note_running(load.in_flight - load.held, now)
        if ticket.job:
            return True
        was_late = None if ticket.overdue or ticket.unqueued else late
        return limiter.first_token(
            ticket.prompt,
            waited,
            now,
            ahead=ticket.calls_ahead,
            free=ticket.had_free_slot,
            late=was_late,
            unqueued=ticket.unqueued,
            visible=not ticket.whole,
        )

    def answer_ended(self, load: BackendLoad, ticket: Ticket[K], now: float) -> None:
        """Note that the answer of a call is complete, before the call leaves its backend.

        An answer in one piece is over when its first token is seen, so the engine never seems to run more than one. But if it
        is on time, the engine was at work on all calls that were sent before."""
        at_once = now - ticket.first_token_at < _AT_ONCE_S and not ticket.whole
        if at_once and not load.slots and not ticket.overdue and ticket.first_token_at <= ticket.overdue_at:
            load.limiter.note_running(min(load.in_flight - load.held, ticket.calls_ahead + 1), now)

    def engine_reported(self, load: BackendLoad, waiting: int, now: float) -> None:
        """Note how many calls wait in the engine, by its own figures."""
        if not load.slots:
            others = load.limiter.unstarted_elsewhere
            ours = -(-waiting * load.unstarted // (load.unstarted + others)) if others else waiting
            load.limiter.engine_reported(waiting, load.in_flight, load.longest_wait_s(ours, now))
            self.load_changed(load)

    def open_if_on_time(self, load: BackendLoad) -> None:
        """Drop the learned limit of a backend if it holds nobody back and calls are on time."""
        if load.limiter.queues is not _NONE:
            load.limiter.open_if_on_time()
            self.load_changed(load)

    def has_other(self, tried: frozenset[str], eligible: frozenset[str] | None) -> bool:
        """Return whether a refused call could go to another backend now."""
        return any(load.health.well and not load.health.paused for load in self._among(tried, eligible))

    def refused(self, load: BackendLoad, now: float) -> None:
        """Note that a backend refused a call, which still counts as in flight."""
        load.limiter.refused(load.in_flight - 1, now)
        self.load_changed(load)

    def step(self, load: BackendLoad, seconds: float, now: float) -> bool:
        """Note the current time per token on this backend; return whether that changes its limit."""
        load.estimates.step.observe(seconds, now)
        if self._only is None:
            self._overall.step.observe(seconds, now)
        if load.slots:
            return False
        before = load.limiter.slow_max
        load.limiter.step(load.estimates.step.mean, load.in_flight)
        if load.limiter.slow_max == before:
            return False
        self.load_changed(load)
        return True

    def release(self, ticket: Ticket[K], now: float, hold: bool = False) -> BackendLoad:
        """Take an ended call off its backend. With `hold`, its place and its cache stay taken until `release_held`."""
        load = ticket.placed_on
        assert load is not None and load.in_flight > 0, f"{ticket} was released more often than taken"
        ticket.placed_on = None
        ticket.engine_s += load.time.leave(ticket.engine_mark, now)
        load.choices -= ticket.choices
        if hold:
            load.held += 1
        else:
            load.in_flight -= 1
            self.in_flight -= 1
            load.kv_used -= ticket.kv
        if ticket.awaits_first_token:
            ticket.awaits_first_token = False
            load.awaiting_first_token.pop(ticket, None)
            load.unstarted -= 1
            load.unread_tokens -= ticket.blocking_tokens
        ticket.first_token_at = 0.0
        self.load_changed(load)
        return load

    def release_held(self, load: BackendLoad, kv: int) -> None:
        """Free a place that was held."""
        assert load.held > 0, f"{load} holds nothing"
        load.held -= 1
        load.in_flight -= 1
        self.in_flight -= 1
        load.kv_used -= kv
        self.load_changed(load)


def _turn_of(load: BackendLoad) -> int:
    return load.turn


def _never_delayed(since: float) -> float:
    return 0.0
