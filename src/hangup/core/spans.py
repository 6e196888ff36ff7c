"""A call as OpenTelemetry spans: the call itself, and within it queue, first token, stream and release.

They are made once, at the call's end, from the moments that the call keeps anyway; names and attributes follow the semantic
conventions for generative AI. Ids are given by the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hangup.core.call import Call
from hangup.core.reasons import Outcome

_SERVER, _INTERNAL = 2, 1
_ERROR = 2
_OPERATIONS = {"embeddings": "embeddings", "completions": "text_completion"}


def spans(call: Call, nanoseconds: Callable[[float], int], new_id: Callable[[], str]) -> list[dict[str, Any]]:
    """In OTLP's JSON shape. `nanoseconds` makes wall time of the call's clock."""
    assert call.reason is not None and call.ended_at is not None

    def span(name: str, start: float, end: float, **more: Any) -> dict[str, Any]:
        return {
            "traceId": call.trace_id,
            "spanId": new_id(),
            "parentSpanId": call.span_id,
            "name": name,
            "kind": _INTERNAL,
            "startTimeUnixNano": str(nanoseconds(start)),
            "endTimeUnixNano": str(nanoseconds(end)),
            **more,
        }

    operation = next((name for part, name in _OPERATIONS.items() if part in call.route), "chat")
    failed = call.reason.outcome is not Outcome.COMPLETED
    whole = span(
        f"{operation} {call.model}".strip(),
        call.started_at,
        call.ended_at,
        spanId=call.span_id,
        parentSpanId=call.parent_id,
        kind=_SERVER,
        attributes=_attributes(call, operation),
        status={"code": _ERROR, "message": call.reason.code} if failed else {},
    )
    made = [whole]
    if call.received_at is not None:
        made.append(span("queue", call.received_at, call.sent_at or call.ended_at))
    if call.sent_at is not None:
        made.append(span("first token", call.sent_at, call.first_token_at or call.ended_at))
        if call.first_token_at is not None:
            made.append(span("stream", call.first_token_at, call.ended_at))
        known = "not known" if call.tokens_after_end is None else "yes"
        made.append(span("release", call.ended_at, call.ended_at, attributes=[_attribute("hangup.engine_let_go", known)]))
    return made


def _attributes(call: Call, operation: str) -> list[dict[str, Any]]:
    assert call.reason is not None
    given = {
        "gen_ai.operation.name": operation,
        "gen_ai.request.model": call.model,
        "gen_ai.usage.input_tokens": call.tokens_in,
        "gen_ai.usage.output_tokens": call.tokens_out,
        "http.response.status_code": call.status,
        "server.address": call.backend,
        "error.type": call.reason.code if call.reason.outcome is not Outcome.COMPLETED else None,
        "hangup.call_id": call.id,
        "hangup.tenant": call.tenant,
        "hangup.outcome": call.reason.outcome.value,
        "hangup.cause": call.reason.code,
    }
    return [_attribute(name, value) for name, value in given.items() if value not in (None, "")]


def _attribute(name: str, value: str | int) -> dict[str, Any]:
    return {"key": name, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
