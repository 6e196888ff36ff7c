"""A WebSocket: one call from its handshake to its close, which passes bytes in both directions.

It takes a place like any call, because the engine works for it as long as it is open. It only tracks where frames begin and
end, to know when both sides have sent a Close, and where it may insert a Close of its own. A client that leaves without a
Close has hung up: the engine's side is cut at once.

    handshake ──▶ place ──▶ 101 ──▶ frames both ways ──▶ both Closes, or the engine's and its end: completed
                                      └──▶ FIN, RST, silence, a Close that the engine does not answer: the client is gone
"""

from __future__ import annotations

import math
import time
from typing import Final

from hangup.core import reasons
from hangup.core.call import Call, CallTimeLimits, Ending, Tell
from hangup.core.reaper import PendingStop
from hangup.core.reasons import Outcome, Reason
from hangup.errors import Refusal
from hangup.gateway import answers
from hangup.gateway.backends.connection import EngineConnection
from hangup.gateway.call_flow import CallFlow
from hangup.gateway.client.connection import ClientConnection
from hangup.gateway.client_request import FlowPorts
from hangup.gateway.engine_request import EngineRequest
from hangup.gateway.http.body import UntilClose
from hangup.gateway.http.head import RequestHead, ResponseHead
from hangup.gateway.http.websocket import GOING_AWAY, INTERNAL_ERROR, POLICY, Frames, close_frame
from hangup.gateway.relay.base import Relay
from hangup.gateway.request_policy import IncomingRequest, is_of_other_site
from hangup.gateway.stopping import Attempt

_LOOK_S: Final = 0.5  # between checks for a hang-up while the client is not read


def check_origin(head: RequestHead, allowed: str) -> None:
    """Raise a `Refusal` if a page of another site may not open WebSockets.

    Browsers let any page open a WebSocket to any server without a preflight; only the Origin shows which page it is.
    """
    if not is_of_other_site(head):
        return
    origin = head.fields[b"origin"].decode("latin-1").lower()
    names = {name.strip().lower() for name in allowed.split(",")}
    if "*" in names or origin in names:
        return
    raise Refusal(
        reasons.ORIGIN_NOT_ALLOWED, f"The origin {origin[:100]} may not open WebSockets; add it to websocket_origins."
    )


