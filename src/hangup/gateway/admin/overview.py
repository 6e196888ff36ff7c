"""Builds snapshots of the gateway's state, and streams them to the dashboard.

A snapshot is built once for all watchers, and only while somebody watches.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from hangup import __version__
from hangup.core.account import ZOMBIE
from hangup.core.call import Call
from hangup.core.history import Interval
from hangup.core.reasons import REASONS, Outcome
from hangup.gateway.admin import calls
from hangup.gateway.admin.view import GatewayView

PERIOD_S = 1.0
WATCHERS_MAX = 50
_ENDED_SHOWN = 8
_ZOMBIES_SHOWN = 8
_JOBS_SHOWN = 20
_LOOKED_THROUGH = 200
_REFUSING = frozenset([Outcome.SHED.value, Outcome.REFUSED.value])


def overview(view: GatewayView) -> dict[str, Any]:
    ledger = view.ledger
    causes: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    for (_, outcome, cause), count in ledger.calls.items():
        causes[str(outcome)] += count
        if outcome in _REFUSING:
            refusals[cause] += count
    fates: Counter[str] = Counter()
    for (_, _, fate), count in ledger.tokens.items():
        fates["wasted" if fate == ZOMBIE else fate] += count
    phases = Counter(phase.value for phase in view.phases())
    return {
        "version": __version__,
        "not_ready": view.ready(),
        "live": sum(phases.values()),
        "phases": phases,
        "waiting": view.queue_depth(),
        "connections": view.connections(),
        "outcomes": causes,
        "refusals": refusals,
        "refusal_words": {cause: REASONS[cause].message for cause in refusals if cause in REASONS},
        "tokens": fates,
        "tokens_streaming": sum(
            call.tokens_out for call in view.calls() if call.stream
        ),  # the ledger does not have their calls yet
        "backends": view.backends(),
        "alarms": view.alarms(),
        "zombies": view.zombies()[:_ZOMBIES_SHOWN],
        "jobs": _jobs(view),
        "left": [_story(view, call) for call in _hung_up(view)],
        "rates": _rates(view.history().latest()),
    }


def _jobs(view: GatewayView) -> dict[str, Any]:
    jobs = view.jobs()
    total, rows = jobs.active(_JOBS_SHOWN) if jobs is not None else (0, [])
    return {"total": total, "rows": rows}


def _hung_up(view: GatewayView) -> list[Call]:
    """Return the latest calls that ended while an engine worked on them, whether or not they became zombies."""
    ended = [call for call in view.ended(_LOOKED_THROUGH) if call.sent_at is not None and not call.engine_finished]
    return ended[:_ENDED_SHOWN]


def _story(view: GatewayView, call: Call) -> dict[str, Any]:
    assert call.ended_at is not None
    row = calls.describe(call, "", call.ended_at)
    kept = {name: row[name] for name in ("id", "tenant", "model", "backend", "tokens_out", "age_s")}
    return {
        **kept,
        "cause": call.reason.code if call.reason else "",
        "ended_s_ago": round(view.now() - call.ended_at, 1),
        "release": calls.release(call),
    }


def _rates(latest: Interval | None) -> dict[str, float | None]:
    """Return how busy the engines were between the last two polls, and the tokens per second; those of engines that do not
    count are in `uncounted_per_s`, not in `computed_per_s`."""
    if latest is None or not latest.seconds:
        return {"busy": None, "computed_per_s": None, "received_per_s": 0.0, "uncounted_per_s": 0.0}
    return {
        "busy": round(latest.busy / latest.busy_s, 3) if latest.busy_s else None,
        "computed_per_s": round(latest.computed / latest.computed_s, 1) if latest.computed_s else None,
        "received_per_s": round(latest.received / latest.seconds, 1),
        "uncounted_per_s": round(latest.uncounted / latest.seconds, 1),
    }


async def period(stopping: asyncio.Event) -> None:
    """Wait until the next snapshot is due, or the server stops."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PERIOD_S):
            await stopping.wait()


class Watchers:
    """`GET /api/events`: one snapshot per second, as server-sent events."""

    def __init__(self, view: GatewayView) -> None:
        self._view = view
        self._count = 0
        self._glance = b""
        self._made_at = 0.0

    async def events(self, request: Request) -> Response:
        if self._count >= WATCHERS_MAX:
            return Response(b'{"error":"too many event streams are open"}', 503, media_type="application/json")
        return StreamingResponse(self._stream(request.app.state.stopping), media_type="text/event-stream")

    async def overview(self, request: Request) -> Response:
        return Response(self._now(), media_type="application/json")

    async def _stream(self, stopping: asyncio.Event) -> AsyncIterator[bytes]:
        self._count += 1
        try:
            while not stopping.is_set():
                yield b"data: " + self._now() + b"\n\n"
                await period(stopping)
        finally:
            self._count -= 1

    def _now(self) -> bytes:
        now = self._view.now()
        if now - self._made_at >= PERIOD_S / 2 or not self._glance:
            self._glance, self._made_at = orjson.dumps(overview(self._view)), now
        return self._glance
