"""Anthropic's message batches API: `/v1/messages/batches` and the paths below it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import orjson

from hangup.core import reasons
from hangup.core.call import Call
from hangup.core.jobs import Cause, ItemState, JobStatus, Kind
from hangup.errors import Refusal
from hangup.gateway.apis.routes import Router
from hangup.gateway.jobs.batches import error_body, result_body
from hangup.gateway.jobs.event_log import EventLog
from hangup.gateway.jobs.files import Gone
from hangup.gateway.jobs.http_messages import JobHttpRequest, JobHttpResponse, Json
from hangup.gateway.jobs.input_lines import check_request
from hangup.gateway.jobs.item_client import ItemClient
from hangup.gateway.jobs.registry import JobRegistry
from hangup.gateway.store.jobs import Job, NewItem, Result

_PATH = "/v1/messages"
_WINDOW_S = 86_400.0
_PAGE_MAX = 1000
_RESULTS_PER_READ = 200
_ID_CHARS_MAX = 512


class MessageBatches:
    """Handlers of the message batches API; also renders results (`ItemShape`)."""

    def __init__(self, registry: JobRegistry, router: Callable[[], Router]) -> None:
        self._registry = registry
        self._router = router
        registry.shapes[Kind.MESSAGES] = self

    async def create(self, request: JobHttpRequest) -> JobHttpResponse:
        value = request.json()
        items = await asyncio.to_thread(self._items, value.get("requests"), request)  # there may be thousands to check
        about = {"headers": request.replayed_headers()}
        window_s = min(_WINDOW_S, request.limits.batch_window_max_s)
        id = f"msgbatch_{secrets.token_hex(12)}"
        job = await self._registry.submit(id, Kind.MESSAGES, request.tenant, about, items, window_s=window_s)
        return JobHttpResponse.json(batch_json(job, request))

    def _items(self, requests: Any, request: JobHttpRequest) -> list[NewItem]:
        if type(requests) is not list or not requests:
            raise Refusal(reasons.BAD_FIELD, "requests: expected a list with at least one request.")
        limits = request.limits
        if len(requests) > limits.batch_items_max:
            raise Refusal(reasons.BAD_FIELD, f"requests: a batch has at most {limits.batch_items_max} requests.")
        route = self._router().find(_PATH)
        seen: set[str] = set()
        items = []
        for n, entry in enumerate(requests):
            custom_id = entry.get("custom_id") if type(entry) is dict else None
            if type(custom_id) is not str or not 0 < len(custom_id) <= _ID_CHARS_MAX or "\0" in custom_id:
                raise _invalid(n, f"custom_id: expected a string of 1 to {_ID_CHARS_MAX} characters, without NUL.")
            if custom_id in seen:
                raise _invalid(n, f"custom_id: duplicate {custom_id[:80]!r}.")
            seen.add(custom_id)
            params = entry.get("params")
            if type(params) is not dict:
                raise _invalid(n, "params: expected an object.")
            if params.get("stream"):
                raise _invalid(n, "params.stream: a batch cannot stream.")
            encoded = orjson.dumps(params)
            try:
                check_request(route.api if route is not None else None, _PATH, encoded, params, limits)
            except Refusal as refusal:
                raise _invalid(n, f"params: {refusal}") from None
            items.append(NewItem(custom_id, _PATH, encoded))
        return items

    async def list(self, request: JobHttpRequest) -> JobHttpResponse:
        store, query, registry = self._registry.store, request.query, self._registry
        count = request.query_number("limit", 20, 1, _PAGE_MAX)
        before_id = query.get("before_id")
        after_id = query.get("after_id")
        before = (await registry.find(after_id, request.tenant, Kind.MESSAGES)).key if after_id else None
        after = (await registry.find(before_id, request.tenant, Kind.MESSAGES)).key if before_id else None
        rows = await store.do(lambda: store.jobs.page(request.tenant, Kind.MESSAGES, before, after, count + 1))
        page = rows[:count] if after is None else rows[:count][::-1]
        data = [batch_json(job, request) for job in page]
        first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
        return JobHttpResponse.json({"data": data, "has_more": len(rows) > count, "first_id": first, "last_id": last})

    async def retrieve(self, request: JobHttpRequest, id: str) -> JobHttpResponse:
        return JobHttpResponse.json(batch_json(await self._registry.find(id, request.tenant, Kind.MESSAGES), request))

    async def cancel(self, request: JobHttpRequest, id: str) -> JobHttpResponse:
        job = await self._registry.find(id, request.tenant, Kind.MESSAGES)
        return JobHttpResponse.json(batch_json(await self._registry.cancel(job, Cause.CANCELLED), request))

    async def delete(self, request: JobHttpRequest, id: str) -> JobHttpResponse:
        store, job = self._registry.store, await self._registry.find(id, request.tenant, Kind.MESSAGES)
        if not job.status.ended:
            raise Refusal(reasons.BAD_FIELD, f"{id} is in progress: cancel it first, and delete it when it has ended.")
        await store.do(lambda: store.jobs.delete(job.key))
        return JobHttpResponse.json({"id": id, "type": "message_batch_deleted"})

    async def results(self, request: JobHttpRequest, id: str) -> JobHttpResponse:
        job = await self._registry.find(id, request.tenant, Kind.MESSAGES)
        if not job.status.ended:
            raise Refusal(reasons.BAD_FIELD, f"{id} is in progress: its results are available when it has ended.")
        return JobHttpResponse(content_type=b"application/x-jsonl", pieces=self._result_lines(job))

    async def _result_lines(self, job: Job) -> AsyncIterator[bytes]:
        store, start = self._registry.store, 0
        while start < job.tally.total:
            rows = await store.do(partial(store.jobs.results, job.key, start, _RESULTS_PER_READ))
            if not rows or rows[-1].n + 1 != start + len(rows):
                raise Gone(reasons.NOT_FOUND, f"The results of {job.id} were deleted while they were read.")
            start = rows[-1].n + 1
            yield b"".join(_result_line(row) for row in rows)

    def render_result(self, job: Job, item: ItemClient, call: Call) -> bytes:
        if 200 <= item.status(call) < 300:
            return _line(item.claim.custom_id, {"type": "succeeded", "message": result_body(item)})
        body = error_body(item)
        if type(body) is not dict or type(body.get("error")) is not dict:
            body = {"type": "error", "error": {"type": "api_error", "message": str(body)}}
        return _line(item.claim.custom_id, {"type": "errored", "error": {"request_id": call.id, **body}})

    def chunk_listener(self, job: Job, item: ItemClient, log: EventLog) -> None:
        return None


def _invalid(n: int, message: str) -> Refusal:
    return Refusal(reasons.BAD_FIELD, f"requests.{n}.{message}")


def _result_line(row: Result) -> bytes:
    return row.body or _line(row.custom_id, {"type": "expired" if row.state is ItemState.EXPIRED else "canceled"})


def _line(custom_id: str, result: Json) -> bytes:
    return orjson.dumps({"custom_id": custom_id, "result": result}, option=orjson.OPT_APPEND_NEWLINE)


def batch_json(job: Job, request: JobHttpRequest) -> Json:
    tally = job.tally
    status = "ended" if job.status.ended else "canceling" if job.status is JobStatus.CANCELLING else "in_progress"
    return {
        "id": job.id,
        "type": "message_batch",
        "processing_status": status,
        "request_counts": {
            "processing": tally.queued + tally.claimed,
            "succeeded": tally.succeeded,
            "errored": tally.errored,
            "canceled": tally.cancelled,
            "expired": tally.expired,
        },
        "created_at": _timestamp(job.created),
        "expires_at": _timestamp(job.expires),
        "ended_at": _timestamp(job.ended),
        "cancel_initiated_at": _timestamp(job.cancelling) if job.cause is Cause.CANCELLED else None,
        "archived_at": None,
        "results_url": f"{request.base_url}/v1/messages/batches/{job.id}/results" if job.status.ended else None,
    }


def _timestamp(moment: float | None) -> str | None:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z") if moment else None
