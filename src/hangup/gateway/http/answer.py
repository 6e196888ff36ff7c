"""Builds the heads of the gateway's own responses."""

from __future__ import annotations

import time
from email.utils import formatdate
from functools import cache, lru_cache
from http import HTTPStatus

from hangup.gateway.http.head import Headers


@cache
def status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    return f"HTTP/1.1 {status} {phrase}\r\n".encode("ascii")


def date_line() -> bytes:
    """Return the Date header of RFC 9110, 6.6.1."""
    return _date_line(int(time.time()))


@lru_cache(2)
def _date_line(second: int) -> bytes:
    return f"date: {formatdate(second, usegmt=True)}\r\n".encode("ascii")


def encode_headers(headers: Headers) -> bytes:
    return b"".join([b"%b: %b\r\n" % pair for pair in headers])


def encode_head(status: int, headers: Headers) -> bytes:
    return status_line(status) + encode_headers(headers) + b"\r\n"