class WebSocketCall(CallFlow):
    """A call that becomes a tunnel when its engine accepts the handshake."""

    can_move = False
    may_be_silent = True
    upgrades = True

    __slots__ = (
        "_closing_at",
        "_connection",
        "_engine",
        "_from_client",
        "_from_engine",
        "_full_bytes",
        "_full_since",
        "_last_bytes_at",
    )

    def __init__(self, ports: FlowPorts, connection: ClientConnection, call: Call, request: IncomingRequest) -> None:
        super().__init__(ports, connection, call, request)
        self._connection = connection
        self._engine: EngineConnection | None = None  # set once the connections are joined
        self._from_client = Frames()
        self._from_engine = Frames()
        self._last_bytes_at = math.inf  # when the last bytes came from either side
        self._closing_at = math.inf  # when the first Close came
        self._full_since = math.inf  # since when the engine has not read what the client sent
        self._full_bytes = 0
        call.stream = True

    # The handshake

    def body_arrived(self, body: bytes) -> None:
        limits = self.limits
        self.call.received(time.monotonic())
        self.engine_request = EngineRequest(self.api, self.request.head, b"")
        self.call.clock = CallTimeLimits(
            limits.websocket_s, limits.first_token_s, queue_s=limits.queue_s, client_total_s=self.request.client_total_s
        )
        self.find_place()

    def _choose_relay(self, head: ResponseHead) -> Relay:
        attempt = self.attempt
        if head.status != 101 or attempt is None or attempt.connection is None:
            return super()._choose_relay(head)
        self._first_token_seen()
        return self._join(attempt.connection, head)

    def _join(self, engine: EngineConnection, head: ResponseHead) -> Relay:
        """Join the connections, because the engine accepted the handshake."""
        now = time.monotonic()
        self._engine, self._last_bytes_at = engine, now
        self.call.progressed(0, now)
        engine.when_full(self._engine_full, self.limits.websocket_buffer_bytes_max)
        answers.switched(self, head)
        early = self._connection.switch(self._client_sent)
        relay = _FrameRelay(self)
        if early:
            self._client_sent(early)
        self._set_due()
        return relay

    # Passing data

    def _client_sent(self, data: bytes) -> None:
        engine, call = self._engine, self.call
        if engine is None or call.ended:
            return
        self._last_bytes_at = time.monotonic()
        call.bytes_in += len(data)
        self._from_client.feed(data)
        engine.transport.write(data)
        if self._from_client.closed:
            self._said_goodbye()

    def engine_sent(self, data: bytes) -> None:
        self._last_bytes_at = self.call.progress_at = time.monotonic()
        self._from_engine.feed(data)
        self._connection.write(data)
        if self._from_engine.closed:
            self._said_goodbye()

    def _said_goodbye(self) -> None:
        """End the call if both sides have sent a Close; else give the other side `websocket_close_s` to answer."""
        if self._from_client.closed and self._from_engine.closed:
            self._completed()
        elif self._closing_at == math.inf:
            self._closing_at = time.monotonic()
            self._set_due()

    def _completed(self) -> None:
        self.call.engine_finished = True
        self.call.client_has_all = True
        self.end(reasons.COMPLETED)

    def _engine_full(self, full: bool) -> None:
        """Stop reading from a client that sends faster than the engine reads, and poll for its hang-up meanwhile."""
        transport = self._connection.transport
        if self.call.ended or transport.is_closing():
            return
        if full:
            self._full_since, self._full_bytes = time.monotonic(), self._unread()
            transport.pause_reading()
            self._set_due()
        else:
            self._full_since = math.inf
            transport.resume_reading()

    def _unread(self) -> int:
        return self._engine.transport.get_write_buffer_size() if self._engine is not None else 0

    # Hang-ups

    def client_left(self, reason: Reason) -> None:
        if self._from_engine.closed:
            self._completed()  # the engine's Close came first, so this is a regular end
        else:
            self.end(reason)

    def engine_left(self) -> bool:
        """Handle the end of the engine's connection; return whether it is a regular end."""
        if self._from_engine.closed:
            self._completed()
        return self._from_engine.closed

    def farewell(self, reason: Reason) -> None:
        """Send the client a Close with the reason, if the gateway ends the call and no frame of the engine's is incomplete."""
        if self._full_since < math.inf and not self._connection.transport.is_closing():
            self._connection.transport.resume_reading()  # the client's own Close is still unread
        if self._engine is None or self._from_engine.closed or not self._from_engine.between:
            return
        if reason.outcome is Outcome.CLIENT_GONE or reason.outcome is Outcome.COMPLETED:
            return
        code = INTERNAL_ERROR if reason.outcome is Outcome.ENGINE_FAILED else GOING_AWAY
        code = POLICY if reason.outcome is Outcome.KILLED else code
        self._connection.write(close_frame(code, reason.code))

    # Time limits

    def _check_limits(self) -> None:
        limits, now = self.limits, time.monotonic()
        if self._engine is None:
            super()._check_limits()
        elif (reason := self.call.overdue(now)) is not None:
            self.end(reasons.WEBSOCKET_TIME if reason is reasons.TOTAL_TIME else reason)
        elif now >= self._closing_at + limits.websocket_close_s:
            self.client_left(reasons.CLIENT_FIN)  # one side sent a Close, and the other did not answer it
        elif now >= self._last_bytes_at + limits.websocket_idle_s:
            self.end(reasons.WEBSOCKET_IDLE)
        elif self._full_since < math.inf and self._connection.has_left():
            self.end(reasons.CLIENT_FIN)
        elif self._engine_stalls(now):
            engine = self._engine
            engine.abort()
            self.engine_lost(engine, TimeoutError("The engine stopped reading from the WebSocket."))
        else:
            self._set_due()

    def _engine_stalls(self, now: float) -> bool:
        if (unread := self._unread()) < self._full_bytes:
            self._full_since, self._full_bytes = (now, unread) if self._full_since < math.inf else (math.inf, 0)
        return now >= self._full_since + self.limits.write_stall_s

    def _set_due(self) -> None:
        limits = self.limits
        due = min(
            self.call.next_due(),
            self._last_bytes_at + limits.websocket_idle_s,
            self._closing_at + limits.websocket_close_s,
        )
        self._connection.set_due(min(due, time.monotonic() + _LOOK_S) if self._full_since < math.inf else due)

    # The end

    def _abort(self, attempt: Attempt, *, keep_place: bool) -> PendingStop | None:
        """Cut the connection at once: no engine knows a WebSocket by the gateway's id, so there is no other abort."""
        connection, attempt.connection = attempt.connection, None
        if connection is not None:
            connection.abort()
        return super()._abort(attempt, keep_place=keep_place)

    def _tell_client(self, ending: Ending) -> None:
        if ending.tell is Tell.ERROR_EVENT and self.call.status == 101:
            self.client.finish()  # the reason is in a Close frame, not in an event
        else:
            super()._tell_client(ending)


class _FrameRelay(Relay):
    """Passes the engine's bytes to the client unchanged."""

    __slots__ = ("_tunnel",)

    def __init__(self, tunnel: WebSocketCall) -> None:
        super().__init__(tunnel, UntilClose(), reasons.COMPLETED)
        self._tunnel = tunnel

    def take(self, payload: bytes) -> None:
        if not self.call.ended:
            self._tunnel.engine_sent(payload)

    def engine_closed(self) -> bool:
        return self._tunnel.engine_left()

    def connection_reusable(self) -> bool:
        return False

    def settle(self) -> None:
        reason = self.call.reason
        assert reason is not None
        self._tunnel.farewell(reason)
