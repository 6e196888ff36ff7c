"""Jobs at a hosted provider, with several workers: one of them follows a job, all know it, and another goes on if it dies."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from typing import Any

from support.hosted import Hosted
from support.processes import Gateway
from support.provider import BATCH, at_provider, command, job, wait_event
from support.waiting import PATIENCE_S, wait_until

JOBS = 8  # over so many connections, both workers get some
TENANTS = """
[[tenant]]
name = "ann"
key_sha256 = ["2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90"]
limits = { jobs_max = 3 }
[[tenant]]
name = "bob"
key_sha256 = ["81b637d8fcd2c6da6359e6963113a1170de795e4b725b84d1e0b4cfd9ec58ce9"]
"""  # the keys are alice and bob


def events(gateway: Gateway, event: str) -> list[dict[str, Any]]:
    return [row for row in gateway.log() if row.get("event") == event]


def started(gateway: Gateway, count: int = 2) -> list[int]:
    wait_until(lambda: len(events(gateway, "worker_started")) >= count, what="the workers")
    return [row["pid"] for row in events(gateway, "worker_started")]


def ask(method: str, url: str, headers: dict[str, str], value: Any = None) -> tuple[int, Any]:
    """Send a request over a connection of its own, to whichever worker accepts it."""
    body = json.dumps(value).encode() if value is not None else None
    request = urllib.request.Request(url, body, {"content-type": "application/json", **headers}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, None


def create(gateway: Gateway, lease_s: float, **headers: str) -> str:
    lease = {"x-hangup-lease": str(lease_s), **headers}
    status, made = ask("POST", f"{gateway.url}/v1/responses", lease, {"model": "m", "input": "x", "background": True})
    assert status == 200
    return str(made["id"])


def cancels(hosted: Hosted, id: str) -> int:
    return len(hosted.requests_to("POST", f"/v1/responses/{id}/cancel"))


def test_jobs_of_a_worker_that_is_killed_are_followed_by_another() -> None:
    with at_provider(workers=2) as (gateway, hosted):
        first, _ = started(gateway)
        ids = [create(gateway, lease_s=8) for _ in range(JOBS)]
        wait_until(lambda: len(events(gateway, "job_followed")) == JOBS, what="all of them")
        os.kill(first, signal.SIGKILL)
        started(gateway, 3)
        assert {row["id"] for row in events(gateway, "job_taken_over")} <= set(ids)
        # Nobody asks for them any more: whoever follows a job cancels it when its lease runs out.
        for id in ids:
            wait_event(gateway, "job_status_changed", id=id, status="cancelled", cause="lease_expired")
        assert [cancels(hosted, id) for id in ids] == [1] * JOBS
        assert len(events(gateway, "job_status_changed")) == JOBS
        assert all(job(gateway, id)["status"] == "cancelled" for id in ids)


def test_whoever_is_asked_renews_the_lease_and_knows_the_owner() -> None:
    with at_provider(config=TENANTS, workers=2) as (gateway, hosted):
        started(gateway)
        ann, bob = {"authorization": "Bearer alice"}, {"authorization": "Bearer bob"}
        id = create(gateway, 4, **ann)
        url = f"{gateway.url}/v1/responses/{id}"
        wait_until(lambda: job(gateway, id)["status"] == "running", what="the job")
        until = time.monotonic() + 9
        while time.monotonic() < until:  # each over a connection of its own, to whichever worker
            assert ask("GET", url, ann)[0] == 200 and ask("GET", url, bob)[0] == 404
            time.sleep(0.3)
        assert not cancels(hosted, id)
        # A cancel by an operator, at any worker, reaches whoever follows the job.
        assert "cancelled" in command(gateway, "cancel", id).stdout
        assert cancels(hosted, id) == 1


def test_a_quota_counts_the_jobs_of_all_workers() -> None:
    with at_provider(config=TENANTS, workers=2) as (gateway, _):
        started(gateway)
        ann = {"authorization": "Bearer alice"}
        statuses = [ask("POST", f"{gateway.url}/v1/batches", ann, BATCH)[0] for _ in range(12)]
        # A worker may learn of a job a moment after it was created at another one.
        assert statuses.count(200) in (3, 4) and statuses.count(429) == 12 - statuses.count(200), statuses


def test_jobs_stay_followed_while_workers_are_replaced() -> None:
    with at_provider(workers=2, drain_s=1) as (gateway, hosted):
        started(gateway)
        ids = [create(gateway, lease_s=8) for _ in range(JOBS)]
        gateway.signal(signal.SIGUSR2)
        wait_event(gateway, "workers_rolled")
        for id in ids:
            wait_event(gateway, "job_status_changed", id=id, status="cancelled", cause="lease_expired")
        assert [cancels(hosted, id) for id in ids] == [1] * JOBS
        assert not events(gateway, "provider_jobs_unfinished")
