"""HTTP from clients, to the letter of RFC 9110 and 9112: a table of requests and what the RFCs demand for each."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from support.processes import Gateway, StandIn
from support.raw import Client
from support.raw_engine import answer, raw_engine

BODY = b'{"messages":[{"role":"user","content":"x"}],"max_tokens":1}'
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHAT = b"/v1/chat/completions"
HOST = b"Host: a\r\n"
END = b"\r\n"


def post(target: bytes = CHAT, version: bytes = b"1.1", fields: bytes = HOST + LENGTH, body: bytes = BODY) -> bytes:
    return b"POST %b HTTP/%b\r\n" % (target, version) + fields + END + body


def get(line: bytes, fields: bytes = HOST) -> bytes:
    return line + END + fields + END


@dataclass
class Case:
    sent: bytes
    status: int
    kept: bool | None = True  # whether the connection can be used again; None: either
    headers: dict[str, str] = field(default_factory=dict)


CASES: dict[str, Case] = {
    # RFC 9112, 3: the request line
    "a path": Case(post(), 200),
    "absolute form": Case(post(b"http://other:8080" + CHAT), 200),
    "absolute form, https, any case": Case(post(b"HTTPS://other" + CHAT), 200),
    "absolute form without a path": Case(get(b"GET http://other HTTP/1.1"), 404),
    "absolute form with a query alone": Case(get(b"GET http://other?a=b HTTP/1.1"), 404),
    "absolute form, bad authority": Case(get(b"GET http://a@b/v1/models HTTP/1.1"), 400, False),
    "absolute form, no authority": Case(get(b"GET http:///v1/models HTTP/1.1"), 400, False),
    "absolute form, other scheme": Case(get(b"GET ftp://b/v1/models HTTP/1.1"), 400, False),
    "options asterisk": Case(get(b"OPTIONS * HTTP/1.1"), 200, headers={"content-length": "0"}),
    "options absolute without a path": Case(get(b"OPTIONS http://a HTTP/1.1"), 200),
    "get asterisk": Case(get(b"GET * HTTP/1.1"), 400, False),
    "fragment": Case(get(b"GET /v1/models#x HTTP/1.1"), 400, False),
    "connect": Case(get(b"CONNECT b:443 HTTP/1.1", b"Host: b:443\r\n"), 501, False),
    "two blanks": Case(get(b"GET  /v1/models HTTP/1.1"), 400, False),
    "no version": Case(get(b"GET /v1/models"), 400, False),
    "version in small letters": Case(get(b"GET /v1/models http/1.1"), 400, False),
    "trailing blank": Case(get(b"GET /v1/models HTTP/1.1 "), 400, False),
    "tab": Case(get(b"GET\t/v1/models HTTP/1.1"), 400, False),
    "method that is no token": Case(get(b"G(T /v1/models HTTP/1.1"), 400, False),
    "http 1.2 is read as 1.1": Case(post(version=b"1.2"), 200),
    "http 2.0": Case(get(b"GET / HTTP/2.0"), 505, False),
    "http 0.9": Case(get(b"GET / HTTP/0.9"), 505, False),
    "empty lines before": Case(b"\r\n\r\n" + post(), 200),
    "bare lf before": Case(b"\n" + post(), 400, False),
    # RFC 9110, 9: methods
    "unknown method": Case(get(b"BREW /v1/models HTTP/1.1"), 501),
    "unknown method, unknown path": Case(get(b"BREW /nowhere HTTP/1.1"), 501),
    "methods are told apart by case": Case(get(b"get /v1/models HTTP/1.1"), 501),
    "method of another path": Case(get(b"PUT /v1/models HTTP/1.1"), 405, headers={"allow": "GET, HEAD"}),
    "trace": Case(get(b"TRACE /v1/models HTTP/1.1"), 405),
    "options of a path": Case(get(b"OPTIONS /v1/models HTTP/1.1"), 405),
    "delete": Case(get(b"DELETE /v1/chat/completions HTTP/1.1"), 405, headers={"allow": "POST"}),
    # RFC 9110, 5.5 and 5.6.3: optional white space
    "blanks around a length": Case(post(fields=HOST + b"Content-Length: \t %d \t\r\n" % len(BODY)), 200),
    "blanks around a host": Case(post(fields=b"Host:\ta \t\r\n" + LENGTH), 200),
    "no blank at all": Case(post(fields=b"Host:a\r\n" + LENGTH.replace(b" ", b"")), 200),
    "empty port": Case(post(fields=b"Host: a:\r\n" + LENGTH), 200),
    "blank before the colon": Case(post(fields=b"Host : a\r\n" + LENGTH), 400, False),
    # RFC 9110, 7.6.1: Connection
    "close in the first of two": Case(post(fields=HOST + LENGTH + b"Connection: close\r\nConnection: x-a\r\n"), 200, False),
    "close among others": Case(post(fields=HOST + LENGTH + b"Connection: x-a ,\tClose\r\n"), 200, False),
    "an option that only looks like close": Case(post(fields=HOST + LENGTH + b"Connection: closed\r\n"), 200),
    # RFC 9112, 9.3 and RFC 9110, 10.1.1: HTTP/1.0
    "1.0": Case(post(version=b"1.0"), 200, False),
    "1.0 without a host": Case(post(version=b"1.0", fields=LENGTH), 200, False),
    "1.0 keep-alive": Case(post(version=b"1.0", fields=LENGTH + b"Connection: keep-alive\r\n"), 200),
    "1.0 expects nothing": Case(post(version=b"1.0", fields=LENGTH + b"Expect: 100-continue\r\n"), 200, False),
    "1.0 expects nonsense": Case(post(version=b"1.0", fields=LENGTH + b"Expect: a-pony\r\n"), 200, False),
    "1.0 with a transfer coding": Case(post(version=b"1.0", fields=b"Transfer-Encoding: chunked\r\n", body=b""), 400, False),
    "expectation with blanks": Case(post(fields=HOST + LENGTH + b"Expect: 100-Continue \r\n"), 200),
    "another expectation": Case(post(fields=HOST + LENGTH + b"Expect: a-pony\r\n"), 417, False),
    # RFC 9112, 6 and 7: bodies
    "unknown coding before chunked": Case(post(fields=HOST + b"Transfer-Encoding: gzip, chunked\r\n", body=b""), 501, False),
    "the same on two lines": Case(
        post(fields=HOST + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", body=b""), 501, False
    ),
    "identity before chunked": Case(
        post(fields=HOST + b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n", body=b""), 501, False
    ),
    "chunked is not last": Case(post(fields=HOST + b"Transfer-Encoding: chunked, gzip\r\n", body=b""), 400, False),
    "chunked is not there": Case(post(fields=HOST + b"Transfer-Encoding: gzip\r\n", body=b""), 400, False),
    "chunked twice": Case(post(fields=HOST + b"Transfer-Encoding: chunked, chunked\r\n", body=b""), 400, False),
    "chunked twice on two lines": Case(
        post(fields=HOST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", body=b"0\r\n\r\n"), 400, False
    ),
    "an empty element": Case(post(fields=HOST + b"Transfer-Encoding: , chunked\r\n", body=b""), 400, False),
    "chunked in any case": Case(
        post(fields=HOST + b"Transfer-Encoding: ChunKed\r\n", body=b"%X\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)), 200
    ),
    "zeros before a size": Case(
        post(fields=HOST + b"Transfer-Encoding: chunked\r\n", body=b"000%x\r\n%b\r\n00\r\n\r\n" % (len(BODY), BODY)), 200
    ),
    "extensions": Case(
        post(
            fields=HOST + b"Transfer-Encoding: chunked\r\n",
            body=b'%x;a;b=c;d="e f"\r\n%b\r\n0;last\r\n\r\n' % (len(BODY), BODY),
        ),
        200,
    ),
    "trailers": Case(
        post(
            fields=HOST + b"Transfer-Encoding: chunked\r\nTrailer: x-t\r\n",
            body=b"%x\r\n%b\r\n0\r\nx-t: 1\r\nContent-Length: 5\r\n\r\n" % (len(BODY), BODY),
        ),
        200,
    ),
    "upgrade is ignored": Case(post(fields=HOST + LENGTH + b"Connection: upgrade\r\nUpgrade: h2c\r\n"), 200),
}


@pytest.mark.parametrize("name", CASES)
def test_by_the_letter(gateway: Gateway, name: str) -> None:
    case = CASES[name]
    with Client(gateway.address) as client:
        client.send(case.sent)
        got = client.read_answer()
        assert (got.status, got.complete) == (case.status, True), got
        assert case.headers.items() <= got.headers.items()
        if case.status == 405:
            assert got.headers["allow"]
        if case.kept:
            assert got.headers.get("connection", "keep-alive") == "keep-alive"
            client.send(get(b"GET /nowhere HTTP/1.1"))
            assert client.read_answer().status == 404, "the connection is in step"
        elif case.kept is False:
            assert client.closed_within()


def test_the_target_has_the_last_word_about_the_host() -> None:
    """RFC 9112, 3.2.2: an absolute target overrides Host."""
    with StandIn() as engine, Gateway(engine.url) as gateway, Client(gateway.address) as client:
        client.send(get(b"GET http://evil.example/v1/models HTTP/1.1"))
        assert client.read_answer().headers["x-hangup-reason"] == "bad_host"
        client.send(get(b"GET http://localhost/v1/models HTTP/1.1", b"Host: evil.example\r\n"))
        assert client.read_answer().status == 200


def test_no_100_for_http_1_0(gateway: Gateway) -> None:
    with Client(gateway.address) as client:
        client.send(post(version=b"1.0", fields=LENGTH + b"Expect: 100-continue\r\n", body=b""))
        client.sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.read_some()
        client.sock.settimeout(10)
        client.send(BODY)
        assert client.read_head()[0] == 200


HEADS = {
    "no such path": b"/nowhere",
    "wrong method": b"/v1/chat/completions",
    "an engine's": b"/v1/models",
    "our own": b"/v1/jobs",
    "our own, refused": b"/v1/jobs/job_nothing",
    "a list": b"/v1/files",
}


class TestHead:
    """RFC 9110, 9.3.2: HEAD never has a body, whatever its headers say."""

    @pytest.mark.parametrize("name", HEADS)
    def test_no_body(self, gateway: Gateway, name: str) -> None:
        for version, kept in ((b"1.1", True), (b"1.0", False)):
            sock = socket.create_connection(gateway.address, timeout=60)
            with sock:
                sock.sendall(b"HEAD %b HTTP/%b\r\nHost: a\r\n\r\n" % (HEADS[name], version))
                if kept:
                    sock.sendall(b"GET /nowhere HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                data = b""
                while more := sock.recv(65536):
                    data += more
            head, _, rest = data.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 ")
            if kept:
                assert rest.startswith(b"HTTP/1.1 404 "), rest
                assert rest.partition(b"\r\n\r\n")[2].startswith(b"{")
            else:
                assert rest == b""

    def test_says_what_get_would(self, gateway: Gateway) -> None:
        seen: list[dict[str, str]] = []
        for method in ("GET", "HEAD"):
            with Client(gateway.address) as client:
                client.send(f"{method} /v1/jobs HTTP/1.1\r\nHost: a\r\n\r\n".encode())
                status, headers = client.read_head()
                assert status == 200
                seen.append({n: v for n, v in headers.items() if n in ("content-type", "content-length")})
        assert seen[0] == seen[1]

    def test_an_unreadable_request(self, gateway: Gateway) -> None:
        """The method of an unreadable request is unknown, so the answer has a body, and the connection closes."""
        with Client(gateway.address) as client:
            client.send(b"HEAD /v1/models HTTP/1.1\r\nHost: a b\r\n\r\n")
            assert client.read_answer().json()["error"]["message"]
            assert client.closed_within()

    def test_an_engine_that_tells_a_length(self) -> None:
        """For HEAD, the engine sends a length and no body, so hangup does not wait for a body."""
        head = b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\netag: x\r\n\r\n"
        with raw_engine(answer(head)) as engine:
            config = f'[[backend]]\nurl = "{engine.url}"\n[[route]]\npath = "/file"\nmethods = ["HEAD", "GET"]\n'
            with Gateway(config=config) as gateway, Client(gateway.address) as client:
                for _ in range(2):
                    client.send(b"HEAD /file HTTP/1.1\r\nHost: a\r\n\r\n")
                    status, headers = client.read_head()
                    assert (status, headers["content-length"], headers["etag"]) == (200, "1000", "x")
                client.send(get(b"GET /nowhere HTTP/1.1"))
                assert client.read_answer().status == 404


@pytest.fixture(scope="module")
def relayed() -> Iterator[tuple[dict[str, str], bytes]]:
    body = json.dumps({"object": "list", "data": []}).encode()
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Length: %d \r\nConnection: x-private\r\nConnection: keep-alive, X-Other\r\n"
        b"X-Private: 1\r\nX-Other: 2\r\nX-Request-Id: a\r\nX-Request-Id: b\r\n"
        b"X-Hangup-Reason: queue_full\r\nX-Kept: yes\r\n\r\n"
    ) % len(body)
    with raw_engine(answer(head + body)) as engine, Gateway(engine.url) as gateway, Client(gateway.address) as client:
        fields = b"Host: a\r\nConnection: x-mine\r\nConnection: keep-alive\r\nX-Mine: 1\r\nX-Yours: 2\r\n"
        client.send(get(b"GET /v1/models HTTP/1.1", fields))
        got = client.read_answer()
        assert got.status == 200
        yield got.headers, engine.requests[0]


class TestEngineHeaders:
    """Hop-by-hop headers between the engine and the gateway do not reach the client."""

    def test_answer(self, relayed: tuple[dict[str, str], bytes]) -> None:
        headers = relayed[0]
        assert headers["x-kept"] == "yes"
        assert not {"x-private", "x-other", "x-hangup-reason"} & headers.keys()

    def test_request(self, relayed: tuple[dict[str, str], bytes]) -> None:
        assert b"x-yours: 2" in relayed[1]
        assert b"x-mine" not in relayed[1]

    def test_204_has_no_length(self) -> None:
        with raw_engine(answer(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n")) as engine:
            config = f'[[backend]]\nurl = "{engine.url}"\n[[route]]\npath = "/thing"\nmethods = ["DELETE"]\n'
            with Gateway(config=config) as gateway, Client(gateway.address) as client:
                client.send(get(b"DELETE /thing HTTP/1.1"))
                status, headers = client.read_head()
                assert status == 204
                assert "content-length" not in headers
                assert "transfer-encoding" not in headers


def rebound(gateway: Gateway, host: str, path: str = "/v1/models") -> Any:
    with Client(gateway.address) as client:
        client.send(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        return client.read_answer()


class TestRebinding:
    """A web site that points its name at this machine gets nothing."""

    @pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example."])
    def test_refused(self, gateway: Gateway, host: str) -> None:
        got = rebound(gateway, host)
        assert (got.status, got.headers["x-hangup-reason"]) == (421, "bad_host")
        assert "allowed_hosts" in got.json()["error"]["message"]

    @pytest.mark.parametrize("path", ["/v1/jobs", "/v1/files", "/v1/batches"])
    def test_nor_what_is_stored_here(self, gateway: Gateway, path: str) -> None:
        assert rebound(gateway, "localhost", path).status == 200
        assert rebound(gateway, "evil.example", path).status == 421

    def test_nor_an_answer_to_a_page_of_the_same_name(self, gateway: Gateway, engine: StandIn) -> None:
        """To the browser it is that page's own server, so Origin and Host agree."""
        before = len(engine.seen())
        with Client(gateway.address) as client:
            fields = b"Host: evil.example\r\nOrigin: http://evil.example\r\nContent-Type: application/json\r\n"
            client.send(post(fields=fields + LENGTH))
            assert client.read_answer().status == 421
        assert len(engine.seen()) == before

    @pytest.mark.parametrize(
        "host",
        ["localhost", "127.0.0.1:8080", "[::1]:1", "10.1.2.3", "vllm", "app.localhost", "gw.internal", socket.gethostname()],
    )
    def test_served(self, gateway: Gateway, host: str) -> None:
        assert rebound(gateway, host).status == 200

    def test_configured(self, engine: StandIn) -> None:
        with Gateway(engine.url, allowed_hosts="llm.example.com, other.example") as gateway:
            assert rebound(gateway, "LLM.example.com:443").status == 200
            assert rebound(gateway, "evil.example").status == 421
        with Gateway(engine.url, allowed_hosts="*") as gateway:
            assert rebound(gateway, "evil.example").status == 200

    def test_any_where_others_must_reach_it(self, engine: StandIn) -> None:
        with Gateway(engine.url, host="0.0.0.0") as gateway:
            assert rebound(gateway, "llm.example.com").status == 200


