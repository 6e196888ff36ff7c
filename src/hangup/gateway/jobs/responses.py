"""OpenAI's responses with `background: true`: `/v1/responses/{id}`, its event stream, `/cancel` and deletion."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson

from hangup.core import reasons
from hangup.core.call import Call
from hangup.core.jobs import Cause, JobStatus, Kind
from hangup.errors import Refusal
from hangup.gateway.apis.openai_responses import ResponsesAssembler
from hangup.gateway.http.sse import SSE, Splitter
from hangup.gateway.jobs.batches import error_body, parsed_body
from hangup.gateway.jobs.calls import EVENT_STREAM, GAP, follow_events, lease_of
from hangup.gateway.jobs.event_log import EventLog
from hangup.gateway.jobs.http_messages import JobHttpRequest, JobHttpResponse, Json
from hangup.gateway.jobs.item_client import ItemClient
from hangup.gateway.jobs.registry import JobRegistry
from hangup.gateway.store.jobs import Job, NewItem

_PARSED_VALUES_MAX = 100_000  # of a result: more would delay every call
_ODD = (KeyError, TypeError, AttributeError, IndexError, ValueError)  # events of a shape that is not known
_HEARTBEAT_S = 15.0
_HEARTBEAT = b": hangup\n\n"
# Request fields that a response repeats, with OpenAI's defaults.
_ECHOED_FIELDS: Json = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "model": "",
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}


class BackgroundResponses:
    """Handlers of background responses; also renders results and events (`ItemShape`)."""

    def __init__(self, registry: JobRegistry) -> None:
        self._registry = registry
        registry.shapes[Kind.RESPONSE] = self

    async def create(self, request: JobHttpRequest, value: Json, stream: bool) -> JobHttpResponse:
        echoed = {name: value.get(name, default) for name, default in _ECHOED_FIELDS.items()}
        about = {"path": request.path, "stream": stream, "request": echoed, "headers": request.replayed_headers()}
        body = orjson.dumps({name: field for name, field in value.items() if name != "background"})
        id = f"resp_{secrets.token_hex(24)}"
        item = NewItem("", request.path, body)
        lease_s = lease_of(request.fields, request.limits)
        add_first_events = _add_first_events if stream else None
        job = await self._registry.submit(
            id, Kind.RESPONSE, request.tenant, about, [item], lease_s=lease_s, add_first_events=add_first_events
        )
        if not stream:
            return JobHttpResponse.json(_own_response(job))
        return JobHttpResponse(content_type=EVENT_STREAM, pieces=self._events(job, -1))

    async def retrieve(self, request: JobHttpRequest, id: str) -> JobHttpResponse:
        job = await self._registry.find(id, request.tenant, Kind.RESPONSE)
        if request.query.get("stream") != "true":
            return JobHttpResponse.json(await self._response_json(job))
        if not job.about["stream"]:
            raise Refusal(reasons.BAD_FIELD, f"{id} was not created with stream: true, so it has no events.")
        seen = request.query_number("starting_after", -1, 0, 1 << 53)
        return JobHttpResponse(content_type=EVENT_STREAM, pieces=self._events(job, seen))

    async def cancel(self, request: JobHttpRequest, id: str) -> JobHttpResponse:
        """Cancel a response; answer once the engine has stopped, or after `job_cancel_wait_s` with the state at that time."""
        job = await self._registry.find(id, request.tenant, Kind.RESPONSE)
        return JobHttpResponse.json(
            await self._response_json(await self._registry.cancel(job, Cause.CANCELLED, request.limits.job_cancel_wait_s))
        )

    async def delete(self, request: JobHttpRequest, id: str) -> JobHttpResponse:
        registry, store = self._registry, self._registry.store
        job = await registry.find(id, request.tenant, Kind.RESPONSE)
        if not job.status.ended:
            job = await registry.cancel(job, Cause.CANCELLED, request.limits.job_cancel_wait_s)
        if not job.status.ended:
            raise Refusal(
                reasons.BAD_FIELD, f"{id} is being cancelled; its engine has not confirmed the stop yet. Retry later."
            )
        await store.do(lambda: store.jobs.delete(job.key))
        return JobHttpResponse.json({"id": id, "object": "response", "deleted": True})

    async def _response_json(self, job: Job) -> Json | orjson.Fragment:
        rows = await self._registry.store.do(lambda: self._registry.store.jobs.results(job.key, 0, 1))
        if rows and rows[0].body is not None:
            return orjson.Fragment(rows[0].body)  # as it was written: it may be large
        return _own_response(job, self._registry.runner.stop_state_of(job.key))

    async def _events(self, job: Job, seen: int) -> AsyncIterator[bytes]:
        last = seen
        async for event in follow_events(self._registry, job, seen, _HEARTBEAT_S):
            if event is None:
                yield _HEARTBEAT
            elif event.name != GAP:  # OpenAI clients do not know this event; they see the gap in the sequence numbers
                last = event.number
                yield SSE.encode(event.data, event.name.encode())
        job = await self._registry.find(job.id, job.tenant, Kind.RESPONSE)
        if job.status is not JobStatus.COMPLETED:
            kind = "response.failed" if job.status is JobStatus.FAILED else "response.cancelled"
            end = {"type": kind, "response": await self._response_json(job), "sequence_number": last + 1}
            yield SSE.encode(orjson.dumps(end), kind.encode())

    # Results

    def render_result(self, job: Job, item: ItemClient, call: Call) -> bytes:
        if not 200 <= item.status(call) < 300:
            return orjson.dumps(_failed_response(job, error_body(item)))
        if not job.about["stream"]:
            return _with_our_id(job, item)
        return orjson.dumps(_replace_id(job, _assembler(item).result(capped=False)))

    def chunk_listener(self, job: Job, item: ItemClient, log: EventLog) -> Callable[[bytes], None] | None:
        if not job.about["stream"]:
            return None
        splitter, assembler = Splitter(SSE, 1 << 30), ResponsesAssembler()
        item.assembler = assembler
        has_created_event = bool(log.events) and item.attempts == 1  # the log already has `response.created`

        def on_chunk(payload: bytes) -> None:
            for event in splitter.feed(payload):
                value = _parse(SSE.data(event))
                if value is None:
                    continue
                try:
                    assembler.add(value)
                except _ODD:  # the item's result reports the error
                    item.assembler = None
                if has_created_event and value.get("type") == "response.created":
                    continue
                if type(value.get("response")) is dict:
                    value["response"] = _replace_id(job, value["response"])
                _add_event(log, value)

        return on_chunk


def _assembler(item: ItemClient) -> ResponsesAssembler:
    """Return the assembler with all events: they were added as they came, or are added now if there was no listener."""
    if isinstance(item.assembler, ResponsesAssembler):
        return item.assembler
    assembler = ResponsesAssembler()
    for event in Splitter(SSE, 1 << 30).feed(bytes(item.body)):
        value = _parse(SSE.data(event))
        if value is not None:
            assembler.add(value)
    return assembler


def _with_our_id(job: Job, item: ItemClient) -> bytes:
    """Return a whole answer with the id that the client knows. One of very many values is not parsed, since that would delay
    every call: its own `id` stays, and ours stands behind it, which is the one that counts in JSON with a key twice."""
    outline = item.outline
    if outline is None or not outline.whole or outline.values <= _PARSED_VALUES_MAX:
        return orjson.dumps(_replace_id(job, parsed_body(item)))
    text = bytes(item.body).rstrip()
    if not text.endswith(b"}"):
        return orjson.dumps(_failed_response(job, error_body(item)))
    return text[:-1] + b"," + orjson.dumps({"id": job.id, "background": True})[1:]


def _add_first_events(job: Job, log: EventLog) -> None:
    for name in ("response.created", "response.queued"):
        _add_event(log, {"type": name, "response": _own_response(job)})


def _add_event(log: EventLog, event: Json) -> None:
    log.add(str(event.get("type", "")), orjson.dumps({**event, "sequence_number": log.next_number}))


def _parse(data: bytes | None) -> Json | None:
    try:
        value = orjson.loads(data) if data else None
    except orjson.JSONDecodeError:
        return None
    return value if type(value) is dict else None


def _replace_id(job: Job, response: Any) -> Json:
    """Return an engine's response with the id that the client knows."""
    return {**response, "id": job.id, "background": True} if type(response) is dict else _failed_response(job, response)


def _own_response(job: Job, release: str | None = None) -> Json:
    """Build a response for which the engine has no complete answer."""
    running = "in_progress" if job.tally.claimed or job.status is JobStatus.CANCELLING else "queued"
    return {
        "id": job.id,
        "object": "response",
        "created_at": int(job.created),
        "status": job.status if job.status.ended else running,
        "background": True,
        "error": None,
        "incomplete_details": None,
        "output": [],
        "usage": None,
        **job.about["request"],
        "hangup": {"status": job.status, "cause": job.cause or None, "lease_s": job.lease_s, "release": release},
    }


def _failed_response(job: Job, body: Any) -> Json:
    error = body.get("error") if type(body) is dict else None
    message = error.get("message") if type(error) is dict else str(body)
    return {**_own_response(job), "status": "failed", "error": {"code": "server_error", "message": message}}
