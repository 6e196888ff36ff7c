"""`/api/jobs`: lists jobs with their tenants and progress, cancels one, and deletes old ones."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hangup.errors import HangupError
from hangup.gateway.admin.view import GatewayView, JobsView

_PAGE_MAX = 1000
_KINDS = ("call", "response", "batch", "message_batch")

Answer = tuple[int, dict[str, Any]]


def routes(view: GatewayView) -> list[Route]:
    return [
        Route("/api/jobs", partial(_answer, view, list_jobs), methods=["GET"]),
        Route("/api/jobs", partial(_answer, view, prune), methods=["DELETE"]),
        Route("/api/jobs/{id}", partial(_answer, view, show), methods=["GET"]),
        Route("/api/jobs/{id}", partial(_answer, view, cancel), methods=["DELETE"]),
    ]


async def _answer(view: GatewayView, handler: Callable[[JobsView, Request], Awaitable[Answer]], request: Request) -> Response:
    jobs = view.jobs()
    if jobs is None:
        status, value = 503, {"error": "jobs are off, or their store could not be opened; see the gateway log"}
    else:
        try:
            status, value = await handler(jobs, request)
        except HangupError as error:  # most likely from the store
            status, value = 503, {"error": str(error)}
    return Response(orjson.dumps(value), status, media_type="application/json")


async def list_jobs(jobs: JobsView, request: Request) -> Answer:
    query = request.query_params
    count = query.get("limit", "100")
    if not (count.isascii() and count.isdigit() and len(count) < 9) or not 1 <= int(count) <= _PAGE_MAX:
        return 400, {"error": f"limit: expected a number from 1 to {_PAGE_MAX}"}
    if query.get("kind", "call") not in _KINDS:
        return 400, {"error": f"kind: expected one of {', '.join(_KINDS)}"}
    active = query.get("active") in ("1", "true")
    return 200, await jobs.page(query.get("tenant"), query.get("kind"), active, query.get("before"), int(count))


async def show(jobs: JobsView, request: Request) -> Answer:
    return _found(await jobs.show(request.path_params["id"]), request)


async def cancel(jobs: JobsView, request: Request) -> Answer:
    return _found(await jobs.cancel(request.path_params["id"]), request)


async def prune(jobs: JobsView, request: Request) -> Answer:
    """Delete jobs that ended longer ago than `ended_before_s`."""
    given = request.query_params.get("ended_before_s", "")
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        return 400, {"error": "ended_before_s: expected a number of seconds"}
    return 200, {"pruned": await jobs.prune(max(seconds, 0.0), request.query_params.get("tenant"))}


def _found(job: dict[str, Any] | None, request: Request) -> Answer:
    return (200, job) if job is not None else (404, {"error": f"there is no job {request.path_params['id']!r}"})
