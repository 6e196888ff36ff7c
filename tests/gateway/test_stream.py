"""No buffering: the gateway writes to the client what it reads from the engine in the same loop iteration, byte for byte."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

from support.processes import Gateway, StandIn, gateway_and_engine
from support.raw import Client, ask, events
from support.raw_engine import DONE, HEAD, LAST, answer, chunk, event, raw_engine
from support.waiting import wait_until

STREAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [], "stream": True, "max_tokens": 12, "n": 2}),
    "chat usage": (
        "/v1/chat/completions",
        {"messages": [], "stream": True, "max_tokens": 12, "stream_options": {"include_usage": True}},
    ),
    "completions": ("/v1/completions", {"prompt": "x", "stream": True, "max_tokens": 12, "logprobs": 1}),
    "responses": ("/v1/responses", {"input": "x", "stream": True, "max_output_tokens": 12}),
    "messages": ("/v1/messages", {"messages": [], "stream": True, "max_tokens": 12}),
    "llama.cpp": ("/completion", {"prompt": "x", "stream": True, "n_predict": 12}),
    "tgi": ("/generate_stream", {"inputs": "x", "parameters": {"max_new_tokens": 12}}),
    "ollama chat": ("/api/chat", {"messages": [], "options": {"num_predict": 12}}),
    "ollama generate": ("/api/generate", {"prompt": "x", "options": {"num_predict": 12}}),
    "sglang": ("/generate", {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 12}}),
}


@pytest.mark.parametrize("name", STREAMS)
def test_byte_for_byte(gateway: Gateway, engine: StandIn, name: str) -> None:
    path, body = STREAMS[name]
    id = {"X-Request-Id": f"bytes-{name.replace(' ', '-')}"}
    for _ in range(20):  # the second their clocks differ in is not the test's fault
        through = ask(gateway.address, path, body, id)
        direct = ask(("127.0.0.1", engine.port), path, body, engine.last_name())
        if direct.body == through.body:
            break
    assert through.body == direct.body
    assert through.complete
    assert through.headers["content-type"] == direct.headers["content-type"]
    assert through.headers["cache-control"] == "no-cache, no-transform"
    assert through.headers["x-accel-buffering"] == "no"
    row = gateway.call_log(id["X-Request-Id"])
    assert (row["outcome"], row["tokens_out"]) == ("completed", 24 if name == "chat" else 12)


def test_other_answers_keep_their_headers(gateway: Gateway) -> None:
    answer = ask(gateway.address, "/v1/embeddings", {"input": "x"})
    assert "cache-control" not in answer.headers
    assert answer.headers["server"] == "hangup-standin"


class Paced:
    """A raw engine that sends its next piece when the test says so."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)
        self.go = threading.Semaphore(0)

    def __call__(self, sock: socket.socket, request: bytes) -> None:
        for piece in self.pieces:
            self.go.acquire()
            sock.sendall(piece)


def test_each_event_arrives_before_the_next_is_sent() -> None:
    script = Paced(HEAD, chunk(event("a")), chunk(event("b")), chunk(event("", '"stop"')), chunk(DONE) + LAST)
    with raw_engine(script) as engine, Gateway(engine.url) as gateway, Client(gateway.address) as client:
        client.chat(stream=True)
        script.go.release()
        assert client.read_head()[0] == 200  # the head is not held back for the first token
        for mark in (b'"content":"a"', b'"content":"b"', b'"stop"'):
            script.go.release()
            client.read_until(mark)
        script.go.release()
        client.read_until(b"[DONE]")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_events_and_chunks_split_anywhere(size: int) -> None:
    """Case 20: also inside a multibyte character, a chunk's size line, and the blank line between events."""
    whole = event("é") + event("日本") + b": ping\n\n" + event("😀") + event("", '"stop"') + DONE
    framed = b"".join(chunk(whole[i : i + 11]) for i in range(0, len(whole), 11)) + LAST
    pieces = [framed[i : i + size] for i in range(0, len(framed), size)]

    def script(sock: socket.socket, request: bytes) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(HEAD)
        for piece in pieces:
            sock.sendall(piece)
            if size < 10:
                time.sleep(0.0002)

    with raw_engine(script) as engine, Gateway(engine.url) as gateway, Client(gateway.address) as client:
        client.chat({"X-Request-Id": "split"}, stream=True)
        got = client.read_answer()
        assert got.body == whole
        assert got.complete
        row = gateway.call_log("split")
        assert (row["outcome"], row["tokens_out"]) == ("completed", 3)


def test_part_of_an_event_is_not_held_back() -> None:
    script = Paced(HEAD + chunk(event("a")), b"40\r\ndata: {", b'"x":1')
    with raw_engine(script) as engine, Gateway(engine.url) as gateway, Client(gateway.address) as client:
        client.chat(stream=True)
        script.go.release()
        client.read_until(b'"content":"a"')
        script.go.release()
        client.read_until(b"data: {")
        script.go.release()
        client.read_until(b'"x":1')


