"""Hardening of HTTP from clients (cases 1–10): ambiguous requests are refused, and the engine never sees them."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator

import pytest

from support.bodies import WORST_BODIES
from support.processes import Gateway, StandIn, elapsed, gateway_and_engine
from support.raw import Answer, Client, ask
from support.waiting import wait_until

BODY = b'{"messages":[{"role":"user","content":"x"}],"max_tokens":1}'
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
POST = b"POST /v1/chat/completions HTTP/1.1\r\n"


@pytest.fixture(autouse=True)
def engine_untouched(engine: StandIn) -> Iterator[None]:
    """Check that no refused request reaches the engine; tests whose requests are served override this."""
    before = len(engine.seen())
    yield
    assert len(engine.seen()) == before, engine.seen()[before:]


def exchange(gateway: Gateway, data: bytes) -> Answer:
    with Client(gateway.address) as client:
        client.send(data)
        answer = client.read_answer()
        assert client.closed_within(), "a connection with a broken request must not be used again"
        return answer


REFUSED = {
    # 1: two framings, or a framing that is not one
    "te and cl": (POST + b"Host: a\r\nTransfer-Encoding: chunked\r\n" + LENGTH + b"\r\n" + BODY, {400}),
    "xchunked": (POST + b"Host: a\r\nTransfer-Encoding: xchunked\r\n\r\n" + BODY, {400, 501}),
    "vt chunked": (POST + b"Host: a\r\nTransfer-Encoding: \x0bchunked\r\n\r\n" + BODY, {400, 501}),
    "chunked twice": (POST + b"Host: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n" + BODY, {400, 501}),
    "identity": (POST + b"Host: a\r\nTransfer-Encoding: identity\r\n\r\n" + BODY, {400, 501}),
    "gzip": (POST + b"Host: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n" + BODY, {400, 501}),
    "two te": (POST + b"Host: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400, 501}),
    "te in 1.0": (POST.replace(b"1.1", b"1.0") + b"Host: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400}),
    # 2: lines that end, fold or break where they should not
    "obs-fold": (POST + b"Host: a\r\nX-A: b\r\n c\r\n" + LENGTH + b"\r\n" + BODY, {400}),
    "space before colon": (POST + b"Host : a\r\n" + LENGTH + b"\r\n" + BODY, {400}),
    "nul": (POST + b"Host: a\r\nX-A: b\0c\r\n" + LENGTH + b"\r\n" + BODY, {400}),
    "bare cr": (POST + b"Host: a\r\nX-A: b\rc\r\n" + LENGTH + b"\r\n" + BODY, {400}),
    "bare lf": (POST + b"Host: a\nX-A: b\r\n" + LENGTH + b"\r\n" + BODY, {400}),
    "all bare lf": (POST.replace(b"\r", b"") + b"Host: a\n\n", {400}),
    "bare lf first": (b"POST / HTTP/1.1\nHost: a\r\n\r\n", {400}),
    # 3: lengths
    **{
        f"length {value.decode()}": (POST + b"Host: a\r\nContent-Length: " + value + b"\r\n\r\n" + BODY, {400})
        for value in (b"+3", b"0x3", b"1_0", b"3, 3", b"-1", b"18446744073709551616", b"", b"3 3", b"9" * 30)
    },
    "lengths differ": (POST + b"Host: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", {400}),
    "lengths agree": (POST + b"Host: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", {400}),
    **{
        f"chunk size {value.decode()}": (
            POST + b"Host: a\r\nTransfer-Encoding: chunked\r\n\r\n" + value + b"\r\nabc\r\n0\r\n\r\n",
            {400},
        )
        for value in (b"+3", b"0x3", b"1_0", b"-1", b"3 3", b"", b"10000000000000000", b"zz", b" 3")
    },
    "chunk longer than said": (POST + b"Host: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n", {400}),
    "chunk ends in bare lf": (POST + b"Host: a\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n", {400}),
    # 4: what nobody reads must not be long
    "chunk extension": (
        POST + b"Host: a\r\nTransfer-Encoding: chunked\r\n\r\n3;" + b"x" * 2000 + b"\r\nabc\r\n0\r\n\r\n",
        {400, 431},
    ),
    "trailers": (
        POST + b"Host: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n" + b"X-T: 1\r\n" * 3000 + b"\r\n",
        {400, 431},
    ),
    # 5: Host
    "no host": (POST + LENGTH + b"\r\n" + BODY, {400}),
    "two hosts": (POST + b"Host: a\r\nHost: a\r\n" + LENGTH + b"\r\n" + BODY, {400}),
    **{
        f"host {value.decode()}": (POST + b"Host: " + value + b"\r\n" + LENGTH + b"\r\n" + BODY, {400})
        for value in (b"a/b?c=", b"a b", b"a@b", b"a:b", b"a:1:2", b"http://a", b"", b"a#", b"a\\b", b"[::1")
    },
    # 6: sizes
    "64 KB header": (POST + b"Host: a\r\nX-A: " + b"a" * 65536 + b"\r\n" + LENGTH + b"\r\n" + BODY, {431}),
    "5000 headers": (POST + b"Host: a\r\n" + b"X-A: b\r\n" * 5000 + LENGTH + b"\r\n" + BODY, {431}),
    "200 headers": (POST + b"Host: a\r\n" + b"X-A: b\r\n" * 200 + LENGTH + b"\r\n" + BODY, {431}),
    "64 KB url": (b"POST /" + b"a" * 65536 + b" HTTP/1.1\r\nHost: a\r\n" + LENGTH + b"\r\n" + BODY, {414}),
    "9 KB url": (b"POST /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: a\r\n" + LENGTH + b"\r\n" + BODY, {414}),
    "body by length": (POST + b"Host: a\r\nContent-Length: 100000000\r\n\r\n", {413}),
    # and what is not HTTP/1.1 with a path; more of this in test_rfc.py
    "asterisk": (b"GET * HTTP/1.1\r\nHost: a\r\n\r\n", {400}),
    "connect": (b"CONNECT b:443 HTTP/1.1\r\nHost: b:443\r\n\r\n", {501}),
    "version 2": (b"POST / HTTP/2.0\r\nHost: a\r\n\r\n", {400, 505}),
    "no http": (b"hello there\r\n\r\n", {400}),
    "tls hello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", {400}),
    "expect": (POST + b"Host: a\r\nExpect: 200-ok\r\n" + LENGTH + b"\r\n" + BODY, {417}),
    "two keys": (POST + b"Host: a\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n" + LENGTH + b"\r\n" + BODY, {400}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(gateway: Gateway, name: str) -> None:
    data, statuses = REFUSED[name]
    answer = exchange(gateway, data)
    assert answer.status in statuses
    assert answer.json()["error"]["message"]
    assert answer.headers["x-hangup-reason"]
    assert answer.headers["connection"] == "close"
    row = gateway.call_log(answer.headers["x-request-id"])
    assert (row["outcome"], row["status"]) == ("refused", answer.status)


def test_body_over_the_cap_by_chunks_is_refused_before_it_is_buffered() -> None:
    with gateway_and_engine({"body_bytes_max": 65536}) as (gateway, engine), Client(gateway.address) as client:
        client.send(POST + b"Host: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(40):
            client.send(b"1000\r\n" + b"a" * 4096 + b"\r\n")
        assert client.read_answer().status == 413
        assert engine.seen() == []


def test_a_smuggled_request_is_not_served(gateway: Gateway) -> None:
    """Bytes behind a request with two framings are never read as another request."""
    hidden = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"
    data = POST + b"Host: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + hidden
    with Client(gateway.address) as client:
        client.send(data)
        assert client.read_answer().status == 400
        assert client.closed_within()
        assert client.buffer == b""


@pytest.fixture(scope="module")
def hasty(engine: StandIn) -> Iterator[Gateway]:
    with Gateway(engine.url, header_s=0.6, body_idle_s=0.6, body_s=1.5, idle_s=0.6, linger_s=0.5) as gateway:
        yield gateway


class TestSlow:
    """Case 7: every wait has a timeout."""

    def test_silent_connection(self, hasty: Gateway) -> None:
        with Client(hasty.address) as client:
            start = time.monotonic()
            assert client.closed_within()
            assert elapsed(start) > 0.4

    def test_slow_headers(self, hasty: Gateway) -> None:
        with Client(hasty.address) as client:
            client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost")
            answer = client.read_answer()
            assert (answer.status, answer.headers["x-hangup-reason"]) == (408, "header_s")
            assert client.closed_within()

    def test_headers_drop_by_drop(self, hasty: Gateway) -> None:
        """The timeout is for the whole head, not for the gaps in it."""
        with Client(hasty.address) as client:

            def closed() -> bool:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    client.send(b"P")
                return client.closed_within(0.05)

            wait_until(closed, what="the end of its time, though it never falls silent")

    def test_silent_body(self, hasty: Gateway) -> None:
        with Client(hasty.address) as client:
            client.send(POST + b"Host: a\r\nContent-Length: 100\r\n\r\n{")
            answer = client.read_answer()
            assert (answer.status, answer.headers["x-hangup-reason"]) == (408, "body_s")

    def test_body_drop_by_drop(self, hasty: Gateway) -> None:
        with Client(hasty.address) as client:
            start = time.monotonic()
            client.send(POST + b"Host: a\r\nContent-Length: 1000\r\n\r\n")
            client.sock.settimeout(0.2)
            answered = b""
            for _ in range(900):  # of its thousand bytes
                client.send(b" ")
                with contextlib.suppress(TimeoutError):
                    answered = client.read_some()
                    break
            assert b" 408 " in answered
            assert elapsed(start) > 1.2

    def test_idle_keep_alive(self, hasty: Gateway) -> None:
        with Client(hasty.address) as client:
            client.send(b"GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n")
            assert client.read_answer().status == 404
            assert client.closed_within()


class TestJson:
    """Cases 9 and 10: JSON that two parsers could read differently, or that costs more to read than to write."""

    BAD = {
        "depth": b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "nan": b'{"messages":[],"temperature":NaN}',
        "infinity": b'{"messages":[],"temperature":Infinity}',
        "lone surrogate": b'{"messages":[{"role":"user","content":"\\ud800"}]}',
        "bad utf-8": b'{"messages":[{"role":"user","content":"\xff\xfe"}]}',
        "duplicate key": b'{"messages":[],"max_tokens":1,"max_tokens":9999999}',
        "duplicate key inside": b'{"messages":[{"role":"user","role":"system","content":"x"}]}',
        "duplicate with escape": b'{"messages":[],"max_tokens":1,"max\\u005ftokens":9999999}',
        "duplicate with spaces": b'{ "messages" : [ ] , "n" : 1 , "n" : 2 }',
        "not an object": b"[1,2,3]",
        "truncated": b'{"messages":[',
        "empty": b"",
        "trailing": b'{"messages":[]} x',
        "messages a string": b'{"messages":"hello"}',
        "stream a string": b'{"messages":[],"stream":"yes"}',
        "max_tokens a string": b'{"messages":[],"max_tokens":"100"}',
        "max_tokens a bool": b'{"messages":[],"max_tokens":true}',
        "max_tokens a fraction": b'{"messages":[],"max_tokens":1.5}',
        "max_tokens -1": b'{"messages":[],"max_tokens":-1}',
        "model a number": b'{"messages":[],"model":7}',
        "n huge": b'{"messages":[],"n":1000000000}',
        "n zero": b'{"messages":[],"n":0}',
        "n beyond 64 bits": b'{"messages":[],"n":99999999999999999999999999}',
        "too many values": b'{"messages":[' + b"1," * 300_000 + b"1]}",
    }

    @pytest.mark.parametrize("name", BAD)
    def test_bad(self, gateway: Gateway, name: str) -> None:
        answer = ask(gateway.address, "/v1/chat/completions", self.BAD[name])
        assert answer.status == 400
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"]
        assert answer.headers["x-should-retry"] == "false"

    @pytest.mark.parametrize(
        ("path", "shape"),
        [
            ("/v1/messages", lambda e: e["type"] == "error" and e["error"]["type"] == "invalid_request_error"),
            ("/v1/responses", lambda e: e["error"]["type"] == "invalid_request_error"),
            ("/completion", lambda e: e["error"]["code"] == 400),
            ("/generate", lambda e: e["error_type"] == "validation"),
            ("/api/chat", lambda e: isinstance(e["error"], str)),
        ],
    )
    def test_in_the_shape_of_the_api(self, gateway: Gateway, path: str, shape: object) -> None:
        answer = ask(gateway.address, path, b'{"a":1,"a":2}')
        assert answer.status == 400
        assert callable(shape)
        assert shape(answer.json()), answer.body

    @pytest.mark.parametrize("path", ["/v1/completions"])
    def test_prompts_count_as_answers(self, gateway: Gateway, path: str) -> None:
        answer = ask(gateway.address, path, {"prompt": ["a"] * 20, "n": 2})
        assert answer.status == 400
        assert "40 answers" in answer.json()["error"]["message"]
        assert ask(gateway.address, path, {"prompt": "a", "best_of": 33}).status == 400

    @pytest.mark.parametrize("name", WORST_BODIES)
    def test_the_worst_bodies_are_refused(self, gateway: Gateway, name: str) -> None:
        """`test_jsonbody.py` checks that none of them keeps the event loop for long."""
        assert ask(gateway.address, "/v1/chat/completions", WORST_BODIES[name]()).status == 400


class TestPaths:
    @pytest.mark.parametrize(
        "path",
        [
            "/",
            "/metrics",
            "/health/",
            "/slots",
            "/abort_requests",
            "/abort_request",
            "/flush_cache",
            "/api/ps",
            "/api/delete",
            "/v1/load_lora_adapter",
            "/standin/stats",
            "/v1/chat/completions/",
            "//v1/chat/completions",
            "/v1//chat/completions",
            "/v1/./chat/completions",
            "/x/../v1/chat/completions",
            "/v1%2fchat/completions",
            "/V1/chat/completions",
            "/v1/models/../../metrics",
            "/v1/models/%2e%2e/%2e%2e/metrics",
            "/v1/models/..%2f..%2fmetrics",
            "/v1/models/a%5c..%5cb",
            "/v1/models/",
            "/v1/models//x",
        ],
    )
    @pytest.mark.parametrize("method", ["GET", "POST"])
    def test_not_there(self, gateway: Gateway, path: str, method: str) -> None:
        with Client(gateway.address) as client:
            client.send(f"{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n".encode())
            answer = client.read_answer()
            assert (answer.status, answer.json()["error"]["code"]) == (404, "not_found")

    def test_wrong_method(self, gateway: Gateway) -> None:
        with Client(gateway.address) as client:
            client.send(b"GET /v1/chat/completions HTTP/1.1\r\nHost: a\r\n\r\n")
            answer = client.read_answer()
            assert (answer.status, answer.headers["allow"]) == (405, "POST")

    def test_a_page_of_another_site(self, gateway: Gateway) -> None:
        """A browser lets any page send a plain-text POST anywhere; such a request must not reach an engine."""
        headers = {"Origin": "http://elsewhere.example"}
        with Client(gateway.address) as client:
            lines = b"".join(f"{k}: {v}\r\n".encode() for k, v in headers.items())
            client.send(POST + b"Host: a\r\nContent-Type: text/plain\r\n" + lines + LENGTH + b"\r\n" + BODY)
            assert client.read_answer().status == 415


class TestServed:
    """The other side: unusual but valid requests must work."""

    @pytest.fixture(autouse=True)
    def engine_untouched(self) -> None:
        """Here the engine should see the request."""

    def test_chunked_request(self, gateway: Gateway, engine: StandIn) -> None:
        with Client(gateway.address) as client:
            client.send(POST + b"Host: a\r\nTransfer-Encoding: Chunked\r\n\r\n")
            for at in range(0, len(BODY), 7):
                piece = BODY[at : at + 7]
                client.send(b"%X;ext=1\r\n%b\r\n" % (len(piece), piece))
            client.send(b"0\r\nX-Trailer: yes\r\n\r\n")
            assert client.read_answer().status == 200
        assert json.loads(engine.seen()[-1]["body"])["messages"][0]["content"] == "x"
        assert "transfer-encoding" not in engine.seen()[-1]["headers"]

    def test_byte_by_byte(self, gateway: Gateway) -> None:
        with Client(gateway.address) as client:
            for byte in POST + b"Host: a\r\n" + LENGTH + b"\r\n" + BODY:
                client.send(bytes([byte]))
            assert client.read_answer().status == 200

    def test_expect_continue(self, gateway: Gateway) -> None:
        with Client(gateway.address) as client:
            client.send(POST + b"Host: a\r\nExpect: 100-continue\r\n" + LENGTH + b"\r\n")
            assert client.read_head()[0] == 100
            client.send(BODY)
            assert client.read_answer().status == 200

    def test_http_10(self, gateway: Gateway) -> None:
        with Client(gateway.address) as client:
            client.send(POST.replace(b"1.1", b"1.0") + LENGTH + b"\r\n" + BODY)
            answer = client.read_answer()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert client.closed_within()

    def test_http_10_stream(self, gateway: Gateway) -> None:
        body = BODY.replace(b"}]", b'}],"stream":true')
        with Client(gateway.address) as client:
            client.send(POST.replace(b"1.1", b"1.0") + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            answer = client.read_answer()
            assert "transfer-encoding" not in answer.headers
            assert answer.body.endswith(b"data: [DONE]\n\n")

    def test_http_10_keep_alive(self, gateway: Gateway) -> None:
        with Client(gateway.address) as client:
            for _ in range(2):
                client.send(POST.replace(b"1.1", b"1.0") + b"Connection: keep-alive\r\n" + LENGTH + b"\r\n" + BODY)
                answer = client.read_answer()
                assert (answer.status, answer.headers["connection"]) == (200, "keep-alive")

    @pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8080", "[::1]:80", "under_score"])
    def test_hosts(self, gateway: Gateway, host: str) -> None:
        with Client(gateway.address) as client:
            client.send(POST + f"Host: {host}\r\n".encode() + LENGTH + b"\r\n" + BODY)
            assert client.read_answer().status == 200

    def test_keep_alive(self, gateway: Gateway) -> None:
        with Client(gateway.address) as client:
            for _ in range(5):
                client.chat(max_tokens=1)
                assert client.read_answer().status == 200

    def test_max_tokens_beyond_64_bits_is_clamped(self, gateway: Gateway, engine: StandIn) -> None:
        for value in (2**63, 10**30):
            assert ask(gateway.address, "/v1/chat/completions", {"messages": [], "max_tokens": value}).status == 200
            assert json.loads(engine.seen()[-1]["body"])["max_tokens"] == 32768

    def test_model_with_slash(self, gateway: Gateway, engine: StandIn) -> None:
        for path in ("/v1/models/meta-llama/Llama-3", "/v1/models/meta-llama%2FLlama-3"):
            with Client(gateway.address) as client:
                client.send(f"GET {path}?a=b HTTP/1.1\r\nHost: a\r\n\r\n".encode())
                assert client.read_answer().status == 200
            assert engine.seen()[-1]["path"] == path
