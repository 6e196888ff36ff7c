"""The job APIs of OpenAI and Anthropic, through their SDKs, in front of an engine that has no such APIs."""

from __future__ import annotations

import json
from collections.abc import Iterator

import anthropic
import httpx
import openai
import pytest

from support.jobs import CHAT, client, line, results, start_batch, upload, wait_batch
from support.processes import Gateway, StandIn
from support.raw import events
from support.waiting import wait_until


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with StandIn(slots=8, token_s=0.002, prefill_s=0.005, answer_tokens=12) as engine, Gateway(engine.url, slots=8) as gateway:
        yield gateway


@pytest.fixture
def sdk(gateway: Gateway) -> openai.OpenAI:
    return client(gateway.url)


class TestFiles:
    def test_up_look_down_and_away(self, sdk: openai.OpenAI) -> None:
        content = ("\n".join(line(f"r{n}") for n in range(3)) + "\n").encode()
        file = sdk.files.create(file=("my lines.jsonl", content), purpose="batch")
        assert (file.bytes, file.filename, file.purpose, file.object) == (len(content), "my lines.jsonl", "batch", "file")
        assert sdk.files.retrieve(file.id) == file
        assert sdk.files.content(file.id).read() == content
        assert file.id in [listed.id for listed in sdk.files.list()]
        assert sdk.files.delete(file.id).deleted
        with pytest.raises(openai.NotFoundError):
            sdk.files.retrieve(file.id)

    def test_a_large_one_comes_back_as_it_went(self, sdk: openai.OpenAI) -> None:
        content = b"".join(b"%08d-%b\n" % (n, b"x" * 1000) for n in range(5000))
        file = sdk.files.create(file=("large.bin", content), purpose="user_data")
        assert file.bytes == len(content)
        assert sdk.files.content(file.id).read() == content

    def test_pages(self, sdk: openai.OpenAI) -> None:
        ids = [sdk.files.create(file=("f", b"x"), purpose="user_data").id for _ in range(3)]
        page = sdk.files.list(purpose="user_data", limit=2)
        assert [file.id for file in page.data] == ids[:0:-1] and page.has_more
        assert ids[0] in [file.id for file in page], "the SDK follows the pages"
        assert [file.id for file in sdk.files.list(purpose="user_data", order="asc", after=ids[0])][:2] == ids[1:]

    @pytest.mark.parametrize(
        ("form", "why"),
        [
            ({"data": {"purpose": "batch"}}, "multipart"),
            ({"files": {"file": ("f", b"x")}}, "purpose"),
            ({"files": {"purpose": (None, "batch")}}, "'file'"),
            ({"files": {"file": ("f", b""), "purpose": (None, "batch")}}, "empty"),
            ({"files": {"file": ("f", b"x"), "purpose": (None, "b" * 5000)}}, "too long"),
            ({"content": b"--x\r\nnonsense", "headers": {"content-type": "multipart/form-data; boundary=x"}}, "form"),
        ],
    )
    def test_forms_that_are_none(self, gateway: Gateway, form: dict[str, object], why: str) -> None:
        answer = httpx.post(f"{gateway.url}/v1/files", **form)  # type: ignore[arg-type]
        assert answer.status_code == 400 and why in answer.json()["error"]["message"]


# Python takes the first for a digit but for no number, and no number of so many digits
NO_NUMBERS = ["²", "9" * 4500, "-1", "", "1e3"]


@pytest.mark.parametrize("given", NO_NUMBERS, ids=lambda given: given[:3])
class TestNumbers:
    @pytest.mark.parametrize("path", ["/v1/files", "/v1/batches", "/v1/jobs", "/v1/messages/batches"])
    def test_in_a_query(self, gateway: Gateway, path: str, given: str) -> None:
        answer = httpx.get(f"{gateway.url}{path}", params={"limit": given}, timeout=60)
        assert answer.status_code == 400 and "'limit' must be a number" in answer.json()["error"]["message"]

    def test_in_a_form(self, gateway: Gateway, given: str) -> None:
        form = {"purpose": "batch", "expires_after[seconds]": given[:4000]}
        answer = httpx.post(f"{gateway.url}/v1/files", data=form, files={"file": ("f", b"x")}, timeout=60)
        assert answer.status_code == 400 and "expires_after" in answer.json()["error"]["message"]


