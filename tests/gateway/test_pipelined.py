"""Clients that send requests before they have read earlier answers, and clients that read slowly."""

from __future__ import annotations

import time

from support.processes import Gateway
from support.raw import Client, ask
from support.raw_engine import DONE, HEAD, LAST, answer, chunk, event, raw_engine

EMBEDDINGS = "/v1/embeddings"
LARGE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 200000\r\n\r\n" + b"x" * 200_000


WHOLE = HEAD + chunk(event("a" * 300_000)) + chunk(event("", '"stop"')) + chunk(DONE) + LAST


def test_nothing_is_begun_for_a_client_that_does_not_read() -> None:
    """Otherwise the gateway would read from the engine without end for a client that reads nothing."""
    with (
        raw_engine(answer(WHOLE)) as engine,
        Gateway(engine.url) as gateway,
        Client(gateway.address, receive_buffer=4096) as client,
    ):
        client.chat({"X-Request-Id": "first"}, model="first")
        client.chat(model="second")
        gateway.call_log("first")  # over, though its client has read nothing
        assert ask(gateway.address, "/v1/chat/completions", {"model": "other", "messages": []}).status == 200
        assert [b"second" in request for request in engine.requests] == [False, False]
        assert client.read_answer().complete
        assert client.read_answer().complete
        assert [b"second" in request for request in engine.requests] == [False, False, True]


def test_a_flood_of_requests_unread_is_kept_within_bounds() -> None:
    """The gateway's own answers are ten times as large as the requests, and the client reads none of them."""
    with (
        raw_engine(answer(LARGE)) as engine,
        Gateway(engine.url) as gateway,
        Client(gateway.address, receive_buffer=4096) as client,
    ):
        client.sock.settimeout(0.5)
        sent = 0
        try:
            while sent < 30_000_000:
                client.send(b"GET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n" * 1000)
                sent += 33_000
        except (TimeoutError, ConnectionError):
            pass
        other = ask(gateway.address, EMBEDDINGS, {"input": "other"})
        assert other.status == 200
        gateway.call_log(other.headers["x-request-id"])  # so the lines before it are written
        answered = [row for row in gateway.log() if row["event"] == "call_ended" and row["cause"] == "not_found"]
        assert 0 < len(answered) < 1000


def test_a_slow_reader_of_a_last_answer_gets_all_of_it() -> None:
    """The call's timeouts end with the call; after that, only write_stall_s applies."""
    with (
        raw_engine(answer(WHOLE)) as engine,
        Gateway(engine.url, total_s=3) as gateway,
        Client(gateway.address, receive_buffer=4096) as client,
    ):
        began = time.monotonic()
        client.chat({"X-Request-Id": "slow", "Connection": "close"})
        assert gateway.call_log("slow")["outcome"] == "completed"
        time.sleep(max(0.0, began + 3.5 - time.monotonic()))  # until the call's limit has passed
        assert len(client.read_answer().json()["choices"][0]["message"]["content"]) == 300_000
