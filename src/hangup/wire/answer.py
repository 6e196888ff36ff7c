"""Response heads as we write them."""

from __future__ import annotations

from functools import cache
from http import HTTPStatus

from hangup.wire.head import Headers


@cache
def status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    return f"HTTP/1.1 {status} {phrase}\r\n".encode("ascii")


def encode_head(status: int, headers: Headers) -> bytes:
    return status_line(status) + b"".join([b"%b: %b\r\n" % pair for pair in headers]) + b"\r\n"
