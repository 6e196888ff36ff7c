"""The gateway: who may call, which backend serves, what is live, and the books.

It owns everything that outlives a call: backends with their watches, the registry of live calls, the client
connections, the ledger and the log.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
import ssl
import time
from collections import deque
from collections.abc import Mapping
from functools import lru_cache, partial
from itertools import islice
from types import MappingProxyType
from typing import Any

from hangup.apis.base import Ask, Json
from hangup.apis.engine_paths import HEALTH
from hangup.apis.routes import PassThrough, Route, Router
from hangup.app import stranded
from hangup.app.actions import ActionLoop
from hangup.app.call_lines import CallLines
from hangup.app.carried import Carried
from hangup.app.cors import Origins, Preflight, is_preflight
from hangup.app.entrance import (
    ANONYMOUS,
    CallIds,
    Hosts,
    Keys,
    Options,
    allowed_methods,
    check_route,
    client_kind,
    own_deadline,
    sdk_read_timeout,
)
from hangup.app.exchange import Exchange
from hangup.app.kept import AboutResponse, KeptResponses
from hangup.app.log import Log
from hangup.app.passage import Passage
from hangup.app.pauses import Pauses, worth_waiting
from hangup.app.probe import Probe
from hangup.app.question import Question
from hangup.app.routing import Routing
from hangup.app.tracing import TRACEPARENT, Tracer
from hangup.app.tunnel import Tunnel, check_origin
from hangup.app.undertaking import Undertaking
from hangup.app.uploads import Uploads
from hangup.app.visit import Visit
from hangup.config import Limits, Settings
from hangup.core import reasons
from hangup.core.account import FREE, Price, entry, saved
from hangup.core.admission import Action, Admission, Terms, Ticket
from hangup.core.call import Call, Phase
from hangup.core.ledger import Ledger
from hangup.core.reaper import Leftover, Waiting
from hangup.core.reasons import Outcome, Reason
from hangup.duties import DUTIES
from hangup.edge.connection import ClientConnection
from hangup.engines.aborts import Aborts
from hangup.engines.backend import Backend
from hangup.engines.connection import EngineConnection
from hangup.engines.figures import follow
from hangup.engines.health import watch
from hangup.engines.pool import Dial
from hangup.errors import Refusal
from hangup.jobs.calls import wants_async
from hangup.jobs.desk import Desk
from hangup.jobs.provider import Provider
from hangup.reaper import Reaper
from hangup.store.ledger import LedgerStore
from hangup.wire.head import Headers, RequestHead, ResponseHead
from hangup.wire.websocket import is_handshake

_NO_ENGINE = frozenset([reasons.ENGINE_UNREACHABLE, reasons.ENGINE_WEDGED])  # a no, as a refusal is: it says when to come back
_PACE_S = 1.0  # between two looks at the pace of running calls,
_PACE_CALLS_MAX = 64  # and at how many of them,
_PACE_LOOKS_MAX = 1024  # those left out whose clients read too slowly
TURNED_AWAY_MAX = 32  # connections beyond connections_max that are being told so; any more are cut


class Gateway:
    def __init__(
        self,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        log: Log,
        dials: Mapping[str, Dial] = MappingProxyType({}),
        store: LedgerStore | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._dials = dials  # backends in this process, by name
        self.loop = loop
        self.log = log
        self.lines = CallLines(log, loop, lambda: self.limits.log_wait_s)
        self.ledger = Ledger()
        self.store = store
        self.tracer = tracer
        self.connections: set[ClientConnection] = set()
        self.connections_allowed = settings.limits.connections_max  # fewer where file descriptors are scarce
        self.connections_refused = 0
        self.turned_away: set[ClientConnection] = set()
        self.tls: ssl.SSLContext | None = None  # of the data port
        self.handshakes = 0  # TLS connections that are not ready yet; they count like any other
        self.body_bytes = 0  # of bodies on their way in
        self.uploads = Uploads()
        self.origins = Origins()
        self.kept_responses = KeptResponses()
        self.calls: dict[str, Exchange] = {}
        self.ended_calls: deque[Call] = deque(maxlen=settings.limits.ended_calls_max)
        self.backends: dict[str, Backend] = {}
        self._retired: set[Backend] = set()  # out of the configuration, with calls that may finish
        self._slots = settings.slots
        self.admission = Admission(settings.limits, [], random.random)
        self._act = ActionLoop(self._carry_out, self._action_failed).run
        self.aborts = Aborts()
        self.reaper = Reaper(self.aborts, self, settings.limits.zombie_stories_max)
        self.heard_of_release = asyncio.Event()  # wakes those who wait for one, and is never set for longer
        self.desk: Desk | None = None  # who answers for jobs, once their store is open
        self.provider = (
            Provider(Undertaking(self), loop) if settings.jobs == "provider" else None
        )  # or who has them, if it is not us
        self.draining = False
        self.idle = asyncio.Event()  # set while no call is live
        self.idle.set()
        self._ids = CallIds()
        self.pauses = Pauses(loop, self._pause_changed)
        self._paces: dict[Exchange, tuple[int, float, int]] = {}  # tokens, time and stalls of calls when last looked at
        self._pace_timer = loop.call_later(_PACE_S, self._look_at_paces)
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._figures: dict[str, asyncio.Task[None]] = {}  # who asks backends about their queues
        self._goodbyes: set[asyncio.Task[None]] = set()  # to backends that are out of the configuration
        self.routing = Routing(self)
        self.configure(settings)

    # Configuration

    def configure(self, settings: Settings) -> None:
        """Takes new settings into use, all or none; calls that run keep what they started with."""
        # What can fail comes first: nothing may be half in effect.
        kept = {b.settings: b for b in self.backends.values() if b.settings.slots or self._slots == settings.slots}
        backends = [
            kept.get(s) or Backend(s, settings.limits, self.loop, settings.slots, self._dials.get(s.name))
            for s in settings.backend
        ]
        router = Router(settings.route, provider=self.provider is not None)
        keys, hosts = Keys(settings.tenant), Hosts(settings)
        self.settings = settings
        self.limits = settings.limits
        self.half_close_is_hangup = settings.half_close == "hangup"
        self.router, self._keys, self._hosts = router, keys, hosts
        self._own_limits = {f"tenant {t.name}": t.limits for t in settings.tenant}
        self._own_limits |= {f"route {r.path}": r.limits for r in settings.route}
        self.limits_of = lru_cache(maxsize=4096)(self._merge_limits)
        self.admission.configure(settings.limits, {tenant.name: Terms.of(tenant) for tenant in settings.tenant})
        self._configure_backends(settings, backends)

    def _merge_limits(self, route: str, tenant: str) -> Limits:
        own = {**self._own_limits.get(f"route {route}", {}), **self._own_limits.get(f"tenant {tenant}", {})}
        return dataclasses.replace(self.limits, **own) if own else self.limits

    def _configure_backends(self, settings: Settings, backends: list[Backend]) -> None:
        """Limits can change under a backend; were it made anew, an engine that is a process of ours would be started anew."""
        self._slots = settings.slots
        for backend in list(self.backends.values()):
            if backend not in backends:
                self._retire(backend)
        self.backends = {backend.name: backend for backend in backends}
        prices = {b.name: Price(b.settings.price_per_hour, b.settings.price_per_million_tokens) for b in backends}
        self._prices = {name: price for name, price in prices.items() if any(price)}
        self.admission.fleet.set(backend.seat for backend in backends)
        for backend in backends:
            backend.take_limits(settings.limits)
            if backend.name not in self._watches:
                told = self.routing.told_models
                self._watches[backend.name] = DUTIES.keep("health", partial(watch, backend, self._backend_changed, told))
                self._figures[backend.name] = DUTIES.keep("figures", partial(follow, backend, self.engine_told))
            self.reaper.watch(backend)
        self.routing.configure(settings)

    def _retire(self, backend: Backend) -> None:
        """Out of the configuration: no new call goes there, those that run may finish."""
        backend.seat.retired = True
        backend.pool.close_idle()
        if backend.seat.in_flight:
            self._retired.add(backend)
        else:
            self._forget(backend)
        for tasks in (self._watches, self._figures):
            task = tasks.pop(backend.name, None)
            if task is not None:
                task.cancel()

    def _backend_changed(self, backend: Backend, what: str) -> None:
        self.log.event("backend", backend=backend.name, change=what)
        self.reaper.look(backend)  # what it runs already may take the room that calls would get
        self.seat_changed(backend)

    def why_not_ready(self) -> Reason | None:
        """Why a call that came now could not be served, as far as is known; None if it could."""
        if self.draining:
            return reasons.DRAINING
        seats = [backend.seat for backend in self.backends.values()]
        ready = any(s.seen and s.up and not s.drained and not s.closed and not s.full_of_others for s in seats)
        return None if ready else reasons.NO_BACKEND

    def drain_backend(self, name: str, on: bool) -> bool:
        """No new calls for a backend, until it is taken back; False when there is none of that name."""
        backend = self.backends.get(name)
        if backend is None:
            return False
        if backend.seat.drained != on:
            backend.seat.drained = on
            self._backend_changed(backend, "drained by an operator" if on else "taken back by an operator")
        return True

    # Connections

    def connected(self, connection: ClientConnection) -> bool:
        if not self.has_room():
            return False
        self.connections.add(connection)
        return True

    def has_room(self) -> bool:
        if len(self.connections) + self.handshakes < self.connections_allowed:
            return True
        self.connections_refused += 1
        return False

    def may_refuse(self, connection: ClientConnection) -> bool:
        if len(self.turned_away) >= TURNED_AWAY_MAX:
            return False
        self.turned_away.add(connection)
        return True

    def disconnected(self, connection: ClientConnection) -> None:
        self.connections.discard(connection)
        self.turned_away.discard(connection)

    # Calls begin

    def open(self, connection: ClientConnection, head: RequestHead) -> Exchange | Carried | Probe | None:
        """A request's head: who asks for what, and may they? Nothing of the body is read before this."""
        known = self.router.find(head.path)
        if known is not None and known.api is HEALTH and head.method in allowed_methods(known):
            return Probe(self, connection)
        exchange = self._new_exchange(connection, head)
        if head.path == "*":
            return Options(exchange)
        try:
            return self._begin(exchange, connection, head, known)
        except Refusal as refusal:
            exchange.refuse(refusal.reason, refusal.detail)
        except Exception as error:
            exchange.fault(error)  # the connection does not know of it yet, so nobody else would end it
        return None

    def _begin(
        self, exchange: Exchange, connection: ClientConnection, head: RequestHead, known: Route | None
    ) -> Exchange | Carried | None:
        route, tenant = self._admit(exchange, head, known)
        deadline_s = own_deadline(head)
        limits = self.limits_of(route.path, tenant)
        exchange.client_total_s = deadline_s
        exchange.client_read_s = sdk_read_timeout(head)
        exchange.start(route, limits)
        if is_preflight(head):
            return Preflight(exchange, self.origins)
        if route.websocket and is_handshake(head):
            check_origin(head, self.settings.websocket_origins)
            return Tunnel(exchange, connection)
        if route.api.about_jobs:
            if self.provider is not None:
                return Passage.begin(exchange, self.provider)
            if self.desk is None and route.api.engine_may_have:
                return AboutResponse(exchange, self.kept_responses)
            return Visit.begin(exchange, connection, self.desk)
        if route.api.media:
            self.uploads.hold(exchange, head, self.limits.media_held_bytes_max)
        if route.api.question or (isinstance(route.api, PassThrough) and head.method in ("GET", "HEAD")):
            return Question(exchange)  # it is no inference, so it takes no place
        return exchange

    def defers(self, exchange: Exchange, ask: Ask, body: bytes, value: Json) -> bool:
        """Whether the client will not wait for this call: then it is a job from here on."""
        head = exchange.head
        assert head is not None
        if b"prefer" not in head.fields and "background" not in value:
            return False
        if self.provider is not None and value.get("background") and head.path == "/v1/responses":
            Passage.background(exchange, self.provider, ask, body)
            return True
        if self.desk is None or exchange.errand is not None:
            return False
        if not wants_async(head.fields) and not (value.get("background") and head.path == "/v1/responses"):
            return False
        Visit.defer(exchange, self.desk, ask, body, value)
        return True

    def enter(self, exchange: Exchange) -> None:
        """A call is live from here on."""
        self.calls[exchange.call.id] = exchange
        self.idle.clear()

    def refuse_unreadable(self, connection: ClientConnection, reason: Reason, detail: str) -> None:
        exchange = self._new_exchange(connection, None)
        exchange.refuse(reason, detail)

    def _new_exchange(self, connection: ClientConnection, head: RequestHead | None) -> Exchange:
        call = Call(self._ids.of(head, self.calls), time.monotonic(), connection.peer)
        if head is not None:
            traceparent = head.fields.get(b"traceparent")
            if traceparent is not None and (match := TRACEPARENT.fullmatch(traceparent)):
                call.trace_id = match["trace"].decode("ascii")
            if self.tracer is not None:
                self.tracer.begin(call, traceparent)
        exchange = Exchange(self, connection, call, head)
        self.enter(exchange)
        return exchange

    def _admit(self, exchange: Exchange, head: RequestHead, route: Route | None) -> tuple[Route, str]:
        call = exchange.call
        if route is not None:
            exchange.api = route.api
            exchange.route = route
            call.route = route.api.name
        if self.draining:
            exchange.client.close_after_this()  # whoever keeps the connection finds no one here later
            raise Refusal(reasons.DRAINING)
        if not self._keys:
            self._hosts.check(head)
        if route is not None and self._passes_preflight(route, head):
            return route, ANONYMOUS  # browsers send no key with it
        tenant = call.tenant = self._keys.tenant_of(head)
        exchange.keyed = bool(self._keys)
        return check_route(route, head), tenant

    def _passes_preflight(self, route: Route, head: RequestHead) -> bool:
        """What we answer ourselves is for no page of another site."""
        return is_preflight(head) and self.settings.cors == "engine" and not route.api.about_jobs and route.api is not HEALTH

    # Places

    def place(self, exchange: Exchange) -> None:
        """The call starts, waits or is refused; the ticket stands for whatever it holds until the end."""
        now = time.monotonic()
        ticket = exchange.ticket = self._ticket(exchange, now)
        self._act(self.admission.arrive(ticket, exchange.call.tenant, now))

    def _ticket(self, exchange: Exchange, now: float) -> Ticket:
        ask, call, head = exchange.ask, exchange.call, exchange.head
        assert head is not None
        clock, start = call.clock, call.started_at
        all_by = start + min(clock.total_s, clock.client_total_s)
        size = call.bytes_in
        return Ticket(
            exchange,
            prompt=exchange.prompt_tokens(self.admission),
            output_max=ask.cap.planned if ask is not None else 0,
            choices=ask.choices if ask is not None else exchange.inputs,
            stream=call.stream,
            first_by=start + clock.client_read_s,
            all_by=all_by,
            queue_by=now + clock.queue_s,
            size=size,
            retry=head.fields.get(b"x-stainless-retry-count", b"0") != b"0",
            blind=not ask.streams if ask is not None else not exchange.api.sized,
            whole=ask is None and exchange.api.sized,
            job=exchange.errand is not None,
            yields=exchange.errand.yields if exchange.errand is not None else 0,
            seats=exchange.seats,
            client=client_kind(head),
        )

    def place_again(self, exchange: Exchange) -> None:
        """Its backend failed it before the first byte."""
        ticket = exchange.ticket
        if ticket is None:
            backend = exchange.passage.elsewhere() if exchange.passage is not None else None
            assert backend is not None  # somebody asked whether it may fail over
            exchange.placed(backend)
            return
        if exchange.ask is not None:
            ticket.blind = not exchange.ask.streams
        self._act(self.admission.fell_back(ticket, time.monotonic()))

    def dispatch(self) -> None:
        """Those who wait may have more to choose from."""
        self._act(self.admission.dispatch(time.monotonic()))

    def first_token(self, exchange: Exchange) -> None:
        if exchange.ticket is not None:
            self._act(self.admission.first_token(exchange.ticket, time.monotonic()))

    def _carry_out(self, action: Action) -> None:
        ticket, seat, reason = action
        exchange: Exchange = ticket.key
        if exchange.call.ended:
            return
        if reason is not None:
            exchange.end(reason)
        elif seat is not None:
            if ticket.job:
                exchange.begin_job()
            if ticket.queued_at and exchange.client.left():
                exchange.end(reasons.CLIENT_FIN)
            else:
                exchange.placed(self.backends[seat.name])

    def _action_failed(self, action: Action, error: Exception) -> None:
        exchange: Exchange = action.ticket.key
        exchange.fault(error)

    def may_fail_over(self, exchange: Exchange) -> bool:
        """Whether another backend may be tried after the one at hand."""
        if exchange.ticket is None:  # it may be about something that only this one has
            return exchange.passage is not None and exchange.passage.elsewhere() is not None
        tried = exchange.ticket.tried | {exchange.call.backend}
        return len(tried) <= self.limits.failover_max and self.admission.fleet.usable(tried, exchange.ticket.seats)

    def takes_refusal(self, exchange: Exchange, head: ResponseHead) -> bool:
        """An engine has no room for a call. Whether the call goes elsewhere, or waits; otherwise its client hears of it."""
        ticket, backend, limits = exchange.ticket, exchange.backend, exchange.limits
        if ticket is None or backend is None or exchange.call.attempts > limits.refusals_max:
            return False
        if backend.adapter.hosted and backend.shown_client_key:
            return False  # it is about the client's own key
        self.pauses.refused(backend, ticket.sent_at, head, limits.refusal_pause_s_max)
        now = time.monotonic()
        tried = ticket.tried | {backend.name}
        if self.admission.fleet.has_other(tried, ticket.seats):
            ticket.tried = tried
        elif not worth_waiting(ticket, backend.seat):
            return False
        exchange.wait_again()
        self._act(self.admission.refused(ticket, now))
        if exchange.call.phase is Phase.WAITING:
            exchange.reset_timer()
        return True

    def _pause_changed(self, backend: Backend, paused: bool) -> None:
        if paused:
            seconds = backend.seat.paused_until - time.monotonic()
            self._backend_changed(backend, f"paused for {seconds:.1f} s: it refuses calls")
        self._act(self.admission.pause(backend.seat, paused, time.monotonic()))

    def engine_told(self, backend: Backend, waiting: int) -> None:
        """By its own figures so many calls wait in the engine."""
        self._act(self.admission.engine_told(backend.seat, waiting, time.monotonic()))

    def backend_succeeded(self, backend: Backend) -> None:
        if backend.seat.succeeded():
            self._backend_changed(backend, "up")

    def backend_failed(self, backend: Backend, detail: str) -> None:
        if backend.seat.failed():
            self._backend_changed(backend, f"down: {detail}")

    # The engine's side of an end

    def engine_key(self) -> str:
        """What an engine shall know this attempt by. It is never a name that a client chose, and never used again: whatever is
        done later about this attempt, an abort that comes late included, can reach no other call."""
        return self._ids.new()

    def stop(self, exchange: Exchange, backend: Backend, connection: EngineConnection | None) -> Leftover | None:
        """Ends the engine's work on a call; what may be left of it is the reaper's, until the engine shows that it is gone."""
        key, slot, call = exchange.key, exchange.slot, exchange.call
        exchange.key, exchange.slot = "", None
        if not key:  # it was never sent
            if connection is not None:
                connection.abort()
            backend.unpin(slot)
            return None
        if exchange.passage is not None and exchange.passage.stays(backend, connection):
            return None
        if exchange.tunnel is not None and connection is not None:
            connection.abort()  # at once: no engine knows a WebSocket by an id of ours
            connection = None
        abort_sent = self.aborts.stop(backend, key, connection)
        choices = exchange.ask.choices if exchange.ask is not None else exchange.inputs
        now, ticket = time.monotonic(), exchange.ticket
        leftover = Leftover(call.id, now, key=key, slot=slot, tokens=call.tokens_out, choices=choices)
        if ticket is not None and ticket.reading:
            leftover.reading_s = backend.seat.estimates.first_token.predict(ticket.work, now)
        leftover.abort_sent = abort_sent
        leftover.tenant, leftover.model = call.tenant, call.model
        leftover.cause = (call.outcome or Outcome.ENGINE_FAILED).value
        call.leftovers += (leftover,)
        if slot is not None:
            backend.pinned -= 1
        if self.reaper.left(backend, leftover, first_token=call.first_token_at is not None):
            return leftover
        if slot is not None:
            backend.slots.give(slot)
        return None

    def let_go(self, backend: Backend, leftover: Leftover) -> None:
        """The reaper is done with it: its place goes to the next call."""
        self.heard_of_release.set()
        self.heard_of_release.clear()
        self.lines.heard(leftover)
        if leftover.slot is not None:
            backend.slots.give(leftover.slot)
        kv, leftover.place = leftover.place, None
        if kv is not None:
            actions = self.admission.let_go(backend.seat, kv, time.monotonic())
            self._close_if_done(backend)
            self._act(actions)
        if leftover.when_gone is not None:
            leftover.when_gone()

    def seat_changed(self, backend: Backend) -> None:
        self.admission.fleet.refresh()
        self._act(self.admission.dispatch(time.monotonic()))

    def waiting(self, backend: Backend) -> tuple[list[Waiting], float]:
        return stranded.waiting(self.calls.values(), backend)

    def keys(self, backend: Backend) -> set[str]:
        return stranded.keys(self.calls.values(), backend)

    def abandon(self, backend: Backend, why: str) -> int:
        return stranded.abandon(self.calls.values(), backend, why)

    def told(self, event: str, **fields: Any) -> None:
        self.log.event(event, **fields)

    def _look_at_paces(self) -> None:
        """How long a token takes just now, from a few of the calls that run: their ends would tell it late."""
        self._pace_timer = self.loop.call_later(_PACE_S, self._look_at_paces)  # first: nothing may end the looks
        seen: dict[Exchange, tuple[int, float, int]] = {}
        actions: list[Action] = []
        for exchange in islice(self.calls.values(), _PACE_LOOKS_MAX):
            call, ticket = exchange.call, exchange.ticket
            if ticket is None or ticket.seat is None or call.first_token_at is None or exchange.client.stalled:
                continue
            tokens, at, stalls = seen[exchange] = (call.tokens_out // ticket.choices, call.progress_at, exchange.stalls)
            tokens_before, before, stalls_before = self._paces.get(exchange, (tokens, at, stalls))
            if tokens > tokens_before and stalls == stalls_before:  # the engine's pace, not a slow reader's
                actions += self.admission.step(ticket.seat, (at - before) / (tokens - tokens_before), at)
            if len(seen) == _PACE_CALLS_MAX:
                break
        self._paces = seen
        if self.admission.jobs.count:
            actions += self.admission.dispatch(time.monotonic())  # what was kept free for live calls may have become less
        self._act(actions)

    # Calls end

    def closed(self, exchange: Exchange) -> None:
        """The last that happens to a call."""
        call, ticket = exchange.call, exchange.ticket
        exchange.ticket = None  # they point at each other
        if exchange.held_bytes:
            self.uploads.release(exchange)
        self.calls.pop(call.id, None)
        if not self.calls:
            self.idle.set()
        guard = self.log.guard
        guard(call.id, self._write_down, call)
        if ticket is not None:
            guard(call.id, self._free, ticket, call, exchange.leftover, not exchange.stalls)
        guard(call.id, self._settle, exchange, ticket)

    def _write_down(self, call: Call) -> None:
        self.ledger.record(call)
        self.lines.ended(call)
        self.ended_calls.append(call)
        if self.tracer is not None:
            self.tracer.end(call)

    def _settle(self, exchange: Exchange, ticket: Ticket | None) -> None:
        """Whoever it was for hears of its end, and what it cost is booked."""
        call = exchange.call
        if exchange.leftover is not None:
            engine_s, expected, price = self._cost(call, ticket)
            exchange.leftover.saved = saved(call, expected, price.of(engine_s, call.tokens_out))
        if exchange.passage is not None:
            exchange.passage.over()
        if exchange.errand is not None:
            exchange.errand.over(call, exchange.leftover, entry(call, *self._cost(call, ticket)))
        elif self.store is not None and (call.sent_at is not None or call.outcome is not Outcome.COMPLETED):
            self.store.book(call, *self._cost(call, ticket))  # what we answered ourselves cost nothing

    def price_of(self, backend: str) -> Price:
        return self._prices.get(backend, FREE)

    def _cost(self, call: Call, ticket: Ticket | None) -> tuple[float, float, Price]:
        """Its share of the engine's time, how long such answers are on average, and the price."""
        if ticket is None or ticket.tenant is None:
            return 0.0, 0.0, FREE
        lengths = None if call.engine_finished else ticket.tenant.lengths(ticket.output_max)
        known = lengths is not None and lengths.known  # before that, nobody can tell what the rest would have been
        expected = ticket.tenant.predict(ticket.output_max) * ticket.choices if known else 0.0
        return ticket.engine_s, expected, self._prices.get(call.backend, FREE)

    def _free(self, ticket: Ticket, call: Call, leftover: Leftover | None, steady: bool) -> None:
        """Whatever the call held goes to the next one, in this turn; but not its place in an engine that may go on."""
        seat, hold = ticket.seat, leftover is not None and ticket.seat is not None
        if leftover is not None and hold:
            leftover.place = ticket.kv
        if seat is not None and ticket.key.files:
            ticket.size = 0  # so that nobody learns from it how many bytes of text make a token
        actions = self.admission.end(
            ticket,
            time.monotonic(),
            call.tokens_out,
            call.tokens_in,
            completed=call.outcome is Outcome.COMPLETED,
            left=call.outcome is Outcome.CLIENT_GONE,
            steady=steady,
            hold=hold,
        )
        for backend in [backend for backend in self._retired if backend.seat is seat]:
            self._close_if_done(backend)
        self._act(actions)

    def _close_if_done(self, backend: Backend) -> None:
        if backend in self._retired and not backend.seat.in_flight:
            self._retired.remove(backend)
            backend.pool.close()
            self._forget(backend)

    def _forget(self, backend: Backend) -> None:
        task = DUTIES.start("goodbye", self.reaper.forget(backend))
        self._goodbyes.add(task)
        task.add_done_callback(self._goodbyes.discard)

    def refusal_headers(self, exchange: Exchange, reason: Reason) -> Headers:
        if reason is reasons.UNAUTHORIZED:
            return [(b"www-authenticate", b"Bearer")]
        if reason is reasons.METHOD and exchange.route is not None:
            return [(b"allow", ", ".join(allowed_methods(exchange.route)).encode("ascii"))]
        if reason.outcome is Outcome.SHED or reason in _NO_ENGINE:
            return self._when_to_retry(exchange, reason)
        return []

    def _when_to_retry(self, exchange: Exchange, reason: Reason) -> Headers:
        admission, ticket = self.admission, exchange.ticket
        seats = None if ticket is None else ticket.seats
        seconds = math.ceil(admission.retry_after_s(exchange.call.tenant, reason, time.monotonic(), seats))
        headers = [(b"retry-after", b"%d" % seconds)]
        if (
            reason.retry is None
            and ticket is not None
            and ticket.retry
            and admission.tenant(exchange.call.tenant).retries.spent
        ):
            headers.append((b"x-should-retry", b"false"))
        return headers

    # The process ends

    def start_drain(self) -> None:
        """No new calls; idle connections close, busy ones after their answer."""
        self.draining = True
        if self.desk is not None:
            self.desk.board.stop()
        for exchange in [exchange for exchange in self.calls.values() if exchange.listens]:
            self.log.guard(exchange.call.id, exchange.end, reasons.DRAINED)  # a stream of events goes on elsewhere, or later
        for connection in list(self.connections):
            connection.close_after_this()

    def end_all(self, reason: Reason) -> None:
        for exchange in list(self.calls.values()):
            self.log.guard(exchange.call.id, exchange.end, reason)

    async def close(self) -> None:
        """Lets go of everything; no call is live any more."""
        self._pace_timer.cancel()
        self.pauses.close()
        self._paces.clear()
        if self.provider is not None:
            await self.provider.close()
        await self.routing.close()
        watches = [*self._watches.values(), *self._figures.values()]
        for task in watches:
            task.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        self._watches.clear()
        self._figures.clear()
        await self.reaper.close()
        self.lines.close()
        await asyncio.gather(*self._goodbyes, return_exceptions=True)
        await self.aborts.close()
        for connection in list(self.connections):
            connection.close_after_this()
        for backend in (*self.backends.values(), *self._retired):
            backend.pool.close()
