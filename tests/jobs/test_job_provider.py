"""Jobs at a hosted provider: forwarded unchanged, and followed until the provider has really stopped."""

from __future__ import annotations

from itertools import pairwise

import httpx
import openai
import pytest

from support.hosted import Hosted
from support.jobs import client
from support.processes import Gateway, get_json
from support.provider import BATCH, REQUESTS, at_provider, claude, command, delete, job, wait_event, wait_status
from support.raw import Client
from support.waiting import wait_until


class TestPassing:
    def test_files_and_batches_as_they_are(self) -> None:
        with at_provider() as (gateway, hosted):
            sdk = client(gateway.url)
            file = sdk.files.create(file=("in.jsonl", b"{}\n" * 1000), purpose="batch")
            assert b"{}\n" * 1000 in hosted.files[file.id] and b"{}\n" * 1000 in sdk.files.content(file.id).content
            batch = sdk.batches.create(**{**BATCH, "input_file_id": file.id})
            assert batch.status == "in_progress" and sdk.batches.retrieve(batch.id).id == batch.id
            assert [row.id for row in sdk.batches.list(limit=7, after="batch_x")] == [batch.id]
            assert hosted.requests_to("GET", "/v1/batches")[0].query == {"limit": ["7"], "after": ["batch_x"]}
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
            assert answer.status_code == 200 and hosted.requests_to("POST", "/v1/responses")[0].body == body

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
            looks = [seen.at for seen in hosted.requests_to("GET", f"/v1/batches/{id}")]
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
            ours = [seen for seen in hosted.requests_to("GET", f"/v1/messages/batches/{id}") if seen.ours]
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
            event = wait_event(gateway, "job_cancel_timed_out", id=id)
            assert event["cancel_s"] >= 0.5
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
            cancels = hosted.requests_to("POST", f"/v1/batches/{id}/cancel")
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
            assert len(hosted.requests_to("POST", f"/v1/batches/{id}/cancel")) == 3

    def test_by_an_operator(self) -> None:
        with at_provider() as (gateway, hosted):
            hosted.cancel_takes_s = 0.2
            sdk = client(gateway.url)
            first, second = sdk.batches.create(**BATCH).id, claude(gateway.url).messages.batches.create(requests=REQUESTS).id
            done = command(gateway, "cancel", first)
            assert done.returncode == 0 and done.stdout == f"{first} cancelled\n"
            answer = delete(gateway, f"/api/jobs/{second}").json()
            assert (answer["status"], answer["cause"]) == ("cancelled", "killed")
            assert [seen.ours for seen in hosted.requests_to("POST", f"/v1/messages/batches/{second}/cancel")] == [True]
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
            assert hosted.requests_to("POST", f"/v1/responses/{id}/cancel")[0].headers["authorization"] == "Bearer any"

    def test_polling_renews_it(self) -> None:
        with at_provider() as (gateway, hosted):
            sdk = client(gateway.url)
            id = sdk.responses.create(model="m", input="x", background=True, extra_headers={"x-hangup-lease": "2"}).id
            began = hosted.works[id].began
            wait_until(
                lambda: sdk.responses.retrieve(id) and hosted.requests_to("GET", f"/v1/responses/{id}")[-1].at > began + 3
            )
            assert hosted.works[id].cancelled is None
            wait_status(gateway, id, "cancelled")
            polls = [seen.at for seen in hosted.requests_to("GET", f"/v1/responses/{id}") if not seen.ours]
            assert hosted.requests_to("POST", f"/v1/responses/{id}/cancel")[0].at >= polls[-1] + 1.9

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
                hosted.wait_for_requests("POST", "/v1/responses")
            wait_until(lambda: any(row.get("outcome") == "client_gone" for row in gateway.log()), what="the hang-up")
            hosted.may_answer.set()
            (id,) = hosted.works
            assert wait_event(gateway, "job_status_changed", id=id)["cause"] == "client_gone"
            assert hosted.works[id].cancelled is not None
