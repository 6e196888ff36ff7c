"""An upstream's error reaches the client with its status, its body and its Retry-After, whichever client library raised it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Any

import aiohttp
import aiohttp.web
import anthropic
import httpx
import openai
import pytest
from fastapi import FastAPI, HTTPException, Request

import hangup
from hangup.library.faults import answer_of
from library.hosting import Reply, hosted, upstream
from library.pretender import Pretender
from support.raw import Answer, ask

MESSAGES: Any = [{"role": "user", "content": "hello"}]
OPENAI_ERROR = {"error": {"message": "slow down", "type": "requests", "param": None, "code": "rate_limit_exceeded"}}
ANTHROPIC_ERROR = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}, "request_id": "req_1"}
EVENTS = b'data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[]}\n\n'
SOURCES = ["httpx", "response", "aiohttp", "openai", "blocking_openai", "anthropic", "helper"]


def reply(path: str, body: bytes) -> Reply:
    """Answer with the status that the request's model names."""
    status = int(json.loads(body)["model"].partition("-")[0])
    error = ANTHROPIC_ERROR if path.endswith("/messages") else OPENAI_ERROR
    headers = {"content-type": "application/json", "retry-after": "7", "x-ratelimit-reset-tokens": "6s", "x-secret": "key"}
    if 300 <= status <= 399:
        return status, {"location": "http://10.0.0.1/internal"}, b""
    if status <= 299:
        kind = "text/event-stream" if status == 200 else "text/plain"
        return status, {"content-type": kind}, EVENTS if status == 200 else b"made"
    return status, headers, json.dumps(error).encode()


def application(engine: str, clients: dict[str, Any]) -> FastAPI:
    app = FastAPI()

    def source(name: str, model: str) -> Any:
        body = {"model": model, "messages": MESSAGES, "stream": True}
        url = f"{engine}/v1/chat/completions"
        if name == "httpx":
            return clients["httpx"].stream("POST", url, json=body)
        if name == "response":
            return clients["httpx"].send(clients["httpx"].build_request("POST", url, json=body), stream=True)
        if name == "aiohttp":
            if "aiohttp" not in clients:
                clients["aiohttp"] = aiohttp.ClientSession()
            return clients["aiohttp"].post(url, json=body, allow_redirects=False)
        if name == "openai":
            return clients["openai"].chat.completions.create(**body)
        if name == "blocking_openai":
            return lambda _: clients["blocking_openai"].chat.completions.create(**body)
        if name == "anthropic":
            return clients["anthropic"].messages.create(max_tokens=9, **body)
        return clients["anthropic"].messages.stream(max_tokens=9, model=model, messages=MESSAGES)

    async def fails(kind: str) -> AsyncIterator[Any]:
        if kind == "http":
            raise HTTPException(418, "no coffee", {"x-pot": "tea"})
        if kind == "chunk":
            yield object()
        raise RuntimeError("out of memory at 0x1234")

    @app.post("/{name}/v1/{rest:path}")
    async def stream(request: Request, name: str, rest: str) -> Any:
        model = (await request.json())["model"]
        return hangup.stream(request, source(name, model))

    @app.post("/fails/{kind}")
    async def fail(request: Request, kind: str) -> Any:
        return hangup.stream(request, fails(kind))

    @app.post("/mapped/{how}")
    async def mapped(request: Request, how: str) -> Any:
        def on_error(error: Exception) -> hangup.ErrorAnswer | None:
            assert isinstance(error, openai.RateLimitError)
            if how == "raise":
                raise HTTPException(503, "come back later")
            return hangup.ErrorAnswer(503, {"busy": True}, {"retry-after": "60"}) if how == "map" else None

        return hangup.stream(request, source("openai", "429"), on_error=on_error)

    @app.post("/close")
    async def close() -> None:
        for client in clients.values():
            if isinstance(client, httpx.AsyncClient):
                await client.aclose()
            elif hasattr(client, "close"):
                closed = client.close()
                if closed is not None:
                    await closed

    return app


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    with ExitStack() as stack:
        engine = stack.enter_context(upstream(reply))
        clients: dict[str, Any] = {
            "httpx": httpx.AsyncClient(),
            "openai": openai.AsyncOpenAI(base_url=f"{engine}/v1", api_key="none", max_retries=0),
            "blocking_openai": openai.OpenAI(base_url=f"{engine}/v1", api_key="none", max_retries=0),
            "anthropic": anthropic.AsyncAnthropic(base_url=engine, api_key="none", max_retries=0),
        }
        url = stack.enter_context(hosted(application(engine, clients)))
        port = int(url.rpartition(":")[2])
        yield "127.0.0.1", port
        ask(("127.0.0.1", port), "/close", {})


