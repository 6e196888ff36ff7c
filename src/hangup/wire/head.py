"""Request and response heads: split off, parsed by llhttp (httptools), then checked for what llhttp lets through.

A head is handed to llhttp whole and alone; bodies are read by `hangup.wire.body`. Everything ambiguous is refused:
two readers that disagree about a request are how requests get smuggled.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import httptools

from hangup.errors import WireError

HEAD_END = b"\r\n\r\n"

_HOST = re.compile(rb"(?:[A-Za-z0-9._-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_TARGET = re.compile(rb"/[\x21-\x7e]*")
_BARE_LF = re.compile(rb"(?:^|[^\r])\n")
# Headers of which two would be two opinions on who asks for what.
_SINGLE = frozenset(
    [b"host", b"content-length", b"authorization", b"x-api-key", b"content-type", b"x-request-id", b"x-request-timeout"]
)
HOP_BY_HOP = frozenset(
    [
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    ]
)

Headers = list[tuple[bytes, bytes]]  # names in lower case, in the order they came


class _Head:
    """What requests and responses have in common; llhttp calls the `on_…` methods."""

    __slots__ = ("_complete", "_twice", "chunked", "content_length", "fields", "headers", "keep_alive")

    def __init__(self) -> None:
        self.headers: Headers = []
        self.fields: dict[bytes, bytes] = {}
        self.content_length: int | None = None
        self.chunked = False
        self.keep_alive = False
        self._complete = False
        self._twice = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self.headers.append((name, value))
        if name in self.fields and name in _SINGLE:
            self._twice = name
        self.fields[name] = value

    def on_headers_complete(self) -> None:
        self._complete = True

    def _feed(self, parser: Any, head: bytes) -> None:
        try:
            parser.feed_data(head)
        except httptools.HttpParserUpgrade:
            pass  # an Upgrade is a wish, and we do not grant it
        except httptools.HttpParserError as error:
            status = 501 if "Transfer-Encoding" in str(error) and "Content-Length" not in str(error) else 400
            raise WireError(str(error), status) from None
        if not self._complete:
            raise WireError("incomplete head")
        if self._twice:
            raise WireError(f"two {self._twice.decode('ascii')} headers")
        # How the body is delimited; llhttp has checked most of it already.
        length = self.fields.get(b"content-length")
        if length is not None:
            if not (length.isdigit() and len(length) < 19):
                raise WireError("bad Content-Length")
            self.content_length = int(length)
        coding = self.fields.get(b"transfer-encoding")
        if coding is not None:
            if coding.strip().lower() != b"chunked":
                raise WireError("the only Transfer-Encoding is chunked", 501)
            if length is not None:
                raise WireError("Transfer-Encoding and Content-Length")
            self.chunked = True


class RequestHead(_Head):
    __slots__ = ("http11", "method", "path", "query", "target")

    method: str
    path: str
    query: bytes  # with its question mark, or empty

    def __init__(self, head: bytes, *, count_max: int, url_bytes_max: int) -> None:
        """Reads a head, blank line included; WireError carries the status to refuse it with."""
        super().__init__()
        self.target = b""
        if len(head) > url_bytes_max and head.find(b"\r\n", 0, url_bytes_max + 32) < 0:
            raise WireError("request line too long", 414)
        parser = httptools.HttpRequestParser(self)
        self._feed(parser, head)
        if len(self.headers) > count_max:
            raise WireError("too many headers", 431)
        version = parser.get_http_version()
        self.http11 = version == "1.1"
        if not self.http11 and version != "1.0":
            raise WireError(f"HTTP/{version} is not supported", 505)
        if self.chunked and not self.http11:
            raise WireError("Transfer-Encoding in HTTP/1.0")
        host = self.fields.get(b"host")
        if host is None:
            if self.http11:
                raise WireError("no Host header")
        elif not _is_host(host):
            raise WireError("bad Host header")
        self.method = parser.get_method().decode("ascii")
        # Not llhttp's word for it: it has forgotten the header by the end of a message without a body.
        wishes = b",".join(value for name, value in self.headers if name == b"connection").lower()
        self.keep_alive = b"close" not in wishes if self.http11 else b"keep-alive" in wishes
        self.path, self.query = _split_target(self.target, url_bytes_max)

    def on_url(self, url: bytes) -> None:
        self.target += url


class ResponseHead(_Head):
    __slots__ = ("status",)

    def __init__(self, head: bytes) -> None:
        """Reads a head, blank line included."""
        super().__init__()
        parser = httptools.HttpResponseParser(self)
        self._feed(parser, head)
        self.status: int = parser.get_status_code()
        # llhttp looks at the message's end too; a body that only the close delimits leaves nothing to keep.
        delimited = self.chunked or self.content_length is not None
        self.keep_alive = (
            delimited and b"close" not in self.fields.get(b"connection", b"").lower() and parser.get_http_version() == "1.1"
        )

    def without_body(self) -> bool:
        return self.status in (204, 304)


@lru_cache(1024)
def _is_host(host: bytes) -> bool:
    return _HOST.fullmatch(host) is not None


@lru_cache(1024)
def _split_target(target: bytes, bytes_max: int) -> tuple[str, bytes]:
    """The path, and the query with its question mark."""
    if len(target) > bytes_max:
        raise WireError("URL too long", 414)
    if not _TARGET.fullmatch(target):
        raise WireError("the request target must be a path")
    path, mark, query = target.partition(b"?")
    return path.decode("ascii"), mark + query


def has_bare_lf(data: bytes) -> bool:
    """A line that ends in LF alone; told before the head is complete, since such a head may never become so."""
    return _BARE_LF.search(data) is not None
