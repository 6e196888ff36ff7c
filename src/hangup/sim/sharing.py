"""Simulates gateways that share slots and quotas: the hub's own objects, messages that are late or lost, and deaths."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hangup.config import Settings
from hangup.core.admission import NO_LIMIT, Observation, Ticket
from hangup.core.members import (
    HELD_S,
    Allotments,
    Grant,
    LearnedFigures,
    LearnedPlaces,
    Members,
    PlaceAllocator,
    PlaceReport,
    QuotaShares,
    ServedElsewhere,
    TenantUse,
    WholeFigures,
    backend_places,
    learned_figures,
    needs_places,
    shared_limits,
    take_observations,
    tenant_uses,
)
from hangup.core.members.pace import (
    DEAD_HOLD_S,
    HOSTS_LOOK_S,
    HOSTS_SILENT_S,
    HURRY_S,
    LOOK_S,
    REPORT_S,
    SILENT_S,
    SOON_AGAIN_S,
    SOON_S,
)
from hangup.sim.clients import People, SimClient
from hangup.sim.clock import Handler, VirtualClock
from hangup.sim.engine import SimEngine
from hangup.sim.load import TraceRequest
from hangup.sim.policies import HangupGateway

_ENGINE_NOTICES_S = 0.5 * DEAD_HOLD_S  # the longest time after which an engine stops the calls of a dead gateway


@dataclass(frozen=True, slots=True)
class SharingModel:
    """What lies between the gateways and the hub, and how gateways die."""

    delay_s: float = 0.0005  # of a message, on average: half to one and a half times this
    loss: float = 0.0  # share of messages that are lost
    deaths_per_minute: float = 0.0  # of all gateways together
    restart_s: float = 2.0  # until a dead gateway is replaced
    by_silence: bool = False  # the hub notices a death by silence, as on several hosts; otherwise by the end of a process


class SimReport(NamedTuple):
    """What a gateway reports to the hub."""

    name: str
    places: list[PlaceReport]
    asks: list[str]
    tenants: list[TenantUse]
    learned: list[LearnedFigures]
    seen: dict[str, list[Observation]]


class SimHub:
    """Runs the real `Members` and `PlaceAllocator`."""

    def __init__(
        self, clock: VirtualClock, people: People, engines: Sequence[SimEngine], model: SharingModel, seed: int
    ) -> None:
        self._clock = clock
        self._people = people
        self._engines = engines
        self._model = model
        self._rng = random.Random(seed)  # noqa: S311 (a seed must give one result)
        self._look_s = HOSTS_LOOK_S if model.by_silence else LOOK_S
        self._members = Members(HOSTS_SILENT_S if model.by_silence else SILENT_S, self._look_s)
        self._places = PlaceAllocator(DEAD_HOLD_S)
        self._learned = LearnedPlaces()
        self._gateways: dict[str, SharedGateway] = {}  # those that the hub takes for alive, by name
        self._all: list[SharedGateway] = []
        self._died_at: dict[str, float] = {}  # of those whose death the hub has not noticed
        self._taken_until: list[tuple[float, float]] = []  # when places of dead gateways become free, and when those died
        self._names = 0
        clock.at(self._look_s, self._look, None)
        self._deaths_per_s = model.deaths_per_minute / 60
        if self._deaths_per_s > 0:  # not so few that they round to 0
            self._plan_death()

    # The network

    def send(self, handler: Handler, message: object) -> None:
        """Deliver a message late, or never. Messages may overtake each other."""
        model, now = self._model, self._clock.now
        if self._people.tally.open(now):
            self._people.tally.hub_messages += 1
        if not model.loss or self._rng.random() >= model.loss:
            self._clock.at(now + model.delay_s * (0.5 + self._rng.random()), handler, message)

    def _tell(self, grants: Iterable[Grant]) -> None:
        by_member: dict[str, list[Grant]] = {}
        for grant in grants:
            by_member.setdefault(grant.member, []).append(grant)
        for member, granted in by_member.items():
            if member in self._gateways:
                self.send(self._gateways[member].take_grants, granted)

    # Members

    def join(self, gateway: SharedGateway) -> str:
        """Return the gateway's name: one that no other has had."""
        self._names += 1
        name = f"g{self._names}"
        if gateway not in self._all:
            self._all.append(gateway)
        self._gateways[name] = gateway
        self._members.join(name)
        return name

    def noted(self, report: SimReport, _: int) -> None:
        """Note what a gateway reports. One that was given up and speaks again is a member as before."""
        name = report.name
        if name not in self._gateways:
            speaker = next((gateway for gateway in self._all if gateway.name == name), None)
            if speaker is None or not speaker.alive:
                return
            self._gateways[name] = speaker
            self._members.join(name)
        self._members.note_message(name)
        self._places.note_tenants(name, report.tenants)
        learned = self._learned.note(name, report.learned, self._clock.now)
        learned |= self._learned.observe(report.seen, self._clock.now)
        self._tell([*self._places.set_learned(learned), *self._places.report(name, report.places)])
        if report.asks:
            more = {resource: self._places.expects_more(resource) for resource in report.asks}
            self.send(self._gateways[name].considered, more)
        if whole := self._learned.whole_for(name, self._clock.now):
            self.send(self._gateways[name].note_whole, whole)

    def _look(self, _: None, __: int) -> None:
        now = self._clock.now
        self._clock.at(now + self._look_s, self._look, None)
        self._members.look(now)
        if self._model.by_silence:
            for name in [name for name in self._gateways if self._members.is_silent(name)]:
                self._left(name, 0)
        self._tell(self._places.pass_time(now))
        for name, gateway in self._gateways.items():
            if served := self._places.tenants.served_by_others(name):
                self.send(gateway.note_served, served)
        self._people.tally.freed_s += [now - died_at for until, died_at in self._taken_until if until <= now]
        self._taken_until = [entry for entry in self._taken_until if entry[0] > now]
        for at, engine in enumerate(self._engines):
            granted = self._places.granted(str(at))
            beyond = granted - engine.model.slots if granted < NO_LIMIT else 0
            self._people.tally.granted_beyond = max(self._people.tally.granted_beyond, beyond)

    def _left(self, name: str, _: int) -> None:
        """The hub has noticed a death, or takes a gateway for dead that has been silent."""
        now = self._clock.now
        del self._gateways[name]
        self._members.leave(name)
        self._learned.leave(name, now + DEAD_HOLD_S)
        self._tell(self._places.leave(name, now, died=True))
        died_at = self._died_at.pop(name, None)
        if died_at is not None:
            self._taken_until.append((now + DEAD_HOLD_S, died_at))

    # Deaths

    def _plan_death(self) -> None:
        pause = self._rng.expovariate(self._deaths_per_s)
        self._clock.at(self._clock.now + pause, self._kill_one, None)

    def _kill_one(self, _: None, __: int) -> None:
        self._plan_death()
        alive = [gateway for gateway in self._all if gateway.alive]
        if alive:
            victim = self._rng.choice(alive)
            name = victim.name
            victim.die(self._rng)
            self._people.tally.gateway_deaths += 1
            self._died_at[name] = self._clock.now
            if not self._model.by_silence:
                self._clock.at(self._clock.now + self._model.delay_s, self._left, name)
            self._clock.at(self._clock.now + self._model.restart_s, victim.restart, None)

    def alive_beside(self, gateway: SharedGateway) -> SharedGateway | None:
        """Return where the load balancer sends a call instead."""
        alive = [other for other in self._all if other.alive]
        return alive[self._all.index(gateway) % len(alive)] if alive else None


