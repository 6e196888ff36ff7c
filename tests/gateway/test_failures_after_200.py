"""An engine answers 200 and reports a failure later, in an event or in the answer: such a call has not completed."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.processes import Gateway
from support.raw import Client, ask, events
from support.raw_engine import DONE, HEAD, LAST, RawEngine, chunk, event, raw_engine

CHAT, RESPONSES, MESSAGES, GENERATE = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/generate"
WORDS = "CUDA ran out of memory"
ERROR = {"message": WORDS, "code": "server_error"}
FAILED = {"id": "r", "object": "response", "status": "failed", "error": ERROR, "output": []}


def sse(*values: Any) -> bytes:
    return b"".join(b"data: %b\n\n" % json.dumps(value).encode() for value in values)


def stream(data: bytes) -> bytes:
    return HEAD + chunk(data) + LAST


def whole(value: Any) -> bytes:
    body = json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


RESPONSE_FAILED = sse(
    {"type": "response.created", "response": {"id": "r", "object": "response", "status": "in_progress"}},
    {"type": "response.output_text.delta", "delta": "a", "output_index": 0, "content_index": 0},
    {"type": "response.failed", "response": FAILED},
)
RESPONSE_ERROR = sse({"type": "response.created", "response": {"id": "r"}}, {"type": "error", **ERROR})
MESSAGE_ERROR = sse(
    {"type": "message_start", "message": {"id": "m", "content": [], "usage": {"input_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
    {"type": "error", "error": {"type": "api_error", "message": WORDS}},
)
CHAT_ERROR = event("a") + sse({"error": ERROR}) + DONE


def choice(reason: str) -> dict[str, Any]:
    return {"object": "chat.completion", "choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": reason}]}


ANSWERS: dict[str, bytes] = {
    "response.failed": stream(RESPONSE_FAILED),
    "response error": stream(RESPONSE_ERROR),
    "message error": stream(MESSAGE_ERROR),
    "chat error": stream(CHAT_ERROR),
    "chat abort": stream(event("a") + event("", '"abort"') + DONE),
    "chat finish error": stream(event("a") + event("", '"error"') + DONE),
    "generate abort": stream(sse({"text": "a", "meta_info": {"finish_reason": {"type": "abort", "message": WORDS}}}) + DONE),
    "well": stream(event("a") + event("", '"stop"') + DONE),
    "whole response.failed": whole(FAILED),
    "whole response.cancelled": whole({**FAILED, "status": "cancelled", "error": None}),
    "whole chat abort": whole(choice("abort")),
    "whole chat error": whole({"error": ERROR}),
    "whole well": whole(choice("stop")),
    # Not ended: its client leaves when it has read what it was told, or the engine breaks off.
    "error, then silence": HEAD + chunk(event("a") + sse({"error": ERROR})),
    "error, then cut": HEAD + chunk(event("a") + sse({"error": ERROR})),
}

Script = Callable[[socket.socket, bytes], None]


@pytest.fixture(scope="module")
def engine() -> Iterator[RawEngine]:
    def script(sock: socket.socket, request: bytes) -> None:
        name = json.loads(request.partition(b"\r\n\r\n")[2])["model"]
        sock.sendall(ANSWERS[name])
        if name.endswith("cut"):
            sock.shutdown(socket.SHUT_RDWR)

    with raw_engine(script) as found:
        yield found


@pytest.fixture(scope="module")
def gateway(engine: RawEngine) -> Iterator[Gateway]:
    config = f'[limits]\nfailures_max = 1000\n[[backend]]\nurl = "{engine.url}"\nengine = "sglang"\nslots = 100\n'
    with Gateway(config=config) as process:
        yield process
        assert not any("Traceback" in line for line in process.stderr_lines), process.stderr_lines


@pytest.fixture(scope="module")
def plain(engine: RawEngine) -> Iterator[Gateway]:
    """Start a gateway that assembles no answers."""
    config = (
        f'assemble = false\n[limits]\nfailures_max = 1000\n[[backend]]\nurl = "{engine.url}"\nengine = "openai"\nslots = 100\n'
    )
    with Gateway(config=config) as process:
        yield process


def body(path: str, name: str, *, stream: bool) -> dict[str, Any]:
    given: dict[str, Any] = {"text": "x"} if path == GENERATE else {"input": "x"} if path == RESPONSES else {"messages": []}
    return {"model": name, "max_tokens": 9, **given} | ({"stream": True} if stream else {})


def booked(gateway: Gateway, path: str, name: str, *, stream: bool) -> tuple[Any, tuple[str, str], str]:
    got = ask(gateway.address, path, body(path, name, stream=stream))
    row = gateway.call_log(got.headers["x-request-id"])
    return got, (row["outcome"], row["cause"]), row.get("detail") or ""


TOLD = [
    (RESPONSES, "response.failed"),
    (RESPONSES, "response error"),
    (MESSAGES, "message error"),
    (CHAT, "chat error"),
]


class TestStreamed:
    @pytest.mark.parametrize(("path", "name"), TOLD)
    def test_an_error_in_an_event_is_the_engines_failure(self, gateway: Gateway, path: str, name: str) -> None:
        got, how, detail = booked(gateway, path, name, stream=True)
        assert how == ("engine_failed", "engine_error")
        assert WORDS in detail
        assert got.complete
        assert stream(got.body) == ANSWERS[name], "the client gets the engine's own words, and nothing else"

    @pytest.mark.parametrize(
        ("path", "name"), [(CHAT, "chat abort"), (CHAT, "chat finish error"), (GENERATE, "generate abort")]
    )
    def test_an_answer_that_was_given_up_is_none(self, gateway: Gateway, path: str, name: str) -> None:
        got, how, _ = booked(gateway, path, name, stream=True)
        assert how == ("engine_failed", "engine_cancelled")
        assert not got.complete
        assert "error" in events(got.body)[-1]

    def test_whoever_leaves_with_the_error_has_left_nothing(self, gateway: Gateway) -> None:
        with Client(gateway.address) as client:
            client.post(CHAT, body(CHAT, "error, then silence", stream=True), {"X-Request-Id": "left-with-error"})
            client.read_until(WORDS.encode())
            client.read_until(b"\n\n")
        row = gateway.call_log("left-with-error")
        assert (row["outcome"], row["cause"]) == ("engine_failed", "engine_error")

    def test_an_engine_that_breaks_off_behind_its_error_is_told_of_once(self, gateway: Gateway) -> None:
        got, how, detail = booked(gateway, CHAT, "error, then cut", stream=True)
        assert how == ("engine_failed", "engine_error")
        assert WORDS in detail
        assert got.complete
        assert sum("error" in value for value in events(got.body)) == 1

    def test_one_that_is_well_is_completed(self, gateway: Gateway) -> None:
        assert booked(gateway, CHAT, "well", stream=True)[1] == ("completed", "completed")


class TestWhole:
    @pytest.mark.parametrize(("path", "name"), TOLD)
    def test_put_together_here(self, gateway: Gateway, path: str, name: str) -> None:
        got, how, detail = booked(gateway, path, name, stream=False)
        assert how == ("engine_failed", "engine_error")
        assert WORDS in detail
        assert WORDS in json.dumps(got.json())
        if name == "response.failed":  # a response that failed is a response
            assert (got.status, got.json()) == (200, FAILED)
        else:
            assert got.status == 502

    @pytest.mark.parametrize(
        ("path", "name", "cause"),
        [
            (RESPONSES, "whole response.failed", "engine_error"),
            (RESPONSES, "whole response.cancelled", "engine_cancelled"),
            (CHAT, "whole chat abort", "engine_cancelled"),
            (CHAT, "whole chat error", "engine_error"),
        ],
    )
    def test_as_the_engine_gave_it(self, plain: Gateway, path: str, name: str, cause: str) -> None:
        got, how, _ = booked(plain, path, name, stream=False)
        assert how == ("engine_failed", cause)
        assert got.complete
        assert whole(got.json()) == ANSWERS[name], "it passes as it is: only the books know better"

    def test_one_that_is_well_is_completed(self, plain: Gateway) -> None:
        assert booked(plain, CHAT, "whole well", stream=False)[1] == ("completed", "completed")