def asked(address: tuple[str, int], name: str, model: str) -> Answer:
    return ask(address, f"/{name}/v1/chat/completions", {"model": model})


@pytest.mark.parametrize("status", [400, 429, 500, 503])
@pytest.mark.parametrize("name", SOURCES)
def test_an_upstreams_error_keeps_status_body_and_retry_after(address: tuple[str, int], name: str, status: int) -> None:
    answer = asked(address, name, str(status))
    expected = ANTHROPIC_ERROR if name in {"anthropic", "helper"} else OPENAI_ERROR
    assert (answer.status, answer.json()) == (status, expected)
    assert (answer.headers["retry-after"], answer.headers["content-type"]) == ("7", "application/json")
    assert answer.headers["x-ratelimit-reset-tokens"] == "6s" and "x-secret" not in answer.headers


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("name", SOURCES)
def test_a_refusal_of_the_applications_credentials_is_not_the_clients(address: tuple[str, int], name: str, status: int) -> None:
    answer = asked(address, name, str(status))
    assert (answer.status, answer.json()["error"]["code"]) == (502, "upstream_credentials")
    assert b"slow down" not in answer.body and answer.headers["retry-after"] == "7"


@pytest.mark.parametrize("name", ["httpx", "response", "aiohttp"])
def test_nothing_but_a_200_starts_as_a_200(address: tuple[str, int], name: str) -> None:
    answer = asked(address, name, "201")
    assert (answer.status, answer.headers["content-type"], answer.body) == (201, "text/plain", b"made")
    answer = asked(address, name, "307")
    assert answer.status == 502 and "location" not in answer.headers
    answer = asked(address, name, "200")
    assert (answer.status, answer.headers["content-type"], answer.body) == (200, "text/event-stream", EVENTS)


