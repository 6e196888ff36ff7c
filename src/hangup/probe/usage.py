"""Usage as an API reports it afterwards, call by call: where to ask, how to read the record, and what it says. Pure functions.

A record says what the API counts, and bills. It says nothing about when the engine stopped, and an engine behind the API may
have gone on for longer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from hangup.probe.verdict import RAN_ON, SURE_STOP, Judgement, Ruling, untold

USAGE = "usage as the API reports it"
_SLACK_TOKENS = 3  # an API counts tokens, the probe events; an end or a role may count as well
_GENERATION_ID = re.compile(rb'"(gen[-_][0-9A-Za-z-]{8,64})"')
_RUNNING = ("queued", "in_progress", "cancelling")
_WHOLE = ("completed", "incomplete")  # incomplete: it reached its maximum


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """What an API says about one call."""

    tokens: int | None  # of the answer
    status: str = ""  # "": it has none

    @property
    def is_final(self) -> bool:
        return self.status not in _RUNNING and (self.tokens is not None or self.status != "")


@dataclass(frozen=True, slots=True)
class RecordSource:
    """Pages that report the usage of single calls."""

    prefix: str  # of the ids that it knows
    path: str
    read: Callable[[Any], UsageRecord | None]

    def page(self, id: str) -> str:
        return self.path.replace("ID", quote(id, safe=""))


@dataclass(frozen=True, slots=True)
class Charged:
    """One call whose client left, and the API's record of it."""

    delivered: int  # tokens that its client got
    remaining: int  # tokens that were still to come
    record: UsageRecord | None


def read_generation(page: Any) -> UsageRecord | None:
    """Read OpenRouter's and Vercel's GET /v1/generation."""
    row = page.get("data", page) if isinstance(page, dict) else None
    if not isinstance(row, dict):
        return None
    native = _count(row.get("native_tokens_completion"))
    tokens = native if native is not None else _count(row.get("tokens_completion"))
    return None if tokens is None else UsageRecord(tokens)


def read_response(page: Any) -> UsageRecord | None:
    """Read a stored answer of OpenAI's Responses API: GET /v1/responses/ID."""
    if not isinstance(page, dict) or page.get("object") != "response":
        return None
    usage, status = page.get("usage"), page.get("status")
    tokens = _count(usage.get("output_tokens")) if isinstance(usage, dict) else None
    return UsageRecord(tokens, status if isinstance(status, str) else "")


RECORD_SOURCES = (
    RecordSource("gen", "/v1/generation?id=ID", read_generation),
    RecordSource("resp_", "/v1/responses/ID", read_response),
)


def source_of(id: str) -> RecordSource | None:
    return next((source for source in RECORD_SOURCES if id.startswith(source.prefix)), None)


def id_in_headers(headers: Mapping[str, str]) -> str:
    """Return the id under which OpenRouter files a call; empty if there is none."""
    return headers.get("x-generation-id", "")


def id_in_event(line: bytes, event: Mapping[str, Any]) -> str:
    """Return the id under which an API files this call, from an event of its stream; empty if there is none."""
    response = event.get("response")
    id = response.get("id") if isinstance(response, dict) else event.get("id")
    if isinstance(id, str) and source_of(id) is not None:
        return id
    found = _GENERATION_ID.search(line)
    return found[1].decode() if found else ""


def judge_usage(calls: Sequence[Charged], where: str, within_tokens: float) -> Judgement:
    """Decide from the records of calls whose clients left; `within_tokens` may be computed after a departure in time."""
    known = [_outcome(call, within_tokens) for call in calls]
    if None in known:
        return untold(_why_not(calls, where), len(calls))
    ran_on = known.count(Ruling.NEVER)
    ruling = Ruling.NEVER if ran_on == len(calls) else Ruling.PARTLY if ran_on else Ruling.STOPPED
    if ruling is Ruling.STOPPED and Ruling.LATE in known:
        ruling = Ruling.LATE
    counts = [call.record.tokens for call in calls if call.record is not None and call.record.tokens is not None]
    tokens = sum(counts) - sum(call.delivered for call in calls) if len(counts) == len(calls) else None
    asked = sum(call.delivered + call.remaining for call in calls)
    said = f"{sum(counts)} of {asked} tokens" if tokens is not None else "no count, but its status"
    evidence = f"{USAGE} ({where}): {said}; what it counts, not what its engine did"
    return Judgement(ruling, evidence, len(calls), ran_on, None, max(tokens, 0) if tokens is not None else None, True)


def may_have_ended(call: Charged) -> bool:
    """Return whether an answer that ends by itself may have done so, instead of having been stopped."""
    tokens = call.record.tokens if call.record is not None else None
    return tokens is not None and tokens - call.delivered > SURE_STOP * call.remaining + _SLACK_TOKENS


def _outcome(call: Charged, within_tokens: float) -> Ruling | None:
    """Return what the record of one call says; None if that is nothing."""
    record = call.record
    if record is None or not record.is_final:
        return None
    if record.tokens is None:
        return Ruling.NEVER if record.status in _WHOLE else Ruling.STOPPED if record.status == "cancelled" else None
    extra = record.tokens - call.delivered
    if extra < -_SLACK_TOKENS - call.delivered * 0.1 or not call.remaining:
        return None  # fewer than its client got: such a count leaves something out
    if extra >= RAN_ON * call.remaining:
        return Ruling.NEVER
    return Ruling.STOPPED if extra <= within_tokens + _SLACK_TOKENS else Ruling.LATE


def _why_not(calls: Sequence[Charged], where: str) -> str:
    missing = sum(call.record is None for call in calls)
    if missing:
        return f"{where} reports no usage for {missing} of {len(calls)} calls whose client left"
    if any(call.record is not None and not call.record.is_final for call in calls):
        return f"{where} does not say that the call has ended"
    return f"{where} reports fewer tokens than the client got"


def parsed(page: bytes) -> Any:
    try:
        return json.loads(page)
    except ValueError:
        return None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None
