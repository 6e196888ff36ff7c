"""Connections to engines: hangup reuses only clean ones and loses none, and a fault of ours costs one call."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import socket
import struct
import threading
import time
from typing import Any

import pytest

from support.linux import proc
from support.processes import Gateway, get_json
from support.raw import Client, ask
from support.raw_engine import DONE, HEAD, LAST, answer, chunk, event, raw_engine
from support.waiting import wait_until

CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
STANDSTILL_S = 0.6  # much longer than an engine takes to report that it has closed a connection
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


def backend(gateway: Gateway) -> dict[str, Any]:
    return dict(get_json(f"{gateway.admin_url}/api/backends")["backends"][0])


def live(gateway: Gateway) -> int:
    return int(sum(value for name, value in gateway.metrics().items() if name.startswith("hangup_calls_live")))


class TestReuse:
    def test_not_with_reading_paused(self) -> None:
        """The end of an answer is more than its client reads at once; the connection must read again for the next answer."""

        def script(sock: socket.socket, request: bytes) -> None:
            text = "a" * 300_000 if b"long" in request else "b"
            sock.sendall(HEAD + chunk(event(text)) + chunk(event("", '"stop"')) + chunk(DONE) + LAST)

        with raw_engine(script) as engine, Gateway(engine.url, first_token_s=3, health_interval_s=600) as gateway:
            for number in range(4):  # the first ones meet connections of the gateway's own questions
                with Client(gateway.address, receive_buffer=4096) as slow:
                    slow.chat({"X-Request-Id": f"slow-{number}"}, model="long")
                    gateway.call_log(f"slow-{number}")  # over, though its client has read nothing
                    assert ask(gateway.address, CHAT, {"messages": []}).status == 200
                    assert len(slow.read_answer().json()["choices"][0]["message"]["content"]) == 300_000

    def test_not_while_its_request_is_unsent(self) -> None:
        """An engine refuses before it has read everything: the unsent rest of the body would precede the next request."""
        refused = threading.Event()
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def serve(sock: socket.socket) -> None:
                with sock:
                    while data := sock.recv(4096):
                        if b"POST /v1/embeddings" in data and not refused.is_set():
                            refused.set()
                            sock.sendall(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\n{}")
                            stop.wait(20)  # and reads no more
                            return
                        sock.sendall(OK)

            stop = threading.Event()
            threading.Thread(target=_accept, args=(listener, serve), daemon=True).start()
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            with Gateway(url, engine="openai", total_s=5, health_interval_s=600) as gateway:
                assert ask(gateway.address, EMBEDDINGS, {"input": "x" * 8_000_000}).status == 413
                assert ask(gateway.address, EMBEDDINGS, {"input": "x"}).status == 200
            stop.set()

    def test_not_with_bytes_behind_an_empty_answer(self) -> None:
        """These bytes would be taken for the answer to the next request."""
        poisoned: set[socket.socket] = set()

        def script(sock: socket.socket, request: bytes) -> None:
            if b"first" in request:
                poisoned.add(sock)
                sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nHTTP/1.1 200 OK\r\n")
            elif sock in poisoned:
                sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison")
            else:
                sock.sendall(OK)

        with raw_engine(script) as engine, Gateway(engine.url, health_interval_s=600) as gateway:
            for _ in range(4):
                assert ask(gateway.address, EMBEDDINGS, {"input": "first"}).body == b""
                assert ask(gateway.address, EMBEDDINGS, {"input": "second"}).body == b"{}"

    def test_not_when_closed_meanwhile(self) -> None:
        """A FIN that the kernel has received and the event loop has not reported yet costs no attempt."""

        def script(sock: socket.socket, request: bytes) -> None:
            sock.sendall(OK)
            if b"last" in request:
                sock.close()  # though it did not say so

        with raw_engine(script) as engine, Gateway(engine.url, health_interval_s=600) as gateway:
            for number in range(5):
                assert ask(gateway.address, EMBEDDINGS, {"input": "last"}).status == 200
                assert ask(gateway.address, EMBEDDINGS, {"input": "x"}, {"X-Request-Id": f"next-{number}"}).status == 200

    def test_late_bytes_of_one_answer_do_not_cost_the_next_caller_its_own(self) -> None:
        """They arrive when the next request has been sent already: the connection is at fault, not the engine."""
        used: set[socket.socket] = set()

        def script(sock: socket.socket, request: bytes) -> None:
            late = b"late\r\n\r\n" if sock in used and b"next" in request else b""
            used.add(sock)
            sock.sendall(late + OK)

        with raw_engine(script) as engine, Gateway(engine.url, failover_max=0, health_interval_s=600) as gateway:
            for number in range(4):
                assert ask(gateway.address, EMBEDDINGS, {"input": "warm"}).status == 200
                assert ask(gateway.address, EMBEDDINGS, {"input": "next"}, {"X-Request-Id": f"next-{number}"}).body == b"{}"
                sent = sum(b"next" in request for request in engine.requests)
                assert sum(gateway.call_log(f"next-{n}")["attempts"] for n in range(number + 1)) == sent
            assert sent > 4
            assert not [row for row in gateway.log() if row["event"] == "backend_changed" and "down" in row["change"]]

    def test_late_bytes_do_not_make_a_healthy_engine_ill(self) -> None:
        """The gateway's own queries use the same connections."""
        requests = [0, 0]  # on new connections, and on kept ones

        def serve(sock: socket.socket) -> None:
            with sock, contextlib.suppress(ConnectionError):  # the gateway closes it when it reads what it did not ask for
                new = True
                while sock.recv(4096):
                    requests[not new] += 1
                    sock.sendall(OK if new else b"late\r\n\r\n" + OK)
                    new = False

        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=_accept, args=(listener, serve), daemon=True).start()
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            with Gateway(url, engine="openai", failures_max=1, health_interval_s=0.1) as gateway:
                wait_until(lambda: requests[1] >= 5)
                assert not [row for row in gateway.log() if row["event"] == "backend_changed" and "down" in row["change"]]

    @pytest.mark.parametrize("status", [b"400 Bad", b"401 No", b"429 Wait", b"503 Busy"])
    def test_not_after_a_request_with_a_body_was_refused(self, status: bytes) -> None:
        """Some engines' HTTP libraries leave such a body unread, and take it for the next request."""
        ours: list[socket.socket] = []

        def script(sock: socket.socket, request: bytes) -> None:
            ours.append(sock)
            sock.sendall(b"HTTP/1.1 %b\r\ncontent-length: 2\r\n\r\n{}" % status)

        with raw_engine(script) as engine, Gateway(engine.url, health_interval_s=600, failures_max=1000) as gateway:
            for _ in range(4):
                ask(gateway.address, EMBEDDINGS, {"input": "x"})
            assert len(set(ours)) == 4

    def test_no_body_where_it_means_nothing(self) -> None:
        with raw_engine(answer(OK)) as engine, Gateway(engine.url, health_interval_s=600) as gateway:
            with Client(gateway.address) as client:
                smuggled = b"POST /slots/0?action=erase HTTP/1.1\r\nhost: x\r\n\r\n"
                client.send(b"GET /v1/models HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(smuggled) + smuggled)
                assert client.read_answer().status == 200
            assert len(engine.requests) == 1
            assert b"erase" not in engine.requests[0]
            assert b"content-length" not in engine.requests[0].lower()


class TestReplay:
    """hangup sends a request again only if the engine cannot have read it."""

    @pytest.mark.parametrize("how", ["fin", "rst", "interim answer"])
    def test_not_of_a_call_that_the_engine_worked_on(self, how: str) -> None:
        def beats() -> float:
            return float(gateway.metrics()["hangup_loop_lag_seconds_count"])

        def script(sock: socket.socket, request: bytes) -> None:
            if b"die" not in request:
                sock.sendall(OK)
            elif how == "interim answer":
                sock.sendall(b"HTTP/1.1 102 Processing\r\n\r\n")
                sock.close()
            else:
                before = beats()
                wait_until(lambda: beats() > before + 15)  # ten in each second in which the gateway looked at its sockets
                if how == "rst":
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.close()

        with raw_engine(script) as engine, Gateway(engine.url, failover_max=0, health_interval_s=600) as gateway:
            for _ in range(3):  # the first ones meet connections of the gateway's own questions
                assert ask(gateway.address, EMBEDDINGS, {"input": "warm"}).status == 200
            got = ask(gateway.address, EMBEDDINGS, {"input": "die"})
            assert (got.status, got.headers["x-hangup-reason"]) == (502, "engine_died")
            assert sum(b"die" in request for request in engine.requests) == 1

    def test_is_counted_as_an_attempt(self) -> None:
        seen: set[socket.socket] = set()

        def script(sock: socket.socket, request: bytes) -> None:
            if sock in seen and b"again" in request:
                sock.close()
                return
            seen.add(sock)
            sock.sendall(OK)

        with raw_engine(script) as engine, Gateway(engine.url, failover_max=0, health_interval_s=600) as gateway:
            for number in range(4):
                assert ask(gateway.address, EMBEDDINGS, {"input": "warm"}).status == 200
                assert ask(gateway.address, EMBEDDINGS, {"input": "again"}, {"X-Request-Id": f"again-{number}"}).status == 200
                sent = sum(b"again" in request for request in engine.requests)
                assert sum(gateway.call_log(f"again-{n}")["attempts"] for n in range(number + 1)) == sent
            assert sent > 4

    def test_never_of_what_makes_a_job(self) -> None:
        """Even if the provider closes the connection at once, it may have created the job."""

        def script(sock: socket.socket, request: bytes) -> None:
            if request.startswith(b"POST /v1/batches"):
                sock.close()
            else:
                sock.sendall(OK)

        with raw_engine(script) as engine:
            config = f'jobs = "provider"\n[[backend]]\nurl = "{engine.url}"\nengine = "openai-hosted"\n'
            with Gateway(config=config, health_interval_s=600) as gateway:
                for _ in range(3):
                    with Client(gateway.address) as client:
                        client.send(b"GET /v1/batches HTTP/1.1\r\nhost: x\r\n\r\n")
                        assert client.read_answer().status == 200
                    assert ask(gateway.address, "/v1/batches", {"input_file_id": "f"}).status == 502
            assert sum(request.startswith(b"POST") for request in engine.requests) == 3


class TestClosedWhileIdle:
    """An engine closes a kept connection in the moment in which a request arrives there: the client must not notice."""

    @pytest.mark.parametrize("how", ["rst", "fin"])
    def test_also_if_the_gateway_stands_still_meanwhile(self, how: str) -> None:
        """It reads of the close much later: that is no reason to think that the engine has worked for so long."""
        closed: list[str] = []

        def serve(sock: socket.socket) -> None:
            with sock, contextlib.suppress(ConnectionError):
                for used in itertools.count():
                    request = sock.recv(65536, socket.MSG_PEEK)
                    if not request:
                        return
                    if used and b"next" in request:
                        gateway.signal(signal.SIGSTOP)
                        closed.append(how)
                        if how == "fin":  # it is sent behind the request, but says nothing about it
                            sock.shutdown(socket.SHUT_WR)
                        else:  # the kernel sends an RST, because the request was not read
                            sock.close()
                        time.sleep(2 * STANDSTILL_S)
                        gateway.signal(signal.SIGCONT)
                        return
                    sock.recv(65536)
                    sock.sendall(OK)

        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=_accept, args=(listener, serve), daemon=True).start()
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            with Gateway(url, engine="openai", failover_max=0, health_interval_s=600) as gateway:
                for number in range(4):
                    assert ask(gateway.address, EMBEDDINGS, {"input": "warm"}).status == 200
                    assert ask(gateway.address, EMBEDDINGS, {"input": "next"}, {"X-Request-Id": f"next-{number}"}).status == 200
                assert closed  # the first ones may meet new connections
                attempts = sum(gateway.call_log(f"next-{number}")["attempts"] for number in range(4))
                assert attempts == 4 + len(closed)


