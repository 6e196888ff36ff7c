"""Heads that were parsed before: the result is the same as the first time, whatever came in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hangup.config import BackendSettings, LimitSettings
from hangup.config.secret import Secret
from hangup.errors import WireError
from hangup.gateway.backends.backend import Backend
from hangup.gateway.http import known_heads
from hangup.gateway.http.head import NOT_KEPT, RequestHead, ResponseHead
from hangup.gateway.http.known_heads import read_request_head, read_response_head

LIMITS = {"count_max": 100, "url_bytes_max": 1000}
REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n%bcontent-length: %d\r\n\r\n"


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    _forget_all()
    yield
    _forget_all()


def _forget_all() -> None:
    for known in (known_heads._requests, known_heads._responses, known_heads._seen):
        known.clear()


def state(head: RequestHead | ResponseHead) -> dict[str, object]:
    names = ("headers", "fields", "content_length", "chunked", "keep_alive", "http11", "method", "path", "query", "target")
    return {name: getattr(head, name, None) for name in (*names, "status")} | {"headers": _without_length(head)}


def _without_length(head: RequestHead | ResponseHead) -> list[tuple[bytes, bytes]]:
    """Remove the length from the headers: everybody must use `content_length`."""
    return [pair for pair in head.headers if pair[0] != b"content-length"]


def result(read: Callable[[], RequestHead | ResponseHead]) -> dict[str, object] | str:
    try:
        return state(read())
    except WireError as error:
        return str(error)


LINES = st.sampled_from(
    [
        b"content-length: 5\r\n",
        b"content-length: 12345\r\n",
        b"Content-Length: 7\r\n",
        b"Content-Length: 77\r\n",
        b"CONTENT-LENGTH: 3\r\n",
        b"Content-length: 3\r\n",
        b"content-length:3\r\n",
        b"content-length: +5\r\n",
        b"content-length:  5\r\n",
        b"content-length: 5 \r\n",
        b"content-length: \r\n",
        b"content-length: 99999999999999999999\r\n",
        b"transfer-encoding: chunked\r\n",
        b"connection: close\r\n",
        b"host: a\r\n",
        b"x-content-length: 5\r\n",
        b"x-note: content-length: 5\r\n",
    ]
)


@given(st.lists(st.lists(LINES, max_size=4), min_size=2, max_size=8))
@settings(max_examples=400, deadline=None)
def test_every_head_is_read_as_if_it_were_the_first(heads: list[list[bytes]]) -> None:
    for lines in heads * 3:
        data = b"POST /x HTTP/1.1\r\nhost: a\r\n" + b"".join(lines) + b"\r\n"
        fresh = result(partial(RequestHead, data, count_max=100, url_bytes_max=1000))
        assert result(partial(read_request_head, data, count_max=100, url_bytes_max=1000)) == fresh
        data = b"HTTP/1.1 200 OK\r\n" + b"".join(lines) + b"\r\n"
        assert result(partial(read_response_head, data)) == result(partial(ResponseHead, data))


def test_requests_that_differ_in_their_length_share_what_is_derived_from_them() -> None:
    read_request_head(REQUEST % (b"", 77), **LIMITS)
    one = read_request_head(REQUEST % (b"", 5), **LIMITS)
    two = read_request_head(REQUEST % (b"", 12345), **LIMITS)
    assert two is not one and two.notes is one.notes
    assert (one.content_length, two.content_length) == (5, 12345)
    for _ in range(2):
        other = read_request_head(REQUEST % (b"authorization: Bearer b\r\n", 5), **LIMITS)
    assert other.notes is not one.notes


def test_of_a_response_without_a_length_the_same_holds() -> None:
    data = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    _, one, two = (read_response_head(data) for _ in range(3))
    assert one.notes is two.notes and state(two) == state(ResponseHead(data)) and two.chunked and two.content_length is None


def test_a_head_is_kept_when_it_comes_again_and_nothing_is_noted_before() -> None:
    response = b"HTTP/1.1 200 OK\r\nrequest-id: %d\r\ncontent-length: 5\r\n\r\n"
    for number in range(1000):
        head = read_request_head(REQUEST % (b"x-request-id: %d\r\n" % number, 5), **LIMITS)
        assert head.note("policy", 1) == 1 and not head.notes
        assert read_response_head(response % number).note("headers", 2) == 2
    assert not known_heads._requests and not known_heads._responses and not NOT_KEPT
    head, answer = read_request_head(REQUEST % (b"x-request-id: 999\r\n", 5), **LIMITS), read_response_head(response % 999)
    assert head.note("policy", 3) == 3 == head.notes["policy"] and answer.note("headers", 4) == 4 == answer.notes["headers"]
    assert len(known_heads._requests) == len(known_heads._responses) == 1


def test_there_is_a_bound_on_heads_and_on_what_is_derived_from_one() -> None:
    for number in range(10_000):
        read_request_head(REQUEST % (b"x-once: %d\r\n" % number, 5), **LIMITS)
    for number in (n for n in range(2500) for _ in range(2)):
        read_request_head(REQUEST % (b"x-a: %d\r\n" % number, 5), **LIMITS)
        read_response_head(b"HTTP/1.1 200 OK\r\nx-a: %d\r\ncontent-length: 5\r\n\r\n" % number)
    assert 0 < len(known_heads._requests) <= 2048 and 0 < len(known_heads._responses) <= 2048
    assert len(known_heads._seen) <= 4096
    for _ in range(2):
        read_request_head(REQUEST % (b"x-large: " + b"x" * 3000 + b"\r\n", 5), **LIMITS)
    assert not any(b"x-large" in before for before, _ in known_heads._requests)
    for _ in range(2):
        head = read_request_head(REQUEST % (b"", 5), **LIMITS)
    for number in range(1000):
        head.note(number, b"x")
    assert 0 < len(head.notes) <= 32


def test_limits_that_became_lower_hold_for_known_heads() -> None:
    data = REQUEST % (b"x-a: 1\r\n", 5)
    for _ in range(2):
        read_request_head(data, **LIMITS)
    with pytest.raises(WireError, match="too many headers"):
        read_request_head(data, count_max=1, url_bytes_max=1000)
    with pytest.raises(WireError, match="URL too long"):
        read_request_head(data, count_max=100, url_bytes_max=5)


def test_a_clients_key_goes_out_only_while_it_may() -> None:
    """A request that was built for an engine that may see the client's key is not sent once the engine may not."""
    loop = asyncio.new_event_loop()
    try:
        backend = Backend(BackendSettings(url="http://127.0.0.1:1"), LimitSettings(), loop)
    finally:
        loop.close()

    def sent(*, forward_key: bool = True) -> bytes:
        head = read_request_head(REQUEST % (b"authorization: Bearer secret\r\n", 2), **LIMITS)
        return backend.request(head, head.path, b"{}", request_id="r", timeout_s=None, forward_key=forward_key)[0]

    assert b"secret" in sent() and b"secret" in sent()
    assert b"secret" not in sent(forward_key=False)
    backend.passes_client_key = False
    assert b"secret" not in sent()
    backend.passes_client_key = True
    assert b"secret" in sent()


