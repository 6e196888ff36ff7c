"""One request and its one end: what every kind of call has, whether an engine answers it or we do.

A request ends exactly once, whoever wants it to: a client that hangs up, a limit, a failing engine, an operator, the drain.
`core.Call.end` picks the first, and `end` lets go of everything the request holds: its engine or task, its client, its place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from hangup.core import reasons
from hangup.core.admission import Ticket
from hangup.core.call import Call, Ending, EngineAction, Phase, Tell
from hangup.core.reaper import PendingStop
from hangup.core.reasons import Outcome, Reason
from hangup.gateway import answers
from hangup.gateway.accounting import Accounting
from hangup.gateway.apis.base import Api
from hangup.gateway.backend_set import Backends
from hangup.gateway.backends.backend import Backend
from hangup.gateway.client.client import ResponseSink
from hangup.gateway.client.connection import ClientConnection
from hangup.gateway.cors import Origins
from hangup.gateway.engine_responses import EngineResponses
from hangup.gateway.http.head import Headers
from hangup.gateway.job_services import JobServices
from hangup.gateway.log import Log
from hangup.gateway.placement import Placed, Placement
from hangup.gateway.registry import CallRegistry
from hangup.gateway.relay.base import Relay
from hangup.gateway.request_policy import IncomingRequest, RequestPolicy, refusal_headers
from hangup.gateway.routing import Routing
from hangup.gateway.stopping import Attempt, Stopping
from hangup.gateway.uploads import Uploads

_NO_ENGINE = frozenset([reasons.ENGINE_UNREACHABLE, reasons.ENGINE_WEDGED])  # a no, as a refusal is: it says when to come back


class FlowPorts(NamedTuple):
    """What calls use, and share."""

    loop: asyncio.AbstractEventLoop
    log: Log
    registry: CallRegistry[ClientRequest]
    policy: RequestPolicy
    backends: Backends
    routing: Routing
    placement: Placement
    stopping: Stopping
    accounting: Accounting
    engine_responses: EngineResponses
    origins: Origins
    uploads: Uploads
    jobs: JobServices


class ClientRequest:
    """A request that a client waits for, from its head to its end."""

    may_be_silent = False  # nothing need come from its engine for as long as it likes

    __slots__ = (
        "_relay",
        "api",
        "attempt",
        "body_bytes_max",
        "body_s",
        "call",
        "client",
        "ends_on_drain",
        "heartbeat",
        "held_bytes",
        "limits",
        "pending_stop",
        "ports",
        "request",
        "stalls",
        "task",
        "ticket",
    )

    def __init__(self, ports: FlowPorts, client: ResponseSink, call: Call, request: IncomingRequest) -> None:
        self.ports = ports
        self.client = client
        self.call = call
        self.request = request
        self.api: Api = request.api
        self.limits = request.limits
        self.body_bytes_max = request.body_bytes_max
        self.body_s = request.body_s
        self.held_bytes = 0  # of `media_held_bytes_max`
        self.task: asyncio.Task[None] | None = None  # the one thing that it waits for: cancelled when the call ends
        self.ticket: Ticket[Placed] | None = None  # its place in the queue or on a backend
        self.attempt: Attempt | None = None  # what it holds at a backend
        self.heartbeat: asyncio.TimerHandle | None = None  # cancelled when the call ends
        self._relay: Relay | None = None  # who passes the engine's answer on
        self.stalls = 0  # times that its client could not take more
        self.pending_stop: PendingStop | None = None  # what it left behind in an engine
        self.ends_on_drain = False  # its answer is a stream of a job's events, which goes on elsewhere, or later

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.call!r} {self.client!r}>"

    @property
    def backend(self) -> Backend | None:
        """The backend that works for it now."""
        return self.attempt.backend if self.attempt is not None else None

    @property
    def engine_key(self) -> str:
        """The name that its engine knows it by, once it has it."""
        return self.attempt.key if self.attempt is not None else ""

    @property
    def connected(self) -> bool:
        """Whether it has a connection to an engine."""
        return self.attempt is not None and self.attempt.connection is not None

    @property
    def counts_tokens(self) -> bool:
        """Whether tokens come of it, so that their pace says something."""
        return False

    def hand_over(self, connection: ClientConnection, to: ClientRequest) -> None:
        """Lets a request of another kind carry the call on; this one holds nothing any more."""
        to.held_bytes, self.held_bytes = self.held_bytes, 0
        self.ports.registry.add(to)
        connection.handler = to

    # What the client's connection tells

    def body_piece(self, piece: bytes) -> bool:
        return False

    def body_arrived(self, body: bytes) -> None:
        raise NotImplementedError

    def client_left(self, reason: Reason) -> None:
        """Ends the call: its client hung up."""
        self.end(reason)

    def refuse(self, reason: Reason, detail: str = "") -> None:
        """Ends the call: what its client sends is not taken."""
        if reason is reasons.BODY_TOO_LARGE and not detail:
            limit = "media_bytes_max" if self.api.media else reason.code
            detail = f"The request's body is too large: the limit is {self.body_bytes_max} bytes ({limit})."
        self.end(reason, detail)

    def pause_engine(self) -> None:
        """Stops taking more of the answer: the client does not read what it has."""
        self.stalls += 1
        if self.attempt is not None and self.attempt.connection is not None:
            self.attempt.connection.pause()

    def resume_engine(self) -> None:
        """Goes on: the client has read."""
        if self.attempt is not None and self.attempt.connection is not None:
            self.attempt.connection.resume()

    def abandon(self, why: str) -> None:
        """Leaves an engine that is stuck."""

    # Time

    def reset_timer(self) -> None:
        """Sets the connection's one timer, which watches over its call, too."""
        self.client.set_due(self.call.next_due())

    def on_due(self) -> None:
        try:
            self._check_limits()
        except Exception as error:
            self.fault(error)  # the client of a job's item has nobody else who would

    def _check_limits(self) -> None:
        reason = self.call.overdue(time.monotonic())
        if reason is None:
            self.reset_timer()
        else:
            self._reach_limit(reason)

    def _reach_limit(self, reason: Reason) -> None:
        """Ends the call at its limit."""
        self.end(reason)

    # The end

    def end(self, reason: Reason, detail: str = "") -> None:
        """Ends the call: whoever is first says why, and everything it holds is let go of here."""
        ending = self.call.end(reason, time.monotonic(), detail)
        if ending is None:
            return
        guard, id = self.ports.log.guard, self.call.id
        if not guard(id, self._stop_work, ending):
            guard(id, self._cut_connection)
        if self._relay is not None:
            guard(id, self._relay.settle)  # a last look at what the engine told about its tokens
        if not guard(id, self._tell_client, ending):
            guard(id, self.client.drop)
        self._record_end(guard)
        self._drop_references()

    def fault(self, error: Exception) -> None:
        """Ends the call after a bug of ours: it costs this call and no other."""
        self.ports.log.fault(error, self.call.id)
        self.end(reasons.INTERNAL)

    def _stop_work(self, ending: Ending) -> None:
        """Stops whatever is done for the call: its timer, its task, its engine."""
        if self.heartbeat is not None:
            self.heartbeat.cancel()
            self.heartbeat = None
        if self.task is not None:
            self.task.cancel()
            self.task = None
        attempt = self.attempt
        if attempt is None:
            return
        if (last_output_at := self.call.moved_at) is not None:
            attempt.backend.last_output_at = max(attempt.backend.last_output_at, last_output_at)
        if ending.engine is EngineAction.ABORT:
            self.pending_stop = self._abort(attempt, keep_place=True)
        else:
            reusable = self._relay is not None and self._relay.connection_reusable()
            self.ports.stopping.finish(attempt, reusable=reusable)
        self.attempt = None

    def _cut_connection(self) -> None:
        """Stops the engine the hard way, after a bug of ours: its connection is cut, and its slot is free."""
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            self.ports.stopping.withdraw(attempt)

    def _abort(self, attempt: Attempt, *, keep_place: bool) -> PendingStop | None:
        """Stops the engine's work; returns what the reaper must look after, if anything. `keep_place`: the call has ended, and
        its place in the engine is free only when the engine has stopped."""
        self.ports.stopping.withdraw(attempt)
        return None

    def _drop_references(self) -> None:
        """Breaks cycles between objects, so that they are freed here, and not when the collector comes round."""
        self._relay = None

    def _tell_client(self, ending: Ending) -> None:
        client = self.client
        match ending.tell:
            case Tell.FINISH:
                client.finish()
            case Tell.NOTHING:
                client.drop()
            case Tell.STATUS:
                answers.error(self, ending.reason, ending.detail, self._error_headers(ending.reason))
                client.finish()
            case Tell.ERROR_EVENT:
                if self.call.stream and self._at_event_boundary():
                    answers.error_event(self, ending.reason, ending.detail)
                client.break_off()

    def _at_event_boundary(self) -> bool:
        """Tells whether an error event can follow what the client has."""
        return self._relay is None or self._relay.at_event_boundary()

    def _error_headers(self, reason: Reason) -> Headers:
        ports = self.ports
        headers = refusal_headers(self.request, reason)
        if reason.outcome is Outcome.SHED or reason in _NO_ENGINE:
            headers = ports.placement.retry_headers(self.ticket, self.call.tenant, reason)
        return headers + ports.origins.headers(self.request.head)

    def _record_end(self, guard: Callable[..., bool]) -> None:
        """Writes the call down, and gives what it held to the next one."""
        ports, call, ticket = self.ports, self.call, self.ticket
        self.ticket = None  # they point at each other
        if self.held_bytes:
            ports.uploads.release(self.held_bytes)
            self.held_bytes = 0
        ports.registry.remove(call)
        guard(call.id, ports.accounting.record_end, call)
        if ticket is not None:
            guard(call.id, self._release_place, ticket)
        if self.pending_stop is not None:
            guard(call.id, ports.accounting.note_savings, call, ticket, self.pending_stop)
        guard(call.id, self._record_cost, ticket)

    def _release_place(self, ticket: Ticket[Placed]) -> None:
        """Frees the call's place, but not one in an engine that may still be at work on it: that is the reaper's to free."""
        self.ports.placement.end(ticket, self.call, steady=not self.stalls, hold=self.pending_stop is not None)

    def _record_cost(self, ticket: Ticket[Placed] | None) -> None:
        """Books what the call cost, and lets those know whom it was for."""
        self.ports.accounting.record_cost(self.call, ticket)

    def waits_for(self) -> str:
        """Says what the call is waiting for, for operators."""
        call = self.call
        match call.phase:
            case Phase.RECEIVING:
                return "the rest of the request"
            case Phase.WAITING:
                return "a free backend"
            case Phase.SENT:
                return "the engine's answer" if self.connected else "a connection to the engine"
            case Phase.ANSWERING if self.client.stalled:
                return "the client to read"
            case Phase.ANSWERING:
                return "the next token" if call.first_token_at is not None else "the first token"
            case _:
                return ""
