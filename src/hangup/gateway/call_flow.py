"""Takes a call from its request to its end.

Read it from top to bottom; each step starts the next one, at once or when a wait is over:

    body_arrived     reads the request: model, caps, choices                 may refuse
    find_place       finds the backends that can answer, then queues         may refuse; admission may shed
    placed           takes an idle connection, or opens a new one ─┐         the backend failed before its first byte:
    _send            sends the request                             ├───────▶ attempt_failed ─▶ another backend
    engine_answered  chooses a relay for the answer ───────────────┘
    (the relay)      passes the bytes on, counts tokens, enforces caps
    end              exactly once, from anywhere: stops the engine, tells the client, frees the place, records the call

`Intake` makes a flow of the right kind for each request, and the client's connection then calls `body_arrived`. What a flow
holds is declared in `ClientRequest`: its `ticket` (a place in the queue or on a backend), its `attempt` (connection, key and
slot at one backend), its relay and at most one task.

A call has no task of its own: it awaits only new connections and backends' lists of models, and every other step runs in the
event loop's callback that made it possible. `core.call.Call` decides which step is allowed and who ends the call.

A flow calls its `FlowPorts`, which know a flow only by the few methods in their own Protocols. The kinds of calls are
subclasses in `kinds/`, which override the methods under "Differs by kind".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from hangup.core import reasons
from hangup.core.admission import Ticket
from hangup.core.call import WAITING, Call, CallTimeLimits, Phase
from hangup.core.reaper import PendingStop
from hangup.core.reasons import Reason
from hangup.errors import EngineFault, OutOfResources, Refusal, WireError
from hangup.gateway import answers, stream_refusal
from hangup.gateway.apis.base import Json
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.connection import EngineConnection
from hangup.gateway.backends.rate_limits import is_refusal
from hangup.gateway.client.client import ResponseSink
from hangup.gateway.client_request import ClientRequest, FlowPorts
from hangup.gateway.engine_request import (
    FAILED_STATUSES,
    NO_ENGINE_REQUEST,
    EngineRequest,
    GenerationRequest,
    encode,
    read_request,
)
from hangup.gateway.http import jsonbody
from hangup.gateway.http.head import ResponseHead
from hangup.gateway.placement import BackendNames, Placed
from hangup.gateway.relay.base import Relay, Verdict
from hangup.gateway.relay.passthrough import PassRelay
from hangup.gateway.request_policy import IncomingRequest, name_too_long
from hangup.gateway.routing import NOTHING_WANTED, Wanted, wanted_of
from hangup.gateway.stopping import Attempt
from hangup.gateway.stream_refusal import StreamRefusal
from hangup.tasks import TASKS

_MODEL_ATTEMPTS_MAX: Final = 4  # backends to try, one after the other, while they answer that they do not know the model


class CallFlow(ClientRequest):
    """One call in flight: a client on one side, and at most one attempt at one backend on the other."""

    upgrades = False  # True if it asks the engine to switch to another protocol
    can_move = True  # True if another backend can serve it
    is_job = False  # True if no client waits for it: it then yields to live calls,
    yields = 0  # and has done so this many times

    __slots__ = ("_refusal", "_structure", "engine_request", "wanted")

    def __init__(self, ports: FlowPorts, client: ResponseSink, call: Call, request: IncomingRequest) -> None:
        super().__init__(ports, client, call, request)
        self.engine_request: EngineRequest = NO_ENGINE_REQUEST  # replaced when the request has been read
        self.wanted = NOTHING_WANTED
        self._structure: jsonbody.Structure | None = None
        self._refusal: StreamRefusal | None = None  # while it is being read

    @property
    def counts_tokens(self) -> bool:
        return isinstance(self.engine_request, GenerationRequest)

    # 1. The request

    def body_piece(self, piece: bytes) -> bool:
        """Check the JSON structure of a large body piece by piece, so that other calls do not wait for one long check."""
        if self.api.generates:
            self._structure = self._structure or jsonbody.Structure(self.limits.json_elements_max)
            try:
                self._structure.feed(piece)
            except Refusal as bad:
                self.end(bad.reason, bad.detail)
        return False

    def body_arrived(self, body: bytes) -> None:
        """Read the complete request, then continue with the call."""
        self.call.bytes_in = len(body)
        try:
            self._read(body)
        except Refusal as bad:
            self.end(bad.reason, bad.detail)
        except Exception as error:
            self.fault(error)
        else:
            self.call.received(time.monotonic())
            self._continue()

    def _read(self, body: bytes) -> None:
        """Parse the request and apply the limits; raise a `Refusal` if it cannot be served."""
        call, request, assemble = self.call, self.request, self.ports.policy.settings.assemble
        try:
            engine_request = self.engine_request = read_request(request, body, self._structure, assemble=assemble)
        finally:
            self.api, call.route = request.api, request.api.name  # on some paths, the body decides which API it is
        if isinstance(engine_request, GenerationRequest):
            engine_request.describe(call)
            if engine_request.api.kept_by_engine:
                self.wanted = Wanted(home=self.ports.engine_responses.home(engine_request.value, call.tenant))
        call.clock = self._clock(to_client=call.stream, from_engine=engine_request.streams)

    # 2. A place

    def find_place(self, *, models_refreshed: bool = False) -> None:
        """Find the backends that can answer, and queue for them; `models_refreshed`: their lists of models are new."""
        routing, request = self.ports.routing, self.engine_request
        model = request.model(search=routing.reads_bodies)
        if len(model) > self.limits.name_bytes_max:  # not checked before, if nothing else in the body is read
            self.end(reasons.BAD_FIELD, name_too_long(self.limits))
            return
        if not self.call.model:  # it has one if the body was parsed
            self.call.model = model or request.named_model(self.limits.name_bytes_max)
        self.wanted = wanted_of(self.api.family, model, self.wanted.home)
        found = routing.find(self.wanted)
        if found.alias:
            request.renamed = self.call.model = found.model
        if found.eligible is not None and not found.eligible:
            self._find_model(models_refreshed)
            return
        placement = self.ports.placement
        estimate = placement.admission.prompt_tokens
        ticket = self.ticket = request.ticket(self, found.eligible, estimate, job=self.is_job, yields=self.yields)
        placement.place(ticket, self.call.tenant)  # calls `placed` or `end`, now or later
        if self.call.phase is WAITING:
            self.reset_timer()

    def _find_model(self, models_refreshed: bool) -> None:
        """Refuse the call, as no backend is known to have its model; ask stale backends for their models first."""
        stale = [] if models_refreshed else self.ports.routing.stale_backends()
        if stale:
            self.task = TASKS.start("models", self._ask_backends(stale))
            self.reset_timer()
        else:
            why = self.ports.routing.not_found(self.wanted)
            self.end(why.reason, why.detail)

    async def _ask_backends(self, backends: list[Backend]) -> None:
        await self.ports.routing.ask(backends)
        self.task = None
        try:
            self.find_place(models_refreshed=True)
        except Exception as error:
            self.fault(error)

    def eligible_backends(self) -> BackendNames:
        """Return the backends that can answer now; called while the call is queued."""
        return self.ports.routing.eligible_backends(self.wanted)

    # 3. The engine

    def placed(self, backend: Backend, *, waited: bool = False) -> None:
        """Start an attempt at a backend, unless the client hung up while the call `waited` in the queue, or at another one."""
        if (waited or self.call.attempts) and self.client.has_left():
            self.end(reasons.CLIENT_FIN)
            return
        attempt = self.attempt = Attempt(backend)
        self.call.sent(backend.name, time.monotonic())
        self.reset_timer()
        attempt.connection = backend.pool.idle_connection() or backend.pool.connect_now()
        if attempt.connection is not None:
            self._send(attempt, attempt.connection)
        else:
            self.task = TASKS.start("connect", self._connect(attempt))

    async def _connect(self, attempt: Attempt) -> None:
        """Open a connection, then send the request. `end` cancels this task if the call ends first."""
        try:
            attempt.connection = await attempt.backend.pool.connect(last_resort=not attempt.backend.load.health.up)
            self.task = None
            if self.client.has_left():
                self.end(reasons.CLIENT_FIN)
            else:
                self._send(attempt, attempt.connection)
        except EngineFault as fault:
            self.task = None
            self.attempt_failed(fault, blame=not isinstance(fault, OutOfResources))
        except Exception as error:
            self.task = None
            self.fault(error)

    def _send(self, attempt: Attempt, connection: EngineConnection) -> None:
        """Send the request. From here on the attempt owns the connection, and the end of the call releases it."""
        key = self.ports.policy.ids.new()  # never used twice, so a late abort cannot hit another call
        try:
            head, body = encode(self.engine_request, attempt, key, self.call, self.request, upgrade=self.upgrades)
        except Exception as error:
            self.fault(error)
            return
        attempt.key = key
        connection.ask(self, head, body, may_switch=self.upgrades)
        if self.client.stalled:  # it has not yet read an earlier answer, or heartbeats
            connection.pause()

    def engine_answered(self, connection: EngineConnection, head: ResponseHead, rest: bytes) -> Callable[[bytes], None]:
        """Relay the engine's answer, unless it is a failure and another backend may be tried."""
        if head.status == 200 and not head.is_encoded:  # the usual case
            return self.relay_answer(head, rest)
        if head.status in stream_refusal.STATUSES and self.engine_request.streams_unasked:
            refused = self._refusal = StreamRefusal(self, connection, head)
            refused.feed(rest)
            return refused.feed
        return _ignore if self._move_on_if_refused(head) else self.relay_answer(head, rest)

    def relay_answer(self, head: ResponseHead, rest: bytes) -> Callable[[bytes], None]:
        """Start relaying the answer, and return the receiver of its remaining bytes."""
        ports, attempt, self._refusal = self.ports, self.attempt, None
        assert attempt is not None
        self.call.answered(time.monotonic())
        backend = attempt.backend
        if head.status not in FAILED_STATUSES:
            ports.backends.succeeded(backend)
        if backend.adapter.hosted and not backend.gets_client_key:
            ports.placement.pauses.answered(backend, head, self.limits.refusal_pause_s_max)
        relay = self._relay = self._choose_relay(head)
        if not relay.can_move():
            self.engine_request.forget_body()  # it is never sent again
        relay.keep_alive = head.keep_alive and not (rest and relay.decoder.done)
        if head.status == 200 and isinstance(relay, PassRelay):
            self._first_token_seen()  # this relay does not see tokens: the first byte counts as one
        feed = self._body_receiver(relay, head)
        if relay.decoder.done:
            relay.engine_finished()
        elif rest:
            feed(rest)
        self.client.flush()
        return feed

    # 4. Retry

    def _move_on_if_refused(self, head: ResponseHead) -> bool:
        """Retry the call if the head of the engine's answer says that it was not served; return whether it is retried."""
        status = head.status
        if status in (200, 101):
            if self.engine_request.streams_unasked and head.is_encoded:  # compressed events cannot be read
                self._ask_without_stream()
                self._abort_attempt()
                self._try_again()
                return True
            return False
        if 300 <= status < 400 and status != 304:
            self.attempt_failed(EngineFault(reasons.ENGINE_REDIRECT, f"The engine returned status {status}."), blame=False)
            return True
        if is_refusal(status, head.fields) and self._wait_for_room(head):
            return True
        if status in FAILED_STATUSES and self._may_fail_over():
            self.attempt_failed(EngineFault(reasons.ENGINE_ERROR, f"The engine returned status {status}."))
            return True
        return status == 404 and self._skip_backend()

    def attempt_failed(self, fault: EngineFault, *, blame: bool = True) -> None:
        """Try another backend after this one failed before its first byte. Without `blame`, its health stays as it is."""
        attempt = self.attempt
        assert attempt is not None
        if blame:
            self.ports.backends.failed(attempt.backend, fault.detail)
        if not self._may_fail_over():
            self.end(fault.reason, fault.detail)
            return
        if self.ticket is not None:
            self.ticket.tried |= {attempt.backend.name}
        self._abort_attempt()
        self._try_again()

    def ask_plainly(self) -> None:
        """Send the request again without streaming, as the client asked, because the engine refuses to stream it."""
        self._refusal = None
        self._ask_without_stream()
        self._withdraw_attempt()
        self._try_again()

    def abandon(self, why: str) -> None:
        """Leave a stuck engine: try another backend if the client has at most a stream's head, else end with an error."""
        if self.task is not None:  # still connecting
            self.task.cancel()
            self.task = None
        if self.can_move and (self.call.phase is Phase.SENT or self._begin_anew()):
            self.attempt_failed(EngineFault(reasons.ENGINE_WEDGED, why))
        else:
            self.end(reasons.ENGINE_WEDGED, why)

    def _begin_anew(self) -> bool:
        """Discard an answer of which the client has seen no token; return False if that is not possible."""
        if self._relay is None or not self._relay.can_move() or not self._may_fail_over():
            return False
        if not self.engine_request.begin_anew(self.limits, self.ports.policy.settings.assemble):
            return False
        self._relay = None
        return True

    def engine_lost(self, connection: EngineConnection, error: Exception | None) -> None:
        """Handle the loss of the engine's connection; a little later, if the engine has lost many at once."""
        attempt = self.attempt
        assert attempt is not None
        attempt.connection = None
        lost = partial(self._lost, attempt, error, unread=connection.was_closed_while_idle(error))
        if not self.ports.ends.defer(lost, self.fault):
            lost()

    def _lost(self, attempt: Attempt, error: Exception | None, *, unread: bool) -> None:
        """Act on the loss, unless the call has moved on: it ends the answer, calls for a retry, or is a failure."""
        if self.attempt is not attempt:
            return
        refused, self._refusal = self._refusal, None
        if refused is not None and error is None and refused.connection_ended():
            return
        if self._relay is not None:
            if (error is not None and not self._relay.verdict()) or not self._relay.engine_closed():
                self._engine_failed(reasons.ENGINE_DIED, str(error or ""))
        elif unread and self._repeatable():
            self._ask_again(attempt)  # the engine closed an idle connection, which is not a failure
        else:
            self.attempt_failed(EngineFault(reasons.ENGINE_DIED, "The engine closed the connection without an answer."))

    def engine_garbled(self, connection: EngineConnection, error: WireError) -> None:
        if self._relay is None and connection.reused and self._repeatable() and self.attempt is not None:
            # The bytes may belong to an earlier answer on this connection. Abort, as the engine may be at work on this call.
            backend = self.attempt.backend
            self._abort_attempt()
            self.attempt = Attempt(backend)
            self._ask_again(self.attempt)
        elif self._relay is None:
            self.attempt_failed(EngineFault(reasons.ENGINE_INVALID_ANSWER, f"The engine's answer is invalid: {error}."))
        else:
            self._engine_failed(reasons.ENGINE_INVALID_ANSWER, f"The engine's answer is invalid: {error}.")

    def _ask_again(self, attempt: Attempt) -> None:
        """Send the same request on a new connection: the reused connection failed, not the engine."""
        self.call.attempts += 1
        self.task = TASKS.start("connect", self._connect(attempt))

    def _engine_failed(self, reason: Reason, detail: str) -> None:
        if self.attempt is not None:
            self.ports.backends.failed(self.attempt.backend, detail or reason.message)
        self.end(reason, detail)

    def _ask_without_stream(self) -> None:
        self.engine_request.ask_plainly()
        self.call.clock = self._clock(to_client=False, from_engine=False)

    def _abort_attempt(self) -> None:
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            self._abort(attempt, keep_place=False)

    def _withdraw_attempt(self) -> None:
        """Release an attempt that the engine does no work for: there is nothing to abort or to wait for."""
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            self.ports.stopping.withdraw(attempt)

    def _try_again(self) -> None:
        self.call.fell_back(time.monotonic())
        self._place_again()
        if self.call.phase is WAITING:
            self.reset_timer()

    # 5. Called by the client's connection and the relay

    def client_left(self, reason: Reason) -> None:
        """End the call because its client hung up; if it has the whole answer but for the framing, as the answer ended."""
        verdict = self._verdict_without_client(reason)
        if verdict is None:
            self.end(reason)
            return
        self.call.client_has_all = True
        self.call.engine_finished = verdict.reason is reasons.COMPLETED
        self.end(*verdict)

    def _verdict_without_client(self, reason: Reason) -> Verdict | None:
        """Return how the answer ended, if a client that leaves for this reason has all of it but for the framing."""
        if self._relay is None or reason is not reasons.CLIENT_FIN or self.client.stalled:
            return None
        return self._relay.verdict()

    def first_token(self) -> None:
        """Switch the timer from the first token to gaps, and free the request's body, as there is no retry from here on."""
        self.engine_request.forget_body()
        self.reset_timer()
        self._first_token_seen()

    def _first_token_seen(self) -> None:
        if self.ticket is not None:
            self.ports.placement.first_token(self.ticket)

    def answer_whole(self, status: int, answer: Json, head: ResponseHead) -> None:
        """Send an answer that was assembled here, as the engine itself would have sent it."""
        if self.attempt is not None:
            self.attempt.backend.adapter.complete(answer)
        answers.whole(self, status, answer, head)

    # 6. The end: `ClientRequest.end` does it for all kinds of requests

    def _release_place(self, ticket: Ticket[Placed]) -> None:
        if self.engine_request.files and ticket.placed_on is not None:  # the queue still counts a waiting one by its size
            ticket.size = 0  # its bytes are not text, so bytes per token must not be learned from them
        super()._release_place(ticket)

    def _drop_references(self) -> None:
        self._relay = self._refusal = None
        self.engine_request.forget_body()

    def _reach_limit(self, reason: Reason) -> None:
        if reason is reasons.FIRST_TOKEN_TIME or reason is reasons.GAP_TIME:
            self._engine_failed(reason, "")
        else:
            self.end(reason)

    # Differs by kind: the time limits, the queue, the first byte and the end

    def _clock(self, *, to_client: bool, from_engine: bool) -> CallTimeLimits:
        """Return the time limits of an answer that streams from the engine, to the client, to neither, or both."""
        raise NotImplementedError

    def _continue(self) -> None:
        """Continue after the request has been read."""
        self.find_place()

    def _wait_for_room(self, head: ResponseHead) -> bool:
        """Requeue the call if its engine has no room and it can be served elsewhere or later; return whether it was."""
        ticket, attempt, placement = self.ticket, self.attempt, self.ports.placement
        if ticket is None or attempt is None or self.call.attempts > self.limits.refusals_max:
            return False
        backend = attempt.backend
        if backend.adapter.hosted and backend.gets_client_key:
            return False  # the refusal is about the client's own key
        if not placement.note_refusal(ticket, backend, head, self.limits.refusal_pause_s_max):
            return False
        self._withdraw_attempt()
        self.call.fell_back(time.monotonic())
        placement.refused(ticket)
        if self.call.phase is WAITING:
            self.reset_timer()
        return True

    def _skip_backend(self) -> bool:
        """Move on from a backend that does not know the model or the path; return False if there is no other."""
        ports, ticket, attempt = self.ports, self.ticket, self.attempt
        if ticket is None or attempt is None or not self.wanted.model:
            return False
        eligible = ports.routing.refused(attempt.backend, self.wanted, self.engine_request.renamed or self.wanted.model)
        ticket.eligible = eligible if eligible is None or eligible else ticket.eligible
        if not ports.placement.skip(ticket, attempt.backend.name, _MODEL_ATTEMPTS_MAX):
            return False
        self._withdraw_attempt()
        self._try_again()
        return True

    def _may_fail_over(self) -> bool:
        """Return whether another backend may be tried after the current one."""
        ticket, failover_max = self.ticket, self.limits.failover_max
        return ticket is not None and self.ports.placement.may_fail_over(ticket, self.call.backend, failover_max)

    def _place_again(self) -> None:
        """Queue the call again after an attempt that failed before its first byte."""
        ticket = self.ticket
        assert ticket is not None
        ticket.blind = self.engine_request.blind
        self.ports.placement.fell_back(ticket)

    def _repeatable(self) -> bool:
        """Return whether the request may be sent again if its connection proves to have been closed before."""
        return True

    def _choose_relay(self, head: ResponseHead) -> Relay:
        """Begin the client's answer, and choose the relay for the rest of it."""
        return self.engine_request.relay(self, head)

    def _body_receiver(self, relay: Relay, head: ResponseHead) -> Callable[[bytes], None]:
        """Return the receiver of the engine's bytes."""
        return relay.feed

    def _abort(self, attempt: Attempt, *, keep_place: bool) -> PendingStop | None:
        return self.ports.stopping.abort(attempt, self.call, self.ticket, self.engine_request.choices, keep_place=keep_place)


def _ignore(data: bytes) -> None:
    """Discard the rest of an answer that is not relayed."""
