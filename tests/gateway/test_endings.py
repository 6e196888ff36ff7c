"""Answers that an engine ends wrongly: errors after a heartbeat, broken framing, odd encodings."""

from __future__ import annotations

import gzip
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.processes import Gateway
from support.raw import Client, ask, events
from support.raw_engine import DONE, HEAD, LAST, RawEngine, chunk, event, raw_engine

CHAT = "/v1/chat/completions"
GOOD = event("a") + event("b") + event("", '"stop"') + DONE
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
WHOLE = json.dumps({"object": "chat.completion", "choices": [{"index": 0, "message": {"content": "ab"}}]}).encode()
ERROR = b'{"error":{"message":"context too long","type":"invalid_request_error","code":"context_length_exceeded"}}'
DEEP = b'data: {"choices":[],"x":' + b"[" * 900 + b"]" * 900 + b"}\n\n"

Script = Callable[[socket.socket, dict[str, Any]], None]


def whole(status: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %b X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


def late(data: bytes) -> Script:
    """Wait long enough for heartbeats."""

    def script(sock: socket.socket, body: dict[str, Any]) -> None:
        time.sleep(1.5)
        sock.sendall(data)

    return script


def cut(data: bytes) -> Script:
    def script(sock: socket.socket, body: dict[str, Any]) -> None:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_RDWR)

    return script


def squeezed(sock: socket.socket, body: dict[str, Any]) -> None:
    packed = gzip.compress(GOOD if body.get("stream") else WHOLE)
    head = SSE if body.get("stream") else JSON
    sock.sendall(head + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed) + packed)


def lingers(sock: socket.socket, body: dict[str, Any]) -> None:
    """Send everything but the last chunk, which comes too late."""
    sock.sendall(HEAD + chunk(GOOD))
    time.sleep(2)
    sock.sendall(LAST)


def endless(sock: socket.socket, body: dict[str, Any]) -> None:
    sock.sendall(HEAD)
    for _ in range(10_000):
        sock.sendall(chunk(event("x" * 1000)))


SCRIPTS: dict[str, Script] = {
    "late 400": late(whole(b"400", ERROR)),
    "late 500": late(whole(b"500", b"out of memory")),
    "late json": late(whole(b"200", WHOLE)),
    "late": late(HEAD + chunk(GOOD) + LAST),
    "counted": lambda sock, body: sock.sendall(SSE + b"content-length: %d\r\n\r\n" % len(GOOD) + GOOD),
    "gzip": squeezed,
    "lingers": lingers,
    "endless": endless,
    "cut json": cut(JSON + b"\r\n" + WHOLE[:-3]),
    "closed json": cut(JSON + b"\r\n" + WHOLE + b"\n"),
    "cut large json": cut(JSON + b'\r\n{"pad":"' + b"x" * 300_000),
    "cut between values": cut(JSON + b'\r\n{"rows":[' + b'{"x":[1]},' * 30_000 + b'{"x":[1]}'),
    "closed with nan": cut(JSON + b'\r\n{"rows":[' + b"NaN," * 100_000 + b"NaN]}"),
    "closed large json": cut(JSON + b'\r\n{"pad":"' + b"x" * 300_000 + b'"}'),
    "deep": cut(SSE + b"\r\n" + DEEP + GOOD),
}


@pytest.fixture(scope="module")
def engine() -> Iterator[RawEngine]:
    def script(sock: socket.socket, request: bytes) -> None:
        body = json.loads(request.partition(b"\r\n\r\n")[2])
        SCRIPTS[body["model"]](sock, body)

    with raw_engine(script) as found:
        yield found


@pytest.fixture(scope="module")
def gateway(engine: RawEngine) -> Iterator[Gateway]:
    config = f"""
        heartbeat_s = 0.3
        [limits]
        answer_bytes_max = 100_000
        failures_max = 1000
        [[backend]]
        url = "{engine.url}"
        slots = 100
    """
    with Gateway(config=config) as process:
        yield process
        assert not any("Traceback" in line for line in process.stderr_lines), process.stderr_lines


def post(gateway: Gateway, name: str, headers: dict[str, str] | None = None, **fields: Any) -> tuple[Any, dict[str, Any]]:
    got = ask(gateway.address, CHAT, {"model": name, "messages": [], **fields}, headers)
    return got, gateway.call_log(got.headers["x-request-id"])


class TestHeartbeat:
    @pytest.mark.parametrize(
        ("name", "message", "code"),
        [
            ("late 400", "context too long", "context_length_exceeded"),
            ("late 500", "out of memory", "engine_error"),
            ("late json", "The engine did not answer with a stream.", "engine_error"),
        ],
    )
    def test_an_error_behind_it_is_an_event(self, gateway: Gateway, name: str, message: str, code: str) -> None:
        got, row = post(gateway, name, stream=True)
        assert got.body.startswith(b": hangup\n\n")
        last = json.loads(got.body.rstrip().rpartition(b"\n\ndata: ")[2])
        assert (last["error"]["message"], last["error"]["code"]) == (message, code)
        assert got.complete
        assert (row["outcome"], row["cause"]) == ("engine_failed", "engine_error")

    def test_it_is_heard_by_a_client_that_waits_for_the_next_byte(self, gateway: Gateway) -> None:
        got, row = post(gateway, "late", {"x-stainless-read-timeout": "1"}, stream=True)
        assert row["outcome"] == "completed"
        assert got.body.endswith(GOOD)


