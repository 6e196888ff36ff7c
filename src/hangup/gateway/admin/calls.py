"""Filters, sorts, pages and describes live calls for the admin API.

Everything is read from the existing calls on request; the data path stores nothing for it. Only the calls of the requested page
are described, so that ten thousand live calls cost a few milliseconds.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hangup.core.call import Call, Phase
from hangup.core.reaper import PendingStop, StopState
from hangup.errors import HangupError
from hangup.gateway.admin.view import Killed

PAGE_MAX = 1000  # calls in one answer
PAGE_DEFAULT = 100


class BadQuery(HangupError):
    """A request has an invalid parameter."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects calls; an empty field matches all."""

    id: frozenset[str] = frozenset()
    tenant: str = ""
    model: str = ""
    backend: str = ""
    route: str = ""
    phase: str = ""
    client: str = ""
    older_than_s: float = 0.0

    @classmethod
    def read(cls, query: Mapping[str, str]) -> Filter:
        phase = query.get("phase", "")
        if phase and phase not in {p.value for p in Phase}:
            raise BadQuery(f"phase: expected one of {', '.join(p.value for p in Phase)}, got {phase!r}")
        texts = {name: query.get(name, "") for name in ("tenant", "model", "backend", "route", "client")}
        ids = frozenset(filter(None, query.get("id", "").split(",")))  # no id contains a comma
        return cls(ids, **texts, phase=phase, older_than_s=number(query, "older_than_s", 0.0))

    def __bool__(self) -> bool:
        return self != _ALL

    def chooses(self, call: Call, now: float) -> bool:
        return (
            (not self.id or call.id in self.id)
            and (not self.tenant or call.tenant == self.tenant)
            and (not self.model or call.model == self.model)
            and (not self.backend or call.backend == self.backend)
            and (not self.route or call.route == self.route)
            and (not self.phase or call.phase.value == self.phase)
            and (not self.client or call.peer == self.client)
            and now - call.started_at >= self.older_than_s
        )


_ALL = Filter()

_Key = Callable[[Call, float], float | str]
# Each sorts the calls that an operator looks for first to the top; ties are broken by age.
SORTS: dict[str, _Key] = {
    "age": lambda call, now: call.started_at,
    "idle": lambda call, now: call.progress_at,
    "tokens": lambda call, now: -call.tokens_out,
    "rate": lambda call, now: -(tokens_per_s(call, now) or 0.0),
    "tenant": lambda call, now: call.tenant,
    "model": lambda call, now: call.model,
    "backend": lambda call, now: call.backend,
    "phase": lambda call, now: call.phase.value,
    "client": lambda call, now: call.peer,
    "deadline": lambda call, now: call.started_at + min(call.clock.total_s, call.clock.client_total_s),
}


@dataclass(frozen=True, slots=True)
class Page:
    """The sort order and the page of a listing."""

    sort: str = "age"
    descending: bool = False
    offset: int = 0
    limit: int = PAGE_DEFAULT

    @classmethod
    def read(cls, query: Mapping[str, str]) -> Page:
        sort = query.get("sort", "age")
        name = sort.removeprefix("-")
        if name not in SORTS:
            raise BadQuery(f"sort: expected one of {', '.join(SORTS)}, with a leading - to reverse the order, got {sort!r}")
        offset, limit = int(number(query, "offset", 0)), int(number(query, "limit", PAGE_DEFAULT))
        return cls(name, sort.startswith("-"), offset, min(limit, PAGE_MAX))

    def of(self, chosen: list[Call], now: float) -> list[Call]:
        def key(call: Call) -> tuple[float | str, float]:
            return sort(call, now), call.started_at

        sort = SORTS[self.sort]
        end = self.offset + self.limit
        if end * 8 < len(chosen):
            pick = heapq.nlargest if self.descending else heapq.nsmallest
            return pick(end, chosen, key=key)[self.offset :]
        return sorted(chosen, key=key, reverse=self.descending)[self.offset : end]


def listing(calls: Iterable[Call], waits_for: Callable[[Call], str], query: Mapping[str, str], now: float) -> dict[str, Any]:
    """Build the answer to `GET /api/calls`."""
    filter, page = Filter.read(query), Page.read(query)
    every = list(calls)
    chosen = [call for call in every if filter.chooses(call, now)] if filter else every
    rows = [describe(call, waits_for(call), now) for call in page.of(chosen, now)]
    return {"calls": rows, "total": len(chosen), "live": len(every), "offset": page.offset, "limit": page.limit}


