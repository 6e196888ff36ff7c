"""Acknowledged jobs survive kill -9 at any instant, a full disk, a worker that hangs, and two workers on one store."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from support import leftovers
from support.jobs import client, get_job, line, results, start_batch, start_job, wait_batch, wait_job
from support.linux import linux_only
from support.postgresql import postgres_server
from support.processes import Gateway, Process, StandIn
from support.raw import Client
from support.waiting import wait_until

KILLS = int(os.environ.get("HANGUP_KILLS", "40"))
KILLS_ON_SERVER = int(os.environ.get("HANGUP_KILLS", "6"))  # `make kills` has 200
_DELIVERED = "cause = 'completed' AND tokens_delivered > 0"
LINES = 25


@pytest.fixture
def engine() -> Iterator[StandIn]:
    with StandIn(slots=8, token_s=0.004, prefill_s=0.004, answer_tokens=4) as engine:
        yield engine


def serve(engine: StandIn, store: Path, **settings: Any) -> Gateway:
    places = {"jobs": store / "jobs.sqlite", "ledger": store / "ledger.sqlite"}
    return Gateway(engine.url, **{"slots": 8, **places, **settings})


class Submitter(threading.Thread):
    """Submits without pause and records what was acknowledged."""

    def __init__(self, url: str, round: int, batches: dict[str, str], calls: dict[str, str]) -> None:
        super().__init__(daemon=True)
        self.url, self.round, self.batches, self.calls = url, round, batches, calls
        self.stopped = False

    def run(self) -> None:
        failures = contextlib.suppress(openai.APIError, httpx.HTTPError, AssertionError, json.JSONDecodeError)
        with client(self.url) as sdk, failures:
            for n in range(1000):
                if self.stopped:
                    return
                model = f"m{self.round}-{n}"
                if n % 4 == 0:
                    id = start_batch(sdk, [line(f"r{k}", model=model) for k in range(LINES)])
                    self.batches[id] = model
                else:
                    self.calls[start_job(self.url, lease_s=3600, model=model, max_tokens=3)["id"]] = model


def close_all(gateways: list[Gateway]) -> None:
    for gateway in gateways:
        gateway.close()


def all_end_well(url: str, batches: dict[str, str], calls: dict[str, str]) -> None:
    """Each acknowledged item has ended, with its own result, in order."""
    sdk = client(url)
    for id in calls:
        job = wait_job(url, id, timeout_s=120)
        assert job["status"] == "completed" and job["result"]["status"] == 200
    for id in batches:
        batch = wait_batch(sdk, id, timeout_s=120)
        assert batch.status == "completed" and batch.request_counts.total == LINES
        rows = results(sdk, batch.output_file_id)
        assert [row["custom_id"] for row in rows] == [f"r{n}" for n in range(LINES)]
        assert all(row["response"]["body"]["usage"]["completion_tokens"] == 3 for row in rows)


def none_is_billed_twice(billed: dict[str, int], batches: dict[str, str], calls: dict[str, str]) -> None:
    for model in calls.values():
        assert billed.get(model, 0) <= 1, f"{model} was billed twice"
    for model in batches.values():
        assert billed.get(model, 0) <= LINES, f"{model} was billed more often than it has lines"


class TestKilled:
    def test_at_any_instant(self, engine: StandIn, tmp_path: Path) -> None:
        """Each acknowledged item ends exactly once, results are complete and in order, and none is billed twice."""
        seed = random.randrange(1 << 32)
        print("seed", seed)
        chance = random.Random(seed)
        batches: dict[str, str] = {}
        calls: dict[str, str] = {}
        for round in range(KILLS):
            if chance.random() < 0.15:  # while it starts
                flags = ["--port", "0", "--admin-port", "0", "--upstream", engine.url, "--jobs", str(tmp_path / "jobs.sqlite")]
                with Process("serve", *flags) as starting:
                    time.sleep(chance.uniform(0.1, 0.6))
                    starting.signal(signal.SIGKILL)
                continue
            with serve(engine, tmp_path) as gateway:
                submitter = Submitter(gateway.url, round, batches, calls)
                submitter.start()
                time.sleep(chance.uniform(0.0, 0.35))
                gateway.signal(signal.SIGKILL)
                gateway.wait()
                submitter.join(60)
        assert batches and calls, "something was submitted between the kills"
        with serve(engine, tmp_path) as gateway:
            all_end_well(gateway.url, batches, calls)
        none_is_billed_twice(billed_calls(tmp_path / "ledger.sqlite"), batches, calls)
        print(f"{KILLS} kills, {len(calls)} calls and {len(batches)} batches of {LINES} acknowledged")

    def test_one_of_two_on_a_server(self, engine: StandIn, tmp_path: Path) -> None:
        """As above, with PostgreSQL: one of two gateways is killed or stopped, whichever it is, and replaced."""
        seed = random.randrange(1 << 32)
        print("seed", seed)
        chance = random.Random(seed)
        batches: dict[str, str] = {}
        calls: dict[str, str] = {}
        server = postgres_server()
        database = server.new_database()
        with contextlib.ExitStack() as closing:
            gateways = [serve(engine, tmp_path, jobs=database, ledger=database) for _ in range(2)]
            closing.callback(close_all, gateways)
            for round in range(KILLS_ON_SERVER):
                submitters = [Submitter(gateway.url, 2 * round + n, batches, calls) for n, gateway in enumerate(gateways)]
                for submitter in submitters:
                    submitter.start()
                time.sleep(chance.uniform(0.0, 0.35))
                victim = chance.randrange(2)
                gateways[victim].signal(signal.SIGKILL if chance.random() < 0.8 else signal.SIGTERM)
                gateways[victim].wait()
                for submitter in submitters:
                    submitter.stopped = True
                    submitter.join(60)
                leftovers.collect_quietly()  # of requests that broke off with their gateway
                gateways[victim].close()
                gateways[victim] = serve(engine, tmp_path, jobs=database, ledger=database)
            last = Submitter(gateways[0].url, 2 * KILLS_ON_SERVER, batches, calls)
            last.start()
            wait_until(lambda: bool(batches and calls), what="acknowledged jobs")
            last.stopped = True
            last.join(60)
            all_end_well(gateways[0].url, batches, calls)
            for gateway in gateways:
                gateway.signal(signal.SIGTERM)
                gateway.wait()
        name = database.rpartition("/")[2]
        rows = server.execute(f"SELECT model, sum(calls) FROM hangup.spent WHERE {_DELIVERED} GROUP BY model", name)
        none_is_billed_twice({model: int(count) for model, count in rows}, batches, calls)
        print(f"{KILLS_ON_SERVER} kills, {len(calls)} calls and {len(batches)} batches of {LINES} acknowledged")

    def test_what_is_done_is_billed_once_in_all(self, engine: StandIn, tmp_path: Path) -> None:
        with serve(engine, tmp_path) as gateway:
            sdk = client(gateway.url)
            wait_batch(sdk, start_batch(sdk, [line(f"r{k}", model="once") for k in range(LINES)]))
            gateway.signal(signal.SIGTERM)
            gateway.wait()
        assert billed_calls(tmp_path / "ledger.sqlite")["once"] == LINES

    def test_while_its_lines_are_checked(self, engine: StandIn, tmp_path: Path) -> None:
        count = 20_000
        with serve(engine, tmp_path) as gateway:
            id = start_batch(client(gateway.url), [line(f"r{n}") for n in range(count)])
            gateway.signal(signal.SIGKILL)
            gateway.wait()
        with serve(engine, tmp_path) as one, serve(engine, tmp_path) as two:
            batch = wait_batch(client(two.url), id, "in_progress")
            assert batch.request_counts.total == count, "checked once more, by one of the two"
            assert client(one.url).batches.cancel(id).status in ("cancelling", "cancelled")
            wait_batch(client(two.url), id, "cancelled")

    def test_a_cancel_that_was_acknowledged_holds(self, engine: StandIn, tmp_path: Path) -> None:
        engine.behave(token_s=0.2, answer_tokens=500)
        with serve(engine, tmp_path, job_cancel_wait_s=0) as gateway:
            sdk = client(gateway.url)
            id = start_batch(sdk, [line(f"r{k}", max_tokens=500) for k in range(20)])
            wait_until(lambda: engine.stats()["running"] > 0, what="running items")
            assert sdk.batches.cancel(id).status in ("cancelling", "cancelled")
            gateway.signal(signal.SIGKILL)
            gateway.wait()
        engine.wait_idle()
        with serve(engine, tmp_path) as gateway:
            assert wait_batch(client(gateway.url), id).status == "cancelled"
            assert engine.stats()["running"] == 0, "nothing was started anew"

    def test_a_stop_gives_back_what_runs(self, engine: StandIn, tmp_path: Path) -> None:
        engine.behave(token_s=0.1, answer_tokens=500)
        with serve(engine, tmp_path, drain_s=0.3) as gateway:
            job = start_job(gateway.url, max_tokens=500)["id"]
            wait_until(lambda: engine.stats()["tokens"] > 1, what="tokens")
            gateway.signal(signal.SIGTERM)
            assert gateway.wait() == 0
        engine.wait_idle()
        engine.behave(token_s=0.001, answer_tokens=4)
        with serve(engine, tmp_path) as gateway:
            assert wait_job(gateway.url, job)["status"] == "completed"


def billed_calls(path: Path) -> dict[str, int]:
    """Return the delivered calls by model; each killed process has written its entries, except for its last second."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        return {
            model: int(calls)
            for model, calls in db.execute(f"SELECT model, sum(calls) FROM spent WHERE {_DELIVERED} GROUP BY model")
        }


