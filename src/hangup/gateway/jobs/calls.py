"""hangup's own jobs API: `Prefer: respond-async` on any generation path, then `/v1/jobs/{id}` and its events."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import orjson

from hangup.config import JobLimits
from hangup.core import reasons
from hangup.core.call import Call
from hangup.core.jobs import Cause, JobStatus, Kind
from hangup.errors import Refusal
from hangup.gateway.http.sse import NDJSON, SSE, Splitter
from hangup.gateway.jobs.batches import result_body
from hangup.gateway.jobs.event_log import EventLog, JobEvent
from hangup.gateway.jobs.files import list_json
from hangup.gateway.jobs.http_messages import JobHttpRequest, JobHttpResponse, Json
from hangup.gateway.jobs.item_client import ItemClient
from hangup.gateway.jobs.registry import JobRegistry
from hangup.gateway.store.jobs import Job, NewItem

LEASE_HEADER = b"x-hangup-lease"
GAP = "gap"  # name of the event that stands for events dropped before they were sent
EVENT_STREAM = b"text/event-stream; charset=utf-8"
_PROGRESS_S = 2.0  # how often a listener gets a progress event when there are no others
_SECONDS = re.compile(rb"[0-9]{1,7}(?:\.[0-9]{1,3})?")
_PAGE_MAX = 100


def wants_async(fields: dict[bytes, bytes]) -> bool:
    return any(
        wanted.strip().lower() == b"respond-async" for wanted in fields.get(b"prefer", b"").replace(b";", b",").split(b",")
    )


def lease_of(fields: Mapping[bytes, bytes], limits: JobLimits) -> float:
    """Return how long a job lives while no client asks for it: the client's choice, or the default."""
    given = fields.get(LEASE_HEADER)
    if given is None:
        return limits.job_lease_s
    if not _SECONDS.fullmatch(given) or not 1 <= float(given) <= limits.job_lease_max_s:
        raise Refusal(reasons.BAD_FIELD, f"x-hangup-lease must be a number of seconds from 1 to {limits.job_lease_max_s:g}.")
    return float(given)