class TestFraming:
    def test_a_stream_with_a_length_that_is_ended_at_its_cap(self, gateway: Gateway) -> None:
        """The next answer on the connection must not be taken for the rest of this one."""
        with Client(gateway.address) as client:
            for _ in range(2):
                client.post(CHAT, {"model": "counted", "messages": [], "stream": True, "max_tokens": 1})
                got = client.read_answer()
                assert got.complete and "content-length" not in got.headers
                assert events(got.body)[-1]["choices"][0]["finish_reason"] == "length"

    def test_a_stream_with_a_length_is_passed_whole(self, gateway: Gateway) -> None:
        got, row = post(gateway, "counted", stream=True)
        assert (got.body, row["outcome"], row["tokens_out"]) == (GOOD, "completed", 2)

    @pytest.mark.parametrize("name", ["cut json", "cut large json", "cut between values"])
    def test_a_json_answer_that_is_cut_off_does_not_end_cleanly(self, gateway: Gateway, name: str) -> None:
        got, row = post(gateway, name)
        assert not got.complete
        assert row["cause"] == "engine_truncated"

    @pytest.mark.parametrize("name", ["closed json", "closed large json", "closed with nan"])
    def test_a_json_answer_that_ends_with_the_connection(self, gateway: Gateway, name: str) -> None:
        got, row = post(gateway, name)
        assert got.complete and row["outcome"] == "completed"
        assert json.loads(got.body)

    def test_an_answer_too_deep_to_be_written(self, gateway: Gateway) -> None:
        got, row = post(gateway, "deep")
        assert (got.status, row["cause"]) == (502, "engine_invalid_answer")


class TestEncoded:
    """An engine that compresses although hangup asked it not to."""

    def test_a_stream_passes_as_it_is(self, gateway: Gateway) -> None:
        got, row = post(gateway, "gzip", stream=True)
        assert (got.headers["content-encoding"], gzip.decompress(got.body)) == ("gzip", GOOD)
        assert row["outcome"] == "completed"

    def test_a_whole_answer_is_asked_for_plainly(self, gateway: Gateway, engine: RawEngine) -> None:
        got, row = post(gateway, "gzip")
        assert json.loads(gzip.decompress(got.body)) == json.loads(WHOLE)
        assert b'"stream"' not in engine.requests[-1]
        assert row["outcome"] == "completed"


def test_a_client_that_leaves_after_the_last_event_has_its_answer(gateway: Gateway) -> None:
    with Client(gateway.address) as client:
        client.post(CHAT, {"model": "lingers", "messages": [], "stream": True}, {"X-Request-Id": "lingers"})
        client.read_until(b"[DONE]\n\n")
        client.fin()
        row = gateway.call_log("lingers")
    assert (row["outcome"], row["tokens_out"]) == ("completed", 2)


def test_an_answer_that_is_put_together_is_bounded(gateway: Gateway) -> None:
    got, row = post(gateway, "endless")
    assert (got.status, got.headers["x-hangup-reason"]) == (502, "answer_bytes_max")
    assert (row["outcome"], row["cause"]) == ("cap", "answer_bytes_max")
    assert 90 < row["tokens_out"] < 1000


class TestRefused:
    """hangup requests a stream for a client that wants a whole answer. A refusal for another reason is not retried."""

    @pytest.mark.parametrize(
        ("name", "status", "times"),
        [
            ("too long", 400, 1),
            ("too long, in pieces", 400, 1),
            ("too long, until it closes", 400, 1),
            ("a long story", 400, 1),
            ("bad field", 422, 1),
            ("no streams", 200, 2),
            ("no streams, until it closes", 200, 2),
            ("not implemented", 200, 2),
            ("without a word", 200, 2),
        ],
    )
    def test_asked_again_only_about_streams(
        self, gateway: Gateway, engine: RawEngine, name: str, status: int, times: int
    ) -> None:
        before = len(engine.requests)
        got, row = post(gateway, name)
        outcome = "completed" if status == 200 else "engine_refused"
        assert (got.status, got.complete, row["outcome"]) == (status, True, outcome)
        assert len(engine.requests) - before == times
        assert row["attempts"] == times
        if times == 1:
            assert got.body == REFUSALS[name].partition(b"\r\n\r\n")[2] or name == "too long, in pieces"


def refuses(data: bytes, close: bool = False) -> Script:
    def script(sock: socket.socket, body: dict[str, Any]) -> None:
        sock.sendall(data if body.get("stream") else whole(b"200", WHOLE))
        if close:
            sock.shutdown(socket.SHUT_RDWR)

    return script


NO_STREAMS = b'{"error":{"message":"Your organization must be verified to stream this model.","param":"stream"}}'
STORY = b'{"error":{"message":"' + b"no " * 40_000 + b'"}}'
PIECES = b"".join(chunk(ERROR[at : at + 9]) for at in range(0, len(ERROR), 9))
CHUNKS = b"HTTP/1.1 400 X\r\ntransfer-encoding: chunked\r\n\r\n" + PIECES + LAST
REFUSALS = {
    "too long": whole(b"400", ERROR),
    "too long, in pieces": CHUNKS,
    "too long, until it closes": b"HTTP/1.1 400 X\r\n\r\n" + ERROR,
    "a long story": whole(b"400", STORY),
    "bad field": whole(b"422", b'{"detail":[{"loc":["body","n"],"msg":"not an integer"}]}'),
    "no streams": whole(b"400", NO_STREAMS),
    "no streams, until it closes": b"HTTP/1.1 400 X\r\n\r\n" + NO_STREAMS,
    "not implemented": whole(b"501", b'{"error":"no"}'),
    "without a word": whole(b"400", b""),
}
SCRIPTS |= {name: refuses(data, "closes" in name) for name, data in REFUSALS.items()}
