"""Builds the OpenTelemetry spans of a call: the call itself, and within it the parts of its life.

The spans are built once, when the call is over and its engine has stopped, from the times that the call keeps anyway. Names and
attributes follow the semantic conventions for generative AI and for HTTP servers. The caller provides the ids.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hangup.core.call import Call
from hangup.core.reaper.pending_stops import StopState
from hangup.core.reasons import Outcome

_INTERNAL, _SERVER, _CLIENT = 1, 2, 3
_ERROR = 2
_RANDOM_DIGITS = 16  # at the end of a trace id, by W3C's trace context
_RANDOM_MAX = 1 << 64
_INTEGER_MAX = 1 << 63  # OTLP's have 64 bits with a sign
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
_EMBEDDINGS = "embeddings"
# The client's own doing, whatever the status: it hung up, or its deadline passed.
_CLIENTS_CHOICE = frozenset([Outcome.CLIENT_GONE, Outcome.DEADLINE])


def operation_of(route: str) -> str:
    """Return what OpenTelemetry calls the operation of a route; "" if it is not inference."""
    return _OPERATIONS.get(route.partition(".")[2], "")


def settled(call: Call) -> bool:
    """Return whether everything that a trace shows about an ended call is known: its engine has stopped, or will not say."""
    return call.stop_state not in (StopState.PENDING, StopState.ZOMBIE)


def keeps(call: Call, share: float, slow_s: float) -> bool:
    """Return whether the trace of an ended call is kept.

    A client that samples its trace gets all of it. Of the others, every strange call is kept: one that did not complete, was
    tried more than once, or whose first token took longer than `slow_s`. Of the ordinary ones, a share is.
    """
    if call.parent_id or share >= 1 or call.outcome is not Outcome.COMPLETED or call.attempts > 1:
        return True
    if (call.first_token_at or call.started_at) - call.started_at > slow_s:
        return True
    return int(call.trace_id[-_RANDOM_DIGITS:], 16) < share * _RANDOM_MAX


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
    failed = is_failure(call)
    method = (call.trace_attributes or {}).get("http.request.method", "HTTP")  # OpenTelemetry's name where no route is known
    whole = span(
        f"{operation or call.route or method} {call.model}".strip(),
        call.started_at,
        call.ended_at,
        spanId=call.span_id,
        parentSpanId=call.parent_id,
        kind=_SERVER,
        attributes=_attributes(call, operation, failed),
        status={"code": _ERROR, "message": call.reason.code} if failed else {},
    )
    result = [whole]
    if call.received_at is not None:
        result.append(span("queue", call.received_at, call.sent_at or call.ended_at))
    if call.sent_at is not None:
        engine = {"kind": _CLIENT, "attributes": _listed(_engine_attributes(call))}
        if operation and operation != _EMBEDDINGS:
            result.append(span("first token", call.sent_at, call.first_token_at or call.ended_at, **engine))
            if call.first_token_at is not None:
                result.append(span("stream", call.first_token_at, call.ended_at))
        else:
            result.append(span("answer", call.sent_at, call.ended_at, **engine))
        released = [stop.released_at for stop in call.pending_stops if stop.released_at is not None]
        known = {"hangup.release": call.stop_state.value if call.stop_state is not None else "finished"}
        result.append(span("release", call.ended_at, max([call.ended_at, *released]), attributes=_listed(known)))
    return result


def is_failure(call: Call) -> bool:
    """Return whether the call's end is an error of the server: not if the client left, or if its request was at fault."""
    reason = call.reason
    return reason is not None and reason.status >= 500 and reason.outcome not in _CLIENTS_CHOICE


def _engine_attributes(call: Call) -> dict[str, str | int | None]:
    host, _, port = call.backend.rpartition(":")  # a backend without a configured name is named by its address
    return {
        "server.address": host if port.isdigit() else call.backend,
        "server.port": int(port) if host and port.isdigit() else None,
        "hangup.attempts": call.attempts,
    }


def _attributes(call: Call, operation: str, failed: bool) -> list[dict[str, Any]]:
    assert call.reason is not None
    given: dict[str, Any] = {
        "http.response.status_code": call.status,
        "client.address": call.peer,
        "error.type": call.reason.code if failed else None,
        "hangup.call_id": call.id,
        "hangup.tenant": call.tenant,
        "hangup.route": call.route,
        "hangup.backend": call.backend,
        "hangup.engine_id": call.engine_id,
        "hangup.slot": call.slot,
        "hangup.outcome": call.reason.outcome.value,
        "hangup.cause": call.reason.code,
        **(call.trace_attributes or {}),
    }
    if operation:
        given |= {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": call.route.partition(".")[0],  # whose API the client used
            "gen_ai.request.model": call.model,
            "gen_ai.usage.input_tokens": call.tokens_in,
            "gen_ai.usage.output_tokens": call.tokens_out if operation != _EMBEDDINGS else None,
        }
    return _listed(given)


def _listed(given: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in given.items() if _can_be_shown(value)]


def _can_be_shown(value: Any) -> bool:
    """Return whether a value is given and fits OTLP's types: collectors refuse a whole batch for one that does not."""
    match value:
        case int():
            return -_INTEGER_MAX <= value < _INTEGER_MAX
        case float():
            return math.isfinite(value)
        case _:
            return value not in (None, "", [])


def _value(value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list():
            return {"arrayValue": {"values": [_value(each) for each in value]}}
        case _:
            return {"stringValue": str(value)}