class TestEncodedPaths:
    """RFC 3986, 2.3: an encoded letter equals that letter, so encoding bypasses no rule."""

    def test_the_same_route(self, gateway: Gateway, engine: StandIn) -> None:
        with Client(gateway.address) as client:
            client.send(post(b"/v1/%63hat/complet%69ons", body=BODY.replace(b'_tokens":1', b'_tokens":9')))
            assert client.read_answer().status == 200
        seen = engine.seen()[-1]
        assert seen["path"] == "/v1/chat/completions"
        assert json.loads(seen["body"])["max_tokens"] == 9

    def test_no_way_past_the_guards(self, engine: StandIn) -> None:
        config = f'[[backend]]\nurl = "{engine.url}"\n[[route]]\npath = "/v1/*"\n'
        with Gateway(config=config) as gateway, Client(gateway.address) as client:
            body = b'{"messages":[],"n":1000000}'
            client.send(post(b"/v1/%63hat/completions", fields=HOST + b"Content-Length: %d\r\n" % len(body), body=body))
            got = client.read_answer()
            assert (got.status, got.headers["x-hangup-reason"]) == (400, "bad_field")

    @pytest.mark.parametrize("path", [b"/v1/chat%2Fcompletions", b"/v1/chat%2fcompletions", b"/v1/files%2F1"])
    def test_no_way_past_the_guards_by_a_slash(self, engine: StandIn, path: bytes) -> None:
        """Engines that decode the path would read it as another one; if both are the same route, it is harmless."""
        config = f'[[backend]]\nurl = "{engine.url}"\n[[route]]\npath = "/v1/*"\n'

        def status(line: bytes) -> int:
            with Client(gateway.address) as client:
                client.send(post(line, fields=HOST + b"Content-Length: 2\r\n", body=b"{}"))
                return client.read_answer().status

        with Gateway(config=config) as gateway:
            before = len(engine.seen())
            assert status(path) == 404
            assert len(engine.seen()) == before
            status(b"/v1/some%2Fthing")
            assert engine.seen()[-1]["path"] == "/v1/some%2Fthing"

    @pytest.mark.parametrize("path", [b"/v1/models/%2e%2e/x", b"/v1/models/a%2f%2e%2e%2fb", b"/v1/%2e%2e/metrics"])
    def test_dots(self, gateway: Gateway, path: bytes) -> None:
        with Client(gateway.address) as client:
            client.send(get(b"GET %b HTTP/1.1" % path))
            assert client.read_answer().status == 404