class TestTwoOnOneStore:
    def test_they_share_the_work(self, engine: StandIn, tmp_path: Path, store_path: str) -> None:
        engine.behave(token_s=0.03)  # so that it takes seconds, and whoever comes later gets some of it
        with serve(engine, tmp_path, jobs=store_path) as one, serve(engine, tmp_path, jobs=store_path) as two:
            sdk = client(one.url)
            count = 300
            id = start_batch(sdk, [line(f"r{n}") for n in range(count)])
            batch = wait_batch(client(two.url), id)
            assert batch.status == "completed" and batch.request_counts.completed == count
            assert len(results(sdk, batch.output_file_id)) == count

            def ran() -> list[int]:
                return [sum(row.get("client") == "job" for row in gateway.log()) for gateway in (one, two)]

            wait_until(lambda: sum(ran()) >= count, what="the log")
            assert sum(ran()) == count and min(ran()) > 0, f"both ran some, none was run twice: {ran()}"

    def test_a_cancel_at_one_stops_the_other(self, engine: StandIn, tmp_path: Path, store_path: str) -> None:
        engine.behave(token_s=0.2, answer_tokens=500)
        with serve(engine, tmp_path, jobs=store_path) as one, serve(engine, tmp_path, jobs=store_path) as two:
            id = start_job(one.url, max_tokens=500, lease_s=600)["id"]
            wait_until(lambda: engine.stats()["running"] == 1, what="it to run")
            runs_it = [bool(httpx.get(f"{gateway.admin_url}/api/calls", timeout=60).json()["calls"]) for gateway in (one, two)]
            other = two if runs_it[0] else one
            assert httpx.delete(f"{other.url}/v1/jobs/{id}", timeout=60).json()["status"] in ("cancelling", "cancelled")
            engine.wait_idle()
            assert wait_job(other.url, id)["status"] == "cancelled"

    def test_a_rolling_restart_runs_no_item_twice(self, engine: StandIn, tmp_path: Path, store_path: str) -> None:
        engine.behave(token_s=0.01)
        with contextlib.ExitStack() as closing:
            gateways = [serve(engine, tmp_path, jobs=store_path) for _ in range(2)]
            closing.callback(close_all, gateways)
            count = 400
            id = start_batch(client(gateways[0].url), [line(f"r{n}") for n in range(count)])
            wait_until(lambda: engine.stats()["running"] > 0, what="running items")
            for n in range(2):
                gateways[n].signal(signal.SIGTERM)
                gateways[n].wait()
                gateways[n].close()
                gateways[n] = serve(engine, tmp_path, jobs=store_path)
            batch = wait_batch(client(gateways[0].url), id)
            assert batch.status == "completed" and batch.request_counts.completed == count
            assert engine.stats()["started"] == count, "each ran once"

    def test_one_that_hangs_loses_its_items_and_its_late_results_are_refused(self, engine: StandIn, tmp_path: Path) -> None:
        engine.behave(token_s=1.0, answer_tokens=4)
        with serve(engine, tmp_path, job_worker_silence_s=5) as one:
            sdk = client(one.url)
            id = start_batch(sdk, [line(f"r{n}", max_tokens=4) for n in range(6)])
            wait_until(lambda: engine.stats()["running"] > 0, what="running items")
            one.signal(signal.SIGSTOP)
            with serve(engine, tmp_path, job_worker_silence_s=5) as two:
                other = client(two.url)
                batch = wait_batch(other, id)
                assert batch.status == "completed" and batch.request_counts.completed == 6
                stored = results(other, batch.output_file_id)
                one.signal(signal.SIGCONT)
                expected = ("job_result_refused", "job_claims_expired")
                wait_until(lambda: {row["event"] for row in one.log()} & set(expected), what="the late one to be told")
                assert results(other, batch.output_file_id) == stored, "what was there is there"
                again = start_batch(sdk, [line("after")])
                assert wait_batch(sdk, again).status == "completed", "it works on, under a new name"