@pytest.mark.parametrize(
    "framing",
    [
        pytest.param((b"content-length: %d\r\n", False), id="counted"),
        pytest.param((b"connection: close\r\n", True), id="until close"),
    ],
)
def test_streams_with_another_framing(framing: tuple[bytes, bool]) -> None:
    header, close = framing
    body = event("a") + event("b") + event("", '"stop"') + DONE
    header = header % len(body) if b"%d" in header else header
    data = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n" + header + b"\r\n" + body
    with raw_engine(answer(data, close)) as engine, Gateway(engine.url) as gateway, Client(gateway.address) as client:
        client.chat({"X-Request-Id": "framed"}, stream=True)
        got = client.read_answer()
        assert (got.body, got.complete) == (body, True)
        assert gateway.call_log("framed")["tokens_out"] == 2


def test_crlf_events_are_counted() -> None:
    body = b"".join(chunk(e.replace(b"\n", b"\r\n")) for e in [*(event("a") for _ in range(9)), event("", '"stop"'), DONE])
    with raw_engine(answer(HEAD + body + LAST)) as engine, Gateway(engine.url) as gateway, Client(gateway.address) as client:
        client.chat({"X-Request-Id": "crlf"}, stream=True)
        assert client.read_answer().complete
        assert gateway.call_log("crlf")["tokens_out"] == 9


def test_a_last_event_with_text_is_counted() -> None:
    """vLLM puts the last token and the finish reason into one event."""
    body = b"".join(chunk(e) for e in [event("a"), event("b"), event("c", '"length"'), DONE])
    with raw_engine(answer(HEAD + body + LAST)) as engine, Gateway(engine.url) as gateway, Client(gateway.address) as client:
        client.chat({"X-Request-Id": "last"}, stream=True, max_tokens=3)
        assert client.read_answer().complete
        row = gateway.call_log("last")
        assert (row["outcome"], row["tokens_out"]) == ("completed", 3)


def test_invalid_utf8_passes() -> None:
    odd = event("a") + b'data: {"choices":[{"index":0,"delta":{"content":"\xff\xfe"},"finish_reason":null}]}\n\n' + DONE
    with raw_engine(answer(HEAD + chunk(odd) + LAST)) as engine, Gateway(engine.url) as gateway:
        assert ask(gateway.address, "/v1/chat/completions", {"messages": [], "stream": True}).body == odd


class TestHeartbeat:
    def test_off_by_default(self) -> None:
        with gateway_and_engine(prefill_s=0.5) as (gateway, _):
            assert b": hangup" not in ask(gateway.address, *STREAMS["chat"]).body

    @pytest.mark.parametrize("late_head", [True, False])
    def test_on(self, late_head: bool) -> None:
        whole = chunk(event("a") + event("", '"stop"') + DONE) + LAST
        script = Paced(HEAD + whole) if late_head else Paced(HEAD, whole)
        with raw_engine(script) as engine, Gateway(engine.url, heartbeat_s=0.1) as gateway, Client(gateway.address) as client:
            client.chat(stream=True)
            if not late_head:
                script.go.release()
            status, headers = client.read_head()
            assert (status, headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
            for _ in range(3):
                client.read_until(b": hangup\n\n")
            script.go.release()
            rest = client.read_until(b"[DONE]")
            assert b'"content":"a"' in rest

    def test_an_error_after_a_heartbeat_is_an_event(self) -> None:
        with gateway_and_engine({"heartbeat_s": 0.1, "first_token_s": 0.5}, prefill_s=30.0) as (gateway, engine):
            answer = ask(gateway.address, "/v1/chat/completions", {"messages": [], "stream": True})
            assert (answer.status, answer.complete) == (200, False)
            assert events(answer.body)[-1]["error"]["code"] == "first_token_s"
            engine.wait_stopped()

    def test_none_for_whole_answers(self) -> None:
        with gateway_and_engine({"heartbeat_s": 0.1}, prefill_s=0.5) as (gateway, _):
            answer = ask(gateway.address, "/v1/chat/completions", {"messages": [], "max_tokens": 2})
            assert answer.json()["object"] == "chat.completion"


def test_back_pressure_reaches_the_engine() -> None:
    """If a client does not read, the engine's own socket fills up: nothing is buffered in between."""
    sent = [0]

    def script(sock: socket.socket, request: bytes) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        sock.sendall(HEAD + chunk(event("a")))
        piece = chunk(event("x" * 1000) * 20)
        while True:
            sock.sendall(piece)
            sent[0] += len(piece)

    with raw_engine(script) as engine, Gateway(engine.url) as gateway, Client(gateway.address, receive_buffer=4096) as client:
        client.chat(stream=True, max_tokens=32000)
        client.read_until(b'"content":"a"')
        previous = -1

        def standing() -> bool:
            nonlocal previous
            time.sleep(0.1)
            before, previous = previous, sent[0]
            return before == previous

        wait_until(standing, what="the engine to be held back")
        assert sent[0] < 1_000_000
        taken, wanted = 0, sent[0] + 1_000_000  # more than was on its way: the engine must have gone on
        while taken < wanted:
            taken += len(client.read_some())
            client.buffer = b""
