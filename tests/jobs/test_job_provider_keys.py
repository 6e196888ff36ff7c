"""Whose keys and limits apply to jobs at a provider, and what a drain leaves running there."""

from __future__ import annotations

import hashlib
import json
import signal
from typing import Any

import anthropic
import httpx
import openai
import pytest

from support.hosted import Hosted
from support.jobs import client
from support.processes import Gateway, get_json
from support.provider import BATCH, REQUESTS, at_provider, command, delete, job, wait_event, wait_status
from support.raw import Client
from support.waiting import wait_until


class TestKeys:
    def test_the_clients_key_is_used_and_shown_nowhere(self) -> None:
        secret = "sk-planted-0123456789abcdef"
        with at_provider(provider_cancel_s=3) as (gateway, hosted):
            sdk = client(gateway.url, secret)
            first = sdk.responses.create(model="m", input="x", background=True, extra_headers={"x-hangup-lease": "1"}).id
            second = sdk.batches.create(**BATCH).id
            hosted.cancel_failures = 1
            assert delete(gateway, f"/api/jobs/{second}").json()["status"] == "cancelled"
            third = sdk.batches.create(**BATCH).id
            wait_event(gateway, "job_status_changed", id=first)
            hosted.cancel_takes_s = None
            sdk.batches.cancel(third)
            wait_event(gateway, "job_cancel_timed_out", id=third)
            again = len(hosted.requests_to("POST", f"/v1/batches/{third}/cancel")) + 1
            delete(gateway, f"/api/jobs/{third}")  # once more, though it was given up
            hosted.wait_for_requests("POST", f"/v1/batches/{third}/cancel", again)
            requests = [seen for seen in hosted.seen if seen.ours and seen.path.count("/") > 2]
            assert len(requests) > 4 and all(seen.headers["authorization"] == f"Bearer {secret}" for seen in requests)
            shown = [command(gateway, *words).stdout for words in (["ls", "--all", "--json"], ["show", first], ["show", third])]
            shown += [
                httpx.get(f"{gateway.admin_url}{path}", timeout=60).text for path in ("/api/jobs", "/metrics", "/api/calls")
            ]
            gateway.signal(signal.SIGTERM)
            gateway.wait()
            everything = "\n".join([*shown, *gateway.stdout_lines, *gateway.stderr_lines])
            assert first in everything and secret not in everything

    def test_the_backends_own_key_and_tenants(self) -> None:
        digest = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("red", "blue")}
        with Hosted() as hosted:
            config = f"""
                jobs = "provider"
                [limits]
                provider_poll_s = 0.05
                jobs_max = 2
                [[backend]]
                url = "{hosted.url}"
                api_key_env = "PROVIDER_KEY"
                [[tenant]]
                name = "red"
                key_sha256 = ["{digest["red"]}"]
                [[tenant]]
                name = "blue"
                key_sha256 = ["{digest["blue"]}"]
            """
            with Gateway(config=config, env={"PROVIDER_KEY": "theirs"}) as gateway:
                red, blue = client(gateway.url, "red"), client(gateway.url, "blue")
                id = red.batches.create(**BATCH).id
                assert job(gateway, id)["tenant"] == "red"
                with pytest.raises(openai.NotFoundError):
                    blue.batches.cancel(id)
                before = len(hosted.seen)
                for spelling in (id.replace("_", "%5F"), "%62" + id[1:], f"/{id}", id[:-1] + f"%{ord(id[-1]):02x}"):
                    for method, path in (("GET", ""), ("POST", "/cancel"), ("DELETE", "")):
                        url = f"{gateway.url}/v1/batches/{spelling}{path}"
                        refused = httpx.request(method, url, headers={"authorization": "Bearer blue"}, timeout=60)
                        assert refused.status_code in (404, 405), (method, spelling)
                assert not [seen for seen in hosted.seen[before:] if not seen.ours], "no other spelling reaches the provider"
                assert hosted.works[id].cancelled is None
                sdk = anthropic.Anthropic(base_url=gateway.url, api_key="red", max_retries=0)
                other = sdk.messages.batches.create(requests=REQUESTS).id
                with pytest.raises(openai.RateLimitError, match="at most 2"):
                    red.batches.create(**BATCH)
                delete(gateway, f"/api/jobs/{other}")
                red.batches.cancel(id)
                wait_status(gateway, id, "cancelled")
                wait_status(gateway, other, "cancelled")
            requests = [seen for seen in hosted.seen if seen.path.count("/") > 2]
            assert {seen.headers["authorization"] for seen in requests} == {"Bearer theirs"}
            ours = [seen for seen in requests if "messages" in seen.path and seen.ours]
            assert ours and {seen.headers["x-api-key"] for seen in ours} == {"theirs"}

    def test_whoever_asks_first_after_a_restart_keeps_nobody_out(self) -> None:
        """After a restart the owner is unknown, so the job is open to everyone who shares the provider account."""
        digest = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("red", "blue")}
        tenants = "".join(f'[[tenant]]\nname = "{name}"\nkey_sha256 = ["{key}"]\n' for name, key in digest.items())
        with Hosted() as hosted:
            config = f'jobs = "provider"\n[[backend]]\nurl = "{hosted.url}"\napi_key_env = "PROVIDER_KEY"\n{tenants}'

            def call(method: str, path: str, who: str, body: Any = None) -> httpx.Response:
                headers = {"authorization": f"Bearer {who}"}
                return httpx.request(method, f"{gateway.url}/v1/batches{path}", headers=headers, json=body, timeout=60)

            with Gateway(config=config, env={"PROVIDER_KEY": "theirs"}) as gateway:
                id = call("POST", "", "red", BATCH).json()["id"]
                assert call("GET", f"/{id}", "blue").status_code == 404
            with Gateway(config=config, env={"PROVIDER_KEY": "theirs"}) as gateway:
                assert call("GET", f"/{id}", "blue").json()["id"] == id
                assert job(gateway, id)["tenant"] == "blue"
                assert call("GET", f"/{id}", "red").json()["id"] == id
                assert call("POST", f"/{id}/cancel", "red").status_code == 200
                wait_status(gateway, id, "cancelled")


