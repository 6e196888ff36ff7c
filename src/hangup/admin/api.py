"""`/api`: calls, backends, kill, drain. Answers are JSON; errors are `{"error": …}`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hangup.admin import calls, jobs
from hangup.admin.calls import BadQuery, Filter
from hangup.admin.overview import Watchers
from hangup.admin.view import View
from hangup.errors import HangupError

_DAY_S = 86_400.0
_KILLS_PER_TURN = 50  # then the event loop may see to others


def routes(view: View) -> list[Route]:
    watchers = Watchers(view)
    return [
        Route("/api/overview", watchers.overview, methods=["GET"]),
        Route("/api/events", watchers.events, methods=["GET"]),
        Route("/api/calls", _answering(lambda request: list_calls(view, request)), methods=["GET"]),
        Route("/api/calls", partial(kill_chosen, view), methods=["DELETE"]),
        Route("/api/calls/{id}", _answering(lambda request: show_call(view, request)), methods=["GET"]),
        Route("/api/calls/{id}", _answering(lambda request: kill_call(view, request)), methods=["DELETE"]),
        Route("/api/report", partial(report, view), methods=["GET"]),
        Route("/api/backends", _answering(lambda request: (200, {"backends": view.backends()})), methods=["GET"]),
        Route("/api/backends/{name:path}/drain", _answering(lambda request: drain(view, request)), methods=["PUT", "DELETE"]),
        *jobs.routes(view),
    ]


Answer = tuple[int, dict[str, Any]]


def list_calls(view: View, request: Request) -> Answer:
    return 200, calls.listing(view.calls(), view.waits_for, request.query_params, view.now())


def show_call(view: View, request: Request) -> Answer:
    call = view.find(request.path_params["id"])
    if call is None:
        return _no_such("call", request.path_params["id"])
    now = view.now()
    row = calls.describe(call, view.waits_for(call), call.ended_at or now)
    let_go = view.engine_let_go(call) if call.ended else None
    row |= {
        "outcome": call.reason.outcome.value if call.reason else None,
        "cause": call.reason.code if call.reason else None,
        "detail": call.detail or None,
        "status": call.status or None,
        "engine_let_go": let_go,
        "timeline": calls.timeline(call, let_go, now),
    }
    return 200, row


def kill_call(view: View, request: Request) -> Answer:
    killed = view.kill(request.path_params["id"])
    return _no_such("live call", request.path_params["id"]) if killed is None else (200, {"killed": [killed._asdict()]})


async def kill_chosen(view: View, request: Request) -> Response:
    """`DELETE /api/calls?tenant=…&dry_run=1`. Kills in portions, since a filter may choose thousands."""
    query = dict(request.query_params)
    dry_run = query.pop("dry_run", "") in ("1", "true")
    unknown = sorted(set(query) - set(Filter.__dataclass_fields__))
    if unknown:
        return _json(400, {"error": f"unknown filter: {', '.join(unknown)}"})
    try:
        filter = Filter.read(query)
    except BadQuery as error:
        return _json(400, {"error": str(error)})
    if not filter:
        return _json(400, {"error": "which calls? Give a filter, such as tenant, model, backend or older_than_s"})
    now = view.now()
    chosen = [call for call in view.calls() if filter.chooses(call, now)]
    if dry_run:
        return _json(200, {"dry_run": True, "would_kill": [calls.describe(call, view.waits_for(call), now) for call in chosen]})
    killed = []
    for at in range(0, len(chosen), _KILLS_PER_TURN):
        done = [view.kill(call.id) for call in chosen[at : at + _KILLS_PER_TURN]]
        killed += [row._asdict() for row in done if row is not None]
        await asyncio.sleep(0)
    return _json(200, {"killed": killed})


def drain(view: View, request: Request) -> Answer:
    name = request.path_params["name"]
    if not view.drain(name, request.method == "PUT"):
        return _no_such("backend", name)
    return 200, {"backends": [row for row in view.backends() if row["name"] == name]}


async def report(view: View, request: Request) -> Response:
    """`GET /api/report?since_s=86400&by=tenant`."""
    try:
        since_s = calls.number(request.query_params, "since_s", _DAY_S)
        return _json(200, await view.report(since_s, request.query_params.get("by", "tenant")))
    except HangupError as error:
        return _json(400, {"error": str(error)})


def _no_such(what: str, name: str) -> Answer:
    return 404, {"error": f"there is no {what} {name[:200]}"}


def _answering(make: Callable[[Request], Answer]) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        try:
            return _json(*make(request))
        except BadQuery as error:
            return _json(400, {"error": str(error)})

    return endpoint


def _json(status: int, value: dict[str, Any]) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")