def test_the_sdks_raise_what_they_would_have_raised_themselves(address: tuple[str, int]) -> None:
    base = f"http://{address[0]}:{address[1]}"
    with openai.OpenAI(base_url=f"{base}/openai/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.RateLimitError, match="slow down") as limited:
            client.chat.completions.create(model="429", messages=MESSAGES, stream=True)
        assert limited.value.response.headers["retry-after"] == "7" and limited.value.code == "rate_limit_exceeded"
        with pytest.raises(openai.BadRequestError, match="slow down"):
            client.chat.completions.create(model="400", messages=MESSAGES, stream=True)
    with (
        anthropic.Anthropic(base_url=f"{base}/anthropic", api_key="none", max_retries=0) as other,
        pytest.raises(anthropic.RateLimitError, match="slow down"),
    ):
        other.messages.create(model="429", messages=MESSAGES, max_tokens=9, stream=True)


def test_the_application_can_map_an_error(address: tuple[str, int]) -> None:
    answer = ask(address, "/mapped/map", {})
    assert (answer.status, answer.json(), answer.headers["retry-after"]) == (503, {"busy": True}, "60")
    answer = ask(address, "/mapped/raise", {})  # the framework's own error, answered by the framework
    assert (answer.status, answer.json()) == (503, {"detail": "come back later"})
    answer = ask(address, "/mapped/nothing", {})
    assert (answer.status, answer.json()) == (429, OPENAI_ERROR)


def test_the_frameworks_own_error_is_answered_by_the_framework(address: tuple[str, int]) -> None:
    answer = ask(address, "/fails/http", {})
    assert (answer.status, answer.json(), answer.headers["x-pot"]) == (418, {"detail": "no coffee"}, "tea")


def test_a_mistake_of_the_application_is_not_blamed_on_the_engine(
    address: tuple[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    answer = ask(address, "/fails/chunk", {})
    assert (answer.status, answer.headers["x-hangup-reason"]) == (500, "application_fault")
    assert "cannot encode a chunk of type object" in caplog.text and b"object" not in answer.body


def test_other_failures_tell_the_client_nothing_of_their_details(address: tuple[str, int]) -> None:
    answer = ask(address, "/fails/else", {})
    assert (answer.status, answer.headers["x-hangup-reason"]) == (502, "engine_error")
    assert b"0x1234" not in answer.body


async def _one_then(error: Exception) -> AsyncIterator[bytes]:
    yield b"data: one\n\n"
    raise error


def test_an_error_inside_a_stream_keeps_its_body() -> None:
    """OpenAI's SDK raises an error event as an APIError that has a body and no status."""
    body = {"message": "the engine is out of memory", "type": "server_error", "code": None, "param": None}
    request: Any = httpx.Request("POST", "http://engine")
    error = openai.APIError("the engine is out of memory", request, body=body)

    async def main() -> tuple[hangup.Ended, Pretender]:
        client = Pretender()
        return await client.stream(_one_then(error)), client

    ended, client = asyncio.run(main())
    assert ended.cause == "engine_error" and not client.finished
    name, _, data = client.sent[-1].partition(b"\ndata: ")
    assert (name, json.loads(data)) == (b"event: error", {"error": body})


def test_an_upstreams_error_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def refused() -> AsyncIterator[bytes]:
        raise hangup.UpstreamError(429, {"Retry-After": "7"}, b"busy")
        yield b""

    async def main() -> tuple[hangup.Ended, Pretender]:
        client = Pretender()
        return await client.stream(refused()), client

    caplog.set_level(logging.INFO, "hangup")
    ended, client = asyncio.run(main())
    assert (ended.status, client.status, client.headers["retry-after"], client.sent) == (429, 429, "7", [b"busy"])
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and "the upstream answered 429" in record.message and not record.exc_info


@pytest.mark.parametrize("kind", ["raises", "returns a dict", "odd exception"])
def test_a_call_ends_even_if_the_answer_to_its_failure_cannot_be_found(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    class Odd(Exception):
        @property
        def response(self) -> None:
            raise ValueError("no response")

    def on_error(error: Exception) -> Any:
        if kind == "raises":
            raise KeyError("model")
        return {"error": "busy"} if kind == "returns a dict" else None

    async def fails() -> AsyncIterator[bytes]:
        raise Odd if kind == "odd exception" else RuntimeError("engine")
        yield b""

    async def main() -> tuple[list[hangup.Ended], Pretender, int]:
        client = Pretender()
        ended: list[hangup.Ended] = []
        await client.stream(fails(), on_error=on_error, on_end=ended.append)
        return ended, client, len(asyncio.all_tasks())

    (ended,), client, tasks = asyncio.run(main())
    assert (ended.cause, ended.status, client.status, client.finished, tasks) == ("engine_error", 502, 502, True, 1)
    expected = {"raises": "KeyError", "returns a dict": "it returned a dict", "odd exception": "no response"}
    assert expected[kind] in caplog.text


class _Response:
    """A response whose body was never read, as `raise_for_status` leaves it in a stream."""

    status_code = 503
    headers = {"Retry-After": "3"}

    @property
    def content(self) -> bytes:
        raise RuntimeError("not read")


class _Fails(Exception):
    def __init__(self, **attributes: Any) -> None:
        super().__init__("details")
        self.__dict__.update(attributes)


def test_exceptions_of_other_clients_are_understood_by_their_attributes() -> None:
    unread = answer_of(_Fails(response=_Response()))
    assert unread is not None and (unread.status, unread.headers) == (503, {"retry-after": "3"})
    assert "details" not in str(unread.body)
    about = {"HTTPStatusCode": 429, "HTTPHeaders": {"retry-after": "2"}}
    aws = answer_of(_Fails(response={"Error": {"Code": "ThrottlingException", "Message": "slow"}, "ResponseMetadata": about}))
    assert aws is not None and (aws.status, aws.body["error"]["type"], aws.headers["retry-after"]) == (
        429,
        "ThrottlingException",
        "2",
    )
    about = {"HTTPStatusCode": 403}
    aws = answer_of(_Fails(response={"Error": {"Code": "AccessDenied", "Message": "user/me"}, "ResponseMetadata": about}))
    assert aws is not None and aws.status == 502 and "user/me" not in str(aws.body)
    own = answer_of(aiohttp.web.HTTPForbidden(text="not yours"))  # raised by the application itself
    assert own is not None and (own.status, own.body) == (403, "not yours")
    odd = answer_of(_Fails(status=429, headers=["retry-after"]))
    assert odd is not None and (odd.status, odd.headers) == (429, {})
    client = answer_of(_Fails(status=404, headers={}))  # aiohttp's ClientResponseError
    assert client is not None and client.status == 404
    in_stream = answer_of(_Fails(status_code=200, body=ANTHROPIC_ERROR))  # Anthropic's error event after a 200
    assert in_stream is not None and (in_stream.status, in_stream.body) == (502, ANTHROPIC_ERROR)
    assert answer_of(ValueError("anything")) is None and answer_of(_Fails(status_code=302)) is None
    with pytest.raises(ValueError, match="between 400 and 599"):
        hangup.ErrorAnswer(200, "fine")
