"""Streams of the official SDKs pass through an application; the same SDKs read them as if they came from the engine itself.

An answer that `max_tokens` cuts says so in the API's own words.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import anthropic
import httpx
import openai
import pytest
from fastapi import FastAPI, Request

import hangup
from library.hosting import hosted
from support.processes import StandIn
from support.raw import Client

TOKENS, CAP = 20, 5
MESSAGES: Any = [{"role": "user", "content": "hello"}]
TOOL = {"name": "look", "description": "looks", "input_schema": {"type": "object", "properties": {"words": {"type": "string"}}}}
OPENAI_TOOL = {"type": "function", "function": {"name": "look", "parameters": TOOL["input_schema"]}}
HELPERS = ["create", "helper", "httpx"]


def application(engine: str, clients: dict[str, Any]) -> FastAPI:
    app = FastAPI()

    def sdk_source(way: str, path: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
        if way == "httpx":
            return clients["httpx"].stream("POST", f"{engine}/v1/{path}", json=body, headers=headers)
        asked = {name: value for name, value in body.items() if name != "stream"}
        if path == "messages":
            messages = clients["anthropic"].messages
            if way == "create":
                return messages.create(**body, extra_headers=headers)
            return messages.stream(**asked, extra_headers=headers)
        if path == "responses":
            responses = clients["openai"].responses
            if way == "create":
                return responses.create(**body, extra_headers=headers)
            return responses.stream(**asked, extra_headers=headers)
        completions = clients["openai"].chat.completions
        if way == "create":
            return completions.create(**body, extra_headers=headers)
        return completions.stream(**asked, extra_headers=headers)

    @app.post("/{way}/{cap}/v1/{path:path}")
    async def stream(request: Request, way: str, cap: int, path: str) -> Any:
        headers = {"x-request-id": request.headers["x-request-id"]}
        source = sdk_source(way, path, await request.json(), headers)
        return hangup.stream(request, source, max_tokens=cap or None)

    @app.post("/close")
    async def close() -> None:
        await clients["httpx"].aclose()
        await clients["openai"].close()
        await clients["anthropic"].close()

    return app


@pytest.fixture(scope="module")
def urls() -> Iterator[tuple[str, str]]:
    """Return the engine's URL, and the application's."""
    with ExitStack() as stack:
        engine = stack.enter_context(StandIn(slots=8, prefill_s=0, token_s=0, answer_tokens=TOKENS)).url
        clients: dict[str, Any] = {
            "httpx": httpx.AsyncClient(),
            "openai": openai.AsyncOpenAI(base_url=f"{engine}/v1", api_key="none", max_retries=0),
            "anthropic": anthropic.AsyncAnthropic(base_url=engine, api_key="none", max_retries=0),
        }
        app = stack.enter_context(hosted(application(engine, clients)))
        yield engine, app
        httpx.post(f"{app}/close")


def chat(url: str, **options: Any) -> list[dict[str, Any]]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        chunks = client.chat.completions.create(
            model="m", messages=MESSAGES, stream=True, extra_headers={"x-request-id": "same"}, **options
        )
        return [chunk.model_dump(exclude={"created"}, exclude_unset=True) for chunk in chunks]


def message(url: str, **options: Any) -> dict[str, Any]:
    with (
        anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client,
        client.messages.stream(
            model="m", messages=MESSAGES, max_tokens=100, extra_headers={"x-request-id": "same"}, **options
        ) as stream,
    ):
        return stream.get_final_message().model_dump(exclude={"parsed_output"})


def response(url: str) -> Any:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        events = client.responses.create(model="m", input="hello", stream=True, extra_headers={"x-request-id": "same"})
        return list(events)[-1]


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


@pytest.mark.parametrize("way", HELPERS)
@pytest.mark.parametrize(
    "options",
    [{}, {"stream_options": {"include_usage": True}}, {"tools": [OPENAI_TOOL]}, {"n": 2}, {"reasoning_effort": "low"}],
    ids=["text", "usage", "tool", "two", "reasoning"],
)
def test_openai_reads_back_what_the_engine_sent(urls: tuple[str, str], way: str, options: dict[str, Any]) -> None:
    engine, app = urls
    assert chat(f"{app}/{way}/0", **options) == chat(engine, **options)


@pytest.mark.parametrize("way", HELPERS)
@pytest.mark.parametrize("options", [{}, {"tools": [TOOL]}], ids=["text", "tool"])
def test_anthropic_reads_back_what_the_engine_sent(urls: tuple[str, str], way: str, options: dict[str, Any]) -> None:
    engine, app = urls
    through, direct = message(f"{app}/{way}/0", **options), message(engine, **options)
    assert through == direct and direct["content"] and direct["stop_reason"]


@pytest.mark.parametrize("way", HELPERS)
def test_the_responses_api_reads_back_what_the_engine_sent(urls: tuple[str, str], way: str) -> None:
    engine, app = urls
    through, direct = response(f"{app}/{way}/0"), response(engine)
    assert through.type == direct.type == "response.completed"
    assert through.response.output_text == direct.response.output_text != ""


@pytest.mark.parametrize("way", ["create", "helper"])
@pytest.mark.parametrize("path", ["messages", "chat/completions", "responses"])
def test_snapshots_are_not_sent(urls: tuple[str, str], path: str, way: str) -> None:
    address = ("127.0.0.1", int(urls[1].rpartition(":")[2]))
    body: dict[str, Any] = {"model": "m", "stream": True}
    body |= {"input": "hello"} if path == "responses" else {"messages": MESSAGES}
    body |= {"max_tokens": 100} if path == "messages" else {}
    with Client(address) as client:
        client.post(f"/{way}/0/v1/{path}", body, {"x-request-id": "same"})
        answer = client.read_answer()
    assert answer.status == 200 and b"snapshot" not in answer.body and b'"parsed' not in answer.body
    assert answer.body.endswith(b"data: [DONE]\n\n") == (path == "chat/completions")
    assert answer.body.count(b"data: ") < 3 * TOKENS  # the SDK's helper yields each token twice


@pytest.mark.parametrize("way", HELPERS)
def test_a_cut_chat_ends_with_length(urls: tuple[str, str], way: str) -> None:
    engine, app = urls
    cut, whole = chat(f"{app}/{way}/{CAP}"), chat(engine)
    assert cut[-1]["choices"][0]["finish_reason"] == "length" and cut[-1]["id"] == whole[0]["id"]
    tokens = [choice["delta"]["content"] for chunk in cut for choice in chunk["choices"] if choice["delta"].get("content")]
    assert len(tokens) == CAP and text_of(whole).startswith("".join(tokens))


@pytest.mark.parametrize("way", HELPERS)
def test_each_choice_of_a_cut_chat_ends_with_length(urls: tuple[str, str], way: str) -> None:
    cut = chat(f"{urls[1]}/{way}/{CAP}", n=2)
    assert {c["index"]: c["finish_reason"] for c in cut[-1]["choices"]} == {0: "length", 1: "length"}


@pytest.mark.parametrize("way", HELPERS)
@pytest.mark.parametrize("options", [{}, {"tools": [TOOL]}], ids=["text", "tool"])
def test_a_cut_message_stops_with_max_tokens(urls: tuple[str, str], way: str, options: dict[str, Any]) -> None:
    cut = message(f"{urls[1]}/{way}/{CAP}", **options)
    assert (cut["stop_reason"], cut["usage"]["output_tokens"]) == ("max_tokens", CAP)
    if not options:
        assert message(urls[0])["content"][0]["text"].startswith(cut["content"][0]["text"])


@pytest.mark.parametrize("way", HELPERS)
def test_a_cut_response_is_incomplete(urls: tuple[str, str], way: str) -> None:
    event, whole = response(f"{urls[1]}/{way}/{CAP}"), response(urls[0])
    assert (event.type, event.response.status) == ("response.incomplete", "incomplete")
    assert event.response.incomplete_details.reason == "max_output_tokens"
    assert event.response.output_text and whole.response.output_text.startswith(event.response.output_text)


@pytest.mark.parametrize("way", HELPERS)
def test_an_answer_of_exactly_max_tokens_is_not_cut(urls: tuple[str, str], way: str) -> None:
    engine, app = urls
    options: dict[str, Any] = {"stream_options": {"include_usage": True}}
    assert chat(f"{app}/{way}/{TOKENS}", **options) == chat(engine, **options)
    assert message(f"{app}/{way}/{TOKENS}") == message(engine)
