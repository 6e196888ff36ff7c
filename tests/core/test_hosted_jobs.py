"""How the objects of hosted providers are translated to our terms."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.core.jobs import ItemCounts, JobStatus, Kind
from hangup.gateway.apis.hosted_jobs import ProviderRequestKind, Target, is_upload, read, read_answer, target_of


@pytest.mark.parametrize(
    ("method", "path", "target"),
    [
        ("POST", "/v1/batches", Target(ProviderRequestKind.CREATE, Kind.BATCH)),
        ("GET", "/v1/batches", Target(ProviderRequestKind.OTHER, Kind.BATCH)),
        ("GET", "/v1/batches/b_1", Target(ProviderRequestKind.LOOK, Kind.BATCH, "b_1")),
        ("POST", "/v1/batches/b_1/cancel", Target(ProviderRequestKind.CANCEL, Kind.BATCH, "b_1")),
        ("GET", "/v1/responses/r-1", Target(ProviderRequestKind.LOOK, Kind.RESPONSE, "r-1")),
        ("DELETE", "/v1/responses/r-1", Target(ProviderRequestKind.DELETE, Kind.RESPONSE, "r-1")),
        ("GET", "/v1/responses/r-1/input_items", Target(ProviderRequestKind.OTHER, Kind.RESPONSE, "r-1")),
        ("POST", "/v1/messages/batches", Target(ProviderRequestKind.CREATE, Kind.MESSAGES)),
        ("GET", "/v1/messages/batches/m/results", Target(ProviderRequestKind.OTHER, Kind.MESSAGES, "m")),
        ("POST", "/v1/files", Target(ProviderRequestKind.OTHER)),
        ("GET", "/v1/batches/%2e%2e", Target(ProviderRequestKind.OTHER)),
    ],
)
def test_what_a_request_is_about(method: str, path: str, target: Target) -> None:
    assert target_of(method, path) == target


def test_uploads() -> None:
    assert is_upload("POST", "/v1/files") and is_upload("POST", "/v1/messages/batches")
    assert not is_upload("GET", "/v1/files") and not is_upload("POST", "/v1/batches")


def batch(status: str) -> dict[str, Any]:
    return {"id": "b", "status": status, "expires_at": 9, "request_counts": {"total": 10, "completed": 4, "failed": 1}}


@pytest.mark.parametrize(
    ("said", "status", "tally"),
    [
        ("validating", JobStatus.VALIDATING, ItemCounts(queued=5, succeeded=4, errored=1)),
        ("in_progress", JobStatus.RUNNING, ItemCounts(queued=5, succeeded=4, errored=1)),
        ("finalizing", JobStatus.RUNNING, ItemCounts(queued=5, succeeded=4, errored=1)),
        ("cancelling", JobStatus.CANCELLING, ItemCounts(queued=5, succeeded=4, errored=1)),
        ("cancelled", JobStatus.CANCELLED, ItemCounts(succeeded=4, errored=1, cancelled=5)),
        ("expired", JobStatus.EXPIRED, ItemCounts(succeeded=4, errored=1, expired=5)),
        ("completed", JobStatus.COMPLETED, ItemCounts(succeeded=4, errored=1)),
        ("failed", JobStatus.FAILED, ItemCounts(succeeded=4, errored=1)),
    ],
)
def test_batches(said: str, status: JobStatus, tally: ItemCounts) -> None:
    look = read(Kind.BATCH, batch(said))
    assert look is not None and (look.status, look.tally, look.expires) == (status, tally, 9.0)


def test_message_batches() -> None:
    def look(said: str, **counts: int) -> tuple[JobStatus, int]:
        value = {"id": "m", "processing_status": said, "request_counts": counts, "expires_at": "2026-01-01T00:00:00Z"}
        found = read(Kind.MESSAGES, value)
        assert found is not None and found.expires == 1767225600
        return found.status, found.tally.total

    assert look("in_progress", processing=3) == (JobStatus.RUNNING, 3)
    assert look("canceling", processing=2, succeeded=1) == (JobStatus.CANCELLING, 3)
    assert look("ended", canceled=2, succeeded=1) == (JobStatus.CANCELLED, 3)
    assert look("ended", expired=1) == (JobStatus.EXPIRED, 1)
    assert look("ended", succeeded=1, errored=1) == (JobStatus.COMPLETED, 2)


def test_responses_whole_and_streamed() -> None:
    response = {"id": "r", "status": "queued", "background": True, "model": "m"}
    look = read_answer(Kind.RESPONSE, json.dumps(response).encode())
    assert look is not None and (look.status, look.tally, look.model, look.detached) == (
        JobStatus.RUNNING,
        ItemCounts(queued=1),
        "m",
        True,
    )
    stream = b"event: response.created\ndata: " + json.dumps({"response": response}).encode()
    assert read_answer(Kind.RESPONSE, stream) is None, "not whole yet"
    assert read_answer(Kind.RESPONSE, stream + b"\n\nevent: x") == look
    assert read_answer(Kind.RESPONSE, stream.replace(b"\n", b"\r\n") + b"\r\n\r\n") == look
    waited_for = read(Kind.RESPONSE, {**response, "background": False, "status": "incomplete"})
    assert waited_for is not None and not waited_for.detached and waited_for.status is JobStatus.COMPLETED


FIELDS = st.sampled_from(["id", "status", "processing_status", "request_counts", "expires_at", "total", "completed", "model"])
LEAF: st.SearchStrategy[Any] = st.sampled_from([None, True, -1, 3, 1e300, float("inf"), "", "ended", "2026-99-01", []])
JSON: st.SearchStrategy[Any] = LEAF | st.dictionaries(FIELDS, LEAF, max_size=4)


@given(st.sampled_from([Kind.BATCH, Kind.RESPONSE, Kind.MESSAGES]), st.dictionaries(FIELDS, JSON))
def test_nonsense_is_no_job_and_no_error(kind: Kind, value: dict[str, Any]) -> None:
    look = read(kind, {"id": "x", "status": "completed", "processing_status": "ended", **value})
    assert look is None or look.tally.total >= 0


@given(st.sampled_from([Kind.BATCH, Kind.RESPONSE, Kind.MESSAGES]), st.binary(max_size=40))
def test_nor_are_bytes(kind: Kind, body: bytes) -> None:
    assert read_answer(kind, body) is None and read_answer(kind, b"data: " + body) is None
