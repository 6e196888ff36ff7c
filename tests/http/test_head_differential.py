"""Heads compared with two other parsers, h11 and llhttp: no parser may read a head that we accept differently."""

from __future__ import annotations

from typing import Any

import h11
import httptools
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hangup.errors import WireError
from hangup.gateway.http.body import Chunked
from hangup.gateway.http.head import RequestHead


def mostly(good: list[bytes], odd: list[bytes]) -> st.SearchStrategy[bytes]:
    """Make one in ten odd: with more, hardly any head would be valid, and there would be nothing to compare."""
    return st.integers(0, 9).flatmap(lambda chance: st.sampled_from(odd if chance == 9 else good))


ODD = st.sampled_from([*b" ,\t,\r,\n,\0,\x0b,\x7f,\xff,:,;,1,chunked".split(b","), b"", b","])
METHODS = mostly([b"GET", b"POST", b"HEAD", b"OPTIONS", b"DELETE"], [b"BREW", b"get", b"G T", b"", b"CONNECT", b"P\x00ST"])
TARGETS = mostly(
    [b"/", b"/v1/models?a=b", b"http://a/b", b"http://a", b"//x", b"/%2e%2e"], [b"*", b"a:1", b"/ x", b"", b"/\xff", b"/a#b"]
)
VERSIONS = mostly(
    [b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0"],
    [b"HTTP/1.2", b"HTTP/2.0", b"http/1.1", b"HTTP/1.1 ", b"HTTP/11", b"RTSP/1.0", b""],
)
HOSTS = mostly([b"Host: a", b"Host:  b:80 ", b"host:c\t"], [b"", b"Host: a\r\nHost: a", b"Host:", b"Host: a b"])
FRAMINGS = mostly(
    [b"Content-Length: 5", b"content-length:5 ", b"Content-Length: 05", b"Transfer-Encoding: chunked", b"X-A: b"],
    [
        b"Content-Length: 5, 5",
        b"Content-Length: +5",
        b"Content-Length:",
        b"Content-Length: 5\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding:\tchunked",
        b"Transfer-Encoding: chunked\t",
        b"Transfer-Encoding: chunked,",
        b"Transfer-Encoding : chunked",
        b"Transfer-Encoding",
    ],
)
FIELDS = mostly(
    [b"Connection: close", b"Connection: keep-alive, x-a", b"X-A: b", b"X-A:", b"X-B:  c, d\t", b"Accept: */*"],
    [b" folded", b"\tfolded", b"X-\xe9: a", b"X: \xe9", b": nameless", b"X Y: z"],
)
LINE_ENDS = st.integers(0, 49).map(lambda chance: {0: b"\n", 1: b"\r", 2: b"\r\r\n"}.get(chance, b"\r\n"))


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    line = draw(METHODS) + b" " + draw(TARGETS) + b" " + draw(VERSIONS)
    lines = [line, *draw(st.permutations([draw(HOSTS), draw(FRAMINGS), *draw(st.lists(FIELDS, max_size=3))]))]
    data = b"".join(part + draw(LINE_ENDS) for part in lines if part)
    if draw(st.integers(0, 4)) == 0:
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(ODD) + data[at + draw(st.integers(0, 1)) :]
    data += b"\r\n"
    end = data.find(b"\r\n\r\n")
    assume(end >= 0)
    return data[: end + 4]


KNOWN = ("GET", "POST", "HEAD", "OPTIONS", "DELETE")


def ours(head: bytes) -> RequestHead | None:
    try:
        return RequestHead(head, count_max=100, url_bytes_max=1000)
    except WireError:
        return None


class _Llhttp:
    def __init__(self, head: bytes) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.target = b""
        parser = httptools.HttpRequestParser(self)
        parser.feed_data(head)
        self.method = parser.get_method().decode()

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value.strip(b" \t")))


@settings(max_examples=1500, deadline=None)
@given(heads())
def test_llhttp_reads_the_same(head: bytes) -> None:
    read = ours(head)
    if read is None or read.method not in KNOWN or (b"HTTP/1.0" not in head and b"HTTP/1.1" not in head):
        return  # what llhttp does not know; the rest of its rules hold for us as well
    other = _Llhttp(head)
    assert (read.method, read.target, read.headers) == (other.method, other.target, other.headers)


@settings(max_examples=1500, deadline=None)
@given(heads(), st.sampled_from([b"hello", b"5\r\nhello\r\n0\r\n\r\n"]))
def test_h11_reads_the_same(head: bytes, body: bytes) -> None:
    read = ours(head)
    if read is None or (b"HTTP/1.0" not in head and b"HTTP/1.1" not in head):
        return
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(head + body)
    try:
        event: Any = connection.next_event()
    except h11.RemoteProtocolError as error:
        # It knows no list of connections' options that it cannot parse, and is stricter in this alone.
        pytest.fail(f"h11 refuses {head!r}: {error}")
    assert (event.method.decode(), event.target) == (read.method, read.target)
    assert [(bytes(name), bytes(value)) for name, value in event.headers] == read.headers
    assert _h11_body(connection) == _our_body(read, body)


def _h11_body(connection: h11.Connection) -> bytes | None:
    """Return the body; None while it is incomplete."""
    data = b""
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Data):
            data += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            return data
        else:
            return None


def _our_body(head: RequestHead, body: bytes) -> bytes | None:
    if head.chunked:
        decoder = Chunked()
        try:
            data = decoder.feed(body)
        except WireError:
            return None
        return data if decoder.done else None
    length = head.content_length or 0
    return body[:length] if len(body) >= length else None


def test_the_grammar_is_not_all_refused() -> None:
    """The comparison would be worthless if hardly any head were valid."""
    accepted = [0]

    @settings(max_examples=500, deadline=None, database=None, derandomize=True)
    @given(heads())
    def count(head: bytes) -> None:
        accepted[0] += ours(head) is not None

    count()
    assert accepted[0] > 100
