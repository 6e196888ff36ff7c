"""Builds the OpenTelemetry spans of a call: the call itself, and within it queue, first token, stream and release.

The spans are built once, when the call is over and its engine has stopped, from the times that the call keeps anyway. Names and
attributes follow the semantic conventions for generative AI. The caller provides the ids.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hangup.core.call import Call
from hangup.core.reaper.pending_stops import StopState
from hangup.core.reasons import Outcome

_SERVER, _INTERNAL = 2, 1
_ERROR = 2
# By the second half of a route's name, such as openai.chat; other routes are not inference.
_OPERATIONS = {
    "chat": "chat",
    "messages": "chat",
    "responses": "chat",
    "completions": "text_completion",
    "completion": "text_completion",
    "generate": "text_completion",
    "embeddings": "embeddings",
}


def operation_of(route: str) -> str:
    """Return what OpenTelemetry calls the operation of a route; "" if it is not inference."""
    return _OPERATIONS.get(route.partition(".")[2], "")


def settled(call: Call) -> bool:
    """Return whether everything that a trace shows about an ended call is known: its engine has stopped, or will not say."""
    return call.stop_state not in (StopState.PENDING, StopState.ZOMBIE)


def spans(call: Call, nanoseconds: Callable[[float], int], new_id: Callable[[], str]) -> list[dict[str, Any]]:
    """Return the spans in OTLP's JSON format. `nanoseconds` converts the call's clock to wall time."""
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

    operation = operation_of(call.route)
    failed = call.reason.outcome is not Outcome.COMPLETED
    whole = span(
        f"{operation or call.route or 'unknown'} {call.model}".strip(),
        call.started_at,
        call.ended_at,
        spanId=call.span_id,
        parentSpanId=call.parent_id,
        kind=_SERVER,
        attributes=_attributes(call, operation),
        status={"code": _ERROR, "message": call.reason.code} if failed else {},
    )
    result = [whole]
    if call.received_at is not None:
        result.append(span("queue", call.received_at, call.sent_at or call.ended_at))
    if call.sent_at is not None:
        result.append(span("first token", call.sent_at, call.first_token_at or call.ended_at))
        if call.first_token_at is not None:
            result.append(span("stream", call.first_token_at, call.ended_at))
        released = [stop.released_at for stop in call.pending_stops if stop.released_at is not None]
        known = {"hangup.release": call.stop_state.value if call.stop_state is not None else "finished"}
        result.append(span("release", call.ended_at, max([call.ended_at, *released]), attributes=_listed(known)))
    return result


def _attributes(call: Call, operation: str) -> list[dict[str, Any]]:
    assert call.reason is not None
    host, _, port = call.backend.rpartition(":")  # a backend without a configured name is named by its address
    given: dict[str, str | int | None] = {
        "http.response.status_code": call.status,
        "server.address": host if port.isdigit() else None,
        "server.port": int(port) if host and port.isdigit() else None,
        "error.type": call.reason.code if call.reason.outcome is not Outcome.COMPLETED else None,
        "hangup.call_id": call.id,
        "hangup.tenant": call.tenant,
        "hangup.route": call.route,
        "hangup.backend": call.backend,
        "hangup.engine_id": call.engine_id,
        "hangup.slot": call.slot,
        "hangup.outcome": call.reason.outcome.value,
        "hangup.cause": call.reason.code,
    }
    if operation:
        given |= {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": call.route.partition(".")[0],  # whose API the client used
            "gen_ai.request.model": call.model,
            "gen_ai.usage.input_tokens": call.tokens_in,
            "gen_ai.usage.output_tokens": call.tokens_out,
        }
    return _listed(given)


def _listed(given: dict[str, Any]) -> list[dict[str, Any]]:
    return [_attribute(name, value) for name, value in given.items() if value not in (None, "")]


def _attribute(name: str, value: str | int) -> dict[str, Any]:
    return {"key": name, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