class TestQueueOfTheDeparted:
    def test_a_place_survives_any_number_of_them(self) -> None:
        """A front proxy dies with hundreds of waiting calls at the moment when a place becomes free."""
        head, tail = OK[:-2], OK[-2:]
        go = threading.Event()

        def script(sock: socket.socket, request: bytes) -> None:
            if b"first" in request:
                sock.sendall(head)
                go.wait(30)
                sock.sendall(tail)
            else:
                sock.sendall(OK)

        settings: dict[str, Any] = {"slots": 1, "queue_s": 60, "queue_depth_max": 1000, "health_interval_s": 600}
        with raw_engine(script) as engine, Gateway(engine.url, **settings) as gateway:
            with Client(gateway.address) as first:
                first.post(EMBEDDINGS, {"input": "first"})
                first.read_head()
                crowd = [Client(gateway.address) for _ in range(300)]
                for number, client in enumerate(crowd):
                    client.post(EMBEDDINGS, {"input": "x"}, {"X-Request-Id": f"in-line-{number}"})
                wait_until(lambda: live(gateway) == 301)
                gateway.signal(signal.SIGSTOP)
                go.set()
                for client in crowd:
                    client.fin()
                wait_until(lambda: _unread(gateway, engine.port))
                gateway.signal(signal.SIGCONT)
                wait_until(lambda: live(gateway) == 0)
            assert backend(gateway)["in_flight"] == 0
            assert ask(gateway.address, EMBEDDINGS, {"input": "after"}).status == 200
            for number in range(300):
                assert gateway.call_log(f"in-line-{number}")["cause"] == "fin"
            assert not [row for row in gateway.log() if row["event"] == "internal_error"]
            assert not [line for line in gateway.stderr_lines if "Error" in line]


