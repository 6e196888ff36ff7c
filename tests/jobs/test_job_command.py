"""`hangup jobs`, as an operator and as an owner use it; and what the admin port shows about jobs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.jobs import CHAT, client, line, start_batch, start_job, wait_batch, wait_job
from support.processes import HANGUP, Gateway, StandIn
from support.waiting import wait_until


@pytest.fixture(scope="module")
def engine() -> Iterator[StandIn]:
    with StandIn(slots=8, token_s=0.002, prefill_s=0.005, answer_tokens=6) as engine:
        yield engine


@pytest.fixture(scope="module")
def gateway(engine: StandIn) -> Iterator[Gateway]:
    with Gateway(engine.url, slots=8) as gateway:
        yield gateway


def hangup(gateway: Gateway, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "HANGUP_ADMIN_URL": gateway.admin_url, "HANGUP_URL": gateway.url}
    return subprocess.run([*HANGUP, "jobs", *arguments], capture_output=True, text=True, timeout=60, env=env, check=False)


class TestSubmit:
    def test_a_file_in_and_a_file_out(self, gateway: Gateway, tmp_path: Path) -> None:
        file = tmp_path / 'my "lines".jsonl'
        file.write_text("\n".join(line(f"r{n}") for n in range(30)))
        done = hangup(gateway, "submit", str(file))
        assert done.returncode == 0, done.stderr
        assert "completed: 30 of 30 answered, 0 failed" in done.stdout
        rows = [json.loads(row) for row in file.with_suffix(".results.jsonl").read_text().splitlines()]
        assert [row["custom_id"] for row in rows] == [f"r{n}" for n in range(30)]
        assert done.stderr == "", "no bar where there is no terminal"

    def test_what_is_wrong_with_a_line(self, gateway: Gateway, tmp_path: Path) -> None:
        file = tmp_path / "bad.jsonl"
        file.write_text(line("a") + "\n" + line("a"))
        done = hangup(gateway, "submit", str(file))
        assert done.returncode == 1 and "line 2: Duplicate custom_id 'a'." in done.stdout

    def test_leaving_at_once(self, gateway: Gateway, tmp_path: Path) -> None:
        file = tmp_path / "in.jsonl"
        file.write_text(line("a"))
        id = hangup(gateway, "submit", "--detach", str(file)).stdout.strip()
        assert wait_batch(client(gateway.url), id).status == "completed"

    def test_files_that_are_none(self, gateway: Gateway, tmp_path: Path) -> None:
        (tmp_path / "x").write_text("hello")
        for arguments, words in (
            (["submit", str(tmp_path / "none")], "cannot read"),
            (["submit", str(tmp_path / "x")], "first line"),
            (["submit", str(tmp_path / "x"), "--url", "ftp://x"], "first line"),
        ):
            done = hangup(gateway, *arguments)
            assert done.returncode == 1 and words in done.stderr
        (tmp_path / "x").write_text(line("a"))
        done = hangup(gateway, "submit", str(tmp_path / "x"), "--url", "http://127.0.0.1:1")
        assert done.returncode == 1 and "cannot reach the gateway" in done.stderr and "hint" in done.stderr


class TestLooking:
    def test_ls_show_cancel_prune(self, engine: StandIn) -> None:
        engine.behave(token_s=0.2, answer_tokens=500)
        try:
            with Gateway(engine.url, slots=8) as gateway:
                sdk = client(gateway.url)
                job = start_job(gateway.url, max_tokens=400, lease_s=500)["id"]
                batch = start_batch(sdk, [line(f"r{n}", max_tokens=400) for n in range(9)])
                wait_until(lambda: engine.stats()["running"] >= 2, what="running items")
                listed = hangup(gateway, "ls").stdout
                assert batch in listed and job in listed and "running" in listed and CHAT in listed
                rows = json.loads(hangup(gateway, "ls", "--json", "--kind", "batch").stdout)["jobs"]
                assert [row["id"] for row in rows] == [batch] and rows[0]["items"]["total"] == 9
                output = hangup(gateway, "show", job).stdout
                assert "lease s" in output and "1 running" in output
                calls = httpx.get(f"{gateway.admin_url}/api/calls", timeout=60).json()["calls"]
                assert f"{job}.0" in [call["id"] for call in calls], "they are calls, too"
                metrics = gateway.metrics()
                assert metrics['hangup_jobs{kind="batch",status="running"}'] == 1
                assert metrics['hangup_job_items{state="running"}'] >= 2
                done = hangup(gateway, "cancel", batch, job, "batch_none")
                assert done.returncode == 1 and f"{batch} cancelled" in done.stdout and "no such job: batch_none" in done.stdout
                assert engine.wait_idle()["running"] == 0
                assert wait_job(gateway.url, job)["cause"] == "killed"
                assert gateway.metrics()['hangup_job_items_ended_total{result="cancelled"}'] >= 2
                assert hangup(gateway, "ls").stdout.count("\n") == 1, "none under way"
                assert "cancelled" in hangup(gateway, "ls", "--all").stdout
                assert hangup(gateway, "prune", "--older-than", "1h").stdout == "0 jobs deleted\n"
                assert hangup(gateway, "prune", "--older-than", "0s").stdout == "2 jobs deleted\n"
                assert hangup(gateway, "show", job).returncode == 1
        finally:
            engine.behave(token_s=0.002, answer_tokens=6)

    def test_where_there_are_none(self, engine: StandIn) -> None:
        with Gateway(engine.url, jobs="none") as gateway:
            done = hangup(gateway, "ls")
            assert done.returncode == 1 and "jobs are off" in done.stderr

    def test_a_page_of_another_site_may_cancel_nothing(self, gateway: Gateway) -> None:
        id = start_job(gateway.url)["id"]
        assert httpx.delete(f"{gateway.admin_url}/api/jobs/{id}", timeout=60).status_code == 403
        assert wait_job(gateway.url, id)["status"] == "completed"

    @pytest.mark.parametrize("query", ["limit=0", "limit=x", "kind=none"])
    def test_questions_that_are_none(self, gateway: Gateway, query: str) -> None:
        assert httpx.get(f"{gateway.admin_url}/api/jobs?{query}", timeout=60).status_code == 400
        headers = {"x-hangup": "1"}
        assert httpx.delete(f"{gateway.admin_url}/api/jobs?ended_before_s=soon", headers=headers, timeout=60).status_code == 400
