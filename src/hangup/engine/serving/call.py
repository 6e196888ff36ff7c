"""One HTTP request to the engine, from its body to its answer. A hangup cancels it in the same turn of the event loop."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any, Protocol

import orjson

from hangup.config import TrafficLimits
from hangup.core import reasons
from hangup.core.reasons import Reason
from hangup.engine.engine import Submission
from hangup.engine.options import EngineOptions
from hangup.engine.request import Busy, SubmittedRequest, Unfit
from hangup.engine.runner import EngineRunner
from hangup.engine.serving.answers import AnswerShape
from hangup.errors import Refusal
from hangup.gateway.client.connection import ClientConnection
from hangup.gateway.http import jsonbody
from hangup.gateway.http.answer import encode_head
from hangup.gateway.http.head import Headers

_JSON = b"application/json"


class CallOwner(Protocol):
    """The server that a call belongs to."""

    limits: TrafficLimits
    runner: EngineRunner
    options: EngineOptions

    def add_call(self, call: EngineCall) -> None: ...

    def remove_call(self, call: EngineCall) -> None: ...


class EngineCall:
    """The request handler of a connection. It holds no engine resources once the answer is complete or the client is gone.

    Subclasses define what to submit and how to answer.
    """

    shape: type[AnswerShape] = AnswerShape

    def __init__(self, server: CallOwner, client: ClientConnection, id: str, deadline_s: float = math.inf) -> None:
        """Create the call. `deadline_s` is how long the client will wait for the whole answer."""
        self.id = id
        self._deadline_at = time.monotonic() + deadline_s
        self._timer: asyncio.TimerHandle | None = None
        self.body_bytes_max = server.limits.body_bytes_max
        self.body_s = server.limits.body_s
        self._server = server
        self._client = client
        self._released = False
        self._streaming = False
        self._tickets: list[Submission] = []
        self._structure: jsonbody.Structure | None = None

    # Called by the connection

    def body_piece(self, piece: bytes) -> bool:
        try:
            self._structure = self._structure or jsonbody.Structure(self._server.limits.json_elements_max)
            self._structure.feed(piece)
        except Refusal as refusal:
            self.refuse(refusal.reason, refusal.detail)
        return False

    def body_arrived(self, body: bytes) -> None:
        try:
            limits = self._server.limits
            self._begin(jsonbody.decode(body, self._structure, limits.json_elements_max, limits.json_depth_max))
        except Refusal as refusal:
            self.refuse(refusal.reason, refusal.detail)
        except Busy as busy:
            self.refuse(reasons.QUEUE_FULL, str(busy))
        except Unfit as unfit:
            self.refuse(reasons.BAD_FIELD, str(unfit))

    def stop_engine(self, reason: Reason) -> None:
        self._release()

    def client_left(self, reason: Reason) -> None:
        self._release()

    def refuse(self, reason: Reason, detail: str = "") -> None:
        self._release()
        body = orjson.dumps(self.shape.error(reason.status, reason.code, detail or reason.message))
        retry: Headers = [(b"retry-after", b"1")] if reason is reasons.QUEUE_FULL else []
        respond(self._client, reason.status, body, self.id, extra_headers=retry)

    def fault(self, error: Exception) -> None:
        self._give_up(reasons.ENGINE_ERROR, 500)
        raise error  # the event loop's handler logs it

    def on_due(self) -> None:
        raise AssertionError("a call sets no timer")

    def pause_engine(self) -> None:
        """Compute nothing more while the client does not read. The connection watches how long it stalls."""
        for ticket in self._tickets:
            ticket.pause()

    def resume_engine(self) -> None:
        for ticket in self._tickets:
            ticket.resume()

    def cancel(self) -> None:
        """Cancel every submission, as `POST /v1/cancel/{id}` does; the last event tells the client."""
        for ticket in self._tickets:
            ticket.cancel()

    # The answer

    def _begin(self, body: dict[str, Any]) -> None:
        """Answer, or submit requests whose events arrive later. Raises `Refusal`, `Busy` or `Unfit`."""
        raise NotImplementedError

    def _check_deadline(self, requests: list[SubmittedRequest]) -> None:
        """Refuse requests that cannot finish before the deadline; set a timer that ends the others at the deadline."""
        if self._deadline_at == math.inf:
            return
        remaining_s = self._deadline_at - time.monotonic()
        least_s = self._server.runner.least_s(requests)
        if least_s > remaining_s:
            detail = f"The call takes at least {least_s:.1f} s; its deadline is in {max(remaining_s, 0.0):.1f} s."
            raise Refusal(reasons.DEADLINE_NEAR, detail)
        self._timer = asyncio.get_running_loop().call_later(remaining_s, self._on_deadline)

    def _on_deadline(self) -> None:
        self._timer = None
        if not self._released:
            self._give_up(reasons.CLIENT_DEADLINE)

    def _finish_call(self) -> None:
        """Release the call after every submission has ended. The caller still has to finish the answer."""
        self._released = True
        self._stop_timer()
        self._server.remove_call(self)

    def _give_up(self, reason: Reason, status: int = 0) -> None:
        self._release()
        error = status or reason.status, reason.code, reason.message
        if self._streaming:
            self._client.send(self.shape.error_event(*error))
            self._client.break_off()
        else:
            respond(self._client, error[0], orjson.dumps(self.shape.error(*error)), self.id)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _release(self) -> None:
        """Abandon an incomplete call: cancel each submission once. Every path that gives up a call goes through here."""
        if not self._released:
            self._released = True
            self._stop_timer()
            self.cancel()
            self._server.remove_call(self)


def respond(
    client: ClientConnection, status: int, body: bytes, id: str, kind: bytes = _JSON, extra_headers: Headers | None = None
) -> None:
    headers: Headers = [
        (b"content-type", kind),
        (b"content-length", b"%d" % len(body)),
        *(extra_headers or []),
        *closing_headers(client, id),
    ]
    client.begin(encode_head(status, headers), chunked=False)
    client.send(body)
    client.finish()


def closing_headers(client: ClientConnection, id: str) -> Headers:
    headers: Headers = [(b"server", b"hangup-engine"), (b"x-request-id", id.encode("ascii"))]
    if client.will_close:
        headers.append((b"connection", b"close"))
    elif not client.http11:
        headers.append((b"connection", b"keep-alive"))
    return headers
