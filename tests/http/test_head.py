"""Request heads: what they say about the connection after the answer."""

from __future__ import annotations

import pytest

from hangup.errors import WireError
from hangup.gateway.http.head import RequestHead, ResponseHead


@pytest.mark.parametrize(
    ("version", "header", "kept"),
    [
        ("1.1", "", True),
        ("1.1", "Connection: close\r\n", False),
        ("1.1", "Connection: Keep-Alive, Close\r\n", False),
        ("1.0", "", False),
        ("1.0", "Connection: keep-alive\r\n", True),
    ],
)
@pytest.mark.parametrize("body", ["", "Content-Length: 2\r\n"])
def test_close_is_heard_with_and_without_a_body(version: str, header: str, kept: bool, body: str) -> None:
    head = RequestHead(f"GET / HTTP/{version}\r\nHost: x\r\n{header}{body}\r\n".encode(), count_max=10, url_bytes_max=100)
    assert head.keep_alive is kept


@pytest.mark.parametrize(("status", "good"), [("099", False), ("000", False), ("100", True), ("599", True), ("20", False)])
def test_a_status_below_100_is_invalid(status: str, good: bool) -> None:
    head = f"HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n".encode()
    if good:
        assert ResponseHead(head).status == int(status)
    else:
        with pytest.raises(WireError):
            ResponseHead(head)
