"""OpenAI's batch API: `/v1/batches`, `/v1/batches/{id}`, `/v1/batches/{id}/cancel`."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import orjson

from hangup.core import reasons
from hangup.core.call import Call
from hangup.core.jobs import Cause, ItemState, JobStatus, Kind
from hangup.core.reasons import Reason
from hangup.errors import Refusal
from hangup.gateway.apis.routes import Router
from hangup.gateway.http import jsonbody
from hangup.gateway.jobs.event_log import EventLog
from hangup.gateway.jobs.files import Gone, list_json, parts
from hangup.gateway.jobs.http_messages import JobHttpRequest, JobHttpResponse, Json
from hangup.gateway.jobs.input_lines import InputLines, StopReading
from hangup.gateway.jobs.item_client import LARGE_BYTES, ItemClient
from hangup.gateway.jobs.registry import JobRegistry
from hangup.gateway.store.jobs import File, Job, Result
from hangup.gateway.store.jobs.table import result_file
from hangup.gateway.store.worker_thread import StoreFailed
from hangup.tasks import TASKS

_PAGE_MAX = 100
_STORE_PAUSE_S = 1.0
_RESULTS_PER_READ = 200  # read at a time
_METADATA_MAX = 16
_WINDOW = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_ERROR_OF_STATE = {
    ItemState.CANCELLED: ("batch_cancelled", "The batch was cancelled before this request was answered."),
    ItemState.EXPIRED: ("batch_expired", "This request could not be executed before the completion window expired."),
}


class Batches:
    """Handlers of the batch API; also checks input files and renders results (`ItemShape`)."""

    def __init__(self, registry: JobRegistry, router: Callable[[], Router]) -> None:
        self._registry = registry
        self._router = router
        registry.shapes[Kind.BATCH] = self
        registry.check_lines = self._check_input

    async def create(self, request: JobHttpRequest) -> JobHttpResponse:
        value, store = request.json(), self._registry.store
        endpoint, input_id = value.get("endpoint"), value.get("input_file_id")
        if type(endpoint) is not str or not self._serves(endpoint):
            raise Refusal(reasons.BAD_FIELD, f"'endpoint' must be one of {', '.join(self._endpoints())}.")
        if type(input_id) is not str:
            raise Refusal(reasons.BAD_FIELD, "'input_file_id' must be a string.")
        window_s = _parse_window(value.get("completion_window"), request.limits.batch_window_max_s)
        metadata = _check_metadata(value.get("metadata"))
        file = await store.do(lambda: store.files.find(input_id, request.tenant))
        if file is None:
            raise Refusal(reasons.BAD_FIELD, f"There is no file {input_id[:80]!r}.")
        if file.purpose != "batch" or file.job is not None:
            raise Refusal(reasons.BAD_FIELD, f"The file {input_id} has the purpose {file.purpose!r}, not 'batch'.")
        about = {
            "endpoint": endpoint,
            "input_file_id": input_id,
            "completion_window": value["completion_window"],
            "metadata": metadata,
            "headers": request.replayed_headers(),
        }
        id = f"batch_{secrets.token_hex(12)}"
        job = await self._registry.submit(id, Kind.BATCH, request.tenant, about, None, window_s=window_s)
        self._registry.start_task(self._check_input(job))
        return JobHttpResponse.json(batch_json(job))

    def _serves(self, endpoint: str) -> bool:
        return endpoint in self._endpoints()

    def _endpoints(self) -> list[str]:
        return self._router().answering()

    async def _check_input(self, job: Job) -> None:
        """Turn the lines of the input file into items; the batch runs if all lines are valid, and fails otherwise."""
        registry, store, before = self._registry, self._registry.store, job.worker
        while True:
            try:
                worker = registry.worker
                if await store.do(partial(store.jobs.start_checking, job.key, worker, before)):
                    await self._read_and_check(job, worker)
                return
            except StoreFailed:  # logged elsewhere; start the check again when the store works
                before = worker
                await asyncio.sleep(_STORE_PAUSE_S)

    async def _read_and_check(self, job: Job, worker: int) -> None:
        registry, store = self._registry, self._registry.store
        lines = InputLines(job.about["endpoint"], self._router(), registry.limits_of(job.tenant))
        file = await store.do(lambda: store.files.find(job.about["input_file_id"], job.tenant))
        first = 0
        try:
            if file is not None:
                async for part in parts(registry, file):
                    first += await store.do(partial(self._add_lines, job, worker, first, lines, part))
            await store.do(partial(self._add_lines, job, worker, first, lines, None))
        except StopReading:
            pass
        except Refusal as refusal:
            lines.problems.append(_problem(refusal.reason, str(refusal)))
        except StoreFailed:
            raise
        except Exception as error:  # otherwise the batch would stay in VALIDATING until its window has passed
            TASKS.failed("job registry", error)
            lines.problems.append(_problem(reasons.INTERNAL, reasons.INTERNAL.message))
        checked = await store.do(lambda: store.jobs.finish_check(job.key, worker, time.time(), lines.problems))
        if checked is not None:
            registry.job_changed(checked)
        registry.runner.wake(job.tenant)

    def _add_lines(self, job: Job, worker: int, first: int, lines: InputLines, piece: bytes | None) -> int:
        """Add the lines that `piece` completes, or the last line if it is None; runs in the store's thread."""
        jobs = self._registry.store.jobs
        if not jobs.is_checker(job.key, worker):
            raise StopReading  # cancelled meanwhile, or taken over by another worker
        items = lines.feed(piece) if piece is not None else lines.finish()
        if not lines.problems:  # after a problem, no line will run
            self._registry.quotas.check(job.tenant, items=len(items), size=sum(len(item.body) for item in items))
            jobs.add_items(job.key, first, items)
        return len(items)

    async def list(self, request: JobHttpRequest) -> JobHttpResponse:
        store, after = self._registry.store, request.query.get("after")
        count = request.query_number("limit", 20, 1, _PAGE_MAX)
        before = (await self._registry.find(after, request.tenant, Kind.BATCH)).key if after else None
        rows = await store.do(lambda: store.jobs.page(request.tenant, Kind.BATCH, before, None, count + 1))
        return JobHttpResponse.json(list_json([batch_json(job) for job in rows[:count]], has_more=len(rows) > count))

    async def retrieve(self, request: JobHttpRequest, id: str) -> JobHttpResponse:
        return JobHttpResponse.json(batch_json(await self._registry.find(id, request.tenant, Kind.BATCH)))

    async def cancel(self, request: JobHttpRequest, id: str) -> JobHttpResponse:
        job = await self._registry.find(id, request.tenant, Kind.BATCH)
        return JobHttpResponse.json(batch_json(await self._registry.cancel(job, Cause.CANCELLED)))

    # Results

    def render_result(self, job: Job, item: ItemClient, call: Call) -> bytes:
        """Return a line of the output file or the error file."""
        response = {"status_code": item.status(call), "request_id": call.id, "body": result_body(item)}
        return _line(job, item.claim.n, item.claim.custom_id, response, None)

    def chunk_listener(self, job: Job, item: ItemClient, log: EventLog) -> None:
        return None

    async def result_lines(self, file: File, tenant: str) -> AsyncIterator[bytes]:
        """Yield the lines of an output or error file in input order, many at a time."""
        assert file.job is not None
        key, wants_succeeded = file.job, file.id.endswith("-output")
        store = self._registry.store
        job = await store.do(lambda: store.jobs.find_by_key(key))
        if job is None:
            raise Gone(reasons.NOT_FOUND, f"The results in {file.id} were deleted.")
        start = 0
        while start < job.tally.total:
            rows = await store.do(partial(store.jobs.results, key, start, _RESULTS_PER_READ))
            if not rows or rows[-1].n + 1 != start + len(rows):
                raise Gone(reasons.NOT_FOUND, f"The results of {job.id} were deleted while they were read.")
            start = rows[-1].n + 1
            text = b"".join(_result_line(job, row) for row in rows if (row.state is ItemState.SUCCEEDED) == wants_succeeded)
            if text:
                yield text