class TestDeepJson:
    """orjson parses deeper nesting than it can serialise."""

    @pytest.mark.parametrize("levels", [201, 254, 900])
    @pytest.mark.parametrize("padding", [0, 70_000])
    def test_is_refused_and_costs_nothing(self, levels: int, padding: int) -> None:
        deep = "[" * (levels - 1) + "]" * (levels - 1)
        body = f'{{"messages":[],"max_tokens":5,"stream":false,"pad":"{"x" * padding}","deep":{deep}}}'.encode()
        with raw_engine(answer(OK)) as engine, Gateway(engine.url, first_token_s=2) as gateway:
            ask(gateway.address, EMBEDDINGS, {"input": "x"})
            files = gateway.open_files()
            for _ in range(10):
                got = ask(gateway.address, CHAT, body)
                assert (got.status, got.headers["x-hangup-reason"]) == (400, "bad_json")
            wait_until(lambda: gateway.open_files() <= files + 1)
            assert backend(gateway)["in_flight"] == 0

    def test_what_is_allowed_reaches_the_engine(self) -> None:
        deep = "[" * 198 + "]" * 198
        body = f'{{"messages":[],"max_tokens":5,"stream":false,"pad":"{"x" * 70_000}","deep":{deep}}}'.encode()
        with raw_engine(answer(OK)) as engine, Gateway(engine.url) as gateway:
            assert ask(gateway.address, CHAT, body).status == 200
            assert json.loads(engine.requests[0].partition(b"\r\n\r\n")[2])["max_tokens"] == 5

    def test_from_an_engine(self) -> None:
        """An answer that is nested too deeply to assemble does not mean that the engine failed."""
        deep = b"[" * 900 + b"]" * 900
        odd = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}],"deep":%b}\n\n' % deep
        data = HEAD + chunk(event("a")) + chunk(odd) + chunk(DONE) + LAST
        with raw_engine(answer(data)) as engine, Gateway(engine.url, failures_max=1) as gateway:
            for _ in range(2):
                got = ask(gateway.address, CHAT, {"messages": []})
                assert got.status in (200, 502)
                assert got.headers.get("x-hangup-reason") in (None, "engine_invalid_answer")
            assert not [line for line in gateway.stderr_lines if "Fatal error" in line]


def _accept(listener: socket.socket, serve: Any) -> None:
    while True:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=serve, args=(sock,), daemon=True).start()


def _unread(gateway: Gateway, port: int) -> bool:
    """Return whether the kernel holds bytes of this engine that the gateway has not read."""
    rows = [line.split() for line in proc("net", "tcp").read_text().splitlines()[1:]]
    wanted = f":{port:04X}"
    return any(row[2].endswith(wanted) and int(row[4].partition(":")[2], 16) > 0 for row in rows)
