"""Admission against a naive oracle: never over capacity, no call lost or run twice, and in the promised order."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hangup.config import LimitSettings
from hangup.core.admission import Action, Admission, BackendLoad, Band, HealthEvent, TenantTerms, Ticket

LIMITS = LimitSettings(queue_depth_max=6, queue_bytes_max=1000, lifo_after_s=2.0, queue_s=1e6)
TERMS = {
    "a": TenantTerms(),
    "b": TenantTerms(weight=2.0),
    "c": TenantTerms(),
    "vip": TenantTerms(band=Band.HIGH),
    "batch": TenantTerms(band=Band.LOW),
    "small": TenantTerms(concurrency_max=2),
}


class AdmissionMachine(RuleBasedStateMachine):
    """Plain lists, searched from end to end, beside the real admission."""

    @initialize(slots=st.lists(st.integers(1, 3), min_size=1, max_size=3))
    def begin(self, slots: list[int]) -> None:
        self.loads = [BackendLoad(f"s{at}", n, failures_max=1) for at, n in enumerate(slots)]
        self.real: Admission[Any] = Admission(LIMITS, self.loads, lambda: 0.5)
        self.real.configure(LIMITS, TERMS)
        self.now = 0.0
        self.made = 0
        self.queue: list[Ticket[Any]] = []  # in the order of arrival
        self.running: list[Ticket[Any]] = []
        self.held: list[tuple[BackendLoad, int]] = []  # places of ended calls whose engine may go on
        self.over: set[int] = set()
        self.back: set[int] = set()  # those that a backend has failed
        self.names: dict[int, str] = {}

    # The oracle

    def name(self, ticket: Ticket[Any]) -> str:
        return self.names[ticket.key]

    def served(self, name: str) -> float:
        return self.real.tenant(name).served

    def expected_next(self) -> list[Ticket[Any]]:
        """Return the calls that may be next; several if their tenants are equal."""
        band = min(TERMS[self.name(t)].band for t in self.queue)
        names = {self.name(t) for t in self.queue if TERMS[self.name(t)].band == band}
        least = min(self.served(name) for name in names)
        picked = []
        for name in names:
            if self.served(name) == least:
                line = [t for t in self.queue if self.name(t) == name]
                stands = self.now - line[0].queued_at > LIMITS.lifo_after_s
                picked.append(line[-1] if stands else line[0])
        return picked

    def expected_victims(self, name: str) -> list[Ticket[Any]]:
        """Return the calls that may be refused for a newcomer; if there are none, the newcomer is refused."""
        own = TERMS[name]
        lowest = max(TERMS[self.name(t)].band for t in self.queue)
        lines: dict[str, list[Ticket[Any]]] = {}
        for ticket in self.queue:
            lines.setdefault(self.name(ticket), []).append(ticket)
        share = {n: len(line) / TERMS[n].weight for n, line in lines.items() if TERMS[n].band == lowest}
        longest = [n for n in share if share[n] == max(share.values())]
        if lowest < own.band:
            return []
        if lowest == own.band:
            mine = (len(lines.get(name, [])) + 1) / own.weight
            longest = [n for n in longest if n != name and share[n] > mine]
        return [lines[n][0] for n in longest]

    @property
    def odd(self) -> bool:
        """Return whether a call that failed on one backend waits for another: the order has exceptions then."""
        return any(ticket.tried for ticket in self.queue)

    def room(self) -> bool:
        up = [load for load in self.loads if load.health.up] or self.loads
        return any(load.in_flight < load.slots for load in up)

    def carry_out(self, actions: list[Action[Any]]) -> None:
        for ticket, load, reason in actions:
            assert (load is None) != (reason is None)
            assert ticket.key not in self.over, "an ended call was moved"
            if ticket in self.queue:
                self.queue.remove(ticket)
            if load is not None:
                assert ticket not in self.running, "run twice"
                self.running.append(ticket)
            else:
                self.over.add(ticket.key)

    # What happens

    @rule(name=st.sampled_from(sorted(TERMS)), size=st.sampled_from([1, 300]), output=st.integers(1, 500))
    def arrive(self, name: str, size: int, output: int) -> None:
        self.made += 1
        ticket = Ticket(self.made, prompt=10, output_max=output, size=size)
        self.names[ticket.key] = name
        tenant = self.real.tenant(name)
        at_quota = (
            TERMS[name].concurrency_max
            and sum(self.name(t) == name for t in self.queue + self.running) >= TERMS[name].concurrency_max
        )
        full = len(self.queue) >= LIMITS.queue_depth_max
        victims = self.expected_victims(name) if full else []
        actions = self.real.arrive(ticket, name, self.now)
        out = [(action.ticket.key, action.reason.code) for action in actions if action.reason is not None]
        if at_quota:
            assert out == [(ticket.key, "concurrency_max")]
        elif full and size == 1 and not self.room() and not self.odd:
            pushed = [key for key, code in out if code == "queue_evicted"]
            if pushed:
                assert pushed[0] in [t.key for t in victims]
            else:
                assert out == [(ticket.key, "queue_full")]
        assert ticket.queued + (ticket.placed_on is not None) + (ticket.key in [key for key, _ in out]) == 1
        if ticket.queued:
            self.queue.append(ticket)
        self.carry_out(actions)
        assert tenant.waiting == sum(self.name(t) == name for t in self.queue)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=st.integers(0, 500), completed=st.booleans(), hold=st.booleans())
    def end(self, data: st.DataObject, tokens: int, completed: bool, hold: bool) -> None:
        ticket = data.draw(st.sampled_from(self.running))
        if hold and ticket.placed_on is not None:
            self.held.append((ticket.placed_on, ticket.kv))
        self.running.remove(ticket)
        self.over.add(ticket.key)
        before = list(self.queue)
        actions = self.real.end(ticket, self.now, tokens, 10, completed=completed, hold=hold)
        if before and actions and not self.odd:
            assert actions[0].ticket in self.expected_after(actions[0].ticket)
        self.carry_out(actions)

    def expected_after(self, chosen: Ticket[Any]) -> list[Ticket[Any]]:
        """Do as `expected_next`, before the chosen call was charged to its tenant."""
        name = self.name(chosen)
        tenant = self.real.tenant(name)
        tenant.served -= chosen.charge / TERMS[name].weight
        expected = self.expected_next()
        tenant.served += chosen.charge / TERMS[name].weight
        # Adding and taking away again may leave a last digit behind.
        near = [
            t for t in self.queue if math.isclose(self.served(self.name(t)), self.served(name) - chosen.charge, rel_tol=1e-9)
        ]
        return expected + [t for t in near if t is chosen]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(self.held))
        self.held.remove(place)
        self.carry_out(self.real.release_held(*place, self.now))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def first_token(self, data: st.DataObject) -> None:
        self.carry_out(self.real.first_token(data.draw(st.sampled_from(self.running)), self.now))

    @precondition(lambda self: self.queue)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.queue))
        self.queue.remove(ticket)
        self.over.add(ticket.key)
        self.carry_out(self.real.end(ticket, self.now))
        assert self.real.leave(ticket, self.now) == []

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def fall_back(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.running))
        self.running.remove(ticket)
        assert ticket.placed_on is not None
        self.back.add(ticket.key)
        ticket.tried |= {ticket.placed_on.name}
        if len(ticket.tried) == len(self.loads):
            ticket.tried = frozenset()
        actions = self.real.fell_back(ticket, self.now)
        if ticket.queued:
            self.queue.insert(0, ticket)
        self.carry_out(actions)

    @rule(at=st.integers(0, 2), up=st.booleans())
    def health(self, at: int, up: bool) -> None:
        load = self.loads[at % len(self.loads)]
        load.health.apply(HealthEvent.ANSWERED if up else HealthEvent.FAILED)
        self.real.fleet.refresh()
        self.carry_out(self.real.dispatch(self.now))

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "real"):
            return
        for load in self.loads:
            assert 0 <= load.in_flight <= load.slots
            held = sum(at is load for at, _ in self.held)
            assert (load.held, load.in_flight - held) == (held, sum(t.placed_on is load for t in self.running))
            assert load.unstarted == sum(t.placed_on is load and t.awaits_first_token for t in self.running)
            assert load.unread_tokens == sum(t.prompt for t in self.running if t.placed_on is load and t.awaits_first_token)
        queue = self.real.queue
        assert queue.count == len(self.queue) and queue.bytes == sum(t.size for t in self.queue)
        assert all(t.queued and t.placed_on is None for t in self.queue)
        assert all(t.placed_on is not None and not t.queued for t in self.running)
        # One may come back from a failed backend into a full queue; nobody else does.
        assert queue.count <= LIMITS.queue_depth_max + sum(t.key in self.back for t in self.queue)
        if self.queue and not self.odd:
            bands = min(TERMS[self.name(t)].band for t in self.queue)
            assert not self.room() or bands > Band.HIGH, "there is room, and nobody is let in"


AdmissionMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestAdmissionMachine = AdmissionMachine.TestCase
