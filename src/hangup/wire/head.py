"""Request and response heads: split off, parsed by llhttp (httptools), then checked for what llhttp lets through.

A head is handed to llhttp whole and alone; bodies are read by `hangup.wire.body`. Everything ambiguous is refused:
two readers that disagree about a request are how requests get smuggled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
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


@dataclass(slots=True)
class RequestHead:
    method: str
    path: str
    query: bytes  # with its question mark, or empty
    headers: Headers
    fields: dict[bytes, bytes]
    http11: bool
    keep_alive: bool
    content_length: int | None
    chunked: bool


@dataclass(slots=True)
class ResponseHead:
    status: int
    headers: Headers
    fields: dict[bytes, bytes]
    keep_alive: bool
    content_length: int | None
    chunked: bool

    def without_body(self) -> bool:
        return self.status in (204, 304)


class _Collector:
    """Takes llhttp's callbacks."""

    __slots__ = ("complete", "headers", "target")

    def __init__(self) -> None:
        self.target = b""
        self.headers: Headers = []
        self.complete = False

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.complete = True


def has_bare_lf(data: bytes) -> bool:
    """A line that ends in LF alone; told before the head is complete, since such a head may never become so."""
    return _BARE_LF.search(data) is not None


def parse_request(head: bytes, *, count_max: int, url_bytes_max: int) -> RequestHead:
    """A request head, blank line included; WireError carries the status to refuse it with."""
    if head.find(b"\r\n", 0, url_bytes_max + 32) < 0:
        raise WireError("request line too long", 414)
    seen = _Collector()
    parser = httptools.HttpRequestParser(seen)
    _feed(parser, head, seen)
    if len(seen.target) > url_bytes_max:
        raise WireError("URL too long", 414)
    if len(seen.headers) > count_max:
        raise WireError("too many headers", 431)
    version = parser.get_http_version()
    if version not in ("1.0", "1.1"):
        raise WireError(f"HTTP/{version} is not supported", 505)
    if not _TARGET.fullmatch(seen.target):
        raise WireError("the request target must be a path")
    fields = _fields(seen.headers)
    host = fields.get(b"host")
    if host is None and version == "1.1":
        raise WireError("no Host header")
    if host is not None and not _HOST.fullmatch(host):
        raise WireError("bad Host header")
    length, chunked = _framing(fields, "request")
    if chunked and version == "1.0":
        raise WireError("Transfer-Encoding in HTTP/1.0")
    path, mark, query = seen.target.partition(b"?")
    return RequestHead(
        method=parser.get_method().decode("ascii"),
        path=path.decode("ascii"),
        query=mark + query,
        headers=seen.headers,
        fields=fields,
        http11=version == "1.1",
        keep_alive=parser.should_keep_alive(),
        content_length=length,
        chunked=chunked,
    )


def parse_response(head: bytes) -> ResponseHead:
    """A response head, blank line included."""
    seen = _Collector()
    parser = httptools.HttpResponseParser(seen)
    _feed(parser, head, seen)
    fields: dict[bytes, bytes] = {}
    for name, value in seen.headers:
        if name == b"content-length" and fields.get(name, value) != value:
            raise WireError("two Content-Length headers that differ")
        fields[name] = value
    length, chunked = _framing(fields, "response")
    return ResponseHead(
        status=parser.get_status_code(),
        headers=seen.headers,
        fields=fields,
        # llhttp looks at the message's end too; a body that only the close delimits leaves nothing to keep.
        keep_alive=b"close" not in fields.get(b"connection", b"").lower()
        and parser.get_http_version() == "1.1"
        and (chunked or length is not None),
        content_length=length,
        chunked=chunked,
    )


def _feed(parser: Any, head: bytes, seen: _Collector) -> None:
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass  # an Upgrade is a wish, and we do not grant it
    except httptools.HttpParserError as error:
        status = 501 if "Transfer-Encoding" in str(error) and "Content-Length" not in str(error) else 400
        raise WireError(str(error), status) from None
    if not seen.complete:
        raise WireError("incomplete head")


def _fields(headers: Headers) -> dict[bytes, bytes]:
    fields: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in fields and name in _SINGLE:
            raise WireError(f"two {name.decode('ascii')} headers")
        fields[name] = value
    return fields


def _framing(fields: dict[bytes, bytes], what: str) -> tuple[int | None, bool]:
    """How the body is delimited: (Content-Length, chunked). llhttp has checked most of it already."""
    coding = fields.get(b"transfer-encoding")
    length = fields.get(b"content-length")
    if coding is not None:
        if coding.strip().lower() != b"chunked":
            raise WireError(f"Transfer-Encoding of the {what} must be chunked", 501)
        if length is not None:
            raise WireError("Transfer-Encoding and Content-Length")
        return None, True
    if length is None:
        return None, False
    if not (length.isdigit() and len(length) < 19):
        raise WireError("bad Content-Length")
    return int(length), False
