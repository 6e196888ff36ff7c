"""Why a call ended: a closed list. Each reason belongs to one outcome and knows what a waiting client is told.

`code` is what stands in the log (`cause`), in the metrics and in the header `x-hangup-reason`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """How a call ended; every call has exactly one."""

    COMPLETED = "completed"
    CLIENT_GONE = "client_gone"
    DEADLINE = "deadline"
    CAP = "cap"
    SHED = "shed"
    ENGINE_FAILED = "engine_failed"
    REFUSED = "refused"
    KILLED = "killed"
    DRAINED = "drained"


@dataclass(frozen=True, slots=True, eq=False)
class Reason:
    """One way to end. `status` is answered if no answer has begun; `retry` fills x-should-retry where we know."""

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


COMPLETED = _reason("completed", Outcome.COMPLETED, 200, "The answer was delivered.")

# The client's end. 499 is for the log alone: nobody is there to read it.
CLIENT_FIN = _reason("fin", Outcome.CLIENT_GONE, 499, "The client closed its connection.")
CLIENT_RESET = _reason("reset", Outcome.CLIENT_GONE, 499, "The client reset its connection.")
CLIENT_SILENT = _reason("silence", Outcome.CLIENT_GONE, 499, "The client's host stopped answering.")
CLIENT_STALLED = _reason("write_stall", Outcome.CLIENT_GONE, 499, "The client stopped reading.")

# A job's client is whoever owns it.
JOB_CANCELLED = _reason("job_cancelled", Outcome.CLIENT_GONE, 499, "The job was cancelled.")
LEASE_EXPIRED = _reason("lease_expired", Outcome.CLIENT_GONE, 499, "Nobody asked for the job any more.")
WINDOW_PASSED = _reason("window_passed", Outcome.CLIENT_GONE, 499, "The batch's completion window passed.")

CLIENT_DEADLINE = _reason("client_deadline", Outcome.DEADLINE, 504, "The client's own deadline passed.", False)

OUTPUT_TOKENS = _reason("output_tokens_max", Outcome.CAP, 200, "The engine ran past the cap on output tokens.")
EVENT_BYTES = _reason("event_bytes_max", Outcome.CAP, 502, "The engine sent an event over the size cap.", False)
ANSWER_BYTES = _reason(
    "answer_bytes_max", Outcome.CAP, 502, "The answer is larger than what may be put together here; ask for a stream.", False
)
TOTAL_TIME = _reason("total_s", Outcome.CAP, 504, "The call took longer than allowed.")
WEBSOCKET_TIME = _reason("websocket_s", Outcome.CAP, 504, "The WebSocket was open for as long as is allowed.")
WEBSOCKET_IDLE = _reason("websocket_idle_s", Outcome.CAP, 504, "Nothing came over the WebSocket, from either side.")
FIRST_TOKEN_TIME = _reason("first_token_s", Outcome.CAP, 504, "The engine sent no first token in time.")
GAP_TIME = _reason("gap_s", Outcome.CAP, 504, "The engine fell silent.")

QUEUE_FULL = _reason("queue_full", Outcome.SHED, 503, "Too many calls are waiting; try again later.")
PUSHED_OUT = _reason("pushed_out", Outcome.SHED, 503, "Others, who have fewer calls waiting, took the place in the queue.")
QUEUE_SLOW = _reason("queue_slow", Outcome.SHED, 503, "The queue is longer than this call may wait; try again later.")
DEADLINE_NEAR = _reason("deadline_near", Outcome.SHED, 503, "There is too little time left for this call to be served.")
INFEASIBLE = _reason(
    "infeasible", Outcome.SHED, 503, "This call takes longer than its client will wait, even without a queue.", False
)
RETRY_BUDGET = _reason("retry_budget", Outcome.SHED, 503, "Too many of the calls are retries.", False)
TENANT_CONCURRENCY = _reason("concurrency_max", Outcome.SHED, 429, "This tenant has as many calls in progress as it may.")
TENANT_TOKENS = _reason("tokens_per_minute", Outcome.SHED, 429, "This tenant has used its tokens for now.")
BACKEND_PAUSED = _reason(
    "backend_paused", Outcome.SHED, 503, "The backend refuses calls for longer than this one may wait; try again later."
)
QUEUE_TIME = _reason("queue_s", Outcome.SHED, 503, "No backend became free in time.")
DRAINING = _reason("draining", Outcome.SHED, 503, "The gateway is shutting down.")
NO_BACKEND = _reason("no_backend", Outcome.SHED, 503, "No backend is configured for this call.")
BACKENDS_CLOSED = _reason(
    "backends_closed", Outcome.SHED, 503, "Every backend for this call is drained or in quarantine; try again later."
)
MEDIA_HELD = _reason("media_held_bytes_max", Outcome.SHED, 503, "Too many audio and image files are held; try again later.")
CONNECTIONS = _reason("connections_max", Outcome.SHED, 503, "Too many connections.")
BODIES_FULL = _reason("bodies_bytes_max", Outcome.SHED, 503, "Too many request bodies are on their way in; try again later.")

ENGINE_UNREACHABLE = _reason("engine_unreachable", Outcome.ENGINE_FAILED, 502, "The engine cannot be reached.")
ENGINE_DIED = _reason("engine_died", Outcome.ENGINE_FAILED, 502, "The engine closed the connection before the end.")
ENGINE_GARBLED = _reason("engine_garbled", Outcome.ENGINE_FAILED, 502, "The engine did not answer in valid HTTP.")
ENGINE_TRUNCATED = _reason("engine_truncated", Outcome.ENGINE_FAILED, 502, "The engine's answer ended too early.")
ENGINE_REDIRECT = _reason("engine_redirect", Outcome.ENGINE_FAILED, 502, "The engine answered with a redirect.", False)
ENGINE_GAVE_UP = _reason("engine_gave_up", Outcome.ENGINE_FAILED, 502, "The engine cancelled the answer before its end.")
ENGINE_WEDGED = _reason("engine_wedged", Outcome.ENGINE_FAILED, 503, "The engine is stuck: nothing comes of any call in it.")
ENGINE_ERROR = _reason("engine_error", Outcome.ENGINE_FAILED, 502, "The engine failed.")

# Refused: the client's request, not our state, is what stands in the way.
MALFORMED = _reason("malformed", Outcome.REFUSED, 400, "The request is not valid HTTP.", False)
BAD_HOST = _reason(
    "bad_host", Outcome.REFUSED, 421, "This gateway does not answer to that host name; allowed_hosts can add it.", False
)
HEADERS_TOO_LARGE = _reason("header_bytes_max", Outcome.REFUSED, 431, "The request's headers are too large.", False)
URL_TOO_LONG = _reason("url_bytes_max", Outcome.REFUSED, 414, "The request's URL is too long.", False)
HEADER_TIME = _reason("header_s", Outcome.REFUSED, 408, "The request's headers did not arrive in time.")
BODY_TIME = _reason("body_s", Outcome.REFUSED, 408, "The request's body did not arrive in time.")
BODY_TOO_LARGE = _reason("body_bytes_max", Outcome.REFUSED, 413, "The request's body is too large.", False)
NOT_FOUND = _reason("not_found", Outcome.REFUSED, 404, "There is no such path here.", False)
MODEL_NOT_FOUND = _reason("model_not_found", Outcome.REFUSED, 404, "No backend has this model.", False)
METHOD = _reason("method", Outcome.REFUSED, 405, "This path does not take that method.", False)
UNSUPPORTED = _reason("unsupported", Outcome.REFUSED, 501, "That part of HTTP is not supported.", False)
HTTP_VERSION = _reason("http_version", Outcome.REFUSED, 505, "Only HTTP/1.1 and HTTP/1.0 are spoken here.", False)
EXPECTATION = _reason("expectation", Outcome.REFUSED, 417, "Only Expect: 100-continue is supported.", False)
UNAUTHORIZED = _reason("unauthorized", Outcome.REFUSED, 401, "A valid API key is needed.", False)
ORIGIN = _reason("origin", Outcome.REFUSED, 403, "A page of another site may not open a WebSocket here.", False)
MEDIA_TYPE = _reason("media_type", Outcome.REFUSED, 415, "A page of another site must send application/json.", False)
BAD_JSON = _reason("bad_json", Outcome.REFUSED, 400, "The request's body is not acceptable JSON.", False)
BAD_FIELD = _reason("bad_field", Outcome.REFUSED, 400, "A field of the request has a wrong value.", False)
JOB_QUOTA = _reason("job_quota", Outcome.REFUSED, 429, "This tenant has as many jobs, items or stored bytes as it may.")
NO_JOBS = _reason("no_jobs", Outcome.REFUSED, 503, "Jobs cannot be taken: their store is off, full or out of reach.")
BAD_DEADLINE = _reason("bad_deadline", Outcome.REFUSED, 400, "X-Request-Timeout must be a number of seconds.", False)

KILLED = _reason("killed", Outcome.KILLED, 503, "An operator ended the call.", False)
YIELDED = _reason("yielded", Outcome.KILLED, 503, "A live client needed the place of this item of a job; it will run again.")
TAKEN_OVER = _reason(
    "taken_over", Outcome.KILLED, 503, "Another gateway took this one for dead, and has this item of a job; it will run again."
)
INTERNAL = _reason("internal_error", Outcome.KILLED, 500, "The gateway has a fault; it is in its log.", False)
DRAINED = _reason("drain_s", Outcome.DRAINED, 503, "The gateway shut down before the answer was complete.")
