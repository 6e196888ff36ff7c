"""Faults of engines (cases 19–21): a truncated answer never ends cleanly; hangup replays no call and follows no redirect."""

from __future__ import annotations

import os
import signal
import socket
import struct
from typing import Any

import pytest

from support.processes import Gateway, StandIn, gateway_and_engine, reserved_port
from support.raw import Answer, Client, ask, events
from support.raw_engine import DONE, HEAD, LAST, answer, chunk, event, raw_engine
from support.waiting import wait_until

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [], "max_tokens": 3}
STREAM: dict[str, Any] = {"messages": [], "stream": True, "max_tokens": 20}


class TestKilledEngine:
    """Case 19: kill -9."""

    def test_mid_stream(self) -> None:
        with gateway_and_engine() as (gateway, engine), Client(gateway.address) as client:
            client.chat({"X-Request-Id": "k"}, stream=True, ignore_eos=True)
            client.read_until(b'"content":" ')
            engine.signal(signal.SIGKILL)
            rest = client.buffer
            while True:
                data = client.sock.recv(65536)
                if not data:
                    break
                rest += data
            assert b'"code":"engine_died"' in rest
            assert not rest.endswith(b"0\r\n\r\n"), "the framing must be broken off"
            row = gateway.call_log("k")
            assert (row["outcome"], row["cause"], row["attempts"]) == ("engine_failed", "engine_died", 1)

    @pytest.mark.parametrize(
        ("path", "body", "mark"),
        [
            ("/v1/messages", {"messages": [], "max_tokens": 5000, "ignore_eos": True}, b'event: error\ndata: {"type":"error"'),
            ("/v1/responses", {"input": "x", "ignore_eos": True}, b'event: error\ndata: {"type":"error"'),
            ("/v1/completions", {"prompt": "x", "ignore_eos": True}, b'data: {"error":{'),
            ("/api/chat", {"messages": [], "ignore_eos": True}, b'{"error":"'),
            ("/generate_stream", {"inputs": "x", "ignore_eos": True}, b'"error_type":"generation"'),
            ("/completion", {"prompt": "x", "ignore_eos": True}, b'data: {"error":{"code":502'),
        ],
    )
    def test_error_event_in_the_shape_of_the_api(self, path: str, body: dict[str, Any], mark: bytes) -> None:
        with gateway_and_engine(crash_after=5) as (gateway, _), Client(gateway.address) as client:
            client.post(path, {**body, "stream": True})
            got = client.read_answer()
            assert not got.complete
            assert mark in got.body

    def test_before_the_first_token_of_a_whole_answer(self) -> None:
        with gateway_and_engine(crash_after=1) as (gateway, _):
            got = ask(gateway.address, CHAT, BODY)
            assert (got.status, got.headers["x-hangup-reason"]) == (502, "engine_died")

    def test_comes_back(self) -> None:
        """hangup uses an engine that restarts on the same port again without any help."""
        with (
            reserved_port() as port,
            StandIn(port) as engine,
            Gateway(engine.url, health_interval_s=0.2) as gateway,
        ):
            assert ask(gateway.address, CHAT, BODY).status == 200
            engine.close()
            got = ask(gateway.address, CHAT, BODY)
            assert (got.status, got.headers["x-hangup-reason"]) == (502, "engine_unreachable")
            wait_until(lambda: gateway.ready() == 503)
            with StandIn(port):
                wait_until(lambda: gateway.ready() == 200)
                assert ask(gateway.address, CHAT, BODY).status == 200