class TestBatches:
    def test_from_lines_to_lines(self, sdk: openai.OpenAI) -> None:
        count = 40
        id = start_batch(sdk, [line(f"r{n}") for n in range(count)])
        batch = wait_batch(sdk, id)
        assert batch.status == "completed" and batch.error_file_id is None and batch.errors is None
        assert batch.request_counts.model_dump() == {"total": count, "completed": count, "failed": 0}
        assert batch.created_at <= batch.in_progress_at <= batch.completed_at <= batch.expires_at
        rows = results(sdk, batch.output_file_id)
        assert [row["custom_id"] for row in rows] == [f"r{n}" for n in range(count)], "in the order of the input"
        assert len({row["id"] for row in rows}) == count
        answer = openai.types.chat.ChatCompletion.model_validate(rows[0]["response"]["body"])
        assert rows[0]["response"]["status_code"] == 200 and answer.usage is not None and answer.usage.completion_tokens == 3
        assert sdk.files.retrieve(batch.output_file_id).bytes == len(sdk.files.content(batch.output_file_id).read())

    def test_what_fails_is_in_the_error_file(self, sdk: openai.OpenAI) -> None:
        lines = [line("good"), line("bad", n=3), line("fine")]
        with StandIn(fail_status=422) as engine, Gateway(engine.url, slots=4) as gateway:
            other = client(gateway.url)
            batch = wait_batch(other, start_batch(other, lines))
            assert batch.status == "completed" and batch.output_file_id is None
            assert batch.request_counts.failed == 3
            rows = results(other, batch.error_file_id)
            assert [row["response"]["status_code"] for row in rows] == [422, 422, 422]

    def test_the_other_endpoints(self, sdk: openai.OpenAI) -> None:
        body = {"prompt": "once", "messages": None}
        for url, fields in (("/v1/completions", body), ("/v1/responses", {"input": "hi", "max_tokens": None})):
            batch = wait_batch(sdk, start_batch(sdk, [line("a", url, **fields)], url))
            assert batch.status == "completed" and batch.request_counts.completed == 1, results(sdk, batch.error_file_id)

    @pytest.mark.parametrize(
        ("lines", "number", "code", "words"),
        [
            ([line("a"), "{not json"], 2, "invalid_json_line", "not valid JSON"),
            ([line("a"), "", "[]"], 3, "invalid_json_line", "not a JSON object"),
            ([line("a"), line("b"), line("a")], 3, "duplicate_custom_id", "'a'"),
            ([line("a", "/v1/embeddings")], 1, "mismatched_endpoint", CHAT),
            ([line("a", stream=True)], 1, "invalid_request", "stream"),
            ([line("a", max_tokens="many")], 1, "invalid_request", "'max_tokens' must be an integer"),
            ([json.dumps({"custom_id": "a", "method": "GET", "url": CHAT, "body": {}})], 1, "invalid_method", "POST"),
            ([json.dumps({"method": "POST", "url": CHAT, "body": {}})], 1, "missing_required_parameter", "custom_id"),
            ([json.dumps({"custom_id": "a", "method": "POST", "url": CHAT})], 1, "missing_required_parameter", "body"),
            (["", " "], None, "empty_file", "no requests"),
        ],
    )
    def test_lines_that_are_wrong(self, sdk: openai.OpenAI, lines: list[str], number: int, code: str, words: str) -> None:
        batch = wait_batch(sdk, start_batch(sdk, lines))
        assert batch.status == "failed" and batch.failed_at is not None
        problem = batch.errors.data[0]
        assert (problem.code, problem.line) == (code, number) and words in problem.message
        assert batch.request_counts.total == 0, "nothing of it runs"

    def test_what_cannot_be_a_batch(self, sdk: openai.OpenAI) -> None:
        file = upload(sdk, [line("a")])
        other = sdk.files.create(file=("f", b"x"), purpose="user_data").id
        for fields, words in (
            ({"input_file_id": "file-none"}, "no file"),
            ({"input_file_id": other}, "purpose"),
            ({"endpoint": "/v1/models"}, "endpoint"),
            ({"completion_window": "soon"}, "completion_window"),
            ({"completion_window": "9d"}, "at most 168h"),
            ({"metadata": {"a": 1}}, "metadata"),
        ):
            good = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
            with pytest.raises(openai.BadRequestError, match=words):
                sdk.batches.create(**{**good, **fields})  # type: ignore[arg-type]
        with pytest.raises(openai.NotFoundError):
            sdk.batches.retrieve("batch_none")

    def test_pages_and_metadata(self, sdk: openai.OpenAI) -> None:
        file = upload(sdk, [line("a")])
        ids = [
            sdk.batches.create(
                input_file_id=file, endpoint="/v1/chat/completions", completion_window="24h", metadata={"n": str(n)}
            ).id
            for n in range(3)
        ]
        page = sdk.batches.list(limit=2)
        assert [batch.id for batch in page.data] == ids[:0:-1] and page.has_more
        assert page.data[0].metadata == {"n": "2"}
        assert ids[0] in [batch.id for batch in sdk.batches.list(after=ids[1])]
        for id in ids:
            wait_batch(sdk, id)

    def test_cancelling_what_has_ended_changes_nothing(self, sdk: openai.OpenAI) -> None:
        batch = wait_batch(sdk, start_batch(sdk, [line("a")]))
        assert sdk.batches.cancel(batch.id) == batch


