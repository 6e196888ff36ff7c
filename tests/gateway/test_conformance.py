"""The points of two public conformance suites for HTTP/1.1 servers, under their names for them: Http11Probe
(github.com/MDA2AV/Http11Probe, MIT) and h1spec (github.com/uNetworking/h1spec). Requests and verdicts are our own, by RFC 9110
and RFC 9112.

Each request is sent together with a second one behind it. So a request that is served must be followed by exactly one more
answer, and behind one that is refused nothing is read as a request.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator

import pytest

from support.processes import Gateway, StandIn
from support.raw import Client
from support.waiting import wait_until

BODY = b'{"messages":[{"role":"user","content":"x"}],"max_tokens":1}'
SIZE = len(BODY)
NEXT = b"GET /v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
SERVED = (200, 200)  # with the answer to the next request


def get(fields: bytes = b"", line: bytes = b"GET /v1/models HTTP/1.1", host: bytes = b"Host: a\r\n") -> bytes:
    return line + b"\r\n" + host + fields + b"\r\n"


def post(fields: bytes, body: bytes = BODY, version: bytes = b"1.1") -> bytes:
    return b"POST /v1/chat/completions HTTP/%b\r\nHost: a\r\n" % version + fields + b"\r\n" + body


def length(value: bytes, body: bytes = BODY, more: bytes = b"") -> bytes:
    return post(b"Content-Length: " + value + b"\r\n" + more, body)


def coded(value: bytes, body: bytes = b"%x\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY)) -> bytes:
    return post(b"Transfer-Encoding: " + value + b"\r\n", body)


def chunked(body: bytes) -> bytes:
    return coded(b"chunked", body)


def both(coding: bytes, size: bytes = b"5", body: bytes = b"0\r\n\r\n") -> bytes:
    return post(b"Transfer-Encoding: %b\r\nContent-Length: %b\r\n" % (coding, size), body)


def sized(line: bytes) -> bytes:
    """Return a body in one chunk, with this text in place of its size."""
    return chunked(line.replace(b"SIZE", b"%x" % SIZE) + b"\r\n" + BODY + b"\r\n0\r\n\r\n")


def trailer(line: bytes) -> bytes:
    return chunked(b"%x\r\n%b\r\n0\r\n%b\r\n\r\n" % (SIZE, BODY, line))


SOCKET = b"Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: "
EXACT = b"%d" % SIZE

CASES: dict[str, tuple[bytes, tuple[int, ...]]] = {
    # RFC 9112, 2: lines and versions
    "COMP-BASELINE": (get(), SERVED),
    "RFC9112-2.2-BARE-LF-REQUEST-LINE": (get().replace(b"\r\n", b"\n", 1), (400,)),
    "RFC9112-2.2-BARE-LF-HEADER": (get(b"X-Test: a\r\n").replace(b"a\r\nX", b"a\nX"), (400,)),
    "RFC9112-3-CR-ONLY-LINE-ENDING": (get().replace(b"\r\n", b"\r", 1), (400,)),
    "COMP-LEADING-CRLF": (b"\r\n\r\n" + get(), SERVED),
    "COMP-WHITESPACE-BEFORE-HEADERS": (get(host=b" \r\nHost: a\r\n"), (400,)),
    "RFC9112-2.3-INVALID-VERSION": (get(line=b"GET / HTTP/9.9"), (505,)),
    "RFC9112-2.3-HTTP09-REQUEST": (b"GET /\r\n", (400,)),
    "COMP-VERSION-MISSING-MINOR": (get(line=b"GET / HTTP/1"), (400,)),
    "COMP-VERSION-LEADING-ZEROS": (get(line=b"GET / HTTP/01.01"), (400,)),
    "COMP-VERSION-WHITESPACE": (get(line=b"GET / HTTP/ 1.1"), (400,)),
    "COMP-VERSION-CASE": (get(line=b"GET / http/1.1"), (400,)),
    "COMP-HTTP12-VERSION": (get(line=b"GET /v1/models HTTP/1.2"), SERVED),
    # RFC 9112, 3: the request line
    "RFC9112-3-MULTI-SP-REQUEST-LINE": (get(line=b"GET  / HTTP/1.1"), (400,)),
    "RFC9112-3-MISSING-TARGET": (get(line=b"GET HTTP/1.1"), (400,)),
    "RFC9112-3.2-FRAGMENT-IN-TARGET": (get(line=b"GET /v1/models#frag HTTP/1.1"), (400,)),
    "COMP-REQUEST-LINE-TAB": (get(line=b"GET\t/v1/models HTTP/1.1"), (400,)),
    "COMP-SPACE-IN-TARGET": (get(line=b"GET /v1 /models HTTP/1.1"), (400,)),
    "COMP-ASTERISK-WITH-GET": (get(line=b"GET * HTTP/1.1"), (400,)),
    "COMP-OPTIONS-STAR": (get(line=b"OPTIONS * HTTP/1.1"), SERVED),
    "COMP-ABSOLUTE-FORM": (get(line=b"GET http://a/v1/models HTTP/1.1"), SERVED),
    "SMUG-ABSOLUTE-URI-HOST-MISMATCH": (get(line=b"GET http://b/v1/models HTTP/1.1"), SERVED),  # 3.2.2: Host is ignored
    "COMP-METHOD-CASE": (get(line=b"get /v1/models HTTP/1.1"), (501, 200)),
    "COMP-METHOD-CONNECT": (get(line=b"CONNECT b:443 HTTP/1.1"), (501,)),
    "COMP-METHOD-TRACE": (get(line=b"TRACE /v1/models HTTP/1.1"), (405, 200)),
    "COMP-TRACE-WITH-BODY": (get(b"Content-Length: 5\r\n", b"TRACE /v1/models HTTP/1.1") + b"hello", (405,)),
    "COMP-UNKNOWN-METHOD": (get(line=b"FOOBAR /v1/models HTTP/1.1"), (501, 200)),
    "COMP-LONG-URL-OK": (get(line=b"GET /v1/models?a=" + b"x" * 7900 + b" HTTP/1.1"), SERVED),
    "MAL-LONG-URL": (get(line=b"GET /" + b"x" * 100_000 + b" HTTP/1.1"), (414,)),
    "MAL-LONG-METHOD": (get(line=b"A" * 100_000 + b" / HTTP/1.1"), (501,)),
    "a method of 65 letters": (get(line=b"A" * 65 + b" /v1/models HTTP/1.1"), (501,)),
    "MAL-NUL-IN-URL": (get(line=b"GET /\0test HTTP/1.1"), (400,)),
    "MAL-NON-ASCII-URL": (get(line="GET /café HTTP/1.1".encode()), (400,)),
    "MAL-URL-OVERLONG-UTF8": (get(line=b"GET /\xc0\xaf HTTP/1.1"), (400,)),
    "MAL-URL-BACKSLASH": (get(line=rb"GET /v1\models HTTP/1.1"), (404, 200)),
    "MAL-URL-PERCENT-NULL": (get(line=b"GET /v1/models%00.html HTTP/1.1"), (404, 200)),
    "MAL-URL-PERCENT-CRLF": (get(line=b"GET /v1%0d%0aX-Injected:%20true HTTP/1.1"), (404, 200)),
    "MAL-BINARY-GARBAGE": (bytes(range(128, 256)) + b"\r\n\r\n", (400,)),
    "MAL-WHITESPACE-ONLY-LINE": (b"   \r\n\r\n", (400,)),
    "MAL-H2-PREFACE": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (505,)),
    # RFC 9112, 3.2: Host
    "RFC9112-7.1-MISSING-HOST": (get(host=b""), (400,)),
    "RFC9110-5.4-DUPLICATE-HOST": (get(b"Host: b\r\n"), (400,)),
    "COMP-DUPLICATE-HOST-SAME": (get(b"Host: a\r\n"), (400,)),
    "COMP-HOST-WITH-USERINFO": (get(host=b"Host: user@a\r\n"), (400,)),
    "COMP-HOST-WITH-PATH": (get(host=b"Host: a/path\r\n"), (400,)),
    "COMP-HOST-EMPTY-VALUE": (get(host=b"Host: \r\n"), (400,)),
    "SMUG-MULTIPLE-HOST-COMMA": (get(host=b"Host: a, b\r\n"), (400,)),
    "COMP-HTTP10-NO-HOST": (get(line=b"GET /v1/models HTTP/1.0", host=b""), (200,)),
    # RFC 9112, 5 and RFC 9110, 5: fields
    "RFC9112-5.1-OBS-FOLD": (get(b"X-Test: value\r\n continued\r\n"), (400,)),
    "RFC9110-5.6.2-SP-BEFORE-COLON": (get(b"X-Test : value\r\n"), (400,)),
    "RFC9112-5-EMPTY-HEADER-NAME": (get(b": value\r\n"), (400,)),
    "RFC9112-5-INVALID-HEADER-NAME": (get(b"Bad[Name: value\r\n"), (400,)),
    "RFC9112-5-HEADER-NO-COLON": (get(b"NoColonHere\r\n"), (400,)),
    "MAL-CONTROL-CHARS-HEADER": (get(b"X-Test: abc\x07\x08\x0bdef\r\n"), (400,)),
    "MAL-NON-ASCII-HEADER-NAME": (get("X-Tést: value\r\n".encode()), (400,)),
    "MAL-NUL-IN-HEADER-VALUE": (get(b"X-Test: val\0ue\r\n"), (400,)),
    "SMUG-BARE-CR-HEADER-VALUE": (length(EXACT, more=b"X-Test: val\rue\r\n"), (400,)),
    "MAL-LONG-HEADER-VALUE": (get(b"X-Big: " + b"x" * 100_000 + b"\r\n"), (431,)),
    "MAL-LONG-HEADER-NAME": (get(b"X" * 100_000 + b": a\r\n"), (431,)),
    "MAL-MANY-HEADERS": (get(b"".join(b"X-H-%d: value\r\n" % n for n in range(10_000))), (431,)),
    "NORM-TAB-IN-NAME": (length(EXACT, more=b"Content\tLength: 99\r\n"), (400,)),
    "NORM-SP-BEFORE-COLON-CL": (length(EXACT, more=b"Content-Length : 5\r\n"), (400,)),
    "NORM-UNDERSCORE-CL": (length(EXACT, more=b"Content_Length: 99\r\n"), SERVED),
    "NORM-UNDERSCORE-TE": (length(EXACT, more=b"Transfer_Encoding: chunked\r\n"), SERVED),
    "SMUG-TRANSFER_ENCODING": (length(EXACT, more=b"Transfer_Encoding: chunked\r\n"), SERVED),
    "h1spec: empty field, tab before a value": (get(b"empty:\r\n", host=b"hoSt:\ta\r\n"), SERVED),
    "COMP-DUPLICATE-CT": (length(EXACT, more=b"Content-Type: text/plain\r\nContent-Type: text/html\r\n"), (400,)),
    # RFC 9110, 8.6: Content-Length
    "COMP-POST-CL-BODY": (length(EXACT), SERVED),
    "COMP-POST-CL-ZERO": (length(b"0", b""), (400, 200)),  # no JSON, but HTTP
    "COMP-POST-NO-CL-NO-TE": (post(b"", b""), (400, 200)),
    "RFC9112-6.1-CL-NON-NUMERIC": (length(b"abc"), (400,)),
    "RFC9112-6.1-CL-PLUS-SIGN": (length(b"+" + EXACT), (400,)),
    "SMUG-DUPLICATE-CL": (length(b"5", b"helloworld", b"Content-Length: 10\r\n"), (400,)),
    "SMUG-DUPLICATE-CL-SMUGGLED-GET": (length(b"4", b"PING" + NEXT, b"Content-Length: %d\r\n" % (4 + len(NEXT))), (400,)),
    "SMUG-CL-COMMA-DIFFERENT": (length(b"5, 10"), (400,)),
    "SMUG-CL-COMMA-SAME": (length(EXACT + b", " + EXACT), (400,)),
    "SMUG-CL-COMMA-TRIPLE": (length(b", ".join([EXACT] * 3)), (400,)),
    "SMUG-CL-NEGATIVE": (length(b"-1"), (400,)),
    "SMUG-CL-NEGATIVE-ZERO": (length(b"-0", b""), (400,)),
    "SMUG-CL-UNDERSCORE": (length(b"1_0"), (400,)),
    "SMUG-CL-OCTAL": (length(b"0o5"), (400,)),
    "SMUG-CL-HEX-PREFIX": (length(b"0x5"), (400,)),
    "SMUG-CL-INTERNAL-SPACE": (length(b"1 0"), (400,)),
    "SMUG-CL-LEADING-ZEROS": (length(b"00" + EXACT), SERVED),  # decimal by RFC 9110, and the engine gets a length of ours
    "SMUG-CL-LEADING-ZEROS-OCTAL": (length(b"0%d" % SIZE), SERVED),
    "SMUG-CL-DOUBLE-ZERO": (length(b"00", b""), (400, 200)),
    "SMUG-CL-TRAILING-SPACE": (length(EXACT + b" "), SERVED),
    "SMUG-CL-EXTRA-LEADING-SP": (length(b" " + EXACT), SERVED),
    "MAL-CL-TAB-BEFORE-VALUE": (length(b"\t" + EXACT), SERVED),
    "MAL-CL-EMPTY": (length(b""), (400,)),
    "MAL-CL-OVERFLOW": (length(b"99999999999999999999"), (400,)),
    "MAL-POST-CL-HUGE-NO-BODY": (length(b"999999999", b""), (413,)),
    # RFC 9112, 6: Transfer-Encoding
    "COMP-CHUNKED-BODY": (coded(b"chunked"), SERVED),
    "COMP-CHUNKED-MULTI": (chunked(b"5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (BODY[:5], SIZE - 5, BODY[5:])), SERVED),
    "COMP-CHUNKED-EMPTY": (chunked(b"0\r\n\r\n"), (400, 200)),  # no JSON, but HTTP
    "COMP-CHUNKED-HEX-UPPERCASE": (chunked(b"A\r\n%b\r\n%X\r\n%b\r\n0\r\n\r\n" % (BODY[:10], SIZE - 10, BODY[10:])), SERVED),
    "COMP-CHUNKED-EXTENSION": (sized(b"SIZE;ext=value"), SERVED),
    "COMP-CHUNKED-TRAILER-VALID": (trailer(b"X-Checksum: abc"), SERVED),
    "COMP-UNKNOWN-TE-501": (coded(b"gzip", b""), (400,)),  # 6.3: not chunked at the end, so 400 comes first
    "SMUG-TE-CASE-MISMATCH": (coded(b"Chunked"), SERVED),
    "SMUG-TE-TAB-BEFORE-VALUE": (coded(b"\tchunked"), SERVED),
    "SMUG-TE-TRAILING-SPACE": (coded(b"chunked "), SERVED),
    "NORM-CASE-TE": (both(b"chunked").replace(b"Transfer-Encoding", b"TRANSFER-ENCODING"), (400,)),
    "SMUG-CL-TE-BOTH": (both(b"chunked", b"30", b"D\r\nhello-bananas\r\n0\r\n\r\n"), (400,)),
    "SMUG-CLTE-PIPELINE": (both(b"chunked", b"4"), (400,)),
    "SMUG-TECL-PIPELINE": (both(b"chunked", b"30"), (400,)),
    "SMUG-CLTE-CONN-CLOSE": (both(b"chunked"), (400,)),
    "SMUG-CLTE-DESYNC": (both(b"chunked", b"6", b"0\r\n\r\nX"), (400,)),
    "SMUG-TECL-DESYNC": (both(b"chunked", b"30", b"0\r\n\r\nX"), (400,)),
    "SMUG-CLTE-SMUGGLED-GET-CL-PLUS": (both(b"chunked", b"+5"), (400,)),
    "SMUG-CLTE-SMUGGLED-GET-CL-NON-NUMERIC": (both(b"chunked", b"5x"), (400,)),
    "SMUG-CLTE-SMUGGLED-GET-TE-OBS-FOLD": (both(b"\r\n chunked"), (400,)),
    "SMUG-CLTE-SMUGGLED-GET-TE-TRAILING-SPACE": (both(b"chunked "), (400,)),
    "SMUG-CLTE-SMUGGLED-GET-TE-LEADING-COMMA": (both(b", chunked"), (400,)),
    "SMUG-CLTE-SMUGGLED-GET-TE-CASE-MISMATCH": (both(b"Chunked"), (400,)),
    "SMUG-TE-DUPLICATE-HEADERS": (both(b"chunked\r\nTransfer-Encoding: identity"), (400,)),
    "SMUG-TECL-SMUGGLED-GET": (both(b"chunked", b"4", b"%x\r\n%b\r\n0\r\n\r\n" % (len(NEXT), NEXT)), (400,)),
    "SMUG-TE-XCHUNKED": (both(b"xchunked"), (400,)),
    "SMUG-TE-DOUBLE-CHUNKED": (both(b"chunked, chunked"), (400,)),
    "SMUG-TE-NOT-FINAL-CHUNKED": (coded(b"chunked, gzip"), (400,)),
    "SMUG-TE-EMPTY-VALUE": (both(b""), (400,)),
    # RFC 9110, 5.6.1, would have empty elements ignored; but parsers differ about them, and this decides where a body ends.
    "SMUG-TE-LEADING-COMMA": (coded(b", chunked"), (400,)),
    "SMUG-TE-TRAILING-COMMA": (coded(b"chunked,"), (400,)),
    "SMUG-TE-IDENTITY": (both(b"identity"), (400,)),
    "SMUG-TE-VTAB": (coded(b"\x0bchunked"), (400,)),
    "SMUG-TE-FORMFEED": (coded(b"\x0cchunked"), (400,)),
    "SMUG-TE-NULL": (coded(b"chunked\0"), (400,)),
    "SMUG-TE-SP-BEFORE-COLON": (post(b"Transfer-Encoding : chunked\r\n", b"0\r\n\r\n"), (400,)),
    "SMUG-TE-OBS-FOLD": (post(b"Transfer-Encoding:\r\n chunked\r\n", b"0\r\n\r\n"), (400,)),
    "SMUG-CHUNKED-WITH-PARAMS": (coded(b"chunked;ext=val"), (400,)),
    "SMUG-TE-HTTP10": (post(b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n", b"1.0"), (400,)),
    # RFC 9112, 7.1: chunks
    "SMUG-CHUNK-BARE-SEMICOLON": (sized(b"SIZE;"), (400,)),
    "SMUG-CHUNK-EXT-INVALID-TOKEN": (sized(b"SIZE;bad[=x"), (400,)),
    "SMUG-CHUNK-EXT-CTRL": (sized(b"SIZE;\0ext"), (400,)),
    "SMUG-CHUNK-EXT-CR": (sized(b"SIZE;a\rX"), (400,)),
    "SMUG-CHUNK-EXT-LF": (chunked(b"%x;\n%b\r\n0\r\n\r\n" % (SIZE, BODY)), (400,)),
    "MAL-CHUNK-EXT-64K": (sized(b"SIZE;ext=" + b"x" * 65536), (400,)),
    "SMUG-CHUNK-UNDERSCORE": (sized(b"1_0"), (400,)),
    "SMUG-CHUNK-HEX-PREFIX": (sized(b"0xSIZE"), (400,)),
    "SMUG-CHUNK-SIZE-PLUS": (sized(b"+SIZE"), (400,)),
    "SMUG-CHUNK-NEGATIVE": (sized(b"-1"), (400,)),
    "SMUG-CHUNK-LEADING-SP": (sized(b" SIZE"), (400,)),
    "SMUG-CHUNK-SIZE-TRAILING-OWS": (sized(b"SIZE "), (400,)),
    "MAL-CHUNK-SIZE-OVERFLOW": (sized(b"FFFFFFFFFFFFFFFF0"), (400,)),
    "SMUG-CHUNK-MISSING-TRAILING-CRLF": (chunked(b"%x\r\n%b0\r\n\r\n" % (SIZE, BODY)), (400,)),
    "SMUG-CHUNK-SPILL": (chunked(b"%x\r\n%b!!\r\n0\r\n\r\n" % (SIZE, BODY)), (400,)),
    "SMUG-CHUNK-LF-TERM": (chunked(b"%x\r\n%b\n0\r\n\r\n" % (SIZE, BODY)), (400,)),
    "SMUG-CHUNK-LF-TRAILER": (chunked(b"%x\r\n%b\r\n0\r\n\n" % (SIZE, BODY)), (400,)),
    "SMUG-CHUNK-BARE-CR-TERM": (chunked(b"%x\r%b\r\n0\r\n\r\n" % (SIZE, BODY)), (400,)),
    "SMUG-CHUNK-INVALID-SIZE-DESYNC": (chunked(b"+0\r\n\r\nX"), (400,)),
    "SMUG-TRAILER-CL": (trailer(b"Content-Length: 50"), SERVED),
    "SMUG-TRAILER-TE": (trailer(b"Transfer-Encoding: chunked"), SERVED),
    "SMUG-TRAILER-HOST": (trailer(b"Host: evil.example"), SERVED),
    "SMUG-TRAILER-AUTH": (trailer(b"Authorization: Bearer evil"), SERVED),
    "SMUG-TRAILER-CONTENT-TYPE": (trailer(b"Content-Type: text/evil"), SERVED),
    # Bodies where none is expected, and bytes behind a body
    "COMP-GET-WITH-CL-BODY": (get(b"Content-Length: 5\r\n") + b"hello", SERVED),
    "SMUG-GET-CL-PREFIX-DESYNC": (get(b"Content-Length: 31\r\n") + b"GET /v1/nowhere HTTP/1.1\r\nHost:", SERVED),
    "SMUG-HEAD-CL-BODY": (get(b"Content-Length: 5\r\n", b"HEAD /v1/models HTTP/1.1") + b"hello", SERVED),
    "SMUG-OPTIONS-CL-BODY": (get(b"Content-Length: 5\r\n", b"OPTIONS * HTTP/1.1") + b"hello", SERVED),
    "SMUG-OPTIONS-TE-OBS-FOLD": (get(b"Transfer-Encoding:\r\n chunked\r\n", b"OPTIONS * HTTP/1.1"), (400,)),
    "SMUG-CL0-BODY-POISON": (length(b"0", b"X"), (400, 501)),  # "XGET" is no method that we know
    "SMUG-PIPELINE-SAFE": (get() + get(), (200, 200, 200)),
    # RFC 9110: expectations, ranges, protocols, connections
    "COMP-EXPECT-UNKNOWN": (get(b"Expect: 200-ok\r\n"), (417,)),
    "SMUG-EXPECT-100-CL": (length(EXACT, more=b"Expect: 100-continue\r\n"), SERVED),
    "COMP-NO-1XX-HTTP10": (post(b"Content-Length: %b\r\nExpect: 100-continue\r\n" % EXACT, version=b"1.0"), (200,)),
    "COMP-RANGE-POST": (length(EXACT, more=b"Range: bytes=0-10\r\n"), SERVED),
    "COMP-RANGE-INVALID": (get(b"Range: bytes=abc-xyz\r\n"), SERVED),
    "MAL-RANGE-OVERLAPPING": (get(b"Range: bytes=" + b"0-9," * 100 + b"0-9\r\n"), SERVED),
    "COMP-ACCEPT-NONSENSE": (get(b"Accept: application/x-nonsense\r\n"), SERVED),
    "COMP-UPGRADE-POST": (length(EXACT, more=b"Connection: Upgrade\r\n" + SOCKET + b"13\r\n"), SERVED),
    "COMP-UPGRADE-MISSING-CONN": (get(SOCKET + b"13\r\n"), SERVED),
    "COMP-UPGRADE-UNKNOWN": (get(b"Connection: Upgrade\r\nUpgrade: made-up/1.0\r\n"), SERVED),
    "COMP-UPGRADE-HTTP10": (get(b"Connection: Upgrade\r\n" + SOCKET + b"13\r\n", b"GET /v1/models HTTP/1.0"), (200,)),
    "COMP-CONNECTION-CLOSE": (get(b"Connection: close\r\n"), (200,)),
    "COMP-HTTP10-DEFAULT-CLOSE": (get(line=b"GET /v1/models HTTP/1.0"), (200,)),
}
# COMP-HEAD-NO-BODY, COMP-405-ALLOW, COMP-DATE-HEADER, COMP-DATE-FORMAT and COMP-NO-CL-IN-204 are in test_rfc.py.


@pytest.fixture(scope="module")
def gateway(engine: StandIn) -> Iterator[Gateway]:
    with Gateway(engine.url) as process:
        yield process


def statuses(gateway: Gateway, data: bytes) -> tuple[int, ...]:
    """Send this request and the next one; return the status of each answer, without 100, until the connection closes."""
    with Client(gateway.address) as client:
        received = b""
        with contextlib.suppress(ConnectionError):  # it may be refused before all of it was read
            client.send(data + NEXT)
        with contextlib.suppress(ConnectionError):
            while more := client.sock.recv(65536):
                received += more
    found = re.findall(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n", received)
    return tuple(int(status) for status in found if status != b"100")


@pytest.mark.parametrize("name", CASES)
def test_a_request_and_the_one_behind_it(gateway: Gateway, name: str) -> None:
    sent, expected = CASES[name]
    assert statuses(gateway, sent) == expected


@pytest.mark.parametrize(
    "sent",
    {
        "COMP-POST-CL-UNDERSEND": length(b"100"),
        "COMP-CHUNKED-NO-FINAL": chunked(b"%x\r\n%b\r\n" % (SIZE, BODY)),
        "MAL-INCOMPLETE-REQUEST": get()[:-2],
        "MAL-EMPTY-REQUEST": b"",
        "h1spec: a part of a request line": b"GET /v1",
    }.values(),
)
def test_an_incomplete_request_is_not_served(gateway: Gateway, engine: StandIn, sent: bytes) -> None:
    """RFC 9112, 8: the connection is closed, and no engine sees any part of the request."""
    before = len(engine.seen())
    with Client(gateway.address) as client:
        client.send(sent)
        client.sock.shutdown(socket.SHUT_WR)
        received = b""
        while more := client.sock.recv(65536):
            received += more
        assert not received.startswith(b"HTTP/1.1 2")
    wait_until(lambda: gateway.metrics()["hangup_connections"] == 0)
    assert len(engine.seen()) == before


def test_names_that_some_engines_read_as_framing_do_not_reach_them(gateway: Gateway, engine: StandIn) -> None:
    """NORM-UNDERSCORE: CGI and WSGI do not distinguish underscores from hyphens."""
    odd = b"Content_Length: 99\r\nTransfer_Encoding: chunked\r\nX_Request-Id: other\r\nX-My_Own: kept\r\n"
    assert statuses(gateway, length(EXACT, more=odd)) == SERVED
    (seen,) = [row["headers"] for row in engine.seen() if "x-my_own" in row["headers"]]
    assert [name for name in seen if "_" in name] == ["x-my_own"]


def test_a_name_with_an_underscore_that_connection_lists_does_not_reach_engines(gateway: Gateway, engine: StandIn) -> None:
    odd = b"Connection: x_hop, x-hop2\r\nX_Hop: 1\r\nX-Hop2: 1\r\nX-Marked_So: kept\r\n"
    assert statuses(gateway, length(EXACT, more=odd)) == SERVED
    (seen,) = [row["headers"] for row in engine.seen() if "x-marked_so" in row["headers"]]
    assert not {"x_hop", "x-hop", "x-hop2"} & set(seen)