def test_no_control_bytes_in_a_header_of_ours(gateway: Gateway) -> None:
    """A file's name is chosen by its uploader."""
    name = b"a\x00\x1b[2J\\\xc3\xa9b"
    parts = b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    parts += b'--b\r\ncontent-disposition: form-data; name="file"; filename="' + name + b'"\r\n\r\n{}\r\n--b--\r\n'
    with Client(gateway.address) as client:
        fields = HOST + b"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: %d\r\n" % len(parts)
        client.send(post(b"/v1/files", fields=fields, body=parts))
        got = client.read_answer()
        assert got.status == 200, got
        client.send(get(f"GET /v1/files/{got.json()['id']}/content HTTP/1.1".encode()))
        shown = client.read_answer().headers["content-disposition"]
        assert shown.startswith('attachment; filename="a_')
        assert all(" " <= character <= "~" for character in shown)
        assert shown.count('"') == 2


class TestDate:
    """RFC 9110, 6.6.1: every answer has a date, the engine's own if it sent one."""

    def seconds_off(self, value: str) -> float:
        return abs(parsedate_to_datetime(value).timestamp() - time.time())

    @pytest.mark.parametrize("path", [b"/nowhere", b"/v1/jobs", b"/v1/models", b"/v1/chat/completions"])
    def test_of_ours(self, gateway: Gateway, path: bytes) -> None:
        with Client(gateway.address) as client:
            client.send(post() if b"chat" in path else get(b"GET %b HTTP/1.1" % path))
            head = client.read_until(b"\r\n\r\n").decode().lower()
            dates = [line.partition(":")[2].strip() for line in head.split("\r\n") if line.startswith("date:")]
            assert len(dates) == 1
            assert self.seconds_off(dates[0]) < 60

    def test_of_the_engines(self) -> None:
        said = b"HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\ncontent-length: 2\r\n\r\n{}"
        with raw_engine(answer(said)) as engine, Gateway(engine.url) as gateway, Client(gateway.address) as client:
            client.send(get(b"GET /v1/models HTTP/1.1"))
            assert client.read_answer().headers["date"] == "Sun, 06 Nov 1994 08:49:37 GMT"