class TestFullDisk:
    @linux_only
    def test_new_jobs_are_refused_and_what_runs_goes_on(self, engine: StandIn, tmp_path: Path) -> None:
        engine.behave(token_s=0.1, answer_tokens=30)
        with serve(engine, tmp_path) as gateway:
            id = start_job(gateway.url, max_tokens=30, lease_s=600)["id"]
            wait_until(lambda: engine.stats()["tokens"] > 1, what="tokens")
            files = [path.stat().st_size for path in tmp_path.glob("jobs.sqlite*")]
            _, hard = resource.prlimit(gateway.popen.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(gateway.popen.pid, resource.RLIMIT_FSIZE, (max(files), hard))
            body = {"messages": [{"role": "user", "content": "x" * 100_000}]}
            refused = httpx.post(
                f"{gateway.url}/v1/chat/completions", json=body, headers={"prefer": "respond-async"}, timeout=20
            )
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "jobs_unavailable"
            live = httpx.post(f"{gateway.url}/v1/chat/completions", json={"messages": [], "max_tokens": 2}, timeout=60)
            assert live.status_code == 200, "live calls need no disk"
            wait_until(lambda: any(row["event"] == "job_store_failed" for row in gateway.log()), what="the failure to be told")
            resource.prlimit(gateway.popen.pid, resource.RLIMIT_FSIZE, (hard, hard))
            job = wait_job(gateway.url, id)
            assert job["status"] == "completed" and job["result"]["status"] == 200, "its result was kept meanwhile"
            assert engine.stats()["started"] == 2, "and it ran once"
            assert wait_job(gateway.url, start_job(gateway.url, max_tokens=1)["id"])["status"] == "completed"


def test_an_upload_that_breaks_off_leaves_nothing_behind(engine: StandIn, tmp_path: Path) -> None:
    head = "POST /v1/files HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n"
    head += "Content-Type: multipart/form-data; boundary=b\r\n\r\n"
    form = b'--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n' + b"x" * 2_000_000

    def parts() -> int:
        with contextlib.closing(sqlite3.connect(tmp_path / "jobs.sqlite")) as db:
            return int(db.execute("SELECT count(*) FROM part").fetchone()[0])

    with serve(engine, tmp_path) as gateway:
        with Client(gateway.address) as sender:
            sender.send(head.encode() + form)
            wait_until(lambda: parts() > 0, what="parts in the store")
            sender.reset()
        wait_until(lambda: parts() == 0, what="the parts to be gone")
        assert not client(gateway.url).files.list().data


class TestWithoutAPlace:
    def test_a_store_that_cannot_be_opened(self, engine: StandIn, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with Process("serve", "--port", "0", "--upstream", engine.url, "--jobs", str(tmp_path / "file" / "jobs")) as process:
            assert process.wait() != 0
            assert any("cannot use" in row for row in process.stderr_lines)

    def test_none(self, engine: StandIn) -> None:
        with Gateway(engine.url, jobs="none") as gateway:
            assert httpx.get(f"{gateway.url}/v1/batches", timeout=60).status_code == 503
            body = {"messages": [], "max_tokens": 1}
            answer = httpx.post(
                f"{gateway.url}/v1/chat/completions", json=body, headers={"prefer": "respond-async"}, timeout=60
            )
            assert answer.status_code == 200, "a wish that is not granted, as RFC 7240 has it"

    def test_where_it_is_when_nobody_says(self, engine: StandIn, tmp_path: Path) -> None:
        with Gateway(engine.url, env={"XDG_STATE_HOME": str(tmp_path)}) as gateway:
            id = start_job(gateway.url, max_tokens=1)["id"]
            assert get_job(gateway.url, id)
        assert not list(tmp_path.rglob("*.sqlite")), "on a free port it is in memory"
