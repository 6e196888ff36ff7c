"""Passes requests about jobs to a hosted provider unchanged, and reads the answers in passing.

Such a request skips the queue: only one backend can answer it, and the provider decides when a job runs. The answers show which
jobs exist and what their status is; `jobs.provider` follows these jobs.
"""

from __future__ import annotations

import time
from typing import Final

from hangup.core import reasons
from hangup.core.admission import Ticket
from hangup.core.call import Call, CallTimeLimits
from hangup.core.jobs import Kind
from hangup.core.reaper import PendingStop
from hangup.core.reasons import Outcome, Reason
from hangup.errors import Refusal
from hangup.gateway.apis import hosted_jobs
from hangup.gateway.apis.hosted_jobs import ProviderAnswer, ProviderRequestKind, Target
from hangup.gateway.call_flow import CallFlow
from hangup.gateway.client.connection import ClientConnection
from hangup.gateway.client_request import FlowPorts
from hangup.gateway.engine_request import EngineRequest, GenerationRequest
from hangup.gateway.http.body import BodyDecoder
from hangup.gateway.http.head import RequestHead, ResponseHead
from hangup.gateway.http.sse import SSE, Splitter
from hangup.gateway.jobs.calls import lease_of
from hangup.gateway.jobs.http_messages import parse_query
from hangup.gateway.jobs.provider import Provider, ProviderAccount, ProviderRecord
from hangup.gateway.kinds.question import ForwardedRequest
from hangup.gateway.placement import Placed
from hangup.gateway.relay.passthrough import PassRelay
from hangup.gateway.request_policy import IncomingRequest
from hangup.gateway.stopping import Attempt

_KEPT_BYTES_MAX: Final = 1024 * 1024  # of an answer, to read the job from
_FORM_BYTES_MAX: Final = 64 * 1024  # of a form, apart from its file


def target_of(head: RequestHead) -> tuple[Target, bool]:
    """Return what a request on one of the provider's paths is about, and whether it asks for a stream."""
    if "%" in head.path or "//" in head.path:  # an id in another spelling: the same job there, but another one here
        raise Refusal(reasons.NOT_FOUND)
    target = hosted_jobs.target_of(head.method, head.path)
    return target, target.what is ProviderRequestKind.LOOK and parse_query(head.query).get("stream") == "true"