def _problem(reason: Reason, message: str) -> Json:
    """Return a problem that does not belong to a line."""
    return {"code": reason.code, "message": message, "line": None, "param": None}


def result_body(item: ItemClient) -> Any:
    """Return an answer for a result line. A large one is copied, not parsed: its `Outline` was checked as it arrived."""
    if item.outline is None:
        return parsed_body(item)
    if not item.outline.whole:
        return item.body.decode("utf-8", "replace")
    return orjson.Fragment(bytes(item.body).replace(b"\n", b" "))


def error_body(item: ItemClient) -> Any:
    """Return an engine's error, of a large one only the beginning: nobody reads more, and parsing it would delay every call."""
    return parsed_body(item) if item.outline is None else item.body[:LARGE_BYTES].decode("utf-8", "replace")


def parsed_body(item: ItemClient) -> Any:
    """Return an engine's answer as parsed JSON, or as text if it is not JSON, or nested too deeply to be written again."""
    try:
        value = orjson.loads(item.body)
        jsonbody.check_depth(item.body, value)
    except (orjson.JSONDecodeError, Refusal):
        return item.body.decode("utf-8", "replace")
    return value


def _result_line(job: Job, row: Result) -> bytes:
    if row.body is not None:
        return row.body
    if row.state is ItemState.CANCELLED and job.status is JobStatus.COMPLETED:
        return _line(job, row.n, row.custom_id, None, {"code": "killed", "message": reasons.KILLED.message})
    code, message = _ERROR_OF_STATE.get(row.state, ("unanswered", "This request was not answered."))
    return _line(job, row.n, row.custom_id, None, {"code": code, "message": message})


