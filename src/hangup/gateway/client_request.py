"""The base class of all requests, whether an engine or the gateway answers them: their timers and their end.

A request ends exactly once, whatever the cause: the client hangs up, a limit, a failing engine, an operator, the drain.
`core.call.Call.end` accepts the first cause, and `end` then releases all that the request holds: engine, task, client, place.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final

from hangup.core import reasons
from hangup.core.admission import Ticket
from hangup.core.call import ABORT, FINISH, Call, Ending, Phase, Tell
from hangup.core.reaper import PendingStop
from hangup.core.reasons import Outcome, Reason
from hangup.gateway import answers
from hangup.gateway.accounting import Accounting
from hangup.gateway.apis.base import Api
from hangup.gateway.backend_set import Backends
from hangup.gateway.backends.backend import Backend
from hangup.gateway.client.client import ResponseSink
from hangup.gateway.client.connection import ClientConnection
from hangup.gateway.client.end_queue import EndQueue
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

_NO_ENGINE: Final = frozenset(
    [reasons.ENGINE_UNREACHABLE, reasons.ENGINE_WEDGED]
)  # answered like a refusal, with `retry-after`


@dataclass(frozen=True, slots=True)
class FlowPorts:
    """The parts of the gateway that all calls share."""

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
    ends: EndQueue
    jobs: JobServices


class ClientRequest:
    """A client's request, from its head to its end."""

    may_be_silent = False  # True if its engine may send nothing for any length of time

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
        self.held_bytes = 0  # counted against `media_held_bytes_max`
        self.task: asyncio.Task[None] | None = None  # the one task that it waits for; cancelled when the call ends
        self.ticket: Ticket[Placed] | None = None  # its place in the queue or on a backend
        self.attempt: Attempt | None = None  # the current attempt, and all that it holds at a backend
        self.heartbeat: asyncio.TimerHandle | None = None  # cancelled when the call ends
        self._relay: Relay | None = None  # passes the engine's answer on
        self.stalls = 0  # how often its client stopped reading
        self.pending_stop: PendingStop | None = None  # the stop that the reaper watches, if its engine was aborted
        self.ends_on_drain = False  # True for a stream of a job's events: the client can resume it elsewhere, or later

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.call!r} {self.client!r}>"

    @property
    def backend(self) -> Backend | None:
        """The backend of the current attempt."""
        return self.attempt.backend if self.attempt is not None else None

    @property
    def engine_key(self) -> str:
        """The id under which the engine knows the call; "" until it was sent."""
        return self.attempt.key if self.attempt is not None else ""

    @property
    def connected(self) -> bool:
        """True if it has a connection to an engine."""
        return self.attempt is not None and self.attempt.connection is not None

    @property
    def counts_tokens(self) -> bool:
        """True if its answer consists of tokens, so that their pace tells how the engine is doing."""
        return False

    def hand_over(self, connection: ClientConnection, to: ClientRequest) -> None:
        """Pass the call to a request of another kind. This one holds nothing from here on."""
        to.held_bytes, self.held_bytes = self.held_bytes, 0
        self.ports.registry.add(to)
        connection.handler = to

    # Called by the client's connection

    def body_piece(self, piece: bytes) -> bool:
        return False

    def body_arrived(self, body: bytes) -> None:
        raise NotImplementedError

    def stop_engine(self, reason: Reason) -> None:
        """Stop the engine's work, ahead of `client_left`."""

    def client_left(self, reason: Reason) -> None:
        """End the call because its client hung up."""
        self.end(reason)

    def refuse(self, reason: Reason, detail: str = "") -> None:
        """End the call because its request is not accepted."""
        if reason is reasons.BODY_TOO_LARGE and not detail:
            limit = "media_bytes_max" if self.api.media else reason.code
            detail = f"The request's body is too large: the limit is {self.body_bytes_max} bytes ({limit})."
        self.end(reason, detail)

    def pause_engine(self) -> None:
        """Stop reading from the engine, because the client does not read."""
        self.stalls += 1
        if self.attempt is not None and self.attempt.connection is not None:
            self.attempt.connection.pause()

    def resume_engine(self) -> None:
        """Read from the engine again, because the client has caught up."""
        if self.attempt is not None and self.attempt.connection is not None:
            self.attempt.connection.resume()

    def engine_leaving(self) -> None:
        """Note that the engine's connection is being lost: if many are, the others need not be read from at once."""
        if self.attempt is not None:
            self.ports.ends.note_loss(self.attempt.backend.pool.open)

    def abandon(self, why: str) -> None:
        """Leave an engine that is stuck."""

    # Time limits

    def reset_timer(self) -> None:
        """Set the connection's one timer, which serves its call too, to the call's next limit."""
        self.client.set_due(self.call.next_due())

    def on_due(self) -> None:
        try:
            self._check_limits()
        except Exception as error:
            self.fault(error)  # nothing else catches it where the client is a job's item

    def _check_limits(self) -> None:
        reason = self.call.overdue(time.monotonic())
        if reason is None:
            self.reset_timer()
        else:
            self._reach_limit(reason)

    def _reach_limit(self, reason: Reason) -> None:
        """End the call because it reached a limit."""
        self.end(reason)

    # The end

    def end(self, reason: Reason, detail: str = "") -> None:
        """End the call and release all that it holds. Only the first caller's reason counts; later calls do nothing."""
        ending = self.call.end(reason, time.monotonic(), detail)
        if ending is None:
            return
        # Each step runs, whatever becomes of the others; to call them all through `Log.guard` was 3 % of a small request.
        log, id = self.ports.log, self.call.id
        try:
            self._stop_work(ending)
        except Exception as error:
            log.fault(error, id)
            log.guard(id, self._cut_connection)
        try:
            if self._relay is not None:
                self._relay.settle()  # takes over the engine's own token counts
        except Exception as error:
            log.fault(error, id)
        try:
            self._tell_client(ending)
        except Exception as error:
            log.fault(error, id)
            log.guard(id, self.client.drop)
        self._record_end(log)
        self._drop_references()

    def fault(self, error: Exception) -> None:
        """End the call after a bug in the gateway, which must not affect other calls."""
        self.ports.log.fault(error, self.call.id)
        self.end(reasons.INTERNAL)

    def _stop_work(self, ending: Ending) -> None:
        """Stop all work for the call: its heartbeat, its task, its engine."""
        if self.heartbeat is not None:
            self.heartbeat.cancel()
            self.heartbeat = None
        if self.task is not None:
            self.task.cancel()
            self.task = None
        attempt = self.attempt
        if attempt is None:
            return
        last_output_at = self.call.moved_at
        if last_output_at is not None and last_output_at > attempt.backend.last_output_at:
            attempt.backend.last_output_at = last_output_at
        if ending.engine is ABORT:
            self.pending_stop = self._abort(attempt, keep_place=True)
        else:
            reusable = self._relay is not None and self._relay.connection_reusable()
            self.ports.stopping.finish(attempt, reusable=reusable)
        self.attempt = None

    def _cut_connection(self) -> None:
        """Cut the engine's connection and free its slot, after a bug kept `_stop_work` from stopping it."""
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            self.ports.stopping.withdraw(attempt)

    def _abort(self, attempt: Attempt, *, keep_place: bool) -> PendingStop | None:
        """Stop the engine's work, and return the stop that the reaper must watch, if any.

        `keep_place`: the call has ended, and its place in the engine stays taken until the engine has stopped."""
        self.ports.stopping.withdraw(attempt)
        return None

    def _drop_references(self) -> None:
        """Break reference cycles, so that the objects are freed now and not by the garbage collector."""
        self._relay = None

    def _tell_client(self, ending: Ending) -> None:
        client = self.client
        if ending.tell is FINISH:  # the usual case
            client.finish()
            return
        match ending.tell:
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
        """Return whether an error event may follow the bytes that the client has."""
        return self._relay is None or self._relay.at_event_boundary()

    def _error_headers(self, reason: Reason) -> Headers:
        ports = self.ports
        headers = refusal_headers(self.request, reason)
        if reason.outcome is Outcome.SHED or reason in _NO_ENGINE:
            headers = ports.placement.retry_headers(self.ticket, self.call.tenant, reason)
        return headers + ports.origins.headers(self.request.head)

    def _record_end(self, log: Log) -> None:
        """Record the call, and give its place to the next one."""
        ports, call, ticket = self.ports, self.call, self.ticket
        self.ticket = None  # ticket and request refer to each other
        if self.held_bytes:
            ports.uploads.release(self.held_bytes)
            self.held_bytes = 0
        ports.registry.remove(call)
        try:
            ports.accounting.record_end(call)
        except Exception as error:
            log.fault(error, call.id)
        try:
            if ticket is not None:
                self._release_place(ticket)
        except Exception as error:
            log.fault(error, call.id)
        if self.pending_stop is not None:
            log.guard(call.id, ports.accounting.note_savings, call, ticket, self.pending_stop)
        try:
            self._record_cost(ticket)
        except Exception as error:
            log.fault(error, call.id)

    def _release_place(self, ticket: Ticket[Placed]) -> None:
        """Free the call's place. If the engine may still work on the call, the reaper frees the place in the engine."""
        self.ports.placement.end(ticket, self.call, steady=not self.stalls, hold=self.pending_stop is not None)

    def _record_cost(self, ticket: Ticket[Placed] | None) -> None:
        """Record in the ledger what the call cost; an item of a job leaves that to its job."""
        self.ports.accounting.record_cost(self.call, ticket)

    def waits_for(self) -> str:
        """Say, for operators, what the call is waiting for."""
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