class Calls:
    """Handlers of the jobs API; also renders results and events (`ItemShape`)."""

    def __init__(self, registry: JobRegistry) -> None:
        self._registry = registry
        registry.shapes[Kind.CALL] = self

    async def create(self, request: JobHttpRequest, model: str, stream: bool) -> JobHttpResponse:
        about = {"path": request.path, "model": model, "stream": stream, "headers": request.replayed_headers()}
        id = f"job_{secrets.token_hex(12)}"
        item = NewItem("", request.path, request.body)
        lease_s = lease_of(request.fields, request.limits)
        job = await self._registry.submit(id, Kind.CALL, request.tenant, about, [item], lease_s=lease_s)
        location = f"/v1/jobs/{job.id}"
        return JobHttpResponse.json(
            self._job_json(job, None), 202, location=location, preference_applied="respond-async", retry_after="1"
        )

    async def list(self, request: JobHttpRequest) -> JobHttpResponse:
        store, after = self._registry.store, request.query.get("after")
        count = request.query_number("limit", 20, 1, _PAGE_MAX)
        before = (await self._registry.find(after, request.tenant, Kind.CALL)).key if after else None
        rows = await store.do(lambda: store.jobs.page(request.tenant, Kind.CALL, before, None, count + 1))
        return JobHttpResponse.json(list_json([self._job_json(job, None) for job in rows[:count]], has_more=len(rows) > count))

    async def retrieve(self, request: JobHttpRequest, id: str) -> JobHttpResponse:
        job = await self._registry.find(id, request.tenant, Kind.CALL)
        return JobHttpResponse.json(self._job_json(job, await self._stored_result(job)))

    async def delete(self, request: JobHttpRequest, id: str) -> JobHttpResponse:
        """Cancel a job; repeating this is harmless. With `?purge=true`, also delete an ended job and its result."""
        registry, store = self._registry, self._registry.store
        job = await registry.find(id, request.tenant, Kind.CALL)
        job = await registry.cancel(job, Cause.CANCELLED, request.limits.job_cancel_wait_s)
        if request.query.get("purge") == "true" and job.status.ended:
            await store.do(lambda: store.jobs.delete(job.key))
            return JobHttpResponse.json({"id": id, "object": "job", "deleted": True})
        return JobHttpResponse.json(self._job_json(job, await self._stored_result(job)), 200 if job.status.ended else 202)

    async def events(self, request: JobHttpRequest, id: str) -> JobHttpResponse:
        job = await self._registry.find(id, request.tenant, Kind.CALL)
        last = request.fields.get(b"last-event-id", b"-1")
        try:
            seen = int(last)
        except ValueError:
            raise Refusal(reasons.BAD_FIELD, "Last-Event-ID must be the id of an earlier event.") from None
        return JobHttpResponse(content_type=EVENT_STREAM, pieces=self._events(job, seen))

    async def _events(self, job: Job, seen: int) -> AsyncIterator[bytes]:
        yield _event("status", orjson.dumps(self._job_json(job, None)))
        async for event in follow_events(self._registry, job, seen, _PROGRESS_S):
            if event is None:
                yield _event("progress", orjson.dumps(self._progress(job)))
            else:
                yield _event(event.name, event.data, event.number)
        job = await self._registry.find(job.id, job.tenant, Kind.CALL)
        yield _event("end", orjson.dumps(self._job_json(job, await self._stored_result(job))))

    async def _stored_result(self, job: Job) -> orjson.Fragment | None:
        """Return the stored result without parsing it."""
        rows = await self._registry.store.do(lambda: self._registry.store.jobs.results(job.key, 0, 1))
        return orjson.Fragment(rows[0].body) if rows and rows[0].body is not None else None

    def _progress(self, job: Job) -> Json:
        item = self._registry.runner.item(job.key, 0)
        if item is None or item.flow is None:
            return {"phase": "queued", "tokens_out": 0}
        call = item.flow.call
        return {"phase": call.phase.value, "tokens_out": call.tokens_out, "call": call.id, "backend": call.backend or None}

    def _job_json(self, job: Job, result: orjson.Fragment | None) -> Json:
        active = self._registry.active_job(job)
        lease = active.lease if active is not None else None
        is_queued = job.status is JobStatus.RUNNING and not job.tally.claimed and not job.tally.ended
        return {
            "id": job.id,
            "object": "job",
            "status": "queued" if is_queued else job.status,
            "cause": job.cause or None,
            "created_at": job.created,
            "started_at": job.begun,
            "cancelling_at": job.cancelling,
            "ended_at": job.ended,
            "release": self._registry.runner.stop_state_of(job.key),
            "lease": {
                "seconds": job.lease_s,
                "left": round(lease.remaining_s(asyncio.get_running_loop().time()), 1) if lease else None,
            },
            "request": {name: job.about[name] for name in ("path", "model", "stream")},
            "progress": self._progress(job) if not job.status.ended else None,
            "result": result,
        }

    # Results

    def render_result(self, job: Job, item: ItemClient, call: Call) -> bytes:
        status = item.status(call)
        stream = bool(job.about["stream"]) and status == 200
        body: Any = item.body.decode("utf-8", "replace") if stream else result_body(item)
        return orjson.dumps({"status": status, "call": call.id, "body": body})

    def chunk_listener(self, job: Job, item: ItemClient, log: EventLog) -> Callable[[bytes], None]:
        log.add("attempt", orjson.dumps({"attempt": item.attempts, "claim": item.claim.fence}))
        format = NDJSON if job.about["path"].startswith("/api/") else SSE
        splitter = Splitter(format, 1 << 30)

        def on_chunk(payload: bytes) -> None:
            for event in splitter.feed(payload):
                data = format.data(event)
                if data is not None:
                    log.add("chunk", data)

        return on_chunk if job.about["stream"] else _ignore


def _ignore(payload: bytes) -> None:
    """Ignore chunks of an answer that is not a stream: there are no events before its end."""


async def follow_events(registry: JobRegistry, job: Job, seen: int, pause_s: float) -> AsyncIterator[JobEvent | None]:
    """Yield a job's events after number `seen` until it ends; yield None whenever there was none for `pause_s`."""
    log = registry.listen(job)
    if log is not None:
        try:
            position = 0
            while True:
                try:
                    async with asyncio.timeout(pause_s):
                        events, position = await log.next_events(position)
                except TimeoutError:
                    yield None
                    continue
                if not events:
                    break
                if seen < log.last_dropped < events[0].number:
                    yield JobEvent(log.last_dropped, GAP, orjson.dumps({"after": seen, "before": events[0].number}))
                for event in events:
                    if event.number > seen:
                        seen = event.number
                        yield event
        finally:
            registry.stop_listening(job)
    # If another process ran the job, only the store has its events.
    dumped = await registry.store.do(lambda: registry.store.jobs.events(job.key))
    for event in EventLog.load(dumped) if dumped is not None else ():
        if event.number > seen:
            yield event


def _event(name: str, data: bytes, number: int | None = None) -> bytes:
    id = b"id: %d\n" % number if number is not None else b""
    return id + SSE.encode(data, name.encode())
