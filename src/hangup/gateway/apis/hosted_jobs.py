"""The job APIs of hosted providers: their paths, and how their objects translate into ours."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Final, NamedTuple

import orjson

from hangup.core.jobs import ItemCounts, JobStatus, Kind
from hangup.gateway.apis.base import Json
from hangup.gateway.http.sse import SSE, Splitter

_BASES: Final = {Kind.BATCH: "/v1/batches", Kind.RESPONSE: "/v1/responses", Kind.MESSAGES: "/v1/messages/batches"}
_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_NAME_CHARS_MAX: Final = 1024
_UPLOADS = ("/v1/files", "/v1/messages/batches")
# Statuses of providers' objects, including those whose names differ from ours.
_STATUS: Final = {
    "queued": JobStatus.RUNNING,
    "in_progress": JobStatus.RUNNING,
    "finalizing": JobStatus.RUNNING,
    "incomplete": JobStatus.COMPLETED,
    "canceling": JobStatus.CANCELLING,
    **{status.value: status for status in JobStatus},
}


class ProviderRequestKind(Enum):
    CREATE = auto()
    LOOK = auto()
    CANCEL = auto()
    DELETE = auto()
    OTHER = auto()  # lists, results, files: requests that do not change what is known about a job


class Target(NamedTuple):
    """The subject of a request."""

    what: ProviderRequestKind
    kind: Kind | None = None
    id: str = ""


@dataclass(frozen=True, slots=True)
class ProviderAnswer:
    """A job's state, as the provider's object reports it."""

    id: str
    status: JobStatus
    tally: ItemCounts
    model: str | None = None
    expires: float | None = None  # wall-clock time
    detached: bool = True  # False: a response that its client waits for, which is no job

    def __reduce__(self) -> tuple[type[ProviderAnswer], tuple[object, ...]]:
        """It is sent to other workers; a compiled frozen object cannot be unpickled field by field."""
        return ProviderAnswer, (self.id, self.status, self.tally, self.model, self.expires, self.detached)


def is_upload(method: str, path: str) -> bool:
    """Return True if the body may be as large as a file."""
    return method == "POST" and path in _UPLOADS


def target_of(method: str, path: str) -> Target:
    for kind, base in _BASES.items():
        if path == base:
            return Target(ProviderRequestKind.CREATE if method == "POST" else ProviderRequestKind.OTHER, kind)
        id, _, rest = path.removeprefix(f"{base}/").partition("/")
        if path.startswith(f"{base}/") and _ID.fullmatch(id):
            what = {
                ("GET", ""): ProviderRequestKind.LOOK,
                ("DELETE", ""): ProviderRequestKind.DELETE,
                ("POST", "cancel"): ProviderRequestKind.CANCEL,
            }.get((method, rest))
            return Target(what or ProviderRequestKind.OTHER, kind, id)
    return Target(ProviderRequestKind.OTHER)


def look_path(kind: Kind, id: str) -> str:
    return f"{_BASES[kind]}/{id}"


def cancel_path(kind: Kind, id: str) -> str:
    return f"{_BASES[kind]}/{id}/cancel"


def read_answer(kind: Kind, body: bytes) -> ProviderAnswer | None:
    """Read an answer, which may be an object or the beginning of a stream of events."""
    if not body.startswith((b"event:", b"data:", b":")):
        return read(kind, _parsed(body))
    answers = (read_event(event) for event in Splitter(SSE, len(body)).feed(body))
    return next(filter(None, answers), None)


def read_event(event: bytes) -> ProviderAnswer | None:
    """Read what an event in a response's stream says about the response."""
    value = _parsed(SSE.data(event) or b"")
    return read(Kind.RESPONSE, value.get("response")) if type(value) is dict else None


def _parsed(data: bytes) -> object:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


def read(kind: Kind, value: object) -> ProviderAnswer | None:
    """Read a provider's object; return None if it is not one."""
    if type(value) is not dict or type(value.get("id")) is not str or not _ID.fullmatch(value["id"]):
        return None
    match kind:
        case Kind.BATCH:
            return _batch(value)
        case Kind.MESSAGES:
            return _message_batch(value)
        case _:
            return _response(value)


def _batch(value: Json) -> ProviderAnswer | None:
    status = _STATUS.get(str(value.get("status")))
    if status is None:
        return None
    counts = value.get("request_counts")
    total, succeeded, errored = _numbers(counts, "total", "completed", "failed")
    rest = max(total - succeeded - errored, 0)
    tally = ItemCounts(succeeded=succeeded, errored=errored)
    match status:
        case JobStatus.CANCELLED:
            tally = ItemCounts(succeeded=succeeded, errored=errored, cancelled=rest)
        case JobStatus.EXPIRED:
            tally = ItemCounts(succeeded=succeeded, errored=errored, expired=rest)
        case JobStatus.RUNNING | JobStatus.CANCELLING | JobStatus.VALIDATING:
            tally = ItemCounts(queued=rest, succeeded=succeeded, errored=errored)
    expires = value.get("expires_at")
    model = value.get("model")
    return ProviderAnswer(
        value["id"],
        status,
        tally,
        _name(model),
        float(expires) if isinstance(expires, int) else None,
    )


def _message_batch(value: Json) -> ProviderAnswer | None:
    processing, succeeded, errored, cancelled, expired = _numbers(
        value.get("request_counts"), "processing", "succeeded", "errored", "canceled", "expired"
    )
    tally = ItemCounts(0, processing, succeeded, errored, cancelled, expired)
    said = value.get("processing_status")
    if said == "ended":
        status = JobStatus.CANCELLED if cancelled else JobStatus.EXPIRED if expired else JobStatus.COMPLETED
    elif said in ("in_progress", "canceling"):
        status = _STATUS[said]
    else:
        return None
    return ProviderAnswer(value["id"], status, tally, expires=_moment(value.get("expires_at")))


def _response(value: Json) -> ProviderAnswer | None:
    said = str(value.get("status"))
    status = _STATUS.get(said)
    if status is None:
        return None
    tally = {
        JobStatus.COMPLETED: ItemCounts(succeeded=1),
        JobStatus.FAILED: ItemCounts(errored=1),
        JobStatus.CANCELLED: ItemCounts(cancelled=1),
    }.get(status) or (ItemCounts(queued=1) if said == "queued" else ItemCounts(claimed=1))
    model = value.get("model")
    return ProviderAnswer(value["id"], status, tally, _name(model), detached=value.get("background") is True)


def _name(model: object) -> str | None:
    """Return a model's name; None if it is none, or longer than any: names are kept for as long as their job."""
    return model if type(model) is str and len(model) <= _NAME_CHARS_MAX else None


def _numbers(counts: object, *names: str) -> list[int]:
    given = counts if type(counts) is dict else {}
    return [count if type(count := given.get(name)) is int and count >= 0 else 0 for name in names]


def _moment(text: object) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp() if type(text) is str else None
    except (ValueError, OverflowError):
        return None
