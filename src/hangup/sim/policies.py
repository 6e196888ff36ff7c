"""The gateways that the simulator compares: hangup's own admission, and simpler policies that others use."""

from __future__ import annotations

import math
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from hangup.config import BackendSettings, Settings
from hangup.core import reasons
from hangup.core.admission import Action, Admission, BackendLoad, TenantTerms, Ticket
from hangup.core.reasons import Reason
from hangup.sim.clients import People, SimClient, SimPolicy
from hangup.sim.clock import VirtualClock
from hangup.sim.engine import SimEngine
from hangup.sim.jobs import Supply
from hangup.sim.load import TraceRequest


class HangupGateway:
    """Runs the real admission code, with a real configuration, on simulated engines. `items` supplies job items endlessly."""

    def __init__(
        self,
        clock: VirtualClock,
        people: People,
        engines: Sequence[SimEngine],
        rng: random.Random,
        settings: Settings,
        items: Sequence[TraceRequest] = (),
    ) -> None:
        self._clock = clock
        self._people = people
        self._rng = rng
        self._settings = settings
        self._engine_list = engines
        self._queue_s = settings.limits.queue_s
        self._open()
        self._supply = Supply(clock, people.tally, self.admission, items, self._act) if items else None

    def _open(self) -> None:
        """Begin with admission that knows of no call."""
        settings, engines = self._settings, self._engine_list
        backends = cycle(settings.backend or (BackendSettings(),))
        loads = [
            BackendLoad(
                str(at), b.slots or settings.slots, b.weight, kv_tokens=b.kv_tokens, step_slo_s=settings.limits.step_slo_s
            )
            for at, b in zip(range(len(engines)), backends, strict=False)
        ]
        self._engines = dict(zip(loads, engines, strict=True))
        self.admission: Admission[Any] = Admission(settings.limits, loads, self._rng.random)
        self.admission.configure(settings.limits, {tenant.name: TenantTerms.of(tenant) for tenant in settings.tenant})

    def arrive(self, client: SimClient) -> None:
        now, sample = self._clock.now, client.sample
        due = now + sample.patience_s if sample.sends_deadline else math.inf
        ticket = client.place = Ticket(
            client,
            prompt=sample.prompt - sample.unseen,
            output_max=sample.output_max,
            stream=sample.stream,
            first_by=due if sample.stream else math.inf,
            all_by=math.inf if sample.stream else due,
            queue_by=now + self._queue_s,
            retry=client.tries > 1,
            whole=sample.whole,
        )
        self._place(ticket, sample.tenant)

    def _place(self, ticket: Ticket[Any], tenant: str) -> None:
        """Let admission decide about a call."""
        self._act(self.admission.arrive(ticket, tenant, self._clock.now))
        if ticket.queued:
            self._clock.timeout(ticket.queue_by, self._waited, ticket.key)

    def _waited(self, client: SimClient, turn: int) -> None:
        ticket = client.place
        if turn == client.turn and ticket.queued:
            self._act(self.admission.leave(ticket, self._clock.now))
            self._refuse(client, reasons.QUEUE_TIME)

    def client_left(self, client: SimClient) -> None:
        computed = 0.0
        if client.work is not None:
            assert client.engine is not None
            computed = client.engine.abort(client.work)
        ticket, client.place = client.place, None
        self._act(self.admission.end(ticket, self._clock.now, int(computed), client_left=True))

    def first_token(self, client: SimClient) -> None:
        self._act(self.admission.first_token(client.place, self._clock.now))

    def ended(self, client: SimClient) -> None:
        sample = client.sample
        ticket, client.place = client.place, None
        steady = sample.slow_by == 1.0
        self._act(self.admission.end(ticket, self._clock.now, sample.output, sample.prompt, completed=True, steady=steady))

    def _act(self, actions: list[Action[Any]]) -> None:
        for ticket, load, reason in actions:
            if ticket.job:
                assert self._supply is not None
                self._supply.act(ticket, self._engines[load] if load is not None else None)
            elif load is not None:
                self._people.started(ticket.key, self._engines[load])
            elif reason is not None:
                self._refuse(ticket.key, reason)

    def _refuse(self, client: SimClient, reason: Reason) -> None:
        admission = self.admission
        client.place = None  # break the reference cycle: the garbage collector is off during a run
        after_s = math.ceil(admission.retry_after_s(client.sample.tenant, reason, self._clock.now))
        may_retry = reason.retry is not False and not (
            client.tries > 1 and admission.tenant(client.sample.tenant).retries.spent
        )
        self._people.refused(client, float(after_s), may_retry)


