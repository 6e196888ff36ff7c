"""Live calls and jobs in any order, compared with plain lists: jobs use only idle slots, and live calls do not notice them."""

from __future__ import annotations

import math
from copy import copy
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hangup.config import LimitSettings
from hangup.core.admission import Action, Admission, BackendLoad, Band, HealthEvent, TenantTerms, Ticket

LIMITS = LimitSettings(queue_depth_max=6, queue_bytes_max=1000, lifo_after_s=2.0, queue_s=1e6, jobs_calm_s=2.0)
TERMS = {
    "a": TenantTerms(),
    "b": TenantTerms(weight=2.0),
    "vip": TenantTerms(band=Band.HIGH),
    "small": TenantTerms(concurrency_max=2),
}


class JobsMachine(RuleBasedStateMachine):
    @initialize(slots=st.lists(st.sampled_from([1, 2, 4, 0]), min_size=1, max_size=3))
    def begin(self, slots: list[int]) -> None:
        self.slots = slots
        self.real = self.admission()
        self.now = 0.0
        self.made = 0
        self.names: dict[int, str] = {}
        self.live_line: list[Ticket[Any]] = []
        self.job_line: list[Ticket[Any]] = []
        self.running: list[Ticket[Any]] = []
        self.asked_to_yield: list[Ticket[Any]] = []  # to make way, and not yet ended
        self.held: list[tuple[BackendLoad, int]] = []
        self.over: set[int] = set()
        self.live_counts: list[tuple[float, int]] = [(0.0, 0)]  # live calls in flight, since when

    def admission(self) -> Admission[Any]:
        made: Admission[Any] = Admission(
            LIMITS, [BackendLoad(f"s{at}", n, failures_max=1) for at, n in enumerate(self.slots)], lambda: 0.5
        )
        made.configure(LIMITS, TERMS)
        return made

    # The oracle

    def live_running(self) -> int:
        return sum(not ticket.job for ticket in self.running)

    def count_live(self) -> None:
        self.live_counts.append((self.now, self.live_running()))

    def peak(self) -> int:
        """Return the maximum of concurrent live calls within the last `jobs_calm_s`, including those from before."""
        begin = self.now - LIMITS.jobs_calm_s
        before = [count for at, count in self.live_counts if at < begin]
        return max([count for at, count in self.live_counts if at >= begin] + before[-1:])

    def check_job_start(self, ticket: Ticket[Any], load: BackendLoad) -> None:
        """Check a start when it is carried out; everything that was decided with it has happened by then."""
        assert not self.live_line, "a job started while a live call waits"
        assert load.health.well, "a job started where no live call would"
        assert load.health.in_service
        fleet = self.real.fleet
        if all(s.slots for s in fleet.loads):
            up = [s for s in fleet.loads if s.health.well]
            most = sum(s.slots for s in up)
            free = most - sum(s.in_flight for s in up)
            least = min(max(1, math.ceil(LIMITS.hold_back_share * most)), most - 1)
            assert free >= least, "a job took what is held back"
            assert free >= self.peak() - self.live_running(), "a job took what live calls have needed of late"
        elif not load.slots:
            assert load.in_flight <= load.limiter.most_running + 1

    def carry_out(self, actions: list[Action[Any]]) -> None:
        starts = [action for action in actions if action.load is not None]
        for ticket, _, _ in starts:
            line = self.job_line if ticket.job else self.live_line
            assert ticket.key not in self.over, "an ended call was moved"
            if ticket in line:
                line.remove(ticket)
            assert ticket not in self.running, "run twice"
            self.running.append(ticket)
        self.count_live()
        for ticket, _, reason in actions:
            if reason is None:
                continue
            assert ticket.key not in self.over, "an ended call was moved"
            if reason.code == "preempted":
                assert ticket.job and ticket in self.running and ticket not in self.asked_to_yield, (
                    "only a job that runs can yield"
                )
                self.asked_to_yield.append(ticket)
            else:
                line = self.job_line if ticket.job else self.live_line
                if ticket in line:
                    line.remove(ticket)
                self.over.add(ticket.key)
                assert not ticket.job or reason.code in ("tokens_per_minute", "no_backend")
        for ticket, load, _ in starts:
            if ticket.job:
                assert load is not None
                self.check_job_start(ticket, load)

    def check_victims(self, before: int, actions: list[Action[Any]]) -> None:
        """Check that no more jobs yield than live calls wait, or started where a job's prompt was being read."""
        fresh = sum(action.reason is not None and action.reason.code == "preempted" for action in actions)
        lives = sum(action.load is not None and not action.ticket.job for action in actions)
        assert fresh <= max(len(self.live_line) - before, 0) + lives

    def do(self, actions: list[Action[Any]]) -> None:
        before = len(self.asked_to_yield)
        self.carry_out(actions)
        self.check_victims(before, actions)

    # What happens

    @rule(name=st.sampled_from(sorted(TERMS)), job=st.booleans(), output=st.integers(1, 500))
    def arrive(self, name: str, job: bool, output: int) -> None:
        self.made += 1
        ticket = Ticket(self.made, prompt=10, output_max=output, size=10, job=job)
        self.names[ticket.key] = name
        # Without a job in flight it is decided as if there were none.
        alone = not job and not self.real.jobs.in_flight and self.real.queue.aside is None
        twin = self.twin() if alone else None
        actions = self.real.arrive(ticket, name, self.now)
        if twin is not None:
            expected = twin.arrive(Ticket(ticket.key, prompt=10, output_max=output, size=10), name, self.now)
            assert facts(actions) == facts(expected)
        if ticket.queued:
            (self.job_line if job else self.live_line).append(ticket)
        elif ticket.placed_on is None:
            assert ticket.key in [action.ticket.key for action in actions]
        self.do(actions)

    def twin(self) -> Admission[Any]:
        """Return an admission that never saw a job, with the same live calls in the same places."""
        made = self.admission()
        made._at = self.real._at
        made._drain_rates = copy(self.real._drain_rates)
        for load, like in zip(made.fleet.loads, self.real.fleet.loads, strict=True):
            load.health, load.limiter, load.estimates = copy(like.health), like.limiter, like.estimates
            load.in_flight, load.held, load.unstarted, load.turn = like.in_flight, like.held, like.unstarted, like.turn
        made.fleet.in_flight = self.real.fleet.in_flight
        made.fleet.refresh()
        for name in TERMS:
            mine, theirs = made.tenant(name), self.real.tenant(name)
            mine.served, mine.in_flight, mine._lengths = theirs.served, theirs.in_flight, theirs._lengths
        made.queue._floor = self.real.queue._floor
        for ticket in self.live_line:
            same = Ticket(ticket.key, prompt=10, output_max=ticket.output_max, size=10)
            same.tenant, same.tried = made.tenant(self.names[ticket.key]), ticket.tried
            made.queue.push(same, ticket.queued_at)
        return made

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=st.integers(0, 500), completed=st.booleans(), hold=st.booleans())
    def end(self, data: st.DataObject, tokens: int, completed: bool, hold: bool) -> None:
        self.finish(data.draw(st.sampled_from(self.running)), tokens, completed, hold)

    @precondition(lambda self: self.asked_to_yield)
    @rule(data=st.data(), hold=st.booleans())
    def make_way(self, data: st.DataObject, hold: bool) -> None:
        self.finish(data.draw(st.sampled_from(self.asked_to_yield)), 3, False, hold)

    def finish(self, ticket: Ticket[Any], tokens: int, completed: bool, hold: bool) -> None:
        if hold and ticket.placed_on is not None:
            self.held.append((ticket.placed_on, ticket.kv))
        self.count_live()
        self.running.remove(ticket)
        self.asked_to_yield = [other for other in self.asked_to_yield if other is not ticket]
        self.over.add(ticket.key)
        self.do(self.real.end(ticket, self.now, tokens, 10, completed=completed, hold=hold))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(self.held))
        self.held.remove(place)
        self.do(self.real.release_held(*place, self.now))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def first_token(self, data: st.DataObject) -> None:
        self.do(self.real.first_token(data.draw(st.sampled_from(self.running)), self.now))

    @precondition(lambda self: self.live_line or self.job_line)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.live_line + self.job_line))
        (self.job_line if ticket.job else self.live_line).remove(ticket)
        self.over.add(ticket.key)
        self.do(self.real.end(ticket, self.now))
        assert not ticket.queued and ticket.placed_on is None

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def fall_back(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.running))
        assert ticket.placed_on is not None
        self.count_live()
        self.running.remove(ticket)
        self.asked_to_yield = [other for other in self.asked_to_yield if other is not ticket]
        ticket.tried |= {ticket.placed_on.name}
        if len(ticket.tried) == len(self.slots):
            ticket.tried = frozenset()
        line = self.job_line if ticket.job else self.live_line
        line.insert(0, ticket)
        self.do(self.real.fell_back(ticket, self.now))

    @rule(at=st.integers(0, 2), up=st.booleans(), drained=st.booleans())
    def health(self, at: int, up: bool, drained: bool) -> None:
        load = self.real.fleet.loads[at % len(self.slots)]
        load.health.apply(HealthEvent.ANSWERED if up else HealthEvent.FAILED)
        load.health.apply(HealthEvent.DRAINED if drained else HealthEvent.UNDRAINED)
        self.real.fleet.refresh()
        self.do(self.real.dispatch(self.now))

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.do(self.real.dispatch(self.now))

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "real"):
            return
        real = self.real
        assert real.queue.count == len(self.live_line) and real.jobs.count == len(self.job_line)
        assert real.queue.bytes == sum(t.size for t in self.live_line)
        assert real.jobs.in_flight == sum(t.job for t in self.running) and real.live == self.live_running()
        assert real.jobs.yielding == set(self.asked_to_yield)
        for name in TERMS:
            for line, tenant in ((self.live_line, real.tenants.get(name)), (self.job_line, real.jobs.tenants.get(name))):
                mine = [t for t in self.running if t.job == (line is self.job_line) and self.names[t.key] == name]
                if tenant is not None:
                    assert tenant.waiting == sum(self.names[t.key] == name for t in line)
                    assert tenant.in_flight == len(mine)
            assert real.jobs_waiting(name) == sum(self.names[t.key] == name for t in self.job_line)
        for load in real.fleet.loads:
            here = [t for t in self.running if t.placed_on is load]
            assert not load.slots or load.in_flight <= load.slots
            assert load.in_flight - load.held == len(here) and load.jobs == sum(t.job for t in here)
            assert load.unstarted == sum(t.awaits_first_token for t in here)
            assert load.unread_tokens == sum(t.prompt for t in here if t.awaits_first_token and not t.job)


def facts(actions: list[Action[Any]]) -> list[tuple[int, str]]:
    """Return how full the backends of the live calls are and why the others were refused, but not which: queues of equal rank
    and equally loaded backends are ordered by their history."""
    return [(s.in_flight if s else 0, r.code if r else "") for t, s, r in actions if not t.job]


JobsMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestJobsMachine = JobsMachine.TestCase
