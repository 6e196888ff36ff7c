"""Requests that skip the queue and take no place in an engine.

A question needs no inference: an engine's version, the tokens of a text, a response that the engine stores, a browser's
preflight. It goes to a healthy backend at once, so that it is answered even if every place is taken. The gateway may not
know which backend has the answer: if one answers 404, it asks the next.
"""

from __future__ import annotations

import time
from random import random
from typing import Final

from hangup.core import reasons
from hangup.core.call import Call, CallTimeLimits
from hangup.core.reaper import PendingStop
from hangup.core.reasons import Reason
from hangup.errors import Refusal
from hangup.gateway import answers
from hangup.gateway.apis.resources import ANTHROPIC_MODELS, ModelsApi
from hangup.gateway.backends.backend import Backend
from hangup.gateway.call_flow import CallFlow
from hangup.gateway.client.connection import ClientConnection
from hangup.gateway.client_request import FlowPorts
from hangup.gateway.engine_request import FAILED_STATUSES, EngineRequest
from hangup.gateway.http.head import ResponseHead
from hangup.gateway.relay.base import Relay
from hangup.gateway.relay.passthrough import PassRelay
from hangup.gateway.request_policy import IncomingRequest
from hangup.gateway.routing import Wanted
from hangup.gateway.stopping import Attempt

_BACKENDS_MAX: Final = 16  # asked for one answer, at most
_RESPONSES: Final = "/v1/responses/"


class ForwardedRequest(CallFlow):
    """A request that skips the queue and goes unchanged to a backend of its own choice; the status is not changed either."""

    can_move = False

    __slots__ = ("_connection",)

    def __init__(self, ports: FlowPorts, connection: ClientConnection, call: Call, request: IncomingRequest) -> None:
        super().__init__(ports, connection, call, request)
        self._connection = connection

    def body_piece(self, piece: bytes) -> bool:
        return False

    def forward(self, backend: Backend, engine_request: EngineRequest) -> None:
        """Send the request to a backend."""
        self.engine_request = engine_request
        self.placed(backend)

    def _next_backend(self, status: int = 0) -> Backend | None:
        """Return another backend to ask, after the current one failed or answered `status`; None if there is none."""
        return None

    def _wait_for_room(self, head: ResponseHead) -> bool:
        return False

    def _skip_backend(self) -> bool:
        if self._next_backend(404) is None:
            return False
        self._abort_attempt()
        self._try_again()
        return True

    def _may_fail_over(self) -> bool:
        return self._next_backend() is not None  # the request may be about something that only this backend has

    def _place_again(self) -> None:
        backend = self._next_backend()
        assert backend is not None  # `_may_fail_over` was asked before
        self.placed(backend)

    def _choose_relay(self, head: ResponseHead) -> Relay:
        final = reasons.ENGINE_ERROR if head.status in FAILED_STATUSES else reasons.COMPLETED
        answers.begin(self, head.status, head, False)
        return self._make_relay(head, final)

    def _make_relay(self, head: ResponseHead, final: Reason) -> PassRelay:
        return PassRelay(self, self.engine_request.decoder(head), final, None)


class EngineQuestion(ForwardedRequest):
    """A question that any backend with the model can answer."""

    __slots__ = ("_eligible", "_tried")

    def __init__(self, ports: FlowPorts, connection: ClientConnection, call: Call, request: IncomingRequest) -> None:
        super().__init__(ports, connection, call, request)
        self._tried: set[str] = set()
        self._eligible: frozenset[str] | None = None  # the backends that have its model; None: any

    def body_arrived(self, body: bytes) -> None:
        self.call.received(time.monotonic())
        self.ask(body)

    def ask(self, body: bytes) -> None:
        """Answer a request for the list of models here if possible; send any other request to the first backend."""
        request = self.request
        self.call.bytes_in = len(body)
        patience_s = min(request.client_total_s, request.client_read_s)
        self.call.clock = CallTimeLimits(self.limits.total_s, client_total_s=patience_s)
        try:
            models = self._list_models()
        except Refusal as refusal:
            self.end(refusal.reason, refusal.detail)
            return
        if models is not None:
            headers = self.ports.origins.headers(request.head)
            answers.own_answer(self, 200, b"application/json", headers, models)
            self.end(reasons.COMPLETED)
            return
        engine_request = EngineRequest(self.api, request.head, body)
        self.call.model = engine_request.named_model(self.limits.name_bytes_max)
        self._find_eligible(engine_request)
        backend = self._choose()
        if backend is None:
            self.end(reasons.NO_BACKEND)
        else:
            self.forward(backend, engine_request)

    def _list_models(self) -> bytes | None:
        routing, head = self.ports.routing, self.request.head
        if not routing.answers_models or not isinstance(self.api, ModelsApi):
            return None
        anthropic = b"anthropic-version" in head.fields
        if anthropic:
            self.api = ANTHROPIC_MODELS
        return routing.list_models(head, self.api.family, anthropic=anthropic)

    def _find_eligible(self, engine_request: EngineRequest) -> None:
        """Find the backends that have the model; if none is known to, any backend may be asked."""
        routing = self.ports.routing
        if not routing.reads_bodies:
            return
        model = engine_request.model(search=True)
        if len(model) > self.limits.name_bytes_max:
            return
        found = routing.find(Wanted(self.api.family, model))
        if found.alias:
            engine_request.renamed = self.call.model = found.model
        self._eligible = found.eligible or None

    def _next_backend(self, status: int = 0) -> Backend | None:
        self._tried.add(self.call.backend)
        return self._choose(last_resort=not status)  # passing an answer on is better than a failed attempt

    def _choose(self, *, last_resort: bool = True) -> Backend | None:
        """Choose the least busy healthy backend; as a `last_resort`, also one that is down."""
        backends = self.ports.backends.by_name
        names = [name for name in self._eligible or backends if name in backends and name not in self._tried]
        loads = [backends[name].load for name in names]
        if not last_resort:
            loads = [load for load in loads if load.health.up]
        if not loads or len(self._tried) >= _BACKENDS_MAX:
            return None
        tie = random()  # noqa: S311 (nobody gains by guessing it)
        at = int(tie * len(loads))
        best = min(
            loads[at:] + loads[:at], key=lambda load: (not load.health.well, not load.health.up, load.in_flight / load.weight)
        )
        return backends[best.name]

    def _abort(self, attempt: Attempt, *, keep_place: bool) -> PendingStop | None:
        """Cut the connection. No work remains in the engine, so the reaper is not involved."""
        self.ports.stopping.withdraw(attempt)
        return None


class ResponseQuestion(EngineQuestion):
    """A question about a response that an engine stores: the backend that made it is asked first."""

    __slots__ = ("_maker",)

    def __init__(self, ports: FlowPorts, connection: ClientConnection, call: Call, request: IncomingRequest) -> None:
        super().__init__(ports, connection, call, request)
        id = request.head.path.removeprefix(_RESPONSES).partition("/")[0]
        self._maker = ports.backends.by_name.get(ports.engine_responses.maker(id, call.tenant))

    def _choose(self, *, last_resort: bool = True) -> Backend | None:
        if self._maker is not None and not self._tried:
            return self._maker
        return super()._choose(last_resort=last_resort)


class Preflight(EngineQuestion):
    """A browser's question whether a page of another site may send a request: the engine decides."""

    __slots__ = ()

    def _make_relay(self, head: ResponseHead, final: Reason) -> PassRelay:
        self.ports.origins.learn(self.request.head.fields[b"origin"], head)
        return super()._make_relay(head, final)
