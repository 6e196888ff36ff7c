"""Requests to engines: a body that is passed on unchanged, or a generation, which is parsed, capped and counted.

A request tells admission its size (`prompt_tokens`, `choices` and so on), encodes itself for an engine (`encode`), and chooses
the relay for its answer (`relay`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

from hangup.config import CallLimits
from hangup.core import reasons
from hangup.core.admission import Ticket
from hangup.core.call import Call
from hangup.gateway import answers
from hangup.gateway.apis import media, model_field
from hangup.gateway.apis.base import Api, Ask, Json
from hangup.gateway.apis.inputs import count as count_inputs
from hangup.gateway.apis.routes import UNKNOWN
from hangup.gateway.backends.connection import body_decoder
from hangup.gateway.http import jsonbody
from hangup.gateway.http.body import BodyDecoder, Counted
from hangup.gateway.http.head import RequestHead, ResponseHead
from hangup.gateway.placement import BackendNames, Placed
from hangup.gateway.relay.assemble import AssembleRelay
from hangup.gateway.relay.base import Relay, RelaySink
from hangup.gateway.relay.passthrough import ErrorRelay, PassRelay
from hangup.gateway.relay.stream import StreamRelay
from hangup.gateway.request_policy import IncomingRequest, check_model_name, client_kind
from hangup.gateway.stopping import Attempt
from hangup.gateway.trace_attributes import request_attributes

# Another backend may answer instead. 501 and 505 are missing, because they are about the request itself.
FAILED_STATUSES: Final = frozenset([500, 502, 503, 504])
_NO_VALUE: Json = {}


class AnsweredSink(RelaySink, answers.Answered, Protocol):
    """A call that an engine has answered."""


class EngineRequest:
    """A request whose body is passed on without being parsed: embeddings, audio, and all other paths."""

    __slots__ = (
        "_body",
        "_head",
        "api",
        "blind",
        "choices",
        "files",
        "output_max",
        "renamed",
        "streams",
        "streams_unasked",
        "whole",
    )

    def __init__(self, api: Api, head: RequestHead, body: bytes) -> None:
        self.api = api
        self.renamed = ""  # the model's real name, if the client used an alias
        self.files = 0  # images and other files in the prompt
        self.choices = 1  # answers requested,
        self.output_max = 0  # and the maximum of tokens in each
        self.blind = not api.sized  # True if the answer arrives all at once, after an unpredictable time
        self.whole = api.sized  # True if the answer arrives all at once, after a time that depends on the input's size
        self.streams = False  # True if the engine is asked to stream,
        self.streams_unasked = False  # although the client wants a whole answer
        self._head = head
        self._body = body

    # For the admission

    def prompt_tokens(self, estimate: Callable[[int], int]) -> int:
        """Estimate the prompt's tokens. The size of a file says nothing about them."""
        if self.api.media:
            self.files = 1
            return estimate(0)
        return estimate(len(self._body))

    def ticket(
        self, flow: Placed, eligible: BackendNames, estimate: Callable[[int], int], *, job: bool, yields: int
    ) -> Ticket[Placed]:
        """Make the ticket that represents the call in the queue and on a backend."""
        call, fields = flow.call, self._head.fields
        start = call.started_at
        total_s, _, _, queue_s, client_total_s, client_read_s = call.clock
        all_by = start + (total_s if total_s < client_total_s else client_total_s)
        retry = fields.get(b"x-stainless-retry-count", b"0") != b"0"
        return Ticket(  # by position, because sixteen names cost as much as the object itself
            flow,
            self.prompt_tokens(estimate),
            self.output_max,
            self.choices,
            call.stream,
            start + client_read_s,
            all_by,
            time.monotonic() + queue_s,
            call.bytes_in,
            retry,
            self.blind,
            self.whole,
            job,
            eligible,
            client_kind(self._head),
            yields,
        )

    # For the engine

    def model(self, *, search: bool) -> str:
        """Return the requested model. Without `search`, a body that is not parsed is not searched for it either."""
        if not search:
            return ""
        return model_field.find(self._body, self._head.fields.get(b"content-type", b""), self._head.query)

    def named_model(self, most: int) -> str:
        """Return the requested model for the log, the metrics and the trace; "" if its name has more than `most` characters."""
        found = model_field.FIRST_IN_JSON.match(self._body)
        if found is not None:
            name = found[1].decode("utf-8", "replace")
        else:
            head = self._head
            name = model_field.glance(self._body, head.fields.get(b"content-type", b""), head.query)
        return name if len(name) <= most else ""

    def encode(self, attempt: Attempt, key: str) -> tuple[str, bytes, bytes | None]:
        """Return path, body and query for this engine; None as query stands for the client's own."""
        head, body = self._head, self._body
        if not self.renamed:
            return head.path, body, None
        if body:
            return head.path, model_field.replace(body, head.fields.get(b"content-type", b""), self.renamed), None
        return head.path, body, model_field.in_query(head.query, self.renamed)

    def forget_body(self) -> None:
        """Free the body, as the request is never sent again."""
        self._body = b""

    def ask_plainly(self) -> None:
        """Change the request to what the client sent: without a stream."""

    def begin_anew(self, limits: CallLimits, assemble: bool) -> bool:
        """Discard what has been read of an answer; return False if that is not possible."""
        return False

    # For the answer

    def relay(self, sink: AnsweredSink, head: ResponseHead) -> Relay:
        """Begin the client's answer, and return the relay for the rest of it."""
        return self._pass(sink, head, self.decoder(head), has_events=False, api=None)

    def decoder(self, head: ResponseHead) -> BodyDecoder:
        return Counted(0) if self._head.method == "HEAD" else body_decoder(head)

    def _pass(
        self, sink: AnsweredSink, head: ResponseHead, decoder: BodyDecoder, *, has_events: bool, api: Api | None
    ) -> Relay:
        status, final = head.status, reasons.COMPLETED
        if status in FAILED_STATUSES:
            status, final = 503 if status == 503 else 502, reasons.ENGINE_ERROR
        answers.begin(sink, status, head, has_events)
        is_json = head.content_type.startswith(b"application/json") and not head.is_encoded
        return PassRelay(sink, decoder, final, api, is_json=is_json)


