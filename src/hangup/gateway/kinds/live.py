"""A client's call: it respects the client's own timeouts, sends heartbeats while the client waits, and may become a job."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from hangup.core.call import CallTimeLimits
from hangup.core.reasons import Reason
from hangup.gateway import answers
from hangup.gateway.call_flow import CallFlow
from hangup.gateway.engine_request import GenerationRequest
from hangup.gateway.http.head import ResponseHead
from hangup.gateway.jobs.calls import wants_async
from hangup.gateway.kinds.local import LocalRequest
from hangup.gateway.kinds.provider import ProviderRequest
from hangup.gateway.relay.base import Relay

_HEARTBEAT: Final = b": hangup\n\n"


class LiveCall(CallFlow):
    """A call with a client's connection: a hang-up ends it."""

    __slots__ = ()

    def _clock(self, *, to_client: bool, from_engine: bool) -> CallTimeLimits:
        if self.api.media:  # the upload of a file may take long, and has a limit of its own
            return self._time_limits(time.monotonic() - self.call.started_at, to_client=to_client, from_engine=from_engine)
        known, which = self.request.time_limits, (to_client, from_engine)
        found = known.get(which)
        if found is None:
            found = known[which] = self._time_limits(0.0, to_client=to_client, from_engine=from_engine)
        return found

    def _time_limits(self, took_s: float, *, to_client: bool, from_engine: bool) -> CallTimeLimits:
        limits, request = self.limits, self.request
        return CallTimeLimits(
            limits.total_s + took_s,
            # A whole answer shows nothing before its end.
            limits.first_token_s if from_engine else math.inf,
            limits.gap_s if from_engine else math.inf,
            limits.queue_s,
            # A client's read timeout is for the next byte, which for a whole answer is the end.
            request.client_total_s if to_client else min(request.client_total_s, request.client_read_s),
            request.client_read_s if to_client else math.inf,
        )

    def stop_engine(self, reason: Reason) -> None:
        if self.attempt is not None and self._verdict_without_client(reason) is None:
            self.ports.stopping.stop_early(self.attempt)

    def _continue(self) -> None:
        if isinstance(self.engine_request, GenerationRequest):
            if self._defer_if_asked(self.engine_request):
                return
            self._expect_heartbeat(self.engine_request)
        self.find_place()

    def _defer_if_asked(self, engine_request: GenerationRequest) -> bool:
        """Turn the call into a job if its client asks for that; return whether it did."""
        head, jobs = self.request.head, self.ports.jobs
        if b"prefer" not in head.fields and "background" not in engine_request.value:
            return False
        background = bool(engine_request.value.get("background")) and head.path == "/v1/responses"
        if jobs.provider is not None and background:
            ProviderRequest.take_over(self, jobs.provider, engine_request)
            return True
        if jobs.api is None or not (background or wants_async(head.fields)):
            return False
        LocalRequest.take_over(self, jobs.api, engine_request)
        return True

    def _body_receiver(self, relay: Relay, head: ResponseHead) -> Callable[[bytes], None]:
        """Read the id at the beginning of an answer that the engine may store."""
        if head.status != 200 or not self.api.kept_by_engine:
            return relay.feed
        new = True

        def look(data: bytes) -> None:
            nonlocal new
            if new:
                new = False
                self.ports.engine_responses.note(self.call, data, self.limits.engine_responses_max)
            relay.feed(data)

        return look

    # Heartbeats

    def _expect_heartbeat(self, engine_request: GenerationRequest) -> None:
        every_s = self.ports.policy.settings.heartbeat_s
        if every_s and engine_request.ask.stream and self.api.format.data_prefix:
            self.heartbeat = self.ports.loop.call_later(every_s, self._beat)

    def _beat(self) -> None:
        """Send a heartbeat, so that the client and its proxies do not time out during a long prefill."""
        self.heartbeat = None
        try:
            self._send_heartbeat()
        except Exception as error:
            self.fault(error)

    def _send_heartbeat(self) -> None:
        every_s = self.ports.policy.settings.heartbeat_s  # 0: a reload has turned them off
        if self.call.first_token_at is not None or not every_s:
            return
        if not self.call.answering_client:
            answers.begin_stream(self)
        if self._at_event_boundary():
            self.client.send(_HEARTBEAT)
            self.call.client_was_sent(time.monotonic())
        self.heartbeat = self.ports.loop.call_later(every_s, self._beat)