class TestResponses:
    def test_in_the_background(self, sdk: openai.OpenAI) -> None:
        response = sdk.responses.create(model="m", input="hello", background=True, metadata={"a": "b"})
        assert response.status in ("queued", "in_progress") and response.background and response.id.startswith("resp_")

        def look() -> openai.types.responses.Response | None:
            found = sdk.responses.retrieve(response.id)
            return found if found.status == "completed" else None

        done = wait_until(look, what="the response")
        assert done is not None and done.id == response.id and done.output_text and done.background
        assert sdk.responses.cancel(response.id).status == "completed", "too late to cancel"
        sdk.responses.delete(response.id)
        with pytest.raises(openai.NotFoundError):
            sdk.responses.retrieve(response.id)

    def test_streamed_and_taken_up_again(self, sdk: openai.OpenAI) -> None:
        stream = sdk.responses.create(model="m", input="hello", background=True, stream=True)
        first = []
        for event in stream:
            first.append(event)
            if event.type == "response.output_text.delta":
                break
        stream.close()
        assert [event.type for event in first[:2]] == ["response.created", "response.queued"]
        id = first[0].response.id  # type: ignore[union-attr]
        seen = first[-1].sequence_number
        rest = list(sdk.responses.retrieve(id, stream=True, starting_after=seen))
        numbers = [event.sequence_number for event in [*first, *rest]]
        assert numbers == list(range(len(numbers))), "no event twice, none lost"
        assert rest[-1].type == "response.completed"
        whole = rest[-1].response
        assert whole.id == id and whole.output_text == "".join(
            event.delta for event in [*first, *rest] if event.type == "response.output_text.delta"
        )
        again = list(sdk.responses.retrieve(id, stream=True, starting_after=seen))
        assert again == rest, "also when it has ended"
        assert sdk.responses.retrieve(id).output_text == whole.output_text

    def test_no_events_where_none_were_asked_for(self, sdk: openai.OpenAI) -> None:
        response = sdk.responses.create(model="m", input="hello", background=True)
        with pytest.raises(openai.BadRequestError, match="stream: true"):
            sdk.responses.retrieve(response.id, stream=True)

    def test_a_failure_is_told(self) -> None:
        with StandIn(fail_status=400) as engine, Gateway(engine.url, slots=4) as gateway:
            sdk = client(gateway.url)
            id = sdk.responses.create(model="m", input="hello", background=True).id
            failed = wait_until(lambda: (r := sdk.responses.retrieve(id)).status == "failed" and r, what="the failure")
            assert failed and failed.error is not None and failed.error.message