class GenerationRequest(EngineRequest):
    """A request for tokens: chat, completions, responses, messages."""

    __slots__ = ("ask", "value")

    def __init__(self, api: Api, head: RequestHead, body: bytes, ask: Ask, value: Json) -> None:
        self.api = api
        self.ask = ask
        self.value = value  # the parsed body
        self.renamed = ""
        self.files = 0
        self.choices = ask.choices
        self.output_max = ask.cap.planned
        self.whole = False
        self._head = head
        self._body = body
        self._note_streams()

    def _note_streams(self) -> None:
        ask = self.ask
        self.streams_unasked = ask.assembler is not None
        self.streams = ask.stream or self.streams_unasked
        self.blind = not self.streams

    @property
    def body(self) -> bytes:
        return self._body

    def describe(self, call: Call) -> None:
        """Note what is asked for, for the log, the metrics and the trace."""
        call.model, call.stream = self.ask.model, self.ask.stream
        if call.trace_attributes is not None:
            call.trace_attributes |= request_attributes(self.value, self.ask.choices)

    # For the admission

    def prompt_tokens(self, estimate: Callable[[int], int]) -> int:
        size = len(self._body)
        if not media.may_hold_files(self._body):
            return estimate(size)
        file_bytes, self.files = media.embedded(self.value)
        return estimate(size - file_bytes) + self.files * media.FILE_TOKENS

    # For the engine

    def model(self, *, search: bool) -> str:
        return self.ask.model

    def named_model(self, most: int) -> str:
        return self.ask.model

    def encode(self, attempt: Attempt, key: str) -> tuple[str, bytes, bytes | None]:
        ask, backend = self.ask, attempt.backend
        if attempt.slot is None and backend.slots.count:
            attempt.slot = backend.pin(ask.choices)
        more = backend.adapter.fields(key, attempt.slot)
        maximum = {} if ask.cap.named else backend.adapter.maximum(self.api.name, ask.cap.tokens)
        if maximum or ask.cap.named:
            ask.ends_late(backend.adapter.late_tokens)
        if ask.assembler is not None:
            ask.assembler.texts_in_pieces = backend.facts.texts_in_pieces
        more |= maximum
        if self.renamed:
            more |= {"model": self.renamed}
        if backend.adapter.folds_keys:
            more |= self._keys_in_other_cases(more)
        return ask.path, ask.body(self._body, self.value, more), None

    def _keys_in_other_cases(self, more: Json) -> Json:
        """Return, for each key that the engine reads as one of those that the gateway reads, the same value as that has: it
        would overrule the cap, the model or the kind of answer. Other engines ignore such a key."""
        known = {*self.api.fields, *self.api.caps.names, "n", "best_of"}
        others = {key: key.casefold() for key in self.value if key not in known and key.casefold() in known}
        sent = {**self.value, **self.ask.cap.lowered, **self.ask.to_stream, **more} if others else {}
        return {key: sent.get(name) for key, name in others.items()}

    def forget_body(self) -> None:
        self._body, self.value = b"", _NO_VALUE

    def ask_plainly(self) -> None:
        self.ask.ask_plainly(self._head.path)
        self._note_streams()

    def begin_anew(self, limits: CallLimits, assemble: bool) -> bool:
        if self.ask.assembler is not None:  # it may have consumed events
            self.ask = self.api.read(self._head.path, self.value, limits, assemble)
            self._note_streams()  # a reload may have changed whether answers are assembled
        return True

    # For the answer

    def relay(self, sink: AnsweredSink, head: ResponseHead) -> Relay:
        ask, api, decoder = self.ask, self.api, self.decoder(head)
        has_events = head.status == 200 and head.content_type.startswith(api.format.content_type)
        is_stream = has_events and not head.is_encoded
        if is_stream and ask.assembler is not None:
            return AssembleRelay(sink, decoder, api, ask, ask.assembler, head)
        if sink.call.answering_client and not is_stream:  # a heartbeat has begun the answer
            return ErrorRelay(sink, decoder, api, head.status)
        if is_stream and ask.stream:
            answers.begin(sink, head.status, head, True)
            return StreamRelay(sink, decoder, api, ask)
        return self._pass(sink, head, decoder, has_events=has_events, api=api if head.status == 200 else None)