class ProviderRequest(ForwardedRequest):
    """A request that goes to the one backend that has the job."""

    __slots__ = (
        "_backend",
        "_events",
        "_held_bytes",
        "_job",
        "_kept",
        "_lease_s",
        "_listening",
        "_owner",
        "_provider",
        "_read_bytes",
        "_status",
        "_stream",
        "_target",
    )

    def __init__(
        self,
        ports: FlowPorts,
        connection: ClientConnection,
        call: Call,
        request: IncomingRequest,
        provider: Provider,
        target: Target,
        *,
        stream: bool,
    ) -> None:
        super().__init__(ports, connection, call, request)
        head, limits, tenant = request.head, self.limits, call.tenant
        self._provider = provider
        self._target = target
        self._stream = stream
        self._job = provider.find(target.id) if target.id else None
        if self._job is not None and self._job.made_here and self._job.tenant != tenant:
            raise Refusal(reasons.NOT_FOUND, f"There is no {target.id[:80]!r}.")
        if target.what is ProviderRequestKind.CREATE:
            provider.check_quota(tenant)
        # A job from before a restart may be another client's: whoever asks for it must not shorten its life.
        may_lease = target.kind is Kind.RESPONSE and (self._job is None or self._job.made_here)
        self._lease_s = lease_of(head.fields, limits) if may_lease else None
        backend = provider.backend_for(target.kind, self._job)
        if backend is None:
            raise Refusal(reasons.NO_BACKEND)
        self._backend = backend
        self._owner = ProviderAccount.of(tenant, head, backend, keyed=request.keyed)
        self._status = 0  # of the provider's answer; 0 until then
        self._kept = bytearray()
        self._events: Splitter | None = None  # set if the answer is a stream of events
        self._read_bytes = 0
        self._listening: ProviderRecord | None = None
        self._held_bytes = 0
        self._expect_body(head)
        # A stream of events lasts as long as the job, and holds the job's lease.
        total_s = max(limits.total_s, limits.job_lease_max_s) if stream else self.body_s + limits.total_s
        call.clock = CallTimeLimits(total_s, client_total_s=request.client_total_s)
        self.ends_on_drain = stream

    def _expect_body(self, head: RequestHead) -> None:
        """Set the limits for the body, and reserve memory if it uploads a file."""
        limits, upload = self.limits, hosted_jobs.is_upload(head.method, head.path)
        self.body_bytes_max = limits.file_bytes_max + _FORM_BYTES_MAX if upload else limits.body_bytes_max
        self.body_s = limits.upload_s if upload else self.body_s
        if upload:
            size = head.content_length if head.content_length is not None else self.body_bytes_max
            self._held_bytes = self._provider.reserve_upload(min(size, self.body_bytes_max))

    @classmethod
    def take_over(cls, flow: CallFlow, provider: Provider, engine_request: GenerationRequest) -> None:
        """Take over a call that creates a background response."""
        connection, target = flow.client, Target(ProviderRequestKind.CREATE, Kind.RESPONSE)
        assert isinstance(connection, ClientConnection)
        try:
            request = cls(flow.ports, connection, flow.call, flow.request, provider, target, stream=engine_request.ask.stream)
        except Refusal as refusal:
            flow.end(refusal.reason, refusal.detail)
            return
        flow.hand_over(connection, request)
        request.forward(request._backend, EngineRequest(flow.api, flow.request.head, engine_request.body))

    # Called by the connection

    def body_arrived(self, body: bytes) -> None:
        self.call.received(time.monotonic())
        self.call.bytes_in = len(body)
        self.forward(self._backend, EngineRequest(self.api, self.request.head, body))

    def refuse(self, reason: Reason, detail: str = "") -> None:
        self.end(reason, detail)

    # The provider's answer

    def _make_relay(self, head: ResponseHead, final: Reason) -> PassRelay:
        self._status = head.status
        if self._accepted and head.fields.get(b"content-type", b"").lower().startswith(SSE.content_type):
            self._events = Splitter(SSE, _KEPT_BYTES_MAX * 2)
            if self._job is not None:
                self._listen(self._job)
        return _OverheardRelay(self, self.engine_request.decoder(head), final)

    def overhear(self, payload: bytes) -> None:
        """Keep the beginning of an answer, which is all of most answers, or read its events."""
        self._read_bytes += len(payload)
        if self._read_bytes > _KEPT_BYTES_MAX or self._listening is not None:
            return
        if self._events is None:
            self._kept += payload
            return
        for event in self._events.feed(payload):
            if self._job is None:
                self._note(hosted_jobs.read_event(event))
        if self._job is not None:
            self._listen(self._job)

    def _repeatable(self) -> bool:
        """Return True only for reads: the provider may have created a job before it closed the connection, and a retry would
        create a second one, while nobody knows the first."""
        return self.request.head.method in ("GET", "HEAD")

    # The end

    def _abort(self, attempt: Attempt, *, keep_place: bool) -> PendingStop | None:
        """Stop the provider's work; if it may have created a job, wait for the answer, which has the id to cancel it by."""
        target, reason, connection = self._target, self.call.reason, attempt.connection
        creates = target.what is ProviderRequestKind.CREATE and target.kind is not None and bool(attempt.key)
        gave_up = reason is not None and reason.outcome is not Outcome.ENGINE_FAILED
        if not creates or not gave_up or connection is None or self._status:
            return super()._abort(attempt, keep_place=keep_place)
        assert target.kind is not None
        attempt.connection = None
        self._provider.cancel_after_disconnect(
            connection, target.kind, attempt.backend, self._owner, self._lease_s, stream=self._stream
        )
        return None

    def _record_cost(self, ticket: Ticket[Placed] | None) -> None:
        self._provider.held_bytes -= self._held_bytes
        self.ports.log.guard(self.call.id, self._learn)  # a bug here must not keep the call out of the ledger
        super()._record_cost(ticket)

    def _learn(self) -> None:
        """Update the job with what the call has shown about it."""
        job, provider = self._job, self._provider
        if self._listening is not None:
            provider.set_listening(self._listening, on=False)
            return
        match self._target.what:
            case ProviderRequestKind.CANCEL:
                self._learn_of_cancel()
            case ProviderRequestKind.DELETE if job is not None and self._accepted:
                provider.mark_gone(job)
            case ProviderRequestKind.CREATE | ProviderRequestKind.LOOK if self._accepted:
                answer = self._read_answer()
                self._note(answer)
                if answer is None and self._target.what is ProviderRequestKind.CREATE and self._target.kind is not None:
                    provider.log_unfollowed(self._target.kind, self._backend, self._owner, "its answer has an unknown format")

    def _learn_of_cancel(self) -> None:
        job, answer = self._job, self._read_answer() if self._accepted else None
        if job is None and answer is not None:
            job = self._follow(answer)
        if job is None or self.call.sent_at is None:
            return
        if self._accepted or not 400 <= self._status < 500:  # a refused cancellation changes nothing
            self._provider.note_client_cancel(job, self._owner, accepted=self._accepted)

    @property
    def _accepted(self) -> bool:
        return 200 <= self._status < 300

    def _listen(self, job: ProviderRecord) -> None:
        self._listening = job
        self._provider.renew_lease(job, self._owner)
        self._provider.set_listening(job, on=True)

    def _read_answer(self) -> ProviderAnswer | None:
        kind = self._target.kind
        return hosted_jobs.read_answer(kind, bytes(self._kept)) if kind is not None else None

    def _note(self, answer: ProviderAnswer | None) -> None:
        job = self._job
        if job is not None:
            self._provider.renew_lease(job, self._owner)
        if answer is None:
            return
        if job is not None:
            self._provider.update(job, answer)
        else:
            self._job = self._follow(answer)

    def _follow(self, answer: ProviderAnswer) -> ProviderRecord | None:
        """Follow a job that is new, or that was created before a restart; return None if it need not be followed."""
        kind = self._target.kind
        if kind is None or answer.status.ended or not (answer.detached or self._target.what is ProviderRequestKind.CREATE):
            return None
        known = self._provider.find(answer.id)
        made_here = self._target.what is ProviderRequestKind.CREATE
        return known or self._provider.follow(answer, kind, self._backend, self._owner, self._lease_s, made_here=made_here)


class _OverheardRelay(PassRelay):
    """Passes the answer on, and also gives it to the request to read."""

    __slots__ = ("_request",)

    def __init__(self, request: ProviderRequest, decoder: BodyDecoder, final: Reason) -> None:
        super().__init__(request, decoder, final, None)
        self._request = request

    def take(self, payload: bytes) -> None:
        super().take(payload)
        self._request.overhear(payload)