def test_backends_that_differ_in_their_addresses_share_what_is_derived_from_a_head() -> None:
    """Else a head's notes would be full, and be thrown away, with more than a few backends."""
    loop = asyncio.new_event_loop()
    try:
        urls = [*(f"http://10.0.0.{n}:8000" for n in range(100)), "http://10.0.1.1/prefix"]
        alike = [Backend(BackendSettings(url=url), LimitSettings(), loop) for url in urls]
        keyed = Backend(BackendSettings(url="http://10.0.1.2", key=Secret("own")), LimitSettings(), loop)
    finally:
        loop.close()
    for _ in range(2):
        head = read_request_head(REQUEST % (b"authorization: Bearer theirs\r\n", 2), **LIMITS)

    def sent(backend: Backend) -> bytes:
        return backend.request(head, head.path, b"{}", request_id="r", timeout_s=None, forward_key=True)[0]

    for url, backend in zip(urls, alike, strict=True):
        host, slash, prefix = url.removeprefix("http://").partition("/")
        line = f"POST {slash}{prefix}/v1/chat/completions HTTP/1.1\r\nhost: {host}\r\n"
        assert sent(backend).startswith(line.encode()) and b"Bearer theirs" in sent(backend)
        assert sent(backend).lower().count(b"host: ") == 1
    assert b"own" in sent(keyed) and b"theirs" not in sent(keyed) and b"own" not in sent(alike[0])
    assert len(head.notes) == 3
