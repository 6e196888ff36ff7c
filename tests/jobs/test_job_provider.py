"""Jobs at a hosted provider: forwarded unchanged, and followed until the provider has really stopped."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import anthropic
import httpx
import openai
import pytest

from support.hosted import Hosted
from support.jobs import client
from support.processes import HANGUP, Gateway, get_json
from support.raw import Client
from support.waiting import wait_until

BATCH: Any = {"input_file_id": "file-0", "endpoint": "/v1/chat/completions", "completion_window": "24h"}
REQUESTS: Any = [
    {"custom_id": f"r{n}", "params": {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "x"}]}}
    for n in range(3)
]


@contextmanager
def at_provider(env: dict[str, str] | None = None, config: str = "", **settings: Any) -> Iterator[tuple[Gateway, Hosted]]:
    """Looks are seldom, so that whatever the provider is asked has a cause; polls are quick."""
    quick = {"provider_look_s": 600, "provider_poll_s": 0.05, "provider_poll_max_s": 0.2, **settings}
    with Hosted() as hosted, Gateway(hosted.url, jobs="provider", config=config, env=env, **quick) as gateway:
        yield gateway, hosted


def claude(url: str) -> anthropic.Anthropic:
    headers = {"x-api-key": "a key"}  # where a provider looks for it, whichever header this SDK chooses
    return anthropic.Anthropic(base_url=url, api_key="a key", default_headers=headers, max_retries=0, timeout=60)


def job(gateway: Gateway, id: str) -> dict[str, Any]:
    answer = httpx.get(f"{gateway.admin_url}/api/jobs/{id}", timeout=60)
    assert answer.status_code == 200, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


def wait_status(gateway: Gateway, id: str, status: str) -> dict[str, Any]:
    return wait_until(lambda: (shown := job(gateway, id))["status"] == status and shown, what=f"{id} {status}") or {}


def wait_event(gateway: Gateway, event: str, **fields: Any) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        rows = (row for row in gateway.log() if row.get("event") == event)
        return next((row for row in rows if all(row[name] == value for name, value in fields.items())), None)

    return wait_until(look, what=f"{event} {fields} in the log") or {}


def delete(gateway: Gateway, path: str) -> httpx.Response:
    return httpx.delete(f"{gateway.admin_url}{path}", headers={"x-hangup": "1"}, timeout=60)


def command(gateway: Gateway, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HANGUP, "jobs", *words, "--admin", gateway.admin_url], capture_output=True, text=True, timeout=60, check=False
    )


class TestPassing:
    def test_files_and_batches_as_they_are(self) -> None:
        with at_provider() as (gateway, hosted):
            sdk = client(gateway.url)
            file = sdk.files.create(file=("in.jsonl", b"{}\n" * 1000), purpose="batch")
            assert b"{}\n" * 1000 in hosted.files[file.id] and b"{}\n" * 1000 in sdk.files.content(file.id).content
            batch = sdk.batches.create(**{**BATCH, "input_file_id": file.id})
            assert batch.status == "in_progress" and sdk.batches.retrieve(batch.id).id == batch.id
            assert [row.id for row in sdk.batches.list(limit=7, after="batch_x")] == [batch.id]
            assert hosted.asked("GET", "/v1/batches")[0].query == {"limit": ["7"], "after": ["batch_x"]}
            assert sdk.files.delete(file.id).deleted and not hosted.files
            with pytest.raises(openai.NotFoundError, match="no such object"):
                sdk.batches.retrieve("batch_none")

    def test_what_is_under_way_is_known(self) -> None:
        with at_provider() as (gateway, _):
            id = client(gateway.url).batches.create(**BATCH).id
            shown = job(gateway, id)
            assert (shown["kind"], shown["tenant"], shown["status"]) == ("batch", "default", "running")
            assert shown["items"]["total"] == 2 and shown["items"]["succeeded"] == 1 and shown["lease_s"] is None
            assert shown["expires_at"] > shown["created_at"] and shown["backend"]
            wait_event(gateway, "job_followed", id=id)
            assert gateway.metrics()['hangup_jobs{kind="batch",status="running"}'] == 1
            known = get_json(f"{gateway.admin_url}/api/overview")["jobs"]
            assert known["total"] == 1 and known["rows"][0]["items"] == shown["items"], "on the dashboard, too"
            text = command(gateway, "ls").stdout
            assert id in text and "running" in text
            assert "items" in command(gateway, "show", id).stdout

    def test_nothing_of_our_own_is_there(self) -> None:
        with at_provider() as (gateway, _):
            assert httpx.get(f"{gateway.url}/v1/jobs", timeout=60).status_code == 404
            chat = {"messages": [{"role": "user", "content": "x"}], "model": "m"}
            answer = httpx.post(
                f"{gateway.url}/v1/chat/completions", json=chat, headers={"prefer": "respond-async"}, timeout=60
            )
            assert answer.status_code == 200 and "preference-applied" not in answer.headers
            assert httpx.patch(f"{gateway.url}/v1/batches", timeout=60).status_code == 405

    def test_uploads_have_limits_of_their_own(self) -> None:
        with at_provider(body_bytes_max=2048, file_bytes_max=200_000) as (gateway, hosted):
            sdk = client(gateway.url)
            sdk.files.create(file=("in.jsonl", b"x" * 150_000), purpose="batch")
            with pytest.raises(openai.APIStatusError) as refused:
                sdk.files.create(file=("in.jsonl", b"x" * 400_000), purpose="batch")
            assert refused.value.status_code == 413 and len(hosted.files) == 1
            with pytest.raises(openai.APIStatusError) as refused:
                sdk.batches.create(**BATCH, metadata={"a": "b" * 4000})
            assert refused.value.status_code == 413

    def test_uploads_under_way_are_bounded(self) -> None:
        with at_provider(provider_uploads_bytes_max=100_000) as (gateway, hosted):
            with Client(gateway.address) as slow:
                slow.send(b"POST /v1/files HTTP/1.1\r\nHost: test\r\nContent-Length: 90000\r\n\r\n")
                wait_until(
                    lambda: any(row["phase"] == "receiving" for row in get_json(f"{gateway.admin_url}/api/calls")["calls"])
                )
                answer = httpx.post(f"{gateway.url}/v1/files", content=b"x" * 20_000, timeout=60)
                assert answer.status_code == 503 and "retry-after" in answer.headers and not hosted.files
            wait_until(
                lambda: httpx.post(f"{gateway.url}/v1/files", content=b"x" * 90_000, timeout=60).status_code == 200,
                what="room again",
            )

    def test_a_background_response_goes_unchanged(self) -> None:
        with at_provider() as (gateway, hosted):
            body = b'{"model": "m",  "input":"hello", "background": true}'
            answer = httpx.post(
                f"{gateway.url}/v1/responses", content=body, headers={"content-type": "application/json"}, timeout=60
            )
            assert answer.status_code == 200 and hosted.asked("POST", "/v1/responses")[0].body == body

    def test_each_provider_has_its_own(self) -> None:
        with Hosted() as openai_like, Hosted() as anthropic_like:
            config = f"""
                jobs = "provider"
                [[backend]]
                url = "{anthropic_like.url}"
                engine = "anthropic-hosted"
                [[backend]]
                url = "{openai_like.url}"
                engine = "openai-hosted"
            """
            with Gateway(config=config) as gateway:
                client(gateway.url).batches.create(**BATCH)
                claude(gateway.url).messages.batches.create(requests=REQUESTS)
                assert [work.kind for work in openai_like.works.values()] == ["batch"]
                assert [work.kind for work in anthropic_like.works.values()] == ["message_batch"]


class TestCancel:
    def test_a_batch_that_takes_a_while(self) -> None:
        with at_provider() as (gateway, hosted):
            hosted.cancel_takes_s = 3.0
            sdk = client(gateway.url)
            id = sdk.batches.create(**BATCH).id
            assert sdk.batches.cancel(id).status == "cancelling", "the provider's own answer"
            assert job(gateway, id)["status"] == "cancelling"
            ended = wait_event(gateway, "job_status_changed", id=id)
            assert (ended["status"], ended["cause"]) == ("cancelled", "cancelled") and ended["cancel_s"] >= 3.0
            looks = [seen.at for seen in hosted.asked("GET", f"/v1/batches/{id}")]
            pauses = [later - earlier for earlier, later in pairwise(looks)]
            assert pauses and all(
                pause >= least for pause, least in zip(pauses, [0.049, 0.099, *[0.199] * len(looks)], strict=False)
            ), "ever more seldom"
            shown = job(gateway, id)
            assert shown["items"]["cancelled"] == 1 and shown["cancel_s"] == ended["cancel_s"]
            assert id not in command(gateway, "ls").stdout and id in command(gateway, "ls", "--all").stdout

    def test_a_message_batch(self) -> None:
        with at_provider() as (gateway, hosted):
            hosted.cancel_takes_s = 0.2
            sdk = claude(gateway.url)
            id = sdk.messages.batches.create(requests=REQUESTS).id
            assert job(gateway, id)["items"]["running"] == 3
            assert sdk.messages.batches.retrieve(id).processing_status == "in_progress"
            assert sdk.messages.batches.cancel(id).processing_status == "canceling"
            shown = wait_status(gateway, id, "cancelled")
            assert shown["kind"] == "message_batch" and shown["items"]["cancelled"] == 3
            ours = [seen for seen in hosted.asked("GET", f"/v1/messages/batches/{id}") if seen.ours]
            assert ours and all(seen.headers["x-api-key"] == "a key" for seen in ours)
            assert all("anthropic-version" in seen.headers for seen in ours)

    def test_a_response(self) -> None:
        with at_provider() as (gateway, hosted):
            hosted.cancel_takes_s = 0.2
            sdk = client(gateway.url)
            id = sdk.responses.create(model="m", input="x", background=True).id
            assert sdk.responses.cancel(id).status == "in_progress"
            assert wait_status(gateway, id, "cancelled")["cause"] == "cancelled"

    def test_a_provider_that_never_stops(self) -> None:
        with at_provider(provider_cancel_s=0.5) as (gateway, hosted):
            hosted.cancel_takes_s = None
            sdk = client(gateway.url)
            id = sdk.batches.create(**BATCH).id
            sdk.batches.cancel(id)
            told = wait_event(gateway, "job_cancel_timed_out", id=id)
            assert told["cancel_s"] >= 0.5
            shown = job(gateway, id)
            assert shown["status"] == "cancelling" and shown["given_up"] and shown["ended_at"] is None
            assert gateway.metrics()["hangup_job_cancel_timeouts_total"] == 1
            assert gateway.metrics()['hangup_jobs{kind="batch",status="cancelling"}'] == 1
            hosted.cancel_takes_s = 0.0
            assert sdk.batches.retrieve(id).status == "cancelled"
            assert wait_status(gateway, id, "cancelled"), "whoever hears of the end may tell it"

    def test_one_that_fails_twice_is_sent_again(self) -> None:
        with at_provider() as (gateway, hosted):
            sdk = client(gateway.url)
            id = sdk.batches.create(**BATCH).id
            hosted.cancel_failures = 2
            with pytest.raises(openai.InternalServerError, match="try again") as failed:
                sdk.batches.cancel(id)
            assert failed.value.status_code == 500
            wait_status(gateway, id, "cancelled")
            cancels = hosted.asked("POST", f"/v1/batches/{id}/cancel")
            assert [seen.ours for seen in cancels] == [False, True, True]

    def test_a_connection_that_breaks(self) -> None:
        with at_provider() as (gateway, hosted):
            sdk = client(gateway.url)
            id = sdk.responses.create(model="m", input="x", background=True).id
            hosted.cancel_drops = 3
            with pytest.raises(openai.APIStatusError) as failed:
                sdk.responses.cancel(id)
            assert failed.value.status_code == 502
            wait_status(gateway, id, "cancelled")

    def test_it_is_not_sent_for_ever(self) -> None:
        with at_provider(provider_cancel_attempts_max=3) as (gateway, hosted):
            id = client(gateway.url).batches.create(**BATCH).id
            hosted.cancel_failures = 100
            assert command(gateway, "cancel", id).stdout.startswith(f"{id} cancelling")
            wait_event(gateway, "job_cancel_timed_out", id=id)
            assert len(hosted.asked("POST", f"/v1/batches/{id}/cancel")) == 3

    def test_by_an_operator(self) -> None:
        with at_provider() as (gateway, hosted):
            hosted.cancel_takes_s = 0.2
            sdk = client(gateway.url)
            first, second = sdk.batches.create(**BATCH).id, claude(gateway.url).messages.batches.create(requests=REQUESTS).id
            done = command(gateway, "cancel", first)
            assert done.returncode == 0 and done.stdout == f"{first} cancelled\n"
            answer = delete(gateway, f"/api/jobs/{second}").json()
            assert (answer["status"], answer["cause"]) == ("cancelled", "killed")
            assert [seen.ours for seen in hosted.asked("POST", f"/v1/messages/batches/{second}/cancel")] == [True]
            assert delete(gateway, "/api/jobs/none").status_code == 404
            pruned = delete(gateway, "/api/jobs?ended_before_s=0").json()
            assert pruned == {"pruned": 2} and get_json(f"{gateway.admin_url}/api/jobs")["jobs"] == []

    def test_of_one_from_before_a_restart(self) -> None:
        with at_provider() as (gateway, hosted):
            hosted.cancel_takes_s = 0.2
            id = hosted.create("batch", {}).id
            assert client(gateway.url).batches.cancel(id).status == "cancelling"
            wait_status(gateway, id, "cancelled")

    @pytest.mark.parametrize("stream", [False, True])
    def test_whoever_asks_for_one_from_before_a_restart_makes_it_known(self, stream: bool) -> None:
        with at_provider(job_lease_s=1) as (gateway, hosted):
            id = hosted.create("response", {"model": "m"}).id
            assert httpx.get(f"{gateway.admin_url}/api/jobs/{id}", timeout=60).status_code == 404
            if stream:
                with client(gateway.url).responses.retrieve(id, stream=True) as events:
                    next(iter(events))
                    wait_until(lambda: job(gateway, id)["lease_left_s"] == 1, what="a lease that is held")
            else:
                client(gateway.url).responses.retrieve(id)
            assert wait_event(gateway, "job_status_changed", id=id)["cause"] == "lease_expired"


class TestLease:
    def test_it_runs_out_when_nobody_asks(self) -> None:
        with at_provider() as (gateway, hosted):
            hosted.cancel_takes_s = 0.2
            sdk = client(gateway.url)
            id = sdk.responses.create(model="m", input="x", background=True, extra_headers={"x-hangup-lease": "1"}).id
            assert job(gateway, id)["lease_s"] == 1
            ended = wait_event(gateway, "job_status_changed", id=id)
            assert (ended["status"], ended["cause"]) == ("cancelled", "lease_expired")
            assert hosted.works[id].cancelled is not None
            assert hosted.asked("POST", f"/v1/responses/{id}/cancel")[0].headers["authorization"] == "Bearer any"

    def test_polling_renews_it(self) -> None:
        with at_provider() as (gateway, hosted):
            sdk = client(gateway.url)
            id = sdk.responses.create(model="m", input="x", background=True, extra_headers={"x-hangup-lease": "2"}).id
            began = hosted.works[id].began
            wait_until(lambda: sdk.responses.retrieve(id) and hosted.asked("GET", f"/v1/responses/{id}")[-1].at > began + 3)
            assert hosted.works[id].cancelled is None
            wait_status(gateway, id, "cancelled")
            polls = [seen.at for seen in hosted.asked("GET", f"/v1/responses/{id}") if not seen.ours]
            assert hosted.asked("POST", f"/v1/responses/{id}/cancel")[0].at >= polls[-1] + 1.9

    @pytest.mark.parametrize("taken_up_again", [False, True])
    def test_a_stream_holds_it(self, taken_up_again: bool) -> None:
        with at_provider() as (gateway, hosted):
            sdk = client(gateway.url)
            lease = {"x-hangup-lease": "2"}
            stream = sdk.responses.create(model="m", input="x", background=True, stream=True, extra_headers=lease)
            id = next(iter(stream)).response.id  # type: ignore[union-attr]
            if taken_up_again:
                stream.close()
                stream = sdk.responses.retrieve(id, stream=True)
            began = hosted.works[id].began
            for event in stream:
                if event.sequence_number > 60:
                    break
            assert hosted.works[id].cancelled is None and job(gateway, id)["lease_left_s"] == 2
            stream.close()
            ended = wait_event(gateway, "job_status_changed", id=id)
            assert ended["cause"] == "lease_expired" and (hosted.works[id].cancelled or 0) > began + 3

    def test_the_end_is_heard_of(self) -> None:
        with at_provider(provider_look_s=0.1) as (gateway, hosted):
            hosted.runs_s = 0.5
            sdk = client(gateway.url)
            one = sdk.responses.create(model="m", input="x", background=True).id
            two = sdk.batches.create(**BATCH).id
            for id in (one, two):
                shown = wait_status(gateway, id, "completed")
                assert shown["cause"] is None and not hosted.works[id].cancelled
            *_, last = sdk.responses.retrieve(one, stream=True)
            assert last.type == "response.completed"

    def test_a_wrong_one_is_refused(self) -> None:
        with at_provider() as (gateway, hosted):
            with pytest.raises(openai.BadRequestError, match="x-hangup-lease"):
                client(gateway.url).responses.create(
                    model="m", input="x", background=True, extra_headers={"x-hangup-lease": "never"}
                )
            assert not hosted.works

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_client_that_left_before_it_knew_the_id(self, stream: bool) -> None:
        with at_provider() as (gateway, hosted):
            hosted.may_answer.clear()
            with Client(gateway.address) as caller:
                caller.post("/v1/responses", {"model": "m", "input": "x", "background": True, "stream": stream})
                hosted.wait_asked("POST", "/v1/responses")
            wait_until(lambda: any(row.get("outcome") == "client_gone" for row in gateway.log()), what="the hang-up")
            hosted.may_answer.set()
            (id,) = hosted.works
            assert wait_event(gateway, "job_status_changed", id=id)["cause"] == "client_gone"
            assert hosted.works[id].cancelled is not None


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
            again = len(hosted.asked("POST", f"/v1/batches/{third}/cancel")) + 1
            delete(gateway, f"/api/jobs/{third}")  # once more, though it was given up
            hosted.wait_asked("POST", f"/v1/batches/{third}/cancel", again)
            asked = [seen for seen in hosted.seen if seen.ours and seen.path.count("/") > 2]
            assert len(asked) > 4 and all(seen.headers["authorization"] == f"Bearer {secret}" for seen in asked)
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
            asked = [seen for seen in hosted.seen if seen.path.count("/") > 2]
            assert {seen.headers["authorization"] for seen in asked} == {"Bearer theirs"}
            ours = [seen for seen in asked if "messages" in seen.path and seen.ours]
            assert ours and {seen.headers["x-api-key"] for seen in ours} == {"theirs"}

    def test_whoever_asks_first_after_a_restart_keeps_nobody_out(self) -> None:
        """Who made it is not known any more, so it is as open as all that the tenants' common account has."""
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
        """The client is gone, and the id of its job would have been in the answer."""
        with at_provider(provider_answer_s=0.3) as (gateway, hosted), Client(gateway.address) as left:
            hosted.may_answer.clear()
            left.post("/v1/batches", BATCH)
            hosted.wait_asked("POST", "/v1/batches")
            left.fin()
            assert "within 0.3 s" in wait_event(gateway, "job_answer_invalid")["error"]

    def test_so_many_answers_are_waited_for_and_no_more(self) -> None:
        """provider_jobs_max: each of them holds a connection, and no client's connection counts for it any more."""
        with at_provider(provider_jobs_max=1, provider_answer_s=600) as (gateway, hosted):
            hosted.may_answer.clear()
            for number in (1, 2):
                with Client(gateway.address) as left:
                    left.post("/v1/batches", BATCH)
                    hosted.wait_asked("POST", "/v1/batches", number)
                    left.fin()
                    wait_until(lambda: gateway.metrics()["hangup_connections"] == 0)
            assert "too many" in wait_event(gateway, "job_answer_invalid")["error"]

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
            left = [json.loads(row) for row in gateway.stdout_lines if "provider_jobs_unfinished" in row]
            assert [row["count"] for row in left] == [2]