def describe(call: Call, waits_for: str, now: float) -> dict[str, Any]:
    """Describe one live call. Of the request's body it shows nothing but the model's name."""
    remaining_s = call.started_at + min(call.clock.total_s, call.clock.client_total_s) - now
    return {
        "id": call.id,
        "trace_id": call.trace_id or None,
        "tenant": call.tenant,
        "client": call.peer,
        "route": call.route,
        "model": call.model,
        "stream": call.stream,
        "backend": call.backend,
        "engine_id": call.engine_id or None,
        "slot": call.slot,
        "attempts": call.attempts,
        "phase": call.phase.value,
        "waits_for": waits_for,
        "age_s": _round(now - call.started_at),
        "tokens_in": call.tokens_in,
        "tokens_out": call.tokens_out,
        "tokens_per_s": tokens_per_s(call, now),
        "idle_s": _round(now - call.progress_at) if call.first_token_at is not None else None,
        "deadline_left_s": _round(remaining_s) if remaining_s != math.inf else None,
    }


def tokens_per_s(call: Call, now: float) -> float | None:
    """Return the rate since the first token."""
    if call.first_token_at is None:
        return None
    seconds = (call.ended_at or now) - call.first_token_at
    return _round(call.tokens_out / seconds) if seconds > 0 and call.tokens_out else 0.0


def release(call: Call) -> str | None:
    """Return whether and how the engine stopped an ended call; None while it is live, and if no engine was working on it."""
    return call.stop_state.value if call.ended and call.stop_state is not None else None


def killed(row: Killed) -> dict[str, Any]:
    """Describe a killed call, with what is known about its engine by now."""
    call = row.call
    ended = call.ended_at or 0.0
    released = [stop.released_at - ended for stop in call.pending_stops if stop.released_at is not None]
    return {
        "id": call.id,
        "tenant": call.tenant,
        "model": call.model,
        "backend": call.backend,
        "slot": call.slot,
        "tokens_out": call.tokens_out,
        "connection_cut": row.connection_cut,
        "abort_sent": row.abort_sent,
        "verified": call.engine_stopped,
        "release": release(call),
        "let_go_after_s": _round(max(released)) if released and call.engine_stopped else None,
    }


def timeline(call: Call) -> list[dict[str, Any]]:
    """Return a call's events in order, with seconds since its first byte."""
    steps: list[tuple[float | None, str]] = [
        (call.started_at, "first byte of the request"),
        (call.received_at, "request complete, waiting for a backend"),
        (call.sent_at, f"sent to {call.backend}{_place(call.slot)}" + f" (attempt {call.attempts})" * (call.attempts > 1)),
        (call.answered_at, "first byte of the engine's answer"),
        (call.first_token_at, "first token"),
    ]
    if call.first_token_at is not None and call.tokens_out > 1:
        so_far = " so far" if call.ended_at is None else ""
        steps.append((call.progress_at, f"token {call.tokens_out}, the last one{so_far}"))
    if call.ended_at is not None and call.reason is not None:
        outcome, cause = call.reason.outcome.value, call.reason.code
        steps.append((call.ended_at, f"ended: {outcome}{f' ({cause})' * (cause != outcome)}, status {call.status}"))
    for stop in call.pending_stops:
        steps += _release_steps(stop)
    known = [(at, what) for at, what in steps if at is not None]
    return [{"at_s": _round(at - call.started_at, 6), "what": what} for at, what in sorted(known, key=lambda step: step[0])]


def _release_steps(stop: PendingStop) -> list[tuple[float | None, str]]:
    """Return the events from the engine's order to stop until its confirmation."""
    about = "" if stop.tokens_exact else "about "
    since = f", {about}{stop.tokens_after} tokens computed since" if stop.tokens_after is not None else ""
    again = f" after {stop.aborts} repeated abort{'s' * (stop.aborts > 1)}" if stop.aborts else ""
    steps: list[tuple[float | None, str]] = [
        (stop.at, "stop requested from the engine"),
        (stop.zombie_since, f"zombie: the engine still computes it{_place(stop.slot)}{again}{since}"),
    ]
    if stop.released is not None:
        steps.append((stop.released_at, _RELEASED[stop.released]))
    return steps


_RELEASED = {
    StopState.VERIFIED: "verified: the engine stopped the work",
    StopState.RESTARTED: "restarted: the work is gone with the old engine process",
    StopState.UNVERIFIED: "unverified: the engine did not report whether it stopped",
}


def _place(slot: int | None) -> str:
    return "" if slot is None else f" in slot {slot}"


def number(query: Mapping[str, str], name: str, default: float) -> float:
    """Return a parameter that must be a number, 0 or more."""
    given = query.get(name, "")
    if not given:
        return default
    try:
        number = float(given)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e12:
        raise BadQuery(f"{name}: expected a number, 0 or more, got {given!r}")
    return number


def _round(value: float, digits: int = 3) -> float:
    return round(value, digits)