class TestBounds:
    def test_so_many_are_followed_and_no_more(self) -> None:
        with at_provider(provider_jobs_max=2) as (gateway, _):
            sdk = client(gateway.url)
            ids = [sdk.batches.create(**BATCH).id for _ in range(3)]
            wait_event(gateway, "job_not_followed", id=ids[2])
            assert gateway.metrics()["hangup_jobs_not_followed_total"] == 1
            sdk.batches.cancel(ids[0])
            wait_status(gateway, ids[0], "cancelled")
            newest = sdk.batches.create(**BATCH).id
            rows = get_json(f"{gateway.admin_url}/api/jobs")["jobs"]
            assert [row["id"] for row in rows] == [newest, ids[1]], "one that has ended makes room"
            page = get_json(f"{gateway.admin_url}/api/jobs?limit=1")
            assert page["more"] and len(page["jobs"]) == 1
            rest = get_json(f"{gateway.admin_url}/api/jobs?before={newest}")["jobs"]
            assert [row["id"] for row in rest] == [ids[1]]

    def test_one_that_does_not_answer_is_not_waited_for_for_ever(self) -> None:
        """The client is gone, and the answer would have contained the id of its job."""
        with at_provider(provider_answer_s=0.3) as (gateway, hosted), Client(gateway.address) as events:
            hosted.may_answer.clear()
            events.post("/v1/batches", BATCH)
            hosted.wait_for_requests("POST", "/v1/batches")
            events.fin()
            assert "after 0.3 s" in wait_event(gateway, "job_answer_invalid")["error"]

    def test_so_many_answers_are_waited_for_and_no_more(self) -> None:
        """provider_jobs_max: each of them holds a connection, though no client's connection counts for it any more."""
        with at_provider(provider_jobs_max=1, provider_answer_s=600) as (gateway, hosted):
            hosted.may_answer.clear()
            for number in (1, 2):
                with Client(gateway.address) as events:
                    events.post("/v1/batches", BATCH)
                    hosted.wait_for_requests("POST", "/v1/batches", number)
                    events.fin()
                    wait_until(lambda: gateway.metrics()["hangup_connections"] == 0)
            assert "provider_jobs_max" in wait_event(gateway, "job_answer_invalid")["error"]

    def test_the_first_pause_between_polls_after_a_cancel(self) -> None:
        """provider_poll_s"""
        with at_provider(provider_poll_s=1.5, provider_poll_max_s=1.5) as (gateway, hosted):
            one, two = self._polls(gateway, hosted, 2)
            assert two - one >= 1.4

    def test_the_longest_pause_between_polls_after_a_cancel(self) -> None:
        """provider_poll_max_s: without it, the twelfth poll would come after three minutes."""
        with at_provider(provider_poll_s=0.05, provider_poll_max_s=0.2) as (gateway, hosted):
            polls = self._polls(gateway, hosted, 12)
            assert polls[-1] - polls[0] >= 0.05 + 0.1 + 9 * 0.19

    @staticmethod
    def _polls(gateway: Gateway, hosted: Hosted, count: int) -> list[float]:
        """Return the times of the first polls after a cancel that never takes effect."""
        hosted.cancel_takes_s = None
        sdk = client(gateway.url)
        id = sdk.batches.create(**BATCH).id
        sdk.batches.cancel(id)
        return [seen.at for seen in hosted.wait_for_requests("GET", f"/v1/batches/{id}", count)][:count]

    def test_one_is_not_followed_for_ever(self) -> None:
        """provider_follow_s"""
        with at_provider(provider_follow_s=1) as (gateway, hosted):
            id = client(gateway.url).batches.create(**BATCH).id
            assert wait_event(gateway, "job_follow_timed_out", id=id)
            assert not hosted.requests_to("POST", f"/v1/batches/{id}/cancel"), "whoever wants it may still get it"

    def test_a_drain_ends_what_is_followed(self) -> None:
        with at_provider() as (gateway, hosted):
            hosted.cancel_takes_s = None
            sdk = client(gateway.url)
            sdk.batches.cancel(sdk.batches.create(**BATCH).id)
            stream = sdk.responses.create(model="m", input="x", background=True, stream=True)
            next(iter(stream))
            gateway.signal(signal.SIGTERM)
            assert gateway.wait() == 0
            with pytest.raises(openai.APIConnectionError):
                list(stream)
            events = [json.loads(row) for row in gateway.stdout_lines if "provider_jobs_unfinished" in row]
            assert [row["count"] for row in events] == [2]