class DirectGateway:
    """No gateway to speak of: sends every call to an engine at once. With `aborts`, it stops calls whose client hung up."""

    def __init__(self, people: People, engines: Sequence[SimEngine], aborts: bool) -> None:
        self._people = people
        self._engines = engines
        self._aborts = aborts
        self._turn = 0

    def arrive(self, client: SimClient) -> None:
        self._turn += 1
        self._people.started(client, self._engines[self._turn % len(self._engines)])

    def client_left(self, client: SimClient) -> None:
        assert client.engine is not None and client.work is not None
        if self._aborts:
            client.engine.abort(client.work)
        else:
            client.work.hung_up = True

    def first_token(self, client: SimClient) -> None:
        pass

    def ended(self, client: SimClient) -> None:
        pass


@dataclass(frozen=True, slots=True)
class FifoQueue:
    """The settings of a plain queue in front of the engines' slots."""

    depth_max: int
    wait_s_max: float = math.inf
    codel_s: float = 0.0  # CoDel: the longest wait once the queue has not been empty for an interval; 0 is off
    lifo: bool = False  # whether the newest call goes first while the queue stands


_CODEL_INTERVAL_S = 0.5


class FifoGateway:
    def __init__(self, clock: VirtualClock, people: People, engines: Sequence[SimEngine], line: FifoQueue) -> None:
        self._clock = clock
        self._people = people
        self._line = line
        # Free slots, handed out round-robin over the engines.
        self._free = deque(engine for _ in range(max(e.model.slots for e in engines)) for engine in engines)
        self._waiting: OrderedDict[SimClient, float] = OrderedDict()
        self._empty_at = 0.0

    def arrive(self, client: SimClient) -> None:
        if self._free and not self._waiting:
            self._start(client)
        elif len(self._waiting) >= self._line.depth_max:
            self._people.refused(client)
        else:
            now = self._clock.now
            client.place = None
            self._waiting[client] = now
            if self._line.wait_s_max < math.inf:
                self._clock.timeout(now + self._line.wait_s_max, self._waited, client)

    def _start(self, client: SimClient) -> None:
        client.place = engine = self._free.popleft()
        self._people.started(client, engine)

    def _waited(self, client: SimClient, turn: int) -> None:
        if turn == client.turn and client in self._waiting:
            del self._waiting[client]
            self._people.refused(client)

    def client_left(self, client: SimClient) -> None:
        if client.work is None:
            self._waiting.pop(client, None)
            return
        assert client.engine is not None
        client.engine.abort(client.work)
        self._release(client)

    def first_token(self, client: SimClient) -> None:
        pass

    def ended(self, client: SimClient) -> None:
        self._release(client)

    def _release(self, client: SimClient) -> None:
        self._free.append(client.place)
        now, line = self._clock.now, self._line
        while self._waiting and self._free:
            if not line.codel_s:
                client, _ = self._waiting.popitem(last=False)
                self._start(client)
                continue
            standing = now - self._empty_at > _CODEL_INTERVAL_S
            bound = line.codel_s if standing else _CODEL_INTERVAL_S
            client, since = self._waiting.popitem(last=line.lifo and standing)
            if now - since > bound:
                self._people.refused(client)
            else:
                self._start(client)
        if not self._waiting:
            self._empty_at = now


GatewayMaker = Callable[[VirtualClock, People, Sequence[SimEngine], random.Random], SimPolicy]


def hangup(settings: Settings, items: Sequence[TraceRequest] = ()) -> GatewayMaker:
    return lambda clock, people, engines, rng: HangupGateway(clock, people, engines, rng, settings, items)


def _direct(aborts: bool) -> GatewayMaker:
    return lambda _clock, people, engines, _rng: DirectGateway(people, engines, aborts)


def _line(line: FifoQueue) -> GatewayMaker:
    return lambda clock, people, engines, _rng: FifoGateway(clock, people, engines, line)


HANGUP = "hangup"
JOBS = "jobs"  # hangup, with jobs beside the clients
BASELINES: dict[str, tuple[str, GatewayMaker]] = {
    "direct": ("no gateway; the engine keeps computing when a client disconnects", _direct(aborts=False)),
    "abort": ("no gateway, an unbounded engine queue; the engine stops when a client disconnects", _direct(aborts=True)),
    "router": ("a queue of 5,000 calls and 60 s, the default of some routers", _line(FifoQueue(5000, 60.0))),
    "bounded": ("first come, first served; a queue of 32 calls", _line(FifoQueue(32))),
    "codel": ("CoDel with adaptive LIFO", _line(FifoQueue(5000, 60.0, codel_s=0.1, lifo=True))),
}
