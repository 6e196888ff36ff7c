"""The closed list of reasons why a call ended. Each reason belongs to one outcome and knows what to tell a waiting client.

`code` appears in the log (`cause`), in the metrics and in the header `x-hangup-reason`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Outcome(StrEnum):
    """How a call ended; every call has exactly one."""

    COMPLETED = "completed"
    CLIENT_GONE = "client_gone"
    DEADLINE = "deadline"
    CAP = "cap"
    SHED = "shed"
    ENGINE_FAILED = "engine_failed"
    ENGINE_REFUSED = "engine_refused"
    REFUSED = "refused"
    KILLED = "killed"
    DRAINED = "drained"


@dataclass(frozen=True, slots=True, eq=False)
class Reason:
    """One way to end. `status` is sent if no answer has begun; `retry` sets x-should-retry where we know."""

    code: str
    outcome: Outcome
    status: int
    message: str
    retry: bool | None = None


REASONS: dict[str, Reason] = {}


def _reason(code: str, outcome: Outcome, status: int, message: str, retry: bool | None = None) -> Reason:
    assert code not in REASONS
    REASONS[code] = Reason(code, outcome, status, message, retry)
    return REASONS[code]


COMPLETED: Final = _reason("completed", Outcome.COMPLETED, 200, "The answer was delivered.")

# The client hung up. 499 appears only in the log: nobody is there to read it.
CLIENT_FIN: Final = _reason("fin", Outcome.CLIENT_GONE, 499, "The client closed its connection.")
CLIENT_RESET: Final = _reason("reset", Outcome.CLIENT_GONE, 499, "The client reset its connection.")
CLIENT_SILENT: Final = _reason("silence", Outcome.CLIENT_GONE, 499, "The client's host stopped answering.")
CLIENT_STALLED: Final = _reason("write_stall", Outcome.CLIENT_GONE, 499, "The client stopped reading.")

# A job's client is its owner.
JOB_CANCELLED: Final = _reason("job_cancelled", Outcome.CLIENT_GONE, 499, "The job was cancelled.")
LEASE_EXPIRED: Final = _reason(
    "lease_expired", Outcome.CLIENT_GONE, 499, "The job's lease expired: no client polled it in time."
)
WINDOW_PASSED: Final = _reason("window_passed", Outcome.CLIENT_GONE, 499, "The batch's completion window expired.")

CLIENT_DEADLINE: Final = _reason("client_deadline", Outcome.DEADLINE, 504, "The client's deadline passed.", False)

OUTPUT_TOKENS: Final = _reason("output_tokens_max", Outcome.CAP, 200, "The answer reached the maximum of output tokens.")
EVENT_BYTES: Final = _reason(
    "event_bytes_max",
    Outcome.CAP,
    502,
    "The engine sent an event larger than event_bytes_max; raise this limit if such events are expected.",
    False,
)
ANSWER_BYTES: Final = _reason(
    "answer_bytes_max", Outcome.CAP, 502, "The answer is larger than answer_bytes_max; request a stream instead.", False
)
TOTAL_TIME: Final = _reason("total_s", Outcome.CAP, 504, "The call timed out: it exceeded its total time limit.")
WEBSOCKET_TIME: Final = _reason("websocket_s", Outcome.CAP, 504, "The WebSocket timed out: it exceeded its total time limit.")
WEBSOCKET_IDLE: Final = _reason("websocket_idle_s", Outcome.CAP, 504, "The WebSocket timed out: it was idle for too long.")
FIRST_TOKEN_TIME: Final = _reason("first_token_s", Outcome.CAP, 504, "Timed out waiting for the engine's first token.")
GAP_TIME: Final = _reason("gap_s", Outcome.CAP, 504, "Timed out waiting for the engine's next token.")

QUEUE_FULL: Final = _reason("queue_full", Outcome.SHED, 503, "The queue is full; retry later.")
QUEUE_EVICTED: Final = _reason(
    "queue_evicted",
    Outcome.SHED,
    503,
    "The queue is full, and a tenant with fewer waiting calls took this call's place; retry later.",
)
QUEUE_TOO_LONG: Final = _reason(
    "queue_too_long", Outcome.SHED, 503, "The wait in the queue would exceed this call's timeout; retry later."
)
DEADLINE_NEAR: Final = _reason("deadline_near", Outcome.SHED, 503, "The call cannot finish before its deadline.")
INFEASIBLE: Final = _reason(
    "infeasible", Outcome.SHED, 503, "The call cannot finish before its client's timeout, even without a queue.", False
)
RETRY_BUDGET: Final = _reason(
    "retry_budget", Outcome.SHED, 503, "Tenant retry budget exhausted: too many of its calls are retries.", False
)
TENANT_CONCURRENCY: Final = _reason("concurrency_max", Outcome.SHED, 429, "Tenant concurrency limit reached; retry later.")
TENANT_TOKENS: Final = _reason("tokens_per_minute", Outcome.SHED, 429, "Tenant token rate limit reached; retry later.")
BACKEND_PAUSED: Final = _reason(
    "backend_paused", Outcome.SHED, 503, "The backend refuses calls for longer than this call may wait; retry later."
)
QUEUE_TIME: Final = _reason("queue_s", Outcome.SHED, 503, "Timed out in the queue: no backend became free; retry later.")
DRAINING: Final = _reason("draining", Outcome.SHED, 503, "The gateway is shutting down; retry later.")
NO_BACKEND: Final = _reason("no_backend", Outcome.SHED, 503, "No backend is configured for this call, or none is up.")
BACKENDS_UNAVAILABLE: Final = _reason(
    "backends_unavailable", Outcome.SHED, 503, "Every backend for this call is drained or quarantined; retry later."
)
MEDIA_HELD: Final = _reason(
    "media_held_bytes_max", Outcome.SHED, 503, "The gateway holds too many audio and image files in memory; retry later."
)
CONNECTIONS: Final = _reason("connections_max", Outcome.SHED, 503, "Too many client connections; retry later.")
OUT_OF_RESOURCES: Final = _reason(
    "out_of_resources",
    Outcome.SHED,
    503,
    "The gateway has no file descriptors, local ports or memory left to connect to an engine; retry later.",
)
BODIES_FULL: Final = _reason(
    "bodies_bytes_max", Outcome.SHED, 503, "The gateway is receiving too many request bodies; retry later."
)

ENGINE_UNREACHABLE: Final = _reason("engine_unreachable", Outcome.ENGINE_FAILED, 502, "The engine cannot be reached.")
ENGINE_DIED: Final = _reason(
    "engine_died", Outcome.ENGINE_FAILED, 502, "The engine closed the connection before its answer was complete."
)
ENGINE_INVALID_ANSWER: Final = _reason(
    "engine_invalid_answer", Outcome.ENGINE_FAILED, 502, "The engine's answer is not valid HTTP or JSON."
)
ENGINE_TRUNCATED: Final = _reason(
    "engine_truncated", Outcome.ENGINE_FAILED, 502, "The engine's answer ended before it was complete."
)
ENGINE_REDIRECT: Final = _reason("engine_redirect", Outcome.ENGINE_FAILED, 502, "The engine answered with a redirect.", False)
ENGINE_CANCELLED: Final = _reason(
    "engine_cancelled", Outcome.ENGINE_FAILED, 502, "The engine cancelled the answer before its end."
)
ENGINE_WEDGED: Final = _reason(
    "engine_wedged", Outcome.ENGINE_FAILED, 503, "The engine is stuck: none of its calls makes progress."
)
ENGINE_ERROR: Final = _reason("engine_error", Outcome.ENGINE_FAILED, 502, "The engine failed.")

# The client has the engine's own answer, with the engine's own status.
ENGINE_REFUSED: Final = _reason(
    "engine_refused",
    Outcome.ENGINE_REFUSED,
    400,
    "The engine refused the request; the client got its answer and its status, such as 400, 404 or 429.",
)

# Refused because of the client's request, not because of our state.
MALFORMED: Final = _reason("malformed", Outcome.REFUSED, 400, "The request is not valid HTTP.", False)
BAD_HOST: Final = _reason(
    "bad_host", Outcome.REFUSED, 421, "The gateway does not serve this host name; add it to allowed_hosts.", False
)
HEADERS_TOO_LARGE: Final = _reason(
    "header_bytes_max", Outcome.REFUSED, 431, "The request's headers exceed header_bytes_max or header_count_max.", False
)
URL_TOO_LONG: Final = _reason("url_bytes_max", Outcome.REFUSED, 414, "The request's URL exceeds url_bytes_max.", False)
HEADER_TIME: Final = _reason("header_s", Outcome.REFUSED, 408, "Timed out waiting for the request's headers.")
BODY_TIME: Final = _reason("body_s", Outcome.REFUSED, 408, "Timed out waiting for the request's body.")
BODY_TOO_LARGE: Final = _reason("body_bytes_max", Outcome.REFUSED, 413, "The request's body is too large.", False)
NOT_FOUND: Final = _reason("not_found", Outcome.REFUSED, 404, "Unknown path.", False)
MODEL_NOT_FOUND: Final = _reason("model_not_found", Outcome.REFUSED, 404, "No backend has this model.", False)
METHOD_NOT_ALLOWED: Final = _reason(
    "method_not_allowed", Outcome.REFUSED, 405, "This path does not allow the request's method.", False
)
NOT_IMPLEMENTED: Final = _reason(
    "not_implemented", Outcome.REFUSED, 501, "The gateway does not support this HTTP feature.", False
)
HTTP_VERSION_NOT_SUPPORTED: Final = _reason(
    "http_version_not_supported", Outcome.REFUSED, 505, "The gateway supports only HTTP/1.1 and HTTP/1.0.", False
)
EXPECTATION_FAILED: Final = _reason(
    "expectation_failed", Outcome.REFUSED, 417, "The gateway supports only Expect: 100-continue.", False
)
UNAUTHORIZED: Final = _reason("unauthorized", Outcome.REFUSED, 401, "Missing or invalid API key.", False)
ORIGIN_NOT_ALLOWED: Final = _reason(
    "origin_not_allowed", Outcome.REFUSED, 403, "This origin may not open WebSockets; add it to websocket_origins.", False
)
UNSUPPORTED_MEDIA_TYPE: Final = _reason(
    "unsupported_media_type", Outcome.REFUSED, 415, "Requests from other sites must be sent as application/json.", False
)
BAD_JSON: Final = _reason("bad_json", Outcome.REFUSED, 400, "The request's body is not valid JSON.", False)
BAD_FIELD: Final = _reason("bad_field", Outcome.REFUSED, 400, "A field of the request has an invalid value.", False)
JOB_QUOTA: Final = _reason("job_quota", Outcome.REFUSED, 429, "Tenant quota for jobs, items or stored bytes exceeded.")
JOBS_UNAVAILABLE: Final = _reason(
    "jobs_unavailable", Outcome.REFUSED, 503, "Jobs are unavailable: their store is off, full or unreachable."
)
BAD_DEADLINE: Final = _reason("bad_deadline", Outcome.REFUSED, 400, "X-Request-Timeout must be a number of seconds.", False)

KILLED: Final = _reason("killed", Outcome.KILLED, 503, "An operator killed the call.", False)
PREEMPTED: Final = _reason("preempted", Outcome.KILLED, 503, "A live call preempted this job item; hangup will retry it.")
TAKEN_OVER: Final = _reason("taken_over", Outcome.KILLED, 503, "Another gateway took over this job item and will retry it.")
INTERNAL: Final = _reason("internal_error", Outcome.KILLED, 500, "Internal gateway error; see the gateway log.", False)
APPLICATION_FAULT: Final = _reason(
    "application_fault", Outcome.KILLED, 500, "Internal error of the application; see its log.", False
)  # the library's only: the application passed it something that it cannot send
DRAINED: Final = _reason("drain_s", Outcome.DRAINED, 503, "The gateway shut down before the answer was complete.")
