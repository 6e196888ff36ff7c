"""The chunk decoder: right for every split of its input, in agreement with llhttp, and strict."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import httptools
import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from hangup.errors import WireError
from hangup.gateway.http.body import KNOWN_SIZES, LAST_CHUNK, Chunked, Counted, chunk, is_whole_chunks


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges) if a < b]


PAYLOADS = st.lists(st.binary(min_size=1, max_size=40), max_size=8)
CUTS = st.lists(st.integers(0, 400), max_size=12)


@given(PAYLOADS, CUTS, st.binary(max_size=20))
@example([b"0", b"0", b"0000", b"0" * 8, b"0" * 6], [36], b"")  # a read that ends within the line end of a size
def test_any_split_gives_the_payload(payloads: list[bytes], cuts: list[int], behind: bytes) -> None:
    data = b"".join(map(chunk, payloads)) + LAST_CHUNK + behind
    decoder, got = Chunked(), b""
    pieces = split(data, cuts)
    while pieces and not decoder.done:
        got += decoder.feed(pieces.pop(0))
    assert decoder.done
    assert got == b"".join(payloads)
    assert decoder.rest + b"".join(pieces) == behind


class Oracle:
    """Feeds the same bytes to llhttp."""

    def __init__(self) -> None:
        self.body = b""
        self.done = False

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.done = True


def oracle(data: bytes) -> tuple[bytes, bool] | None:
    seen = Oracle()
    parser: Any = httptools.HttpRequestParser(seen)
    try:
        parser.feed_data(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        parser.feed_data(data)
    except httptools.HttpParserError:
        return None
    return seen.body, seen.done


NOISE = st.lists(
    st.sampled_from([b"0", b"5", b"a", b"\r\n", b"\r", b"\n", b";x=1", b" ", b"hello", b"ffff", b"X: y", b"-", b"+1"]),
    max_size=12,
)


@given(NOISE)
def test_whatever_we_accept_llhttp_reads_the_same(parts: list[bytes]) -> None:
    """We may refuse more than llhttp does, but never read anything differently."""
    data = b"".join(parts)
    decoder = Chunked()
    try:
        body = decoder.feed(data)
    except WireError:
        return
    theirs = oracle(data[: len(data) - len(decoder.rest)] if decoder.done else data)
    if decoder.done:
        assert theirs == (body, True)
    elif theirs is not None:
        assert theirs[0].startswith(body[: len(theirs[0])])


@pytest.mark.parametrize(
    "data",
    [
        b"g\r\n",
        b"+1\r\na\r\n",
        b"0x1\r\na\r\n",
        b"1_0\r\n",
        b" 1\r\na\r\n",
        b"1 1\r\n",
        b"\r\n",
        b"1\na\r\n",
        b"1\r\nab\r\n",
        b"1\r\na\n",
        b"1;\0\r\n",
        b"1;" + b"x" * 2000,
        b"f" * 16 + b"\r\n",
        b"0\r\nbad trailer\r\n\r\n",
        b"0\r\n: x\r\n\r\n",
        b"0\r\n" + b"A: b\r\n" * 3000,
    ],
)
def test_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        Chunked().feed(data)


@pytest.mark.parametrize(
    "data", [b"3;ext\r\nabc\r\n0\r\n\r\n", b"3 ;a=b\r\nabc\r\n0\r\nX: y\r\n\r\n", b"003\r\nabc\r\n000\r\n\r\n"]
)
def test_accepted(data: bytes) -> None:
    decoder = Chunked()
    assert decoder.feed(data) == b"abc"
    assert decoder.done


@given(PAYLOADS, st.integers(-3, 3))
def test_is_whole_chunks_never_lies(payloads: list[bytes], cut: int) -> None:
    """It is true only for bytes that the decoder, too, reads as complete chunks and nothing else."""
    data = b"".join(map(chunk, payloads))
    data = data[:cut] if cut < 0 else data + b"x" * cut
    for payload in payloads:
        Chunked().feed(chunk(payload))  # so that its size is known
    if data.endswith(b"\r\n") and is_whole_chunks(data):
        decoder = Chunked()
        assert decoder.feed(data) == b"".join(payloads)
        assert decoder.between_chunks
        assert not decoder.done


@given(st.binary(max_size=50), st.integers(0, 50), CUTS)
def test_counted(data: bytes, length: int, cuts: list[int]) -> None:
    decoder, got = Counted(length), b""
    pieces = split(data, cuts)
    while pieces and not decoder.done:
        got += decoder.feed(pieces.pop(0))
    assert got == data[:length]
    assert decoder.done == (len(data) >= length)
    if decoder.done:
        assert decoder.rest + b"".join(pieces) == data[length:]


def test_no_peer_can_fill_the_table_of_sizes() -> None:
    """One client's chunk sizes must not take the fast path from all others."""
    before = len(KNOWN_SIZES)
    decoder = Chunked()
    for size in range(1, 3000):
        assert decoder.feed(b"%015x\r\n%b\r\n" % (size, b"x" * size))
    assert len(KNOWN_SIZES) == before
    for form in (b"%x", b"%X"):
        for size in (1, 10, 200, 2749, 4095):
            assert is_whole_chunks(form % size + b"\r\n" + b"x" * size + b"\r\n")