def _line(job: Job, n: int, custom_id: str, response: Json | None, error: Json | None) -> bytes:
    id = f"batch_req_{job.id.removeprefix('batch_')}_{n}"
    line = {"id": id, "custom_id": custom_id, "response": response, "error": error}
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def batch_json(job: Job) -> Json:
    tally, about, status = job.tally, job.about, job.status
    failed = tally.ended - tally.succeeded
    ended = {status: int(job.ended)} if job.ended is not None else {}
    problems = about.get("problems")
    done = status.ended and status is not JobStatus.FAILED
    return {
        "id": job.id,
        "object": "batch",
        "endpoint": about["endpoint"],
        "errors": {"object": "list", "data": problems} if problems else None,
        "input_file_id": about["input_file_id"],
        "completion_window": about["completion_window"],
        "status": "in_progress" if status is JobStatus.RUNNING else status,
        "output_file_id": result_file(job.id, "output") if done and tally.succeeded else None,
        "error_file_id": result_file(job.id, "error") if done and failed else None,
        "created_at": int(job.created),
        "in_progress_at": _whole_seconds(job.begun),
        "expires_at": _whole_seconds(job.expires),
        "finalizing_at": ended.get(JobStatus.COMPLETED),
        "completed_at": ended.get(JobStatus.COMPLETED),
        "failed_at": ended.get(JobStatus.FAILED),
        "expired_at": ended.get(JobStatus.EXPIRED),
        "cancelling_at": _whole_seconds(job.cancelling) if job.cause is Cause.CANCELLED else None,
        "cancelled_at": ended.get(JobStatus.CANCELLED),
        "request_counts": {"total": tally.total, "completed": tally.succeeded, "failed": failed},
        "metadata": about["metadata"],
    }


def _whole_seconds(moment: float | None) -> int | None:
    return int(moment) if moment is not None else None


def _parse_window(given: Any, most_s: float) -> float:
    match = _WINDOW.fullmatch(given) if type(given) is str else None
    seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not 0 < seconds <= most_s:
        raise Refusal(reasons.BAD_FIELD, f"'completion_window' must be a duration such as 24h, at most {most_s / 3600:g}h.")
    return float(seconds)


def _check_metadata(given: Any) -> Json | None:
    if given is None:
        return None
    good = type(given) is dict and len(given) <= _METADATA_MAX and all(type(text) is str for text in given.values())
    if not good:
        raise Refusal(reasons.BAD_FIELD, f"'metadata' must be an object of at most {_METADATA_MAX} strings.")
    return dict(given)
