"""An unwanted job stops in the engine: it was cancelled, its lease expired, or its time ran out."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from support.jobs import ENDED, client, get_job, line, results, start_batch, start_job, wait_batch, wait_job
from support.processes import Gateway, StandIn, gateway_and_engine
from support.raw import Client
from support.waiting import wait_until


@contextmanager
def slow(settings: dict[str, Any] | None = None, **behaviour: Any) -> Iterator[tuple[Gateway, StandIn]]:
    """Start an engine that would take minutes."""
    with gateway_and_engine({"slots": 4, **(settings or {})}, **{"token_s": 0.05, "answer_tokens": 2000, **behaviour}) as pair:
        yield pair


def decoding(engine: StandIn, tokens: int = 3) -> None:
    wait_until(lambda: engine.stats()["tokens"] >= tokens, what="tokens")


class TestCancel:
    def test_while_it_decodes(self) -> None:
        with slow() as (gateway, engine):
            id = start_job(gateway.url, stream=True)["id"]
            decoding(engine)
            answer = httpx.delete(f"{gateway.url}/v1/jobs/{id}", timeout=60)
            assert answer.status_code == 200 and answer.json()["status"] == "cancelled"
            assert engine.stats()["running"] == 0, "it says so when the engine has let go, not before"
            row = gateway.call_log(f"{id}.0")
            assert (row["outcome"], row["cause"], row["client"]) == ("client_gone", "job_cancelled", "job")
            assert get_job(gateway.url, id)["cause"] == "cancelled"

    def test_while_its_prompt_is_read(self) -> None:
        with slow(prefill_s=60) as (gateway, engine):
            id = start_job(gateway.url)["id"]
            wait_until(lambda: engine.stats()["running"] == 1, what="the prefill")
            assert httpx.delete(f"{gateway.url}/v1/jobs/{id}", timeout=60).json()["status"] == "cancelled"
            assert engine.wait_idle()["tokens"] == 0

    def test_what_waits_vanishes_what_is_done_stays(self) -> None:
        with slow(answer_tokens=5) as (gateway, engine):
            sdk = client(gateway.url)
            count = 60
            id = start_batch(sdk, [line(f"r{n}", max_tokens=5) for n in range(count)])
            wait_until(lambda: sdk.batches.retrieve(id).request_counts.completed >= 3, what="a few results")  # type: ignore[union-attr]
            first = sdk.batches.cancel(id)
            assert first.status in ("cancelling", "cancelled")
            assert sdk.batches.cancel(id).status in ("cancelling", "cancelled"), "as often as one likes"
            batch = wait_batch(sdk, id)
            assert batch.status == "cancelled" and batch.cancelling_at <= batch.cancelled_at
            assert engine.stats()["running"] == 0
            done, rest = results(sdk, batch.output_file_id), results(sdk, batch.error_file_id)
            assert len(done) == batch.request_counts.completed and len(done) + len(rest) == count
            assert {row["error"]["code"] for row in rest} == {"batch_cancelled"}
            assert len(engine.past()) < count, "those that waited never reached the engine"

    def test_while_its_lines_are_checked(self) -> None:
        with slow() as (gateway, engine):
            sdk = client(gateway.url)
            id = start_batch(sdk, [line(f"r{n}") for n in range(20_000)])
            assert sdk.batches.cancel(id).status == "cancelled"
            batch = wait_batch(sdk, id)
            assert batch.status == "cancelled" and engine.stats()["started"] == 0
            assert sdk.batches.cancel(id) == batch

    def test_a_message_batch(self) -> None:
        with slow() as (gateway, engine):
            claude = anthropic.Anthropic(base_url=gateway.url, api_key="any", max_retries=0)
            params: Any = {"model": "m", "max_tokens": 500, "messages": [{"role": "user", "content": "x"}]}
            id = claude.messages.batches.create(requests=[{"custom_id": f"r{n}", "params": params} for n in range(9)]).id
            decoding(engine)
            assert claude.messages.batches.cancel(id).processing_status in ("canceling", "ended")
            wait_until(lambda: claude.messages.batches.retrieve(id).processing_status == "ended", what="the end")
            assert engine.stats()["running"] == 0
            assert {row.result.type for row in claude.messages.batches.results(id)} == {"canceled"}
            assert claude.messages.batches.retrieve(id).cancel_initiated_at is not None

    def test_a_response_streamed_or_not(self) -> None:
        with slow() as (gateway, engine):
            sdk = client(gateway.url)
            id = sdk.responses.create(model="m", input="x", background=True).id
            decoding(engine)
            assert sdk.responses.cancel(id).status == "cancelled"
            assert engine.stats()["running"] == 0
            stream = sdk.responses.create(model="m", input="x", background=True, stream=True)
            types: list[str] = []
            for event in stream:
                types.append(event.type)
                if types.count("response.output_text.delta") == 2:
                    sdk.responses.cancel(id)
                elif event.type == "response.created":
                    id = event.response.id
            assert types[-1] == "response.cancelled", "whoever listens is told"
            assert engine.wait_idle()["running"] == 0

    def test_an_engine_that_does_not_listen(self) -> None:
        """The job stays `cancelling` as long as the engine continues, whatever clients request."""
        with slow({"job_cancel_wait_s": 0.5, "release_grace_s": 0.5}, deaf=True, like="vllm") as (gateway, engine):
            sdk = client(gateway.url)
            backends = f"{gateway.admin_url}/api/backends"
            wait_until(
                lambda: httpx.get(backends, timeout=60).json()["backends"][0]["engine"] == "vllm", what="vLLM to be recognised"
            )
            id = start_job(gateway.url, max_tokens=2000)["id"]
            batch = start_batch(sdk, [line("a", max_tokens=2000)])
            response = sdk.responses.create(model="m", input="x", background=True).id
            wait_until(lambda: engine.stats()["running"] == 3, what="three that run")
            answer = httpx.delete(f"{gateway.url}/v1/jobs/{id}", timeout=60)
            assert answer.status_code == 202 and answer.json()["status"] == "cancelling"
            assert sdk.batches.cancel(batch).status == "cancelling"
            shown = sdk.responses.cancel(response)
            assert shown.status == "in_progress" and shown.hangup["status"] == "cancelling"  # type: ignore[attr-defined]
            wait_until(lambda: len(httpx.get(backends, timeout=60).json()["backends"][0]["zombies"]) == 3, what="zombies")
            assert get_job(gateway.url, id)["status"] == "cancelling"
            assert sdk.batches.retrieve(batch).status == "cancelling"
            engine.behave(deaf=False, token_s=0.0001)  # the answers come to their end
            assert wait_job(gateway.url, id)["status"] == "cancelled"
            assert wait_batch(sdk, batch).status == "cancelled"
            wait_until(lambda: sdk.responses.retrieve(response).status == "cancelled", what="the response")

    def test_killed_by_an_operator(self) -> None:
        with slow() as (gateway, engine):
            id = start_job(gateway.url)["id"]
            decoding(engine)
            assert (
                httpx.delete(f"{gateway.admin_url}/api/calls/{id}.0", headers={"x-hangup": "1"}, timeout=60).status_code == 200
            )
            assert wait_job(gateway.url, id)["status"] == "cancelled"
            assert engine.wait_idle()["running"] == 0

    def test_a_race_with_the_end_has_one_outcome(self) -> None:
        with slow(answer_tokens=3, token_s=0.01, prefill_s=0.01) as (gateway, engine), httpx.Client(timeout=60) as http:
            outcomes: set[str] = set()
            pauses = [0.001 * n for n in range(60)] + [0.06 * 1.1**n for n in range(40)]  # however slow the machine is
            for n, pause_s in enumerate(pauses):
                if n >= 60 and len(outcomes) == 2:
                    break
                id = start_job(gateway.url, max_tokens=3)["id"]
                threading.Event().wait(pause_s)
                cancelled = http.delete(f"{gateway.url}/v1/jobs/{id}").json()
                job = get_job(gateway.url, id)
                assert job["status"] == cancelled["status"] and job["status"] in ENDED, "what was told stays true"
                assert (job["result"] is not None) == (job["status"] == "completed")
                outcomes.add(job["status"])
            assert outcomes == {"completed", "cancelled"}, "the race was run from both sides"
            engine.wait_idle()


def test_a_client_that_leaves_before_it_hears_the_id(tmp_path: Path) -> None:
    """Nobody could ever query that job, so it does not run."""
    with slow({"jobs": tmp_path / "jobs.sqlite"}) as (gateway, engine):
        with contextlib.closing(sqlite3.connect(tmp_path / "jobs.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # so that the store has to wait
            with Client(gateway.address) as asking:
                asking.chat({"Prefer": "respond-async", "X-Request-Id": "left"})
                wait_until(
                    lambda: httpx.get(f"{gateway.admin_url}/api/calls/left", timeout=60).status_code == 200, what="the call"
                )
                asking.reset()
                assert gateway.call_log("left")["outcome"] == "client_gone"
            other.execute("ROLLBACK")

        def job() -> Any:
            jobs = httpx.get(f"{gateway.admin_url}/api/jobs", timeout=60).json()["jobs"]
            return jobs[0] if jobs and jobs[0]["status"] in ENDED else None

        found = wait_until(job, what="the job's end")
        assert (found["status"], found["cause"]) == ("cancelled", "client_gone")
        assert not [row for row in gateway.log() if row["event"] == "internal_error"]
        assert engine.wait_idle()["tokens"] <= 1


def test_a_live_client_gets_the_place_and_its_id_is_its_own() -> None:
    """The item is preempted and runs again later; a client that chose the id of its next attempt is not affected."""
    with slow({"slots": 1, "jobs_calm_s": 0.5}, slots=1, token_s=0.01, answer_tokens=400) as (gateway, engine):
        id = start_job(gateway.url, max_tokens=350, lease_s=600)["id"]
        decoding(engine)
        with Client(gateway.address) as live:
            live.chat({"X-Request-Id": f"{id}.0-2"}, stream=True, max_tokens=100)
            live.read_until(b"data:")
            assert gateway.call_log(f"{id}.0")["cause"] == "preempted"
            live.read_until(b"[DONE]")
        job = wait_job(gateway.url, id)
        assert job["status"] == "completed" and job["result"]["status"] == 200
        wait_until(
            lambda: not httpx.get(f"{gateway.admin_url}/api/calls", timeout=60).json()["calls"], what="no call to be live"
        )
        assert not [row for row in gateway.log() if row["event"] == "internal_error"]


def test_an_item_that_made_way_as_often_as_it_must_runs_to_its_end() -> None:
    """Bursts of live calls take both slots: the first burst preempts the item, and the second waits for it."""
    limits = {"slots": 2, "jobs_calm_s": 0.2, "job_yields_max": 1, "queue_s": 120}
    with slow(limits, slots=2, token_s=0.02) as (gateway, engine), ExitStack() as left:

        def burst() -> list[Client]:
            clients = [left.enter_context(Client(gateway.address)) for _ in range(2)]
            for one in clients:
                one.chat(stream=True)
            clients[0].read_until(b"data:")
            return clients

        id = start_job(gateway.url, max_tokens=400, lease_s=600)["id"]
        decoding(engine)
        first = burst()
        first[1].read_until(b"data:")
        assert gateway.call_log(f"{id}.0")["cause"] == "preempted"
        for one in first:
            one.fin()
        wait_until(lambda: engine.stats()["started"] == 4, what="the second try")
        burst()
        assert wait_job(gateway.url, id)["status"] == "completed"

        def causes() -> list[str]:
            return [row["cause"] for row in gateway.log() if row.get("client") == "job"]

        wait_until(lambda: len(causes()) > 1, what="the line of the second try")  # the log is written a little later
        assert causes() == ["preempted", "completed"]


class TestLease:
    def test_nobody_asks_and_it_stops_in_the_engine(self) -> None:
        with slow() as (gateway, engine):
            id = start_job(gateway.url, lease_s=3)["id"]
            decoding(engine)
            row = gateway.call_log(f"{id}.0")
            assert (row["outcome"], row["cause"]) == ("client_gone", "lease_expired")
            assert engine.wait_idle()["running"] == 0
            job = wait_job(gateway.url, id)
            assert (job["status"], job["cause"]) == ("cancelled", "lease_expired")

    def test_whoever_polls_keeps_it_alive(self) -> None:
        with slow(answer_tokens=100) as (gateway, _):
            id = start_job(gateway.url, lease_s=3)["id"]
            job = wait_job(gateway.url, id)
            assert job["status"] == "completed" and job["ended_at"] - job["started_at"] > 3, "longer than its lease"

    def test_whoever_listens_keeps_it_alive(self) -> None:
        with slow(answer_tokens=100) as (gateway, _):
            id = start_job(gateway.url, lease_s=3)["id"]
            events = httpx.get(f"{gateway.url}/v1/jobs/{id}/events", timeout=60).text
            assert '"status":"completed"' in events and "event: progress" in events

    def test_a_listener_that_leaves_lets_it_go(self) -> None:
        with slow() as (gateway, engine):
            id = start_job(gateway.url, lease_s=3, stream=True)["id"]
            with httpx.stream("GET", f"{gateway.url}/v1/jobs/{id}/events", timeout=60) as stream:
                lines = stream.iter_lines()
                for _ in range(200):
                    next(lines)
            assert gateway.call_log(f"{id}.0")["cause"] == "lease_expired"
            assert engine.wait_idle()["running"] == 0

    def test_a_background_response_too(self) -> None:
        with slow({"job_lease_s": 3}) as (gateway, engine):
            id = client(gateway.url).responses.create(model="m", input="x", background=True).id
            decoding(engine)
            assert gateway.call_log(f"{id}.0")["cause"] == "lease_expired"
            assert engine.wait_idle()["running"] == 0

    def test_a_batch_has_its_window_instead(self) -> None:
        with slow({"job_lease_s": 1}) as (gateway, engine):
            sdk = client(gateway.url)
            id = start_batch(sdk, [line(f"r{n}", max_tokens=2000) for n in range(9)], window="6s")
            decoding(engine, 4)
            batch = wait_batch(sdk, id)
            assert batch.status == "expired" and batch.expired_at >= batch.expires_at
            assert {row["error"]["code"] for row in results(sdk, batch.error_file_id)} == {"batch_expired"}
            assert engine.wait_idle()["running"] == 0
            assert gateway.call_log(f"{id}.0")["cause"] == "window_passed"


class TestWhoMay:
    CONFIG = """
        [[tenant]]
        name = "ann"
        key_sha256 = ["{ann}"]
        [tenant.limits]
        jobs_max = 2
        job_bytes_max = 20000
        file_bytes_max = 10000
        [[tenant]]
        name = "bob"
        key_sha256 = ["{bob}"]
    """

    @pytest.fixture
    def gateway(self) -> Iterator[Gateway]:
        keys = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("ann", "bob")}
        with StandIn(token_s=0.2) as engine, Gateway(engine.url, config=self.CONFIG.format(**keys), slots=4) as gateway:
            yield gateway

    def test_a_tenant_sees_its_own_only(self, gateway: Gateway) -> None:
        ann, bob = client(gateway.url, "ann"), client(gateway.url, "bob")
        id = start_batch(ann, [line("a")])
        file = ann.batches.retrieve(id).input_file_id
        for peek in (
            lambda: bob.batches.retrieve(id),
            lambda: bob.batches.cancel(id),
            lambda: bob.files.retrieve(file),
            lambda: bob.files.delete(file),
        ):
            with pytest.raises(openai.NotFoundError):
                peek()
        with pytest.raises(openai.BadRequestError, match="no file"):
            bob.batches.create(input_file_id=file, endpoint="/v1/chat/completions", completion_window="24h")
        assert not bob.batches.list().data and not bob.files.list().data
        with pytest.raises(openai.AuthenticationError):
            client(gateway.url, "carl").batches.list()

    def test_quotas(self, gateway: Gateway) -> None:
        ann = client(gateway.url, "ann")
        with pytest.raises(openai.APIStatusError) as too_large:
            ann.files.create(file=("f", b"x" * 200_000), purpose="batch")
        assert too_large.value.status_code == 413
        for _ in range(2):
            ann.files.create(file=("f", b"x" * 9000), purpose="user_data")
        with pytest.raises(openai.RateLimitError, match="at most 20000"):
            ann.files.create(file=("f", b"x" * 9000), purpose="user_data")
        for file in ann.files.list():
            ann.files.delete(file.id)
        first = ann.responses.create(model="m", input="x", background=True, max_output_tokens=400)
        ann.responses.create(model="m", input="x", background=True, max_output_tokens=400)
        with pytest.raises(openai.RateLimitError, match="at most 2 "):
            ann.responses.create(model="m", input="x", background=True)
        ann.responses.cancel(first.id)
        ann.responses.create(model="m", input="x", background=True)
