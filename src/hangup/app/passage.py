"""A request about jobs that a hosted provider answers: passed as it is, and overheard.

It stands between the client's connection and the exchange, as a `Visit` does where the gateway answers itself. The call goes
past the queue: one backend alone can answer it, and when a job runs is for the provider to say. What passes tells which jobs
there are and how they stand; `jobs.provider` follows them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hangup.apis import hosted_jobs
from hangup.apis.base import Ask
from hangup.apis.hosted_jobs import Target, Told, What
from hangup.app.carried import PassedOn
from hangup.app.relay import PassRelay
from hangup.core import reasons
from hangup.core.call import Clock
from hangup.core.jobs import Kind
from hangup.core.reasons import Outcome, Reason
from hangup.engines.backend import Backend
from hangup.engines.connection import EngineConnection
from hangup.errors import Refusal
from hangup.jobs.calls import lease_of
from hangup.jobs.http import parse_query
from hangup.jobs.provider import Owner, Provider, ProviderJob
from hangup.wire.body import Decoder
from hangup.wire.head import ResponseHead
from hangup.wire.sse import SSE, Splitter

if TYPE_CHECKING:
    from hangup.app.exchange import Exchange

_KEPT_BYTES_MAX = 1024 * 1024  # of an answer, to be understood
_FORM_BYTES_MAX = 64 * 1024  # what a form has around its file


class Passage(PassedOn):
    def __init__(self, exchange: Exchange, provider: Provider, target: Target, *, stream: bool) -> None:
        head, limits, tenant = exchange.head, exchange.limits, exchange.call.tenant
        assert head is not None
        super().__init__(exchange)
        self._provider = provider
        self._target = target
        self._stream = stream
        self._job = provider.find(target.id) if target.id else None
        if self._job is not None and self._job.tenant != tenant:
            raise Refusal(reasons.NOT_FOUND, f"There is no {target.id[:80]!r}.")
        if target.what is What.CREATE:
            provider.check_quota(tenant)
        self._lease_s = lease_of(head.fields, limits) if target.kind is Kind.RESPONSE else None
        backend = provider.home(target.kind, self._job)
        if backend is None:
            raise Refusal(reasons.NO_BACKEND)
        self._backend = backend
        self._owner = Owner.of(tenant, head, backend, keyed=exchange.keyed)
        self._status = 0  # the provider's
        self._kept = bytearray()
        self._events: Splitter | None = None  # there is one if the answer is a stream of them
        self._heard_bytes = 0
        self._listening: ProviderJob | None = None
        upload = hosted_jobs.is_upload(head.method, head.path)
        self.body_bytes_max = limits.file_bytes_max + _FORM_BYTES_MAX if upload else limits.body_bytes_max
        self.body_s = limits.upload_s if upload else exchange.body_s
        self._held_bytes = 0
        if upload:
            size = head.content_length if head.content_length is not None else self.body_bytes_max
            self._held_bytes = provider.hold(min(size, self.body_bytes_max))
        # A stream of events lasts as long as the job, whose lease it holds.
        total_s = max(limits.total_s, limits.job_lease_max_s) if stream else self.body_s + limits.total_s
        exchange.call.clock = Clock(total_s, client_total_s=exchange.client_total_s)
        exchange.listens = stream
        exchange.passage = self

    @classmethod
    def begin(cls, exchange: Exchange, provider: Provider) -> Passage | None:
        """A request for one of the provider's paths; None when it was refused."""
        head = exchange.head
        assert head is not None
        if (
            "%" in head.path or "//" in head.path
        ):  # another spelling of an id would be another job to us, and the same one there
            exchange.end(reasons.NOT_FOUND)
            return None
        target = hosted_jobs.target_of(head.method, head.path)
        stream = target.what is What.LOOK and parse_query(head.query).get("stream") == "true"
        try:
            return cls(exchange, provider, target, stream=stream)
        except Refusal as refusal:
            exchange.end(refusal.reason, refusal.detail)
            return None

    @classmethod
    def background(cls, exchange: Exchange, provider: Provider, ask: Ask, body: bytes) -> None:
        """A response that its client does not wait for."""
        try:
            passage = cls(exchange, provider, Target(What.CREATE, Kind.RESPONSE), stream=ask.stream)
        except Refusal as refusal:
            exchange.end(refusal.reason, refusal.detail)
        else:
            exchange.pass_on(passage._backend, body)

    # From the connection

    def body_arrived(self, body: bytes) -> None:
        self._exchange.call.received(time.monotonic())
        self._exchange.pass_on(self._backend, body)

    # From the exchange

    def relay(self, decoder: Decoder, final: Reason, head: ResponseHead) -> PassRelay:
        self._status = head.status
        if self._accepted and head.fields.get(b"content-type", b"").lower().startswith(SSE.content_type):
            self._events = Splitter(SSE, _KEPT_BYTES_MAX * 2)
            if self._job is not None:
                self._listen(self._job)
        return _Overheard(self, self._exchange, decoder, final)

    def overhear(self, payload: bytes) -> None:
        """Looks at the beginning of an answer, which is all of most of them."""
        self._heard_bytes += len(payload)
        if self._heard_bytes > _KEPT_BYTES_MAX or self._listening is not None:
            return
        if self._events is None:
            self._kept += payload
            return
        for event in self._events.feed(payload):
            if self._job is None:
                self._note(hosted_jobs.heard_event(event))
        if self._job is not None:
            self._listen(self._job)

    @property
    def repeatable(self) -> bool:
        """A provider that closes a connection may have made a job of it: two of them would run, and one be unknown."""
        head = self._exchange.head
        return head is not None and head.method in ("GET", "HEAD")

    def stays(self, backend: Backend, connection: EngineConnection | None) -> bool:
        """The call ends before the provider has answered: whether its answer is still waited for."""
        target, reason = self._target, self._exchange.call.reason
        if target.what is not What.CREATE or target.kind is None or connection is None or self._status:
            return False
        if reason is None or reason.outcome is Outcome.ENGINE_FAILED:
            return False
        self._provider.hear_out(connection, target.kind, backend, self._owner, self._lease_s, stream=self._stream)
        return True

    def over(self) -> None:
        """The call has ended, one way or another."""
        self._provider.held_bytes -= self._held_bytes
        try:
            self._learn()
        except Exception as error:  # a bug of ours, which must not cost the call its place in the books
            self._exchange.gateway.log.fault(error, self._exchange.call.id)

    def _learn(self) -> None:
        """What is known now of the job that the call was about."""
        job, provider = self._job, self._provider
        if self._listening is not None:
            provider.listened(self._listening, on=False)
            return
        match self._target.what:
            case What.CANCEL:
                self._learn_of_cancel()
            case What.DELETE if job is not None and self._accepted:
                provider.gone(job)
            case What.CREATE | What.LOOK if self._accepted:
                told = self._told()
                self._note(told)
                if told is None and self._target.what is What.CREATE and self._target.kind is not None:
                    provider.unheard(self._target.kind, self._backend, self._owner, "its answer was not understood")

    def _learn_of_cancel(self) -> None:
        job, told = self._job, self._told() if self._accepted else None
        if job is None and told is not None:
            job = self._follow(told)
        if job is None or self._exchange.call.sent_at is None:
            return
        if self._accepted or not 400 <= self._status < 500:  # what was refused changes nothing
            self._provider.cancel_passed(job, self._owner, taken=self._accepted)

    @property
    def _accepted(self) -> bool:
        return 200 <= self._status < 300

    def _listen(self, job: ProviderJob) -> None:
        self._listening = job
        self._provider.cared_for(job, self._owner)
        self._provider.listened(job, on=True)

    def _told(self) -> Told | None:
        kind = self._target.kind
        return hosted_jobs.heard(kind, bytes(self._kept)) if kind is not None else None

    def _note(self, told: Told | None) -> None:
        job = self._job
        if job is not None:
            self._provider.cared_for(job, self._owner)
        if told is None:
            return
        if job is not None:
            self._provider.saw(job, told)
        else:
            self._job = self._follow(told)

    def _follow(self, told: Told) -> ProviderJob | None:
        """One that we have not heard of: new, or from before a restart."""
        kind = self._target.kind
        if kind is None or told.status.ended or not (told.detached or self._target.what is What.CREATE):
            return None
        known = self._provider.find(told.id)
        return known or self._provider.follow(told, kind, self._backend, self._owner, self._lease_s)


class _Overheard(PassRelay):
    """Passes the answer on, and lets the passage listen."""

    __slots__ = ("_passage",)

    def __init__(self, passage: Passage, exchange: Exchange, decoder: Decoder, final: Reason) -> None:
        super().__init__(exchange, decoder, final, None)
        self._passage = passage

    def take(self, payload: bytes) -> None:
        super().take(payload)
        self._passage.overhear(payload)
