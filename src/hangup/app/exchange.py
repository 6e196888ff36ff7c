"""One call in flight: joins a client's connection, the pure `Call` and an engine's connection.

The way of a call is the order of the methods below; each ends by starting the next, at once or when its wait is over:

    body_arrived     what is asked for, caps read                        refused
    find_place       a backend with room, or a place in the queue        shed
    placed           a kept connection, or a new one ────────┐           the backend failed before its first byte:
    connected        the request goes out                    ├──────────▶ attempt_failed ─▶ elsewhere
    engine_answered  the engine's first byte ────────────────┘
    the relay        pumps, counts, caps
    end              exactly once, from anywhere: stops the engine, frees the place, tells the client, keeps the books

There is no task per call: nothing is awaited but a new connection, and every step happens in the turn of the event
that made it possible.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import orjson

from hangup.apis import media, model_field
from hangup.apis.base import Api, Ask, Json
from hangup.apis.inputs import count as count_inputs
from hangup.apis.routes import UNKNOWN, Route
from hangup.app import refusal, reply
from hangup.app.assembly import AssembleRelay
from hangup.app.relay import ErrorRelay, PassRelay, Relay, StreamRelay
from hangup.config import Limits
from hangup.core import reasons
from hangup.core.admission import Admission, Ticket
from hangup.core.call import Call, Clock, Ending, Engine, Phase, Tell
from hangup.core.reaper import Leftover
from hangup.core.reasons import Reason
from hangup.duties import DUTIES
from hangup.edge.client import Client
from hangup.engines.backend import Backend
from hangup.engines.connection import EngineConnection, body_decoder
from hangup.engines.rate_limits import is_refusal
from hangup.errors import EngineFault, Refusal, WireError
from hangup.jobs.errand import Errand
from hangup.wire import jsonbody
from hangup.wire.body import Counted
from hangup.wire.head import Headers, RequestHead, ResponseHead

if TYPE_CHECKING:
    from hangup.app.carried import PassedOn
    from hangup.app.gateway import Gateway
    from hangup.app.tunnel import Tunnel

_NO_VALUE: Json = {}
_HEARTBEAT = b": hangup\n\n"
# Another backend may do better; 501 and 505 are about the request.
_FAILED_STATUSES = frozenset([500, 502, 503, 504])
_MODEL_ASKED_MAX = 4  # backends that a call is sent to, one after the other, because they do not know its model


class Exchange:
    __slots__ = (
        "_body",
        "_engine_headers",
        "_heartbeat",
        "_refusal",
        "_relay",
        "_structure",
        "_value",
        "answer_bytes_max",
        "api",
        "ask",
        "backend",
        "body_bytes_max",
        "body_s",
        "call",
        "client",
        "client_read_s",
        "client_total_s",
        "engine",
        "errand",
        "event_bytes_max",
        "files",
        "gateway",
        "head",
        "held_bytes",
        "home",
        "inputs",
        "key",
        "keyed",
        "leftover",
        "limits",
        "listens",
        "passage",
        "renamed",
        "route",
        "seats",
        "slot",
        "stalls",
        "task",
        "ticket",
        "tunnel",
        "wanted",
    )

    def __init__(self, gateway: Gateway, client: Client, call: Call, head: RequestHead | None) -> None:
        self.gateway = gateway
        self.client = client
        self.call = call
        self.head = head
        self.route: Route | None = None
        self.api: Api = UNKNOWN
        self.limits: Limits = gateway.limits
        self.body_bytes_max = self.limits.body_bytes_max
        self.body_s = self.limits.body_s
        self.event_bytes_max = self.limits.event_bytes_max
        self.held_bytes = 0  # of `media_held_bytes_max`
        self.answer_bytes_max = self.limits.answer_bytes_max
        self.errand: Errand | None = None  # what it is made for, if its client is a job
        self.passage: PassedOn | None = None  # who chose its backend, if it goes past the queue
        self.tunnel: Tunnel | None = None  # what it becomes, if it is a WebSocket's handshake
        self.listens = False  # its answer is a stream of a job's events
        self.task: asyncio.Task[None] | None = None  # the one thing that it waits for: cancelled when the call ends
        self.keyed = False  # the client's key is one of ours: the engine must not see it
        self.client_total_s = math.inf  # how long the client says it waits: for all of it,
        self.client_read_s = math.inf  # and for the next byte
        self.ask: Ask | None = None
        self.files = 0  # images and the like that belong to the prompt
        self.wanted = ""  # the model, as the client names it; empty where it does not matter
        self.renamed = ""  # its own name, where the client used an alias
        self.home = ""  # the one backend that has what it continues
        self.seats: frozenset[str] | None = None  # the backends that can answer; None: any
        self.inputs = 1  # texts that each get an answer, where it is no generation
        self.ticket: Ticket | None = None  # its place in the queue or on a backend
        self.backend: Backend | None = None
        self.engine: EngineConnection | None = None
        self.key = ""  # the engine's name for this attempt, once it has it
        self.slot: int | None = None  # its own slot there
        self.stalls = 0  # times that its client could not take more
        self.leftover: Leftover | None = None  # what it left behind in an engine
        self._body = b""
        self._value = _NO_VALUE
        self._structure: jsonbody.Structure | None = None
        self._refusal: refusal.Refusal | None = None  # that is being read
        self._relay: Relay | None = None
        self._engine_headers: Headers = []
        self._heartbeat: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<exchange {self.call!r} {self.client!r} {self.backend!r}>"

    # The way of a call

    def start(self, route: Route, limits: Limits) -> None:
        """The call is known and allowed; its body may come, watched by the client's connection."""
        self.route = route
        self.api = route.api
        self.limits = limits
        self.body_bytes_max = limits.body_bytes_max
        self.event_bytes_max = limits.event_bytes_max
        if route.api.media:
            self.body_bytes_max = max(limits.media_bytes_max, limits.body_bytes_max)
            self.body_s = limits.upload_s
        self.answer_bytes_max = limits.answer_bytes_max

    def body_piece(self, piece: bytes) -> bool:
        """A large body: counted as it comes, so that no one has to wait while it is looked at as a whole."""
        if self.api.generates:
            self._structure = self._structure or jsonbody.Structure(self.limits.json_elements_max)
            try:
                self._structure.feed(piece)
            except Refusal as bad:
                self.end(bad.reason, bad.detail)
        return False

    def body_arrived(self, body: bytes) -> None:
        self._body = body
        self.call.bytes_in = len(body)
        try:
            self._read_request()
        except Refusal as bad:
            self.end(bad.reason, bad.detail)
        except Exception as error:
            self.fault(error)
        else:
            self.call.received(time.monotonic())
            if self.ask is None or not self.gateway.defers(self, self.ask, body, self._value):
                self._expect_heartbeat()
                self.find_place()

    def _read_request(self) -> None:
        """What is asked for, and how much of it is allowed; what cannot be is refused."""
        assert self.route is not None and self.head is not None
        if not self.route.api.generates:
            self.inputs = count_inputs(self._body)
            self._set_clock(to_client=False, from_engine=False)
            return
        value = jsonbody.decode(self._body, self._structure, self.limits.json_elements_max, self.limits.json_depth_max)
        self.api = self.route.api_for(value)
        self.call.route = self.api.name
        if not self.api.generates:
            self._set_clock(to_client=False, from_engine=False)
            return
        settings = self.gateway.settings
        ask = self.api.read(self.head.path, value, self.limits, settings.assemble)
        check_name(ask.model, self.limits)
        before = value.get("previous_response_id") if self.api.kept_by_engine else None
        if type(before) is str:
            self.home = self.gateway.kept_responses.maker(before, self.call.tenant)
        self.ask, self._value = ask, value
        call = self.call
        call.model = ask.model
        call.stream = ask.stream
        self._set_clock(to_client=ask.stream, from_engine=ask.streams)

    def _expect_heartbeat(self) -> None:
        every_s = self.gateway.settings.heartbeat_s
        if every_s and self.ask is not None and self.ask.stream and self.errand is None and self.api.format.data_prefix:
            self._heartbeat = self.gateway.loop.call_later(every_s, self._beat)

    def _set_clock(self, *, to_client: bool, from_engine: bool) -> None:
        """Which time limits hold, now that we know where the answer streams."""
        limits, read_s, patient = self.limits, self.client_read_s, self.errand is not None
        # A file may take long to arrive, which has a limit of its own.
        took_s = time.monotonic() - self.call.started_at if self.api.media else 0.0
        self.call.clock = Clock(
            math.inf if patient else limits.total_s + took_s,
            # Of an answer that comes as a whole nothing is seen before its end.
            limits.first_token_s if from_engine else math.inf,
            limits.gap_s if from_engine else math.inf,
            math.inf if patient else limits.queue_s,
            # A client's read timeout is for the next byte: of a whole answer, that is its end.
            self.client_total_s if to_client else min(self.client_total_s, read_s),
            read_s if to_client else math.inf,
        )

    def prompt_tokens(self, admission: Admission) -> int:
        """About how many tokens the prompt has; the bytes of files say nothing about that."""
        size = self.call.bytes_in
        if self.api.media:
            self.files = 1
            return admission.prompt_tokens(0)
        if self.ask is None or not media.may_hold_files(self._body):
            return admission.prompt_tokens(size)
        file_bytes, self.files = media.embedded(self._value)
        return admission.prompt_tokens(size - file_bytes) + self.files * media.FILE_TOKENS

    def find_place(self, *, asked: bool = False) -> None:
        """The gateway calls `placed` at once, when it is our turn, or ends the call; `asked`: backends, for their models."""
        if not self.gateway.routing.finds(self, asked=asked):
            return
        self.gateway.place(self)
        if self.call.phase is Phase.WAITING:
            self.reset_timer()

    def named_model(self) -> str:
        """The model in a request that is passed on as it is."""
        assert self.head is not None
        return model_field.find(self._body, self.head.fields.get(b"content-type", b""), self.head.query)

    def begin_job(self) -> None:
        """A job's item may wait as long as it takes; its time begins now."""
        assert self.errand is not None
        waited = time.monotonic() - self.call.started_at
        self.call.clock = self.call.clock._replace(total_s=waited + self.limits.total_s)
        self.errand.started()

    def pass_on(self, backend: Backend, body: bytes) -> None:
        """Past the queue, as it is, to the one backend that can answer it."""
        self._body, self._value, self.ask = body, _NO_VALUE, None
        self.call.bytes_in = len(body)
        self.placed(backend)

    def placed(self, backend: Backend) -> None:
        self.backend = backend
        self.call.sent(backend.name, time.monotonic())
        self.reset_timer()
        self.engine = backend.pool.idle_connection()
        if self.engine is not None:
            self.connected(self.engine)
        else:
            self.task = DUTIES.start("connect", self._connect(backend))

    async def _connect(self, backend: Backend) -> None:
        """The only thing that is waited for; cancelled if the call ends meanwhile."""
        try:
            self.engine = await backend.pool.connect(last_resort=not backend.seat.up)
            self.task = None
            self.connected(self.engine)
        except EngineFault as fault:
            self.task = None
            self.attempt_failed(fault)
        except Exception as error:
            self.task = None
            self.fault(error)

    def connected(self, connection: EngineConnection) -> None:
        """The connection is ours: whatever happens, the end of the call lets go of it."""
        try:
            request = self._request()
        except Exception as error:
            self.key = ""  # the engine has not heard of it
            self.fault(error)
            return
        connection.ask(self, *request, may_switch=self.tunnel is not None)
        if self.client.stalled:  # it has not read what it got before: an earlier answer, or heartbeats
            connection.pause()

    def _request(self) -> tuple[bytes, bytes]:
        assert self.head is not None and self.backend is not None
        path, body, backend, query = self.head.path, self._body, self.backend, None
        self.key = self.gateway.engine_key()
        request_id = backend.request_id(self.call.id, self.key)
        self.call.engine_id = self.key if request_id == self.key or backend.adapter.keyed_by == "body" else ""
        if self.ask is not None:
            if self.slot is None:
                self.slot = self.call.slot = backend.pin(self.ask.choices)
            more = backend.adapter.fields(self.key, self.slot)
            told = {} if self.ask.cap.named else backend.adapter.maximum(self.api.name, self.ask.cap.tokens)
            if told or self.ask.cap.named:
                self.ask.ends_late(backend.adapter.late_tokens)
            if self.ask.assembler is not None:
                self.ask.assembler.texts_in_pieces = backend.facts.texts_in_pieces
            more |= told
            if self.renamed:
                more |= {"model": self.renamed}
            path, body = self.ask.path, self.ask.body(body, self._value, more)
        elif self.renamed and body:
            body = model_field.replace(body, self.head.fields.get(b"content-type", b""), self.renamed)
        elif self.renamed:
            query = model_field.in_query(self.head.query, self.renamed)
        return backend.request(
            self.head,
            path,
            body,
            request_id=request_id,
            timeout_s=self._time_left(),
            forward_key=not self.keyed,
            traced=f"00-{self.call.trace_id}-{self.call.span_id}-01" if self.call.span_id else "",
            upgrade=self.tunnel is not None,
            query=query,
        )

    def _time_left(self) -> float | None:
        """What is left of the client's own patience, for the engine to know."""
        patience = min(self.client_total_s, self.client_read_s)
        return None if patience == math.inf else max(self.call.started_at + patience - time.monotonic(), 0.001)

    def engine_answered(self, connection: EngineConnection, head: ResponseHead, rest: bytes) -> Callable[[bytes], None]:
        """The engine's first byte: relayed from here on, unless it says that it failed and another one may try."""
        if self.ask is not None and self.ask.assembler is not None and head.status in refusal.STATUSES:
            refused = self._refusal = refusal.Refusal(self, connection, head)
            refused.feed(rest)
            return refused.feed
        if self._goes_elsewhere(head):
            return _ignore
        return self.relay_answer(head, rest)

    def relay_answer(self, head: ResponseHead, rest: bytes) -> Callable[[bytes], None]:
        """This is the answer: nothing else is tried. Returns where the rest of it goes."""
        self._refusal = None
        self.call.answered(time.monotonic())
        assert self.backend is not None
        if head.status not in _FAILED_STATUSES:
            self.gateway.backend_succeeded(self.backend)
        if self.backend.adapter.hosted and not self.backend.shown_client_key:
            self.gateway.pauses.answered(self.backend, head, self.limits.refusal_pause_s_max)
        if head.status == 101:
            return self._switch(head, rest)
        relay = self._relay = self._choose_relay(head)
        if not relay.can_move():
            self._body, self._value = b"", _NO_VALUE  # nothing is replayed any more
        relay.keep_alive = head.keep_alive and not (rest and relay.decoder.done)
        if head.status == 200 and isinstance(relay, PassRelay):
            self.gateway.first_token(self)  # nothing more will be seen of it than that it comes
        feed: Callable[[bytes], None] = relay.feed
        if head.status == 200 and self.api.kept_by_engine:
            feed = self._note_response(relay.feed)
        if relay.decoder.done:
            relay.engine_finished()
        elif rest:
            feed(rest)
        self.client.flush()
        return feed

    def _switch(self, head: ResponseHead, rest: bytes) -> Callable[[bytes], None]:
        """The engine takes a WebSocket's handshake: from here on the two connections are joined."""
        assert self.tunnel is not None and self.engine is not None
        self._body = b""
        self.gateway.first_token(self)
        relay = self._relay = self.tunnel.begin(self.engine, head)
        if rest and not self.call.ended:
            relay.feed(rest)
        return relay.feed

    def _note_response(self, feed: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """Looks at the beginning of an answer that the engine may keep, for its name."""
        new = True

        def look(data: bytes) -> None:
            nonlocal new
            if new:
                new = False
                self.gateway.kept_responses.note(self, data, self.limits.engine_responses_max)
            feed(data)

        return look

    def _goes_elsewhere(self, head: ResponseHead) -> bool:
        """What an engine says with its first line: whether somebody else is asked before the client hears of it."""
        status = head.status
        if status in (200, 101):
            if self.ask is not None and self.ask.assembler is not None and _is_encoded(head):
                self._do_not_stream()  # its events cannot be read
                self._go_elsewhere()
                return True
            return False
        if status == 404 and self.passage is not None and self.passage.elsewhere(status) is not None:
            self._go_elsewhere()
            return True
        if 300 <= status < 400 and status != 304:
            self.attempt_failed(EngineFault(reasons.ENGINE_REDIRECT, f"The engine answered {status}."), blame=False)
            return True
        if is_refusal(status, head.fields) and self.gateway.takes_refusal(self, head):
            return True
        if status in _FAILED_STATUSES and self.gateway.may_fail_over(self):
            self.attempt_failed(EngineFault(reasons.ENGINE_ERROR, f"The engine answered {status}."))
            return True
        return status == 404 and bool(self.wanted) and self._refused_the_model()

    def _refused_the_model(self) -> bool:
        """It does not know the model or the path, so it has done nothing; one that does may be among the others."""
        backend, ticket = self.backend, self.ticket
        if backend is None or ticket is None:
            return False
        self.gateway.routing.refused(self, backend)
        tried = ticket.tried | {backend.name}
        if len(tried) > _MODEL_ASKED_MAX or not self.gateway.admission.fleet.usable(tried, ticket.seats):
            return False
        ticket.tried = tried
        self._leave_idle(backend)
        self._place_again()
        return True

    def _choose_relay(self, head: ResponseHead) -> Relay:
        assert self.head is not None
        bodyless = self.head.method == "HEAD"
        decoder, ask, status = Counted(0) if bodyless else body_decoder(head), self.ask, head.status
        kind = head.fields.get(b"content-type", b"").lower()
        has_events = ask is not None and status == 200 and kind.startswith(self.api.format.content_type)
        is_stream = has_events and not _is_encoded(head)
        if ask is not None and is_stream and ask.assembler is not None:
            # They will be those of the answer, but for those that were meant for us.
            own = head.connection_options() if b"connection" in head.fields else ()
            self._engine_headers = [pair for pair in head.headers if pair[0] not in own]
            return AssembleRelay(self, decoder, self.api, ask, ask.assembler)
        if self.call.answering_client and not is_stream:  # a heartbeat was quicker
            return ErrorRelay(self, decoder, self.api, status)
        final = reasons.COMPLETED
        if status in _FAILED_STATUSES:
            final = reasons.ENGINE_ERROR
            if self.passage is None:
                status = 503 if status == 503 else 502
        reply.begin(self, status, head, has_events)
        if ask is not None and is_stream and ask.stream:
            return StreamRelay(self, decoder, self.api, ask)
        if self.passage is not None:
            return self.passage.relay(decoder, final, head)
        api = self.api if ask is not None and status == 200 else None
        return PassRelay(self, decoder, final, api, is_json=kind.startswith(b"application/json") and not _is_encoded(head))

    # Another try

    def attempt_failed(self, fault: EngineFault, *, blame: bool = True) -> None:
        """The backend failed before its first byte: another one may still serve the call. Without `blame` it is well."""
        gateway, backend = self.gateway, self.backend
        assert backend is not None
        if blame:
            gateway.backend_failed(backend, fault.detail)
        if not gateway.may_fail_over(self):
            self.end(fault.reason, fault.detail)
            return
        if self.ticket is not None:
            self.ticket.tried |= {backend.name}
        self._go_elsewhere()

    def leave_wedged(self, why: str) -> None:
        """Nothing comes from its engine any more. A call of which the client has nothing but a stream's head goes elsewhere, if
        there is an elsewhere; of any other answer a part cannot be taken back, and a WebSocket or what is about an
        engine's own things has nowhere to go."""
        if self.task is not None:  # it was still connecting
            self.task.cancel()
            self.task = None
        if self.passage is None and self.tunnel is None and (self.call.phase is Phase.SENT or self._begins_anew()):
            self.attempt_failed(EngineFault(reasons.ENGINE_WEDGED, why))
        else:
            self.end(reasons.ENGINE_WEDGED, why)

    def _begins_anew(self) -> bool:
        """The engine has given no more than its head, or events without a token that the client has not seen."""
        relay, ask = self._relay, self.ask
        movable = relay is not None and relay.can_move() and (self.errand is None or not self.call.answering_client)
        if not movable or ask is None or self.head is None or not self.gateway.may_fail_over(self):
            return False
        if ask.assembler is not None:  # it may have taken something in
            self.ask = self.api.read(self.head.path, self._value, self.limits, self.gateway.settings.assemble)
        self._relay, self._engine_headers = None, []
        return True

    def ask_plainly(self) -> None:
        """The engine refuses to stream this call: ask again, as the client put it."""
        assert self.backend is not None
        self._refusal = None
        self._do_not_stream()
        self._leave_idle(self.backend)
        self._place_again()

    def _do_not_stream(self) -> None:
        assert self.ask is not None and self.head is not None
        self.ask.ask_plainly(self.head.path)
        self._set_clock(to_client=False, from_engine=False)

    def _go_elsewhere(self) -> None:
        assert self.backend is not None
        self.gateway.stop(self, self.backend, self.engine)
        self._place_again()

    def _leave_idle(self, backend: Backend) -> None:
        """The engine refused the call and does nothing for it: there is nothing to abort, and nothing to wait for."""
        backend.unpin(self.slot)
        self.key, self.slot = "", None
        if self.engine is not None:
            self.engine.abort()

    def _place_again(self) -> None:
        self.engine = None
        self.call.fell_back(time.monotonic())
        self.backend = None
        self.gateway.place_again(self)
        if self.call.phase is Phase.WAITING:
            self.reset_timer()

    def wait_again(self) -> None:
        """The engine did not take the call: there is nothing to stop, and it stands in line again."""
        connection, self.engine = self.engine, None
        if connection is not None:
            connection.abort()  # what it says besides is of no interest
        if self.backend is not None:
            self.backend.unpin(self.slot)
        self.key, self.slot, self.backend = "", None, None
        self.call.fell_back(time.monotonic())

    def engine_lost(self, connection: EngineConnection, error: Exception | None) -> None:
        self.engine = None
        refused, self._refusal = self._refusal, None
        if refused is not None and error is None and refused.asked_again():
            return
        if self._relay is not None:
            if (error is not None and not self._relay.verdict()) or not self._relay.engine_closed():
                self._engine_failed(reasons.ENGINE_DIED, str(error or ""))
        elif connection.closed_before() and self._repeatable:
            self._ask_again()  # the engine closed it as it lay idle, which says nothing about the engine
        else:
            self.attempt_failed(EngineFault(reasons.ENGINE_DIED, "The engine closed the connection without an answer."))

    def engine_garbled(self, connection: EngineConnection, error: WireError) -> None:
        if self._relay is None and connection.reused and self._repeatable:
            # What came may belong to an earlier answer on this connection. What the engine does for us is stopped with it.
            assert self.backend is not None
            self.gateway.stop(self, self.backend, connection)
            self.engine = None
            self._ask_again()
        elif self._relay is None:
            self.attempt_failed(EngineFault(reasons.ENGINE_GARBLED, f"The engine's answer is not valid HTTP: {error}."))
        else:
            self._engine_failed(reasons.ENGINE_GARBLED, str(error))

    @property
    def _repeatable(self) -> bool:
        return self.passage is None or self.passage.repeatable

    def _ask_again(self) -> None:
        """It was the kept connection that failed, not the engine: the same again, on a new one."""
        assert self.backend is not None
        self.call.attempts += 1
        self.task = DUTIES.start("connect", self._connect(self.backend))

    def _engine_failed(self, reason: Reason, detail: str) -> None:
        if self.backend is not None:
            self.gateway.backend_failed(self.backend, detail or reason.message)
        self.end(reason, detail)

    # From the client's connection and the relay

    def client_left(self, reason: Reason) -> None:
        verdict = self._relay.verdict() if self._relay is not None and reason is reasons.CLIENT_FIN else None
        if verdict is None or self.client.stalled:
            self.end(reason)
            return
        self.call.client_has_all = True
        self.call.engine_finished = verdict.reason is reasons.COMPLETED  # but for its framing, which nobody waits for
        self.end(*verdict)

    def refuse(self, reason: Reason, detail: str = "") -> None:
        if reason is reasons.BODY_TOO_LARGE and not detail:
            limit = "media_bytes_max" if self.api.media else reason.code
            detail = f"The request's body is too large: at most {self.body_bytes_max} bytes are taken here ({limit})."
        self.end(reason, detail)

    def pause_engine(self) -> None:
        self.stalls += 1
        if self.engine is not None:
            self.engine.pause()

    def resume_engine(self) -> None:
        if self.engine is not None:
            self.engine.resume()

    def answer_whole(self, status: int, answer: Json) -> None:
        """An answer that was put together here, as the engine itself would have given it."""
        if self.backend is not None:
            self.backend.adapter.complete(answer)
        try:
            body = orjson.dumps(answer)
        except TypeError as error:  # what can be read can be too deep to be written
            raise WireError(f"an answer that cannot be written: {error}") from None
        reply.whole(self, status, body, self._engine_headers)

    def first_token(self) -> None:
        self._body, self._value = b"", _NO_VALUE  # from here on nothing is replayed
        self.reset_timer()  # from the wait for the first token to the watch over gaps
        self.gateway.first_token(self)

    # Time

    def reset_timer(self) -> None:
        """The connection's one timer watches over its call, too."""
        self.client.set_due(self.call.next_due())

    def on_due(self) -> None:
        try:
            self._look_at_limits()
        except Exception as error:
            self.fault(error)  # a job's errand has nobody else who would

    def _look_at_limits(self) -> None:
        reason = self.call.overdue(time.monotonic())
        if reason is None:
            self.reset_timer()
        elif reason is reasons.FIRST_TOKEN_TIME or reason is reasons.GAP_TIME:
            self._engine_failed(reason, "")
        else:
            self.end(reason)

    def _beat(self) -> None:
        """Keeps a waiting client and the proxies before it from giving up during a long prefill."""
        self._heartbeat = None
        try:
            self._send_heartbeat()
        except Exception as error:
            self.fault(error)

    def _send_heartbeat(self) -> None:
        if self.call.first_token_at is not None:
            return
        if not self.call.answering_client:
            reply.begin_stream(self)
        if self._relay is None or self._relay.at_event_boundary():
            self.client.send(_HEARTBEAT)
            self.call.client_heard(time.monotonic())
        self._heartbeat = self.gateway.loop.call_later(self.gateway.settings.heartbeat_s, self._beat)

    # The end

    def end(self, reason: Reason, detail: str = "") -> None:
        """The call is over: whoever is first says why, and everything it holds is let go here."""
        ending = self.call.end(reason, time.monotonic(), detail)
        if ending is None:
            return
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None
        guard, id = self.gateway.log.guard, self.call.id
        if not guard(id, self._stop_engine, ending) and self.engine is not None:
            self.engine.abort()
            self.engine = None
        if self._relay is not None:
            guard(id, self._relay.settle)
        if not guard(id, self._tell_client, ending):
            guard(id, self.client.drop)
        self.gateway.closed(self)
        self._relay = self._refusal = None  # they point at each other: let go here, not when the collector comes round
        self.passage = self.tunnel = None
        self._body, self._value = b"", _NO_VALUE

    def fault(self, error: Exception) -> None:
        """A bug of ours: it costs this call and no other."""
        self.gateway.log.fault(error, self.call.id)
        self.end(reasons.INTERNAL)

    def _stop_engine(self, ending: Ending) -> None:
        if self.task is not None:
            self.task.cancel()
            self.task = None
        connection, backend, self.backend = self.engine, self.backend, None
        if backend is not None and (heard_at := self.call.moved_at) is not None:
            backend.heard_at = max(backend.heard_at, heard_at)
        if ending.engine is Engine.ABORT and backend is not None:
            self.leftover = self.gateway.stop(self, backend, connection)
        else:
            if backend is not None:
                backend.unpin(self.slot)
            if connection is not None:
                connection.release(reusable=self._relay is not None and self._relay.connection_reusable())
        self.engine = None

    def _tell_client(self, ending: Ending) -> None:
        client = self.client
        match ending.tell:
            case Tell.FINISH:
                client.finish()
            case Tell.NOTHING:
                client.drop()
            case Tell.STATUS:
                reply.error(self, ending.reason, ending.detail)
                client.finish()
            case Tell.ERROR_EVENT if self.tunnel is not None and self.call.status == 101:
                client.finish()  # its frames tell it what happened
            case Tell.ERROR_EVENT:
                if self.call.stream and (self._relay is None or self._relay.at_event_boundary()):
                    reply.error_event(self, ending.reason, ending.detail)
                client.break_off()


def check_name(name: str, limits: Limits) -> None:
    """Names outlive their call, so they must not be large."""
    if len(name.encode()) > limits.name_bytes_max:
        raise Refusal(reasons.BAD_FIELD, f"The model's name is longer than {limits.name_bytes_max} bytes (name_bytes_max).")


def _is_encoded(head: ResponseHead) -> bool:
    """Whether the engine compressed its answer, though it was asked not to."""
    return head.fields.get(b"content-encoding", b"identity").lower() not in (b"identity", b"")


def _ignore(data: bytes) -> None:
    """What an engine sends behind an answer that is not relayed."""