class TestMessageBatches:
    @pytest.fixture
    def claude(self, gateway: Gateway) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=gateway.url, api_key="any", max_retries=0, timeout=60)

    @staticmethod
    def requests(count: int) -> list[anthropic.types.messages.batch_create_params.Request]:
        params: anthropic.types.message_create_params.MessageCreateParamsNonStreaming = {
            "model": "m",
            "max_tokens": 4,
            "messages": [{"role": "user", "content": "hello"}],
        }
        return [{"custom_id": f"r{n}", "params": params} for n in range(count)]

    def test_from_requests_to_results(self, claude: anthropic.Anthropic) -> None:
        batch = claude.messages.batches.create(requests=self.requests(12))
        assert batch.processing_status == "in_progress" and batch.request_counts.processing == 12
        assert batch.expires_at > batch.created_at and batch.results_url is None
        done = wait_until(
            lambda: (b := claude.messages.batches.retrieve(batch.id)).processing_status == "ended" and b, what="the batch"
        )
        assert done and done.request_counts.succeeded == 12 and done.ended_at is not None
        rows = list(claude.messages.batches.results(batch.id))
        assert [row.custom_id for row in rows] == [f"r{n}" for n in range(12)]
        assert rows[0].result.type == "succeeded" and rows[0].result.message.usage.output_tokens == 4
        assert batch.id in [listed.id for listed in claude.messages.batches.list()]
        assert claude.messages.batches.delete(batch.id).type == "message_batch_deleted"
        with pytest.raises(anthropic.NotFoundError):
            claude.messages.batches.retrieve(batch.id)

    def test_pages_in_both_directions(self, claude: anthropic.Anthropic) -> None:
        ids = [claude.messages.batches.create(requests=self.requests(1)).id for _ in range(4)]
        page = claude.messages.batches.list(limit=2)
        assert [batch.id for batch in page.data] == ids[:1:-1] and page.has_more
        assert [batch.id for batch in claude.messages.batches.list(limit=2, after_id=ids[2]).data] == ids[1::-1]
        assert [batch.id for batch in claude.messages.batches.list(limit=2, before_id=ids[1]).data] == ids[:1:-1]

    def test_requests_that_are_wrong(self, claude: anthropic.Anthropic) -> None:
        good = self.requests(2)
        for requests, words in (
            ([], "at least one"),
            ([good[0], good[0]], r"requests\.1\.custom_id"),
            ([{"custom_id": "a"}], r"requests\.0\.params"),
            (
                [good[0], {"custom_id": "b", "params": {**good[1]["params"], "max_tokens": "x"}}],
                r"requests\.1\.params.*max_tokens",
            ),
            ([{"custom_id": "b", "params": {**good[1]["params"], "stream": True}}], "stream"),
        ):
            with pytest.raises(anthropic.BadRequestError, match=words):
                claude.messages.batches.create(requests=requests)  # type: ignore[arg-type]

    def test_an_error_is_a_result(self) -> None:
        with StandIn(fail_status=404) as engine, Gateway(engine.url, slots=4) as gateway:
            claude = anthropic.Anthropic(base_url=gateway.url, api_key="any", max_retries=0)
            id = claude.messages.batches.create(requests=self.requests(1)).id
            wait_until(lambda: claude.messages.batches.retrieve(id).processing_status == "ended", what="the end")
            (row,) = claude.messages.batches.results(id)
            assert row.result.type == "errored" and row.result.error.error.message

    def test_not_before_the_end(self) -> None:
        with StandIn(token_s=30) as engine, Gateway(engine.url, slots=4) as gateway:
            claude = anthropic.Anthropic(base_url=gateway.url, api_key="any", max_retries=0)
            id = claude.messages.batches.create(requests=self.requests(1)).id
            with pytest.raises(anthropic.BadRequestError, match="in progress"):
                claude.messages.batches.delete(id)
            answer = httpx.get(f"{gateway.url}/v1/messages/batches/{id}/results", timeout=60)
            assert answer.status_code == 400 and answer.json()["type"] == "error"