NO_ENGINE_REQUEST: Final = EngineRequest(
    UNKNOWN, RequestHead(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", count_max=1, url_bytes_max=1), b""
)


def read_request(
    request: IncomingRequest, body: bytes, structure: jsonbody.Structure | None, *, assemble: bool
) -> EngineRequest:
    """Parse a client's request and apply the limits; raise a `Refusal` if it cannot be served.

    `structure` holds the checks that were made while a large body arrived."""
    api, head, route, limits = request.api, request.head, request.route, request.limits
    if not api.generates or route is None:
        plain = EngineRequest(api, head, body)
        plain.choices = count_inputs(body)  # each text gets an answer of its own
        return plain
    value = jsonbody.decode(body, structure, limits.json_elements_max, limits.json_depth_max)
    api = request.api = route.api_for(value)  # a refusal from here on must have this API's format
    if not api.generates:
        return EngineRequest(api, head, body)
    ask = api.read(head.path, value, limits, assemble)
    check_model_name(ask.model, limits)
    return GenerationRequest(api, head, body, ask, value)


def encode(
    engine_request: EngineRequest, attempt: Attempt, key: str, call: Call, request: IncomingRequest, *, upgrade: bool
) -> tuple[bytes, bytes]:
    """Return the head and the body that the attempt's backend gets, and note in the call how its engine knows it."""
    backend = attempt.backend
    path, body, query = engine_request.encode(attempt, key)
    if attempt.slot is not None:
        call.slot = attempt.slot
    request_id = backend.request_id(call.id, key)
    call.engine_id = key if request_id == key or backend.adapter.keyed_by == "body" else ""
    return backend.request(
        request.head,
        path,
        body,
        request_id=request_id,
        timeout_s=request.remaining_s(call.started_at, time.monotonic()),
        forward_key=not request.keyed,
        traced=f"00-{call.trace_id}-{call.span_id}-01" if call.span_id else "",
        upgrade=upgrade,
        query=query,
    )