class SharedGateway(HangupGateway):
    """A gateway that uses slots and quotas as the hub allots them, with the reports of `gateway/workers/link.py`."""

    def __init__(
        self,
        clock: VirtualClock,
        people: People,
        engines: Sequence[SimEngine],
        rng: random.Random,
        settings: Settings,
        items: Sequence[TraceRequest],
        hub: SimHub,
    ) -> None:
        self._hub = hub
        self.alive = True
        self._clients: dict[SimClient, None] = {}
        super().__init__(clock, people, engines, rng, settings, items)
        clock.at(clock.now + rng.random() * REPORT_S, self._tick, None, self._life)

    _life = 0  # events of an earlier life are void

    def _open(self) -> None:
        super()._open()
        self.admission.shares_quotas = True
        for load in self.admission.fleet.loads:
            load.share()
            self.admission.fleet.load_changed(load)
        self._loads = {load.name: load for load in self.admission.fleet.loads}
        self._allotments = Allotments()
        self._quotas: QuotaShares[SimClient] = QuotaShares(
            self.admission, self._allotments, lambda ticket: ticket.key.place is not ticket
        )
        self._served_elsewhere = ServedElsewhere()
        self._soon = False
        self._soon_from = 0.0
        self.name = self._hub.join(self)

    # Calls

    def arrive(self, client: SimClient) -> None:
        if self.alive:
            self._clients[client] = None
            super().arrive(client)
            return
        other = client.gateway = self._hub.alive_beside(self)
        if other is not None:
            other.arrive(client)
        else:
            self._people.refused(client)

    def _place(self, ticket: Ticket[Any], tenant: str) -> None:
        if self._quotas.hold(ticket, tenant, self._clock.now):
            self._clock.at(self._clock.now + HELD_S, self._held_for_long, (ticket, tenant), self._life)
            self._report_soon()
        else:
            self._decide(ticket, tenant)

    def _decide(self, ticket: Ticket[Any], tenant: str) -> None:
        super()._place(ticket, tenant)
        if ticket.queued:
            self._report_soon()

    def _held_for_long(self, held: tuple[Ticket[Any], str], life: int) -> None:
        if life == self._life:
            for ticket, tenant in self._quotas.take_until(*held):
                self._decide(ticket, tenant)

    def client_left(self, client: SimClient) -> None:
        self._clients.pop(client, None)
        super().client_left(client)

    def ended(self, client: SimClient) -> None:
        self._clients.pop(client, None)
        super().ended(client)

    def _refuse(self, client: SimClient, reason: Any) -> None:
        self._clients.pop(client, None)
        super()._refuse(client, reason)

    # Reports

    def _tick(self, _: None, life: int) -> None:
        if life == self._life:
            self._report()
            pause = HURRY_S if needs_places(self.admission) else REPORT_S
            self._clock.at(self._clock.now + pause, self._tick, None, life)

    def _report_soon(self) -> None:
        if not self._soon:
            self._soon = True
            at = max(self._clock.now + SOON_S, self._soon_from)
            self._soon_from = at + SOON_AGAIN_S
            self._clock.at(at, self._now_is_soon, None, self._life)

    def _now_is_soon(self, _: None, life: int) -> None:
        if life == self._life and self._soon:
            self._report()

    def _report(self) -> None:
        self._soon = False
        rows = backend_places(self.admission, self._allotments) + self._quotas.reports(self._clock.now)
        self._allotments.keep_only(row.resource for row in rows)
        self._hub.send(
            self._hub.noted,
            SimReport(
                self.name,
                rows,
                self._quotas.asked_for(),
                tenant_uses(self.admission),
                learned_figures(self.admission),
                take_observations(self.admission, self._clock.now),
            ),
        )

    # What the hub says

    def take_grants(self, grants: list[Grant], _: int) -> None:
        if not self.alive or grants[0].member != self.name:
            return
        for grant in grants:
            if not self._allotments.take(grant):
                continue
            load = self._loads.get(grant.resource)
            if load is not None:
                load.allot(grant.allowed)
                self.admission.fleet.load_changed(load)
                self._act(self.admission.dispatch(self._clock.now))
            for ticket, tenant in self._quotas.granted(grant.resource, grant.allowed) if load is None else ():
                self._decide(ticket, tenant)
        self._report()

    def considered(self, more_may_come: dict[str, bool], _: int) -> None:
        if self.alive:
            for ticket, tenant in self._quotas.considered(more_may_come):
                self._decide(ticket, tenant)

    def note_whole(self, rows: list[WholeFigures], _: int) -> None:
        if self.alive:
            limits = shared_limits(self.admission)
            for row in rows:
                limits[row.backend].note_whole(*row[1:])

    def note_served(self, by_others: dict[str, float], _: int) -> None:
        if self.alive:
            self._served_elsewhere.note(self.admission, by_others)

    # Death

    def die(self, rng: random.Random) -> None:
        """Break all connections. The engines notice it after a moment; the clients at once."""
        self.alive = False
        self._life += 1
        clients, self._clients = list(self._clients), {}
        for client in clients:
            work, engine = client.work, client.engine
            if work is not None and engine is not None:
                work.hung_up = True
                self._clock.at(self._clock.now + rng.random() * _ENGINE_NOTICES_S, self._noticed, (engine, work))
            client.place = None
            self._people.connection_broke(client)

    def _noticed(self, left: tuple[SimEngine, Any], _: int) -> None:
        engine, work = left
        engine.abort(work)

    def restart(self, _: None, __: int) -> None:
        self.alive = True
        self._open()
        self._tick(None, self._life)


class SharedMaker:
    """Makes the gateways of a run, and the hub that they share."""

    def __init__(self, settings: Settings, items: Sequence[TraceRequest], model: SharingModel, seed: int) -> None:
        self._settings, self._items, self._model, self._seed = settings, items, model, seed
        self._hub: SimHub | None = None

    def __call__(self, clock: VirtualClock, people: People, engines: Sequence[SimEngine], rng: random.Random) -> SharedGateway:
        if self._hub is None:
            self._hub = SimHub(clock, people, engines, self._model, self._seed)
        return SharedGateway(clock, people, engines, rng, self._settings, self._items, self._hub)
