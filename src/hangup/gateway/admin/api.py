"""`/api`: calls, backends, kill, drain. Answers are JSON; errors are `{"error": …}`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hangup.core.histogram import SECONDS
from hangup.core.history import GROUPED_BY
from hangup.errors import HangupError, LedgerBusy
from hangup.gateway.admin import calls, jobs
from hangup.gateway.admin.calls import BadQuery, Filter
from hangup.gateway.admin.overview import Watchers
from hangup.gateway.admin.view import GatewayView, Killed

_DAY_S, _HISTORY_S = 86_400.0, 900.0
_IDS_MAX = 20
_KILLS_PER_TURN = 50  # then the event loop may run other tasks


def routes(view: GatewayView) -> list[Route]:
    watchers = Watchers(view)
    return [
        Route("/api/overview", watchers.overview, methods=["GET"]),
        Route("/api/events", watchers.events, methods=["GET"]),
        Route("/api/history", _answering(partial(history, view)), methods=["GET"]),
        Route("/api/calls", _answering(partial(list_calls, view)), methods=["GET"]),
        Route("/api/calls", _answering(partial(kill_chosen, view)), methods=["DELETE"]),
        Route("/api/calls/{id}", _answering(partial(show_call, view)), methods=["GET"]),
        Route("/api/calls/{id}", _answering(partial(kill_call, view)), methods=["DELETE"]),
        Route("/api/ids", _answering(partial(list_ids, view)), methods=["GET"]),
        Route("/api/zombies", _answering(partial(list_zombies, view)), methods=["GET"]),
        Route("/api/report", _answering(partial(report, view)), methods=["GET"]),
        Route("/api/backends", _answering(partial(list_backends, view)), methods=["GET"]),
        Route("/api/backends/{name:path}/drain", _answering(partial(drain, view)), methods=["PUT", "DELETE"]),
        Route("/api/backends/{name:path}/orphans", _answering(partial(orphans, view)), methods=["GET", "DELETE"]),
        *jobs.routes(view),
    ]


Answer = tuple[int, dict[str, Any]]


async def list_calls(view: GatewayView, request: Request) -> Answer:
    await view.find_slots()
    return 200, calls.listing(view.calls(), view.waits_for, request.query_params, view.now())


async def list_ids(view: GatewayView, request: Request) -> Answer:
    """Handle `GET /api/ids?prefix=hu-3f&live=1`: list the calls whose ids begin so, that operators need not type them whole."""
    prefix = request.query_params.get("prefix", "")
    ids = view.ids(prefix, live=request.query_params.get("live", "") in ("1", "true", "True"))
    found = sorted(dict.fromkeys(ids), key=lambda found: found != prefix)  # a whole id first
    return 200, {"ids": found[:_IDS_MAX]}


async def show_call(view: GatewayView, request: Request) -> Answer:
    await view.find_slots()
    call = view.find(request.path_params["id"])
    if call is None:
        return _no_such("call", request.path_params["id"])
    row = calls.describe(call, view.waits_for(call), call.ended_at or view.now())
    row |= {
        "outcome": call.reason.outcome.value if call.reason else None,
        "cause": call.reason.code if call.reason else None,
        "detail": call.detail or None,
        "status": call.status or None,
        "engine_let_go": call.engine_stopped if call.ended else None,
        "release": calls.release(call),
        "timeline": calls.timeline(call),
    }
    return 200, row


async def kill_call(view: GatewayView, request: Request) -> Answer:
    wait_s = _wait_s(request.query_params)
    killed = view.kill(request.path_params["id"])
    if killed is None:
        return _no_such("live call", request.path_params["id"])
    return 200, {"killed": await _verified(view, [killed], wait_s)}


async def kill_chosen(view: GatewayView, request: Request) -> Answer:
    """Handle `DELETE /api/calls?tenant=…&dry_run=1`. Kills in batches, because a filter may match thousands."""
    query = dict(request.query_params)
    dry_run = query.pop("dry_run", "") in ("1", "true")
    wait_s = _wait_s(query)
    unknown = sorted(set(query) - set(Filter.__dataclass_fields__) - {"wait_s"})
    if unknown:
        raise BadQuery(f"unknown filter: {', '.join(unknown)}")
    filter = Filter.read(query)
    if not filter:
        raise BadQuery("no filter given: name the calls by id, tenant, model, backend or older_than_s")
    now = view.now()
    chosen = [call for call in view.calls() if filter.chooses(call, now)]
    if dry_run:
        return 200, {"dry_run": True, "would_kill": [calls.describe(call, view.waits_for(call), now) for call in chosen]}
    killed: list[Killed] = []
    for at in range(0, len(chosen), _KILLS_PER_TURN):
        done = [view.kill(call.id) for call in chosen[at : at + _KILLS_PER_TURN]]
        killed += [row for row in done if row is not None]
        await asyncio.sleep(0)
    return 200, {"killed": await _verified(view, killed, wait_s)}


def _wait_s(query: Mapping[str, str]) -> float | None:
    """Return how long the caller wants to wait for the engine; None: the configured `kill_wait_s`."""
    return calls.number(query, "wait_s", 0.0) if query.get("wait_s") else None


async def _verified(view: GatewayView, killed: list[Killed], wait_s: float | None) -> list[dict[str, Any]]:
    """Describe the killed calls after their engines have had time to confirm that they stopped."""
    await view.wait_for_stops([row.call for row in killed], wait_s)
    return [calls.killed(row) for row in killed]


async def history(view: GatewayView, request: Request) -> Answer:
    """Handle `GET /api/history?seconds=900&by=model`: intervals, oldest first, as counts that can be added up."""
    seconds, by = calls.number(request.query_params, "seconds", _HISTORY_S), request.query_params.get("by", "model")
    if by not in GROUPED_BY:
        raise BadQuery(f"by: expected one of {', '.join(GROUPED_BY)}, got {by[:100]!r}")
    past, now = view.history(), time.time()
    length, intervals = past.within(seconds, now)
    return 200, {
        "length_s": length,
        "since": past.reaches_back_to,
        "bounds": SECONDS,
        "rows": [interval.as_json(by) for interval in intervals],
        "events": view.events(),
    }


async def list_zombies(view: GatewayView, request: Request) -> Answer:
    return 200, {"zombies": view.zombies()}


async def list_backends(view: GatewayView, request: Request) -> Answer:
    return 200, {"backends": view.backends()}


async def drain(view: GatewayView, request: Request) -> Answer:
    name = request.path_params["name"]
    if not view.drain(name, request.method == "PUT"):
        return _no_such("backend", name)
    return 200, {"backends": [row for row in view.backends() if row["name"] == name]}


async def orphans(view: GatewayView, request: Request) -> Answer:
    """Show a backend's orphans; with `DELETE`, an operator declares that nobody waits for them, and they are ended."""
    name = request.path_params["name"]
    found = await view.orphans(name, end=request.method == "DELETE")
    return (200, found) if found is not None else _no_such("backend", name)


async def report(view: GatewayView, request: Request) -> Answer:
    """Handle `GET /api/report?since_s=86400&by=tenant`."""
    since_s = calls.number(request.query_params, "since_s", _DAY_S)
    return 200, await view.report(since_s, request.query_params.get("by", "tenant"))


def _no_such(what: str, name: str) -> Answer:
    return 404, {"error": f"there is no {what} {name[:200]}"}


def _answering(make: Callable[[Request], Awaitable[Answer]]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            status, value = await make(request)
        except HangupError as error:
            status, value = 503 if isinstance(error, LedgerBusy) else 400, {"error": str(error)}
        return Response(orjson.dumps(value), status, media_type="application/json")

    return endpoint
