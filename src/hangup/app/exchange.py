"""One call in flight: joins a client's connection, the pure `Call` and an engine's connection.

    open ──▶ body_arrived ──▶ carry ──▶ engine_answered ──▶ relay … ──▶ end
             refuse, client_left, deadline, cap, kill, drain ─────────▶ end

`carry` is the way of a call from its whole request to the engine's first byte; from then on the relay pumps.
`end` is the only way out, from wherever: it stops the engine first, frees the place, tells the client and keeps the
books, all in the same turn.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import orjson

from hangup.apis.base import Api, Ask
from hangup.apis.routes import UNKNOWN, Route
from hangup.app.relay import AssembleRelay, PassRelay, Relay, StreamRelay
from hangup.config import Limits
from hangup.core import reasons
from hangup.core.call import Call, Clock, Ending, Engine, Tell
from hangup.core.reasons import Reason
from hangup.edge.connection import ClientConnection
from hangup.engines.backend import Backend
from hangup.engines.connection import EngineConnection, body_decoder
from hangup.errors import EngineFault, Refusal, WireError
from hangup.wire import jsonbody
from hangup.wire.answer import encode_head
from hangup.wire.head import HOP_BY_HOP, Headers, RequestHead, ResponseHead

if TYPE_CHECKING:
    from hangup.app.gateway import Gateway

# Of the engine's headers, what is between it and us, or what we set anew.
_NOT_RELAYED = HOP_BY_HOP | {b"content-length", b"set-cookie", b"set-cookie2", b"x-request-id", b"alt-svc"}
_STREAM_HEADERS: Headers = [(b"cache-control", b"no-cache, no-transform"), (b"x-accel-buffering", b"no")]
_REPLACED_ON_STREAMS = _NOT_RELAYED | {b"cache-control", b"x-accel-buffering"}
_HEARTBEAT = b": hangup\n\n"
# Another backend may do better; 501 and 505 are about the request.
_FAILED_STATUSES = frozenset([500, 502, 503, 504])
# How an engine says that it cannot stream what it was asked: then it is asked as the client did.
_CANNOT_STREAM = frozenset([400, 422, 501])


class _AskPlainly(Exception):
    """The engine refuses to stream this call."""


class Exchange:
    __slots__ = (
        "_body",
        "_engine_headers",
        "_first_byte",
        "_heartbeat",
        "_loop",
        "_plainly",
        "_relay",
        "_task",
        "_timer",
        "api",
        "ask",
        "backend",
        "body_bytes_max",
        "call",
        "client",
        "engine",
        "event_bytes_max",
        "gateway",
        "head",
        "keyed",
        "limits",
        "now",
        "route",
        "tried",
        "waiting",
    )

    def __init__(self, gateway: Gateway, client: ClientConnection, call: Call, head: RequestHead | None) -> None:
        self.gateway = gateway
        self.client = client
        self.call = call
        self.head = head
        self.route: Route | None = None
        self.api: Api = UNKNOWN
        self.limits: Limits = gateway.limits
        self.body_bytes_max = self.limits.body_bytes_max
        self.event_bytes_max = self.limits.event_bytes_max
        self.keyed = False  # the client's key is one of ours: the engine must not see it
        self.ask: Ask | None = None
        self.backend: Backend | None = None
        self.engine: EngineConnection | None = None
        self.tried: frozenset[str] = frozenset()  # backends that failed before their first byte
        self.waiting: asyncio.Future[Backend] | None = None
        self._loop = gateway.loop
        self.now: Callable[[], float] = time.monotonic  # finer than the loop's clock, and the same one
        self._body = b""
        self._plainly = False
        self._relay: Relay | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self._first_byte: asyncio.Future[None] | None = None
        self._engine_headers: Headers = []

    def __repr__(self) -> str:
        return f"<exchange {self.call!r} {self.client!r} {self.backend!r}>"

    # From the client's connection

    def start(self, route: Route, limits: Limits) -> None:
        """The call is known and allowed; its body may come."""
        self.route = route
        self.api = route.api
        self.limits = limits
        self.body_bytes_max = limits.body_bytes_max
        self.event_bytes_max = limits.event_bytes_max
        self.reset_timer()

    def body_arrived(self, body: bytes) -> None:
        self._body = body
        self.call.bytes_in = len(body)
        self._task = self._loop.create_task(self.carry())

    def client_left(self, reason: Reason) -> None:
        self.end(reason)

    def refuse(self, reason: Reason, detail: str = "") -> None:
        self.end(reason, detail)

    def pause_engine(self) -> None:
        if self.engine is not None:
            self.engine.transport.pause_reading()

    def resume_engine(self) -> None:
        if self.engine is not None:
            self.engine.transport.resume_reading()

    # The way of a call

    async def carry(self) -> None:
        """From the whole request to the engine's first byte; the relay does the rest."""
        gateway = self.gateway
        try:
            self.read_request()
            while True:
                backend = await gateway.place(self)
                try:
                    await self.ask_engine(backend)
                    gateway.backend_succeeded(backend)
                    return
                except _AskPlainly:
                    self.ask_plainly()
                    self.leave_backend()
                except EngineFault as fault:
                    gateway.backend_failed(backend, fault.detail)
                    if not gateway.may_fail_over(self):
                        self.end(fault.reason, fault.detail)
                        return
                    self.tried |= {backend.name}
                    self.leave_backend()
        except Refusal as refusal:
            self.end(refusal.reason, refusal.detail)
        except asyncio.CancelledError:
            if not self.call.ended:  # not our doing: the process is going down
                self.end(reasons.DRAINED)
                raise
        except Exception as error:
            self.fault(error)
        finally:
            self._task = None

    def read_request(self) -> None:
        """What is asked for; caps are set here, and what cannot be is refused."""
        assert self.route is not None and self.head is not None
        if self.head.method != "POST" or not self.route.api.generates:
            self._set_clock(to_client=False, from_engine=False)
            self.call.received(self.now())
            self.reset_timer()
            return
        value = jsonbody.decode(self._body, self.limits.json_elements_max)
        self.api = self.route.api_for(value)
        self.call.route = self.api.name
        assemble = self.gateway.settings.assemble
        self.ask = self.api.read(self.head.path, self._body, value, self.limits, assemble)
        self.call.model = self.ask.model
        self.call.stream = self.ask.stream
        self._set_clock(to_client=self.ask.stream, from_engine=self.ask.stream or self.ask.assembler is not None)
        self.call.received(self.now())
        self.reset_timer()
        if self.ask.stream and self.gateway.settings.heartbeat_s and self.api.format.data_prefix:
            self._heartbeat = self._loop.call_later(self.gateway.settings.heartbeat_s, self._beat)

    def _set_clock(self, *, to_client: bool, from_engine: bool) -> None:
        """Which time limits hold, now that we know where the answer streams."""
        clock, limits = self.call.clock, self.limits
        read_s = clock.client_read_s
        self.call.clock = Clock(
            total_s=limits.total_s,
            queue_s=limits.queue_s,
            # Of an answer that comes as a whole nothing is seen before its end.
            first_token_s=limits.first_token_s if from_engine else math.inf,
            gap_s=limits.gap_s if from_engine else math.inf,
            # A client's read timeout is for the next byte: of a whole answer, that is its end.
            client_total_s=clock.client_total_s if to_client else min(clock.client_total_s, read_s),
            client_read_s=read_s if to_client else math.inf,
        )

    async def ask_engine(self, backend: Backend) -> None:
        """Sends the request; returns at the engine's first byte, or raises EngineFault."""
        assert self.head is not None
        self.backend = backend
        self.call.sent(backend.name, self.now())
        self.reset_timer()
        path, body = self._outgoing()
        while True:
            connection = backend.pool.idle_connection() or await backend.pool.connect()
            request = backend.request(
                self.head,
                path,
                body,
                call_id=self.call.id,
                timeout_s=self._time_left(),
                forward_key=not self.keyed,
            )
            self.engine = connection
            self._first_byte = self._loop.create_future()
            connection.ask(self, request)
            try:
                await self._first_byte
                return
            except EngineFault as fault:
                self._drop_engine()
                stale = connection.reused and fault.reason is reasons.ENGINE_DIED
                if not stale:
                    raise
                # It was closed by the engine as it lay idle; that says nothing about the engine.
            finally:
                self._first_byte = None

    def _outgoing(self) -> tuple[str, bytes]:
        assert self.head is not None
        if self.ask is None:
            return self.head.path, self._body
        if self._plainly:
            return self.head.path, self.ask.plain_body
        return self.ask.path, self.ask.body

    def _time_left(self) -> float | None:
        """What is left of the client's own patience, for the engine to know."""
        clock, now = self.call.clock, self.now()
        left = min(
            self.call.started_at + clock.client_total_s - now,
            self.call.started_at + clock.client_read_s - now,
        )
        return None if left == math.inf else max(left, 0.001)

    def ask_plainly(self) -> None:
        """From now on the call goes to engines as the client put it."""
        assert self.ask is not None
        self._plainly = True
        self.ask.assembler = None
        self._set_clock(to_client=False, from_engine=False)

    def leave_backend(self) -> None:
        """The backend is done with this call, or it with the backend, before the first byte."""
        self._drop_engine()
        if self.backend is not None:
            backend, self.backend = self.backend, None
            self.gateway.release(backend)
        self.call.fell_back(self.now())
        self.reset_timer()

    def _drop_engine(self) -> None:
        if self.engine is not None:
            self.engine.abort()
            self.engine = None

    # From the engine's connection

    def engine_answered(self, connection: EngineConnection, head: ResponseHead) -> Callable[[bytes], None]:
        """The engine's first byte: relay from here on, or let `carry` try something else."""
        fault = self._fault_of(head)
        if fault is not None:
            assert self._first_byte is not None
            if not self._first_byte.done():
                self._first_byte.set_exception(fault)
            return _ignore
        self.call.answered(self.now())
        if self._first_byte is not None and not self._first_byte.done():
            self._first_byte.set_result(None)
        self._body = b""  # nothing is replayed any more
        self._relay = self._choose_relay(head)
        if self._relay.decoder.done:
            self._relay.engine_finished()
            return _ignore
        return self._relay.feed

    def _fault_of(self, head: ResponseHead) -> Exception | None:
        status = head.status
        if self.ask is not None and self.ask.assembler is not None and status in _CANNOT_STREAM:
            return _AskPlainly()
        if 300 <= status < 400 and status != 304:
            return EngineFault(reasons.ENGINE_REDIRECT, f"the engine answered {status}")
        if status in _FAILED_STATUSES and self.gateway.may_fail_over(self):
            return EngineFault(reasons.ENGINE_ERROR, f"the engine answered {status}")
        return None

    def _choose_relay(self, head: ResponseHead) -> Relay:
        decoder = body_decoder(head)
        status = head.status
        if status in _FAILED_STATUSES:
            status = 503 if status == 503 else 502
        final = reasons.ENGINE_ERROR if head.status in _FAILED_STATUSES else reasons.COMPLETED
        kind = head.fields.get(b"content-type", b"").lower()
        is_stream = self.ask is not None and head.status == 200 and kind.startswith(self.api.format.content_type)
        if self.ask is not None and is_stream and self.ask.assembler is not None:
            self._engine_headers = head.headers  # they will be those of the answer
            return AssembleRelay(self, decoder, self.api, self.ask, self.ask.assembler)
        self._begin_answer(status, head, is_stream)
        if self.ask is not None and is_stream and self.ask.stream:
            return StreamRelay(self, decoder, self.api, self.ask)
        return PassRelay(self, decoder, final, self.api if self.ask is not None and head.status == 200 else None)

    def _begin_answer(self, status: int, head: ResponseHead, is_stream: bool) -> None:
        """Passes the engine's head on to the client."""
        if self.call.answering_client:
            return  # a heartbeat was quicker
        dropped = _REPLACED_ON_STREAMS if is_stream else _NOT_RELAYED
        headers = [pair for pair in head.headers if pair[0] not in dropped]
        chunked = False
        if not head.without_body():
            if head.content_length is not None:
                headers.append((b"content-length", b"%d" % head.content_length))
            elif self.client.http11:
                chunked = True
                headers.append((b"transfer-encoding", b"chunked"))
        if is_stream:
            headers += _STREAM_HEADERS
        self._write_head(status, headers, chunked, delimited=head.content_length is not None or head.without_body())

    def _write_head(self, status: int, headers: Headers, chunked: bool, delimited: bool) -> None:
        headers.append((b"x-request-id", self.call.id.encode("ascii")))
        if not chunked and not delimited:
            self.client.close_after_this()
        if self.client.will_close:
            headers.append((b"connection", b"close"))
        elif not self.client.http11:
            headers.append((b"connection", b"keep-alive"))
        self.call.client_answer_began(status)
        self.client.begin(encode_head(status, headers), chunked=chunked)

    def engine_lost(self, connection: EngineConnection, error: Exception | None) -> None:
        self.engine = None
        if self._first_byte is not None and not self._first_byte.done():
            detail = "the engine closed the connection without an answer"
            self._first_byte.set_exception(EngineFault(reasons.ENGINE_DIED, detail))
        elif self._relay is None or error is not None or not self._relay.engine_closed():
            self._engine_failed(reasons.ENGINE_DIED, str(error or ""))

    def engine_garbled(self, connection: EngineConnection, error: WireError) -> None:
        if self._first_byte is not None and not self._first_byte.done():
            self._first_byte.set_exception(EngineFault(reasons.ENGINE_GARBLED, str(error)))
        else:
            self._engine_failed(reasons.ENGINE_GARBLED, str(error))

    def _engine_failed(self, reason: Reason, detail: str) -> None:
        if self.backend is not None:
            self.gateway.backend_failed(self.backend, detail or reason.message)
        self.end(reason, detail)

    def answer_whole(self, status: int, body: bytes) -> None:
        """A complete answer made here, under the engine's own headers where there are any."""
        dropped = _REPLACED_ON_STREAMS | {b"content-type"}
        headers = [pair for pair in self._engine_headers if pair[0] not in dropped]
        headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        self._write_head(status, headers, chunked=False, delimited=True)
        self.client.write(body)
        self.call.client_has_all = True

    # Time

    def reset_timer(self) -> None:
        """Sees to it that the timer fires no later than the next limit falls due; earlier does no harm."""
        due = self.call.next_due()
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
            self._timer = None
        if due != math.inf:
            self._timer = self._loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        reason = self.call.overdue(self.now())
        if reason is None:
            self.reset_timer()
            return
        if reason in (reasons.FIRST_TOKEN_TIME, reasons.GAP_TIME) and self.backend is not None:
            self.gateway.backend_failed(self.backend, reason.message)
        self.end(reason)

    def _beat(self) -> None:
        """Keeps a waiting client and the proxies before it from giving up during a long prefill."""
        self._heartbeat = None
        if self.call.first_token_at is not None:
            return
        if not self.call.answering_client:
            headers: Headers = [(b"content-type", b"text/event-stream; charset=utf-8"), *_STREAM_HEADERS]
            if self.client.http11:
                headers.append((b"transfer-encoding", b"chunked"))
            self._write_head(200, headers, chunked=self.client.http11, delimited=False)
        if self._relay is None or self._relay.at_event_boundary():
            self.client.send(_HEARTBEAT)
        self._heartbeat = self._loop.call_later(self.gateway.settings.heartbeat_s, self._beat)

    # The end

    def end(self, reason: Reason, detail: str = "") -> None:
        """The call is over: whoever is first says why, and everything it holds is let go here."""
        ending = self.call.end(reason, self.now(), detail)
        if ending is None:
            return
        self._stop_engine(ending)
        for timer in (self._timer, self._heartbeat):
            if timer is not None:
                timer.cancel()
        self._timer = self._heartbeat = None
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task(self._loop):
            task.cancel()
        if self._relay is not None:
            self._relay.settle()
        self._tell_client(ending)
        self.gateway.closed(self)
        self._body = b""

    def fault(self, error: Exception) -> None:
        """A bug of ours: it costs this call and no other."""
        self.gateway.log.fault(error, self.call.id)
        self.end(reasons.INTERNAL)

    def _stop_engine(self, ending: Ending) -> None:
        connection, self.engine = self.engine, None
        backend, self.backend = self.backend, None
        if ending.engine is Engine.ABORT and backend is not None:
            if connection is not None:
                connection.abort()
            self.gateway.abort(backend, self.call.id)
        elif connection is not None:
            connection.release(reusable=self._relay is not None and not self._relay.rest_follows)
        if backend is not None:
            self.gateway.release(backend)

    def _tell_client(self, ending: Ending) -> None:
        client = self.client
        match ending.tell:
            case Tell.NOTHING:
                client.drop()
            case Tell.FINISH:
                client.finish()
            case Tell.STATUS:
                self._answer_error(ending)
            case Tell.ERROR_EVENT:
                if self.call.stream and (self._relay is None or self._relay.at_event_boundary()):
                    status = ending.reason.status
                    client.send(self.api.error_event(status, ending.reason.code, ending.detail or ending.reason.message))
                client.break_off()

    def _answer_error(self, ending: Ending) -> None:
        reason = ending.reason
        body = orjson.dumps(self.api.error(reason.status, reason.code, ending.detail or reason.message))
        headers: Headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"x-hangup-reason", reason.code.encode("ascii")),
        ]
        if reason.retry is not None:
            headers.append((b"x-should-retry", b"true" if reason.retry else b"false"))
        headers += self.gateway.refusal_headers(self, reason)
        self._write_head(reason.status, headers, chunked=False, delimited=True)
        self.client.write(body)
        self.client.finish_framed()


def _ignore(data: bytes) -> None:
    """What an engine sends behind an answer that is not relayed."""