class TestTruncated:
    """A stream that merely stops is incomplete, however clean its framing."""

    def test_clean_framing(self) -> None:
        with gateway_and_engine(cut_after=5) as (gateway, _):
            for path, body in ((CHAT, STREAM), ("/v1/messages", {**STREAM, "max_tokens": 50}), ("/api/chat", STREAM)):
                got = ask(gateway.address, path, body)
                assert not got.complete
                assert b"engine" in got.body.splitlines()[-1] or b"error" in got.body
                row = gateway.call_log(got.headers["x-request-id"])
                assert (row["outcome"], row["cause"]) == ("engine_failed", "engine_truncated")

    @pytest.mark.parametrize(
        "ending", [DONE, event("", '"stop"'), b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n']
    )
    def test_proper_endings(self, ending: bytes) -> None:
        data = HEAD + chunk(event("a")) + chunk(event("b")) + chunk(ending) + LAST
        with raw_engine(answer(data)) as engine, Gateway(engine.url) as gateway:
            got = ask(gateway.address, CHAT, STREAM)
            assert got.complete
            assert gateway.call_log(got.headers["x-request-id"])["outcome"] == "completed"

    def test_in_the_midst_of_an_event(self) -> None:
        """No error event can be inserted there, so only the broken framing tells the client."""

        def script(sock: socket.socket, request: bytes) -> None:
            sock.sendall(HEAD + chunk(event("a")) + b'ff\r\ndata: {"choi')
            sock.close()

        with raw_engine(script) as engine, Gateway(engine.url) as gateway:
            got = ask(gateway.address, CHAT, STREAM)
            assert not got.complete
            assert got.body == event("a") + b'data: {"choi'

    def test_counted_body_cut_short(self) -> None:
        data = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
        with raw_engine(answer(data, close=True)) as engine, Gateway(engine.url) as gateway:
            got = ask(gateway.address, "/v1/embeddings", {"input": "x"})
            assert not got.complete

    def test_http_10_client_gets_a_reset(self) -> None:
        """Its only framing is the close of the connection, so a clean close would mean a complete answer."""
        with gateway_and_engine(crash_after=5) as (gateway, _), Client(gateway.address) as client:
            client.post(CHAT, STREAM, version="1.0")
            with pytest.raises(ConnectionResetError):  # noqa: PT012
                while client.read_some():
                    pass

    def test_reset_by_the_engine(self) -> None:
        def script(sock: socket.socket, request: bytes) -> None:
            sock.sendall(HEAD + chunk(event("a")))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()

        with raw_engine(script) as engine, Gateway(engine.url) as gateway:
            got = ask(gateway.address, CHAT, STREAM)
            assert not got.complete
            assert events(got.body)[-1]["error"]["code"] == "engine_died"


class TestOddAnswers:
    """Case 20: stripped or bounded, never followed."""

    def get(self, data: bytes, body: dict[str, Any] = BODY, close: bool = False) -> Answer:
        with raw_engine(answer(data, close)) as engine, Gateway(engine.url) as gateway:
            return ask(gateway.address, CHAT, body)

    JSON = b'content-type: application/json\r\ncontent-length: 2\r\n\r\n{"'

    def test_set_cookie_and_hop_by_hop(self) -> None:
        head = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nKeep-Alive: timeout=5\r\nX-Engine: yes\r\nProxy-Authenticate: Basic\r\n"
        got = self.get(head + b"content-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
        assert got.status == 200
        assert got.headers["x-engine"] == "yes"
        assert not {"set-cookie", "keep-alive", "proxy-authenticate"} & set(got.headers)

    @pytest.mark.parametrize("path", ["/v1/embeddings", CHAT])
    def test_what_is_between_us_and_the_engine_or_our_word_alone(self, path: str) -> None:
        """For answers that pass unchanged, and for answers that hangup assembles."""
        head = HEAD[:-2] if path == CHAT else b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n"
        more = b"connection: x-hop\r\nconnection: keep-alive\r\nx-hop: 1\r\n"
        more += b"x-hangup-reason: forged\r\nx-hangup-any: 1\r\nx-engine: yes\r\n"
        body = chunk(event("a")) + chunk(event("", '"stop"')) + chunk(DONE) + LAST if path == CHAT else b"{}"
        with raw_engine(answer(head + more + b"\r\n" + body)) as engine, Gateway(engine.url) as gateway:
            got = ask(gateway.address, path, {"messages": [], "input": "x"})
            assert (got.status, got.headers["x-engine"]) == (200, "yes")
            assert not {"x-hop", "x-hangup-reason", "x-hangup-any"} & set(got.headers)

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_redirect(self, status: int) -> None:
        got = self.get(b"HTTP/1.1 %d X\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n" % status)
        assert (got.status, got.headers["x-hangup-reason"]) == (502, "engine_redirect")
        assert "location" not in got.headers

    @pytest.mark.parametrize(
        "head",
        [
            b"HTTP/1.1 200 OK\r\nX-A: b\rSet-Cookie: c=d\r\ncontent-length: 2\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\nX-A: b\nSet-Cookie: c=d\r\ncontent-length: 2\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\nX-A: b\0c\r\ncontent-length: 2\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: identity\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            b"HTTP/1.1 abc OK\r\ncontent-length: 2\r\n\r\n{}",
            b"NONSENSE\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * 200_000 + b"\r\n\r\n",
        ],
    )
    def test_garbled_head(self, head: bytes) -> None:
        got = self.get(head)
        assert (got.status, got.headers["x-hangup-reason"]) == (502, "engine_invalid_answer")
        assert "set-cookie" not in got.headers

    @pytest.mark.parametrize("size", [b"zz", b"+5", b"0x5", b"", b"fffffffffffffffff"])
    def test_garbled_chunks(self, size: bytes) -> None:
        got = self.get(HEAD + chunk(event("a")) + size + b"\r\nhello\r\n" + LAST, STREAM)
        assert not got.complete
        assert events(got.body)[-1]["error"]["code"] == "engine_invalid_answer"

    def test_announcements_before_the_answer(self) -> None:
        data = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
        got = self.get(data + b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
        assert (got.status, got.body) == (200, b"{}")

    def test_no_content(self) -> None:
        assert self.get(b"HTTP/1.1 204 No Content\r\n\r\n").status == 204

    def test_bytes_behind_the_answer_end_the_connection(self) -> None:
        """These bytes could be taken for the next call's answer."""
        data = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n\r\n"
        with raw_engine(answer(data)) as engine, Gateway(engine.url) as gateway:
            for _ in range(3):
                assert ask(gateway.address, CHAT, BODY).body == b"{}"

    def test_error_bodies_are_passed_on(self) -> None:
        body = b'{"error":{"message":"no such model","type":"NotFoundError","code":404}}'
        for status in (400, 401, 404, 422, 429):
            head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\nretry-after: 7\r\ncontent-length: %d\r\n\r\n"
            got = self.get(head % (status, len(body)) + body)
            assert (got.status, got.body, got.headers["retry-after"]) == (status, body, "7")


class TestSeveralBackends:
    """Case 21: hangup replaces a backend that fails before its first byte, but never after it."""

    def test_refused_connection(self, engine: StandIn) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            dead = f"http://127.0.0.1:{unused.getsockname()[1]}"
            with Gateway(dead, engine.url) as gateway:
                for index in range(6):
                    assert ask(gateway.address, CHAT, BODY, {"X-Request-Id": f"r{index}"}).status == 200
                assert max(gateway.call_log(f"r{index}")["attempts"] for index in range(6)) == 2

    @pytest.mark.parametrize("status", [500, 502, 503, 504])
    @pytest.mark.parametrize("stream", [True, False])
    def test_error_status(self, engine: StandIn, status: int, stream: bool) -> None:
        with StandIn(fail_status=status) as bad, Gateway(bad.url, engine.url) as gateway:
            for _ in range(4):
                got = ask(gateway.address, CHAT, {**BODY, "stream": stream})
                assert (got.status, got.complete) == (200, True)

    def test_dies_without_an_answer(self, engine: StandIn) -> None:
        def script(sock: socket.socket, request: bytes) -> None:
            sock.close()

        with raw_engine(script) as bad, Gateway(bad.url, engine.url) as gateway:
            for _ in range(4):
                assert ask(gateway.address, CHAT, BODY).status == 200
            assert len(bad.requests) >= 1

    def test_never_replayed_after_the_first_byte(self, engine: StandIn) -> None:
        def script(sock: socket.socket, request: bytes) -> None:
            sock.sendall(HEAD + chunk(event("a")))
            sock.close()

        before = len(engine.seen())
        with raw_engine(script) as bad, Gateway(bad.url, engine.url) as gateway:
            answers = [ask(gateway.address, CHAT, {**STREAM, "max_tokens": 2}) for _ in range(6)]
            broken = [a for a in answers if not a.complete]
            assert len(broken) == len(bad.requests) >= 1
            assert len(engine.seen()) - before == 6 - len(broken)

    def test_all_fail(self) -> None:
        with StandIn(fail_status=500) as one, StandIn(fail_status=500) as two, Gateway(one.url, two.url) as gateway:
            got = ask(gateway.address, CHAT, BODY)
            assert got.status == 502
            assert got.json()["error"]["message"] == "configured to fail"
            assert len(one.seen()) == len(two.seen()) == 1

    @pytest.mark.parametrize(("status", "expected"), [(500, 502), (502, 502), (503, 503), (504, 502)])
    def test_single_backend_with_an_error_status(self, status: int, expected: int) -> None:
        with gateway_and_engine(fail_status=status) as (gateway, _):
            got = ask(gateway.address, CHAT, BODY, {"X-Request-Id": "e"})
            assert (got.status, got.json()["error"]["message"]) == (expected, "configured to fail")
            assert gateway.call_log("e")["outcome"] == "engine_failed"

    def test_least_loaded(self) -> None:
        with StandIn() as one, StandIn() as two, Gateway(one.url, two.url) as gateway:
            clients = [Client(gateway.address) for _ in range(8)]
            for client in clients:
                client.chat(stream=True, ignore_eos=True)
                client.read_until(b'"content":" ')
            assert (one.stats()["running"], two.stats()["running"]) == (4, 4)
            for client in clients:
                client.fin()
            one.wait_idle()
            two.wait_idle()

    def test_a_down_backend_is_left_out_and_taken_back(self) -> None:
        with (
            reserved_port() as port,
            StandIn() as one,
            StandIn(port) as two,
            Gateway(one.url, two.url, health_interval_s=0.2, failures_max=2) as gateway,
        ):
            two.close()
            wait_until(lambda: gateway.metrics()[f'hangup_backend_up{{backend="127.0.0.1:{two.port}"}}'] == 0)
            for index in range(6):
                assert ask(gateway.address, CHAT, BODY, {"X-Request-Id": f"d{index}"}).status == 200
                assert gateway.call_log(f"d{index}")["attempts"] == 1
            with StandIn(port) as back:
                wait_until(lambda: gateway.metrics()[f'hangup_backend_up{{backend="127.0.0.1:{two.port}"}}'] == 1)
                for _ in range(6):
                    assert ask(gateway.address, CHAT, BODY).status == 200
                assert back.stats()["requests"] == 3

    def test_stopped_engine_is_given_up_at_its_limit(self) -> None:
        """SIGSTOP before the first byte: first_token_s ends the call, and the other backend serves the next one."""
        with gateway_and_engine({"first_token_s": 2}) as (gateway, engine):
            os.kill(engine.popen.pid, signal.SIGSTOP)
            got = ask(gateway.address, CHAT, BODY)
            assert (got.status, got.headers["x-hangup-reason"]) == (504, "first_token_s")
            os.kill(engine.popen.pid, signal.SIGCONT)
            engine.wait_idle()
            assert ask(gateway.address, CHAT, BODY).status == 200


class TestConnections:
    def test_kept_alive_to_the_engine(self) -> None:
        with gateway_and_engine({"health_interval_s": 3600, "engine_idle_s": 60}, token_s=0.001) as (gateway, engine):
            for _ in range(20):
                assert ask(gateway.address, CHAT, {**BODY, "max_tokens": 1}).status == 200
            # One for the calls; health, counters and the reaper may have one each, and so has this question.
            assert engine.stats()["connections"] <= 5

    def test_idle_ones_are_dropped_in_time(self) -> None:
        with gateway_and_engine({"health_interval_s": 3600, "engine_idle_s": 0.3}, token_s=0.001) as (gateway, engine):
            assert ask(gateway.address, CHAT, {**BODY, "max_tokens": 1}).status == 200
            wait_until(lambda: engine.stats()["connections"] == 1)

    def test_an_engine_that_closes_idle_connections_costs_no_call(self) -> None:
        """Every keep-alive pool has this race: the engine closes a connection while the next request is being sent."""
        served: list[socket.socket] = []

        def script(sock: socket.socket, request: bytes) -> None:
            if served and served[-1] is sock:
                sock.close()  # the second request on a connection meets a close
                return
            served.append(sock)
            sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")

        with raw_engine(script) as engine, Gateway(engine.url, health_interval_s=3600) as gateway:
            for _ in range(10):
                assert ask(gateway.address, "/v1/embeddings", {"input": "x"}).status == 200

    def test_connection_close_is_honoured(self) -> None:
        data = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
        with raw_engine(answer(data)) as engine, Gateway(engine.url) as gateway:
            for _ in range(3):
                assert ask(gateway.address, CHAT, BODY).status == 200
