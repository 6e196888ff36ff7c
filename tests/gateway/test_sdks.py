"""The official SDKs, unchanged except for `base_url`: through the gateway they get what they get from the engine."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import anthropic
import openai
import pytest

from support.processes import Gateway, StandIn, gateway_and_engine
from support.waiting import wait_until

MESSAGES: list[Any] = [{"role": "user", "content": "tell me about the client"}]
TOOLS: list[Any] = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
HEADERS = {"X-Request-Id": "sdk"}


def openai_client(url: str, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, **options)


def anthropic_client(url: str, **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, **options)


def comparable(answer: Any) -> Any:
    """Return an answer without what differs from call to call: the time, and the id after its prefix."""
    dumped = answer.model_dump()
    if dumped.get("id"):
        dumped["id"] = re.split("[-_]", dumped["id"])[0]
    for name in ("created", "created_at", "max_output_tokens"):
        dumped.pop(name, None)
    return dumped


class TestOpenAI:
    @pytest.mark.parametrize(
        "options",
        [
            {"max_tokens": 9},
            {"max_completion_tokens": 9},
            {"max_tokens": 5, "n": 3},
            {"max_tokens": 5, "logprobs": True, "top_logprobs": 2},
            {"tools": TOOLS},
            {},
        ],
        ids=str,
    )
    def test_chat(self, gateway: Gateway, engine: StandIn, options: dict[str, Any]) -> None:
        got = []
        for url in (engine.url, gateway.url):
            with openai_client(url) as client:
                answer = client.chat.completions.create(model="m", messages=MESSAGES, extra_headers=HEADERS, **options)
                stream = client.chat.completions.create(
                    model="m", messages=MESSAGES, extra_headers=HEADERS, stream=True, **options
                )
                got.append((comparable(answer), [comparable(chunk) for chunk in stream]))
        assert got[0] == got[1]

    def test_chat_stream_helper(self, gateway: Gateway) -> None:
        with (
            openai_client(gateway.url) as client,
            client.chat.completions.stream(model="m", messages=MESSAGES) as stream,
        ):
            for _ in stream:
                pass
            answer = stream.get_final_completion()
        assert answer.choices[0].finish_reason == "stop"
        assert len((answer.choices[0].message.content or "").split()) == 64

    def test_completions(self, gateway: Gateway, engine: StandIn) -> None:
        got = []
        for url in (engine.url, gateway.url):
            with openai_client(url) as client:
                answer = client.completions.create(model="m", prompt="once", max_tokens=5, logprobs=1, extra_headers=HEADERS)
                got.append(comparable(answer))
        assert got[0] == got[1]

    def test_responses(self, gateway: Gateway, engine: StandIn) -> None:
        got = []
        for url in (engine.url, gateway.url):
            with openai_client(url) as client:
                answer = client.responses.create(model="m", input="once", max_output_tokens=50, extra_headers=HEADERS)
                stream = client.responses.create(
                    model="m", input="once", max_output_tokens=50, stream=True, extra_headers=HEADERS
                )
                kinds = [event.type for event in stream]
                got.append((answer.output_text, answer.status, kinds))
        assert got[0] == got[1]
        assert got[1][0]

    def test_embeddings_and_models(self, gateway: Gateway) -> None:
        with openai_client(gateway.url) as client:
            assert len(client.embeddings.create(model="m", input=["a", "b"]).data) == 2
            assert [model.id for model in client.models.list()] == ["standin"]
            assert client.models.retrieve("standin").id == "standin"

    def test_async(self, gateway: Gateway) -> None:
        async def run() -> tuple[str, list[str]]:
            async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
                answer = await client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=9)
                stream = await client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=9, stream=True)
                return answer.choices[0].message.content or "", [c.choices[0].delta.content or "" async for c in stream]

        whole, pieces = asyncio.run(run())
        assert whole == "".join(pieces)
        assert len(whole.split()) == 9

    def test_leaving_a_stream_stops_the_engine(self, gateway: Gateway, engine: StandIn) -> None:
        with openai_client(gateway.url) as client:
            stream = client.chat.completions.create(
                model="m", messages=MESSAGES, stream=True, extra_body={"ignore_eos": True}, max_tokens=20000
            )
            for _, _ in zip(stream, range(5), strict=False):
                pass
            before = engine.stats()
            assert before["running"] == 1
            stream.close()
            engine.wait_stopped(before["aborted"] + 1)

    @pytest.mark.parametrize("stream", [True, False])
    def test_timeout_of_the_client_stops_the_engine(self, stream: bool) -> None:
        with gateway_and_engine(prefill_s=30.0) as (gateway, engine), openai_client(gateway.url, timeout=2) as client:
            with pytest.raises((openai.APITimeoutError, openai.InternalServerError, openai.APIError)):  # noqa: PT012
                answer = client.chat.completions.create(model="m", messages=MESSAGES, stream=stream)
                for _ in answer:
                    pass
            engine.wait_stopped()

    def test_cancelled_task_stops_the_engine(self, gateway: Gateway, engine: StandIn) -> None:
        async def run() -> None:
            async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
                task = asyncio.create_task(
                    client.chat.completions.create(
                        model="m", messages=MESSAGES, extra_body={"ignore_eos": True}, max_tokens=20000
                    )
                )
                await asyncio.to_thread(wait_until, lambda: engine.stats()["running"] == 1)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        asyncio.run(run())
        engine.wait_idle()

    def test_errors_have_the_sdks_types(self, gateway: Gateway) -> None:
        with openai_client(gateway.url) as client:
            with pytest.raises(openai.BadRequestError) as bad:
                client.chat.completions.create(model="m", messages=MESSAGES, n=1000)
            assert bad.value.code == "bad_field"
            with pytest.raises(openai.NotFoundError):
                client.post("/nowhere", cast_to=object)

    def test_a_broken_stream_raises(self) -> None:
        with gateway_and_engine(crash_after=5) as (gateway, _), openai_client(gateway.url) as client:
            stream = client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            with pytest.raises(openai.APIError) as error:
                list(stream)
            assert "closed the connection" in str(error.value)

    def test_retries_are_spared_where_they_cannot_help(self) -> None:
        """Case 16: the SDK would retry a 504; x-should-retry: false prevents that."""
        with gateway_and_engine(prefill_s=30.0) as (gateway, engine):
            client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=2, timeout=60)
            with pytest.raises(openai.InternalServerError):
                client.chat.completions.create(model="m", messages=MESSAGES, extra_headers={"X-Request-Timeout": "1"})
            assert len(engine.seen()) == 1
            client.close()

    def test_retries_happen_where_they_can_help(self) -> None:
        with gateway_and_engine(fail_status=503) as (gateway, engine):
            client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=1)
            with pytest.raises(openai.InternalServerError):
                client.chat.completions.create(model="m", messages=MESSAGES)
            assert len(engine.seen()) == 2
            client.close()


class TestAnthropic:
    @pytest.mark.parametrize(
        "options",
        [{"max_tokens": 9}, {"max_tokens": 1000}, {"max_tokens": 1000, "tools": [{"name": "look", "input_schema": {}}]}],
    )
    def test_messages(self, gateway: Gateway, engine: StandIn, options: dict[str, Any]) -> None:
        got = []
        for url in (engine.url, gateway.url):
            with anthropic_client(url) as client:
                answer = client.messages.create(model="m", messages=MESSAGES, extra_headers=HEADERS, **options)
                with client.messages.stream(model="m", messages=MESSAGES, extra_headers=HEADERS, **options) as stream:
                    kinds = [event.type for event in stream]
                    final = stream.get_final_message()
                got.append((comparable(answer), kinds, comparable(final)))
        assert got[0] == got[1]

    def test_count_tokens(self, gateway: Gateway) -> None:
        with anthropic_client(gateway.url) as client:
            assert client.messages.count_tokens(model="m", messages=MESSAGES).input_tokens > 0

    def test_async_stream(self, gateway: Gateway) -> None:
        async def run() -> str:
            async with (
                anthropic.AsyncAnthropic(base_url=gateway.url, api_key="none", max_retries=0) as client,
                client.messages.stream(model="m", messages=MESSAGES, max_tokens=9) as stream,
            ):
                return "".join([text async for text in stream.text_stream])

        assert len(asyncio.run(run()).split()) == 9

    def test_leaving_a_stream_stops_the_engine(self, gateway: Gateway, engine: StandIn) -> None:
        with (
            anthropic_client(gateway.url) as client,
            client.messages.stream(model="m", messages=MESSAGES, max_tokens=20000, extra_body={"ignore_eos": True}) as stream,
        ):
            for _, _ in zip(stream, range(8), strict=False):
                pass
            before = engine.stats()
            assert before["running"] == 1
        engine.wait_stopped(before["aborted"] + 1)

    def test_errors(self, gateway: Gateway) -> None:
        with anthropic_client(gateway.url) as client, pytest.raises(anthropic.BadRequestError):
            client.messages.create(model="m", messages="hello", max_tokens=5)  # type: ignore[arg-type]

    def test_a_broken_stream_raises(self) -> None:
        with (
            gateway_and_engine(crash_after=5) as (gateway, _),
            anthropic_client(gateway.url) as client,
            pytest.raises(anthropic.APIError),
            client.messages.stream(model="m", messages=MESSAGES, max_tokens=50) as stream,
        ):
            list(stream)
