"""Opens a call of the right kind for each request's head, or refuses the request, before any of its body is read."""

from __future__ import annotations

import ssl
import time
from typing import Final

from hangup.config import TrafficLimits
from hangup.core import reasons
from hangup.core.call import Call
from hangup.core.reasons import Reason
from hangup.errors import Refusal
from hangup.gateway.apis.engine_paths import HEALTH
from hangup.gateway.apis.routes import PassThroughApi
from hangup.gateway.client.connection import ClientConnection
from hangup.gateway.client_request import ClientRequest, FlowPorts
from hangup.gateway.cors import is_preflight
from hangup.gateway.http.head import RequestHead
from hangup.gateway.http.websocket import is_handshake
from hangup.gateway.kinds.live import LiveCall
from hangup.gateway.kinds.local import LocalRequest, ServerOptions
from hangup.gateway.kinds.provider import ProviderRequest, target_of
from hangup.gateway.kinds.question import EngineQuestion, Preflight, ResponseQuestion
from hangup.gateway.kinds.websocket import WebSocketCall, check_origin
from hangup.gateway.probe import Probe
from hangup.gateway.registry import ClientConnections
from hangup.gateway.request_policy import IncomingRequest, allowed_methods
from hangup.gateway.tracing import TRACEPARENT

_UNREADABLE: Final = RequestHead(b"GET / HTTP/1.1\r\nhost: unknown\r\n\r\n", count_max=1, url_bytes_max=1)


class Intake(ClientConnections):
    """Owns the clients' connections, and opens a call for each of their requests."""

    def __init__(self, ports: FlowPorts) -> None:
        super().__init__(ports.policy.limits)
        self.tls: ssl.SSLContext | None = None  # for the data port
        self.half_close_is_hangup = True
        self.draining = False
        self.ends = ports.ends
        self.ends.clients = self.open_connections
        self._ports = ports

    def configure(self, limits: TrafficLimits, half_close: str) -> None:
        self.limits = limits
        self.half_close_is_hangup = half_close == "hangup"

    def why_not_ready(self) -> Reason | None:
        """Return why a new call could not be served now, as far as known; None if it could."""
        if self.draining:
            return reasons.DRAINING
        return None if self._ports.backends.any_ready() else reasons.NO_BACKEND

    def open(self, connection: ClientConnection, head: RequestHead) -> ClientRequest | Probe | None:
        """Open the call for a request; return None if the request was refused."""
        ports = self._ports
        route = ports.policy.router.find(head.path)
        if route is not None and route.api is HEALTH and head.method in allowed_methods(route):
            return Probe(connection, self.limits, ports.log, self.why_not_ready)
        request = IncomingRequest(head, ports.policy.limits, route)
        call = Call(ports.policy.ids.of(head, ports.registry.live), time.monotonic(), connection.peer)
        if ports.accounting.tracer is not None or b"traceparent" in head.fields:
            self._trace(call, head)
        try:
            if route is not None:
                call.route = route.api.name
            flow = self._choose_kind(connection, call, request)
        except Refusal as refusal:
            self._refuse(connection, call, request, refusal)
            return None
        except Exception as error:  # nothing else would end the call
            LiveCall(ports, connection, call, request).fault(error)
            return None
        ports.registry.add(flow)
        return flow

    def refuse_unreadable(self, connection: ClientConnection, reason: Reason, detail: str) -> None:
        """Refuse a request that could not be parsed, and close its connection."""
        ports = self._ports
        call = Call(ports.policy.ids.new(), time.monotonic(), connection.peer)
        self._refuse(connection, call, IncomingRequest(_UNREADABLE, ports.policy.limits, None), Refusal(reason, detail))

    def _trace(self, call: Call, head: RequestHead) -> None:
        """Join the client's trace, or begin a new one."""
        traceparent = head.fields.get(b"traceparent")
        if traceparent is not None and (match := TRACEPARENT.fullmatch(traceparent)):
            call.trace_id = match["trace"].decode("ascii")
        if self._ports.accounting.tracer is not None:
            self._ports.accounting.tracer.begin(call, traceparent, head.method, head.path)

    def _refuse(self, connection: ClientConnection, call: Call, request: IncomingRequest, refusal: Refusal) -> None:
        if refusal.reason is reasons.DRAINING:
            connection.close_after_this()  # on a kept connection, the client's next request would find no server
        LiveCall(self._ports, connection, call, request).refuse(refusal.reason, refusal.detail)

    def _choose_kind(self, connection: ClientConnection, call: Call, request: IncomingRequest) -> ClientRequest:
        """Return a call of the kind that the request needs; raise a `Refusal` if it is not allowed."""
        ports, head = self._ports, request.head
        if head.path == "*":
            return ServerOptions(ports, connection, call, request)
        if self.draining:
            raise Refusal(reasons.DRAINING)
        route = ports.policy.admit(request, call)
        api = route.api
        if head.method == "OPTIONS" and is_preflight(head):
            return Preflight(ports, connection, call, request)
        if route.websocket and is_handshake(head):
            check_origin(head, ports.policy.settings.websocket_origins)
            return WebSocketCall(ports, connection, call, request)
        if api.about_jobs:
            return self._about_jobs(connection, call, request)
        # Requests that need no inference take no place in an engine.
        is_question = api.question or (isinstance(api, PassThroughApi) and head.method in ("GET", "HEAD"))
        flow = (EngineQuestion if is_question else LiveCall)(ports, connection, call, request)
        if api.media:
            flow.held_bytes = ports.uploads.hold(head, flow.body_bytes_max, self.limits.media_held_bytes_max)
        return flow

    def _about_jobs(self, connection: ClientConnection, call: Call, request: IncomingRequest) -> ClientRequest:
        """Choose who answers a request about jobs: the provider that runs them, an engine, or the gateway."""
        ports, jobs = self._ports, self._ports.jobs
        if jobs.provider is not None:
            target, stream = target_of(request.head)
            return ProviderRequest(ports, connection, call, request, jobs.provider, target, stream=stream)
        if jobs.api is None and request.api.engine_may_have:
            return ResponseQuestion(ports, connection, call, request)
        if jobs.api is None:
            raise Refusal(reasons.JOBS_UNAVAILABLE)
        local = LocalRequest(ports, connection, call, request, jobs.api)
        local.start()
        return local