class TestAsyncCalls:
    def test_events_to_the_end_and_from_the_middle(self, gateway: Gateway) -> None:
        body = {"messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 6}
        job = httpx.post(gateway.url + CHAT, json=body, headers={"prefer": "wait=1, respond-async"}, timeout=60).json()
        url = f"{gateway.url}/v1/jobs/{job['id']}"
        whole = httpx.get(f"{url}/events", timeout=60).text
        chunks = [json.loads(row[6:]) for row in whole.splitlines() if row.startswith("data: {") and '"chunk"' not in row]
        assert chunks[-1]["status"] == "completed" and chunks[-1]["result"]["status"] == 200
        ids = [int(row[4:]) for row in whole.splitlines() if row.startswith("id: ")]
        assert ids == list(range(len(ids))) and len(ids) >= 6
        rest = httpx.get(f"{url}/events", headers={"last-event-id": str(ids[3])}, timeout=60).text
        assert [int(row[4:]) for row in rest.splitlines() if row.startswith("id: ")] == ids[4:]
        done = httpx.get(url, timeout=60).json()
        assert done["status"] == "completed" and len(events(done["result"]["body"].encode())) >= 6
        assert httpx.delete(url, timeout=60).json() == done, "too late, and harmless"
        assert (
            httpx.delete(url, params={"purge": "true"}, timeout=60).json()["deleted"]
            and httpx.get(url, timeout=60).status_code == 404
        )

    @pytest.mark.parametrize(
        ("path", "body"),
        [
            ("/v1/completions", {"prompt": "x", "max_tokens": 2}),
            ("/v1/messages", {"messages": [], "max_tokens": 2}),
            ("/completion", {"prompt": "x", "n_predict": 2}),
            ("/api/chat", {"messages": [], "stream": False, "options": {"num_predict": 2}}),
            ("/generate", {"inputs": "x", "parameters": {"max_new_tokens": 2}}),
        ],
    )
    def test_on_every_generation_path(self, gateway: Gateway, path: str, body: dict[str, object]) -> None:
        answer = httpx.post(gateway.url + path, json=body, headers={"prefer": "respond-async"}, timeout=60)
        assert answer.status_code == 202, answer.text
        url = f"{gateway.url}/v1/jobs/{answer.json()['id']}"
        done = wait_until(lambda: (j := httpx.get(url, timeout=60).json())["status"] == "completed" and j, what="the job")
        assert done and done["result"]["status"] == 200 and type(done["result"]["body"]) is dict

    def test_what_would_be_refused_is_refused_at_once(self, gateway: Gateway) -> None:
        headers = {"prefer": "respond-async"}
        assert httpx.post(gateway.url + CHAT, json={"messages": 3}, headers=headers, timeout=60).status_code == 400
        bad = httpx.post(gateway.url + CHAT, json={"messages": []}, headers={**headers, "x-hangup-lease": "never"}, timeout=60)
        assert bad.status_code == 400 and "x-hangup-lease" in bad.json()["error"]["message"]
        assert httpx.get(f"{gateway.url}/v1/jobs/job_none", timeout=60).status_code == 404
        assert httpx.request("PATCH", f"{gateway.url}/v1/jobs/job_none", timeout=60).status_code == 405
        assert httpx.get(f"{gateway.url}/v1/jobs/a/b/c", timeout=60).status_code == 404
