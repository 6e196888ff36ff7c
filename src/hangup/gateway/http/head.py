"""Parses request and response heads with llhttp (httptools), then checks what llhttp lets through.

llhttp gets each head whole and alone; `hangup.gateway.http.body` reads the bodies. Everything ambiguous is refused, because
request smuggling needs two parsers that disagree about a request. The request line is parsed here, strictly by RFC 9112,
because llhttp treats an unknown method or a later HTTP/1.x as broken HTTP.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final, TypeVar

import httptools

from hangup.errors import WireError

HEAD_END: Final = b"\r\n\r\n"

_REQUEST_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}) ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])\r\n")
_LONG_METHOD: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{65,}+( ?)")
_HOST: Final = re.compile(rb"(?:[A-Za-z0-9._-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{0,5})?")
_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]*)([/?][^#]*)?", re.IGNORECASE)
_ENCODED: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_UNRESERVED: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
_EMPTY_LINES: Final = re.compile(rb"(?:\r\n)*+")
_BARE_LF: Final = re.compile(rb"(?:^|[^\r])\n")
# llhttp only has to read the fields, so it gets a request line that it knows.
_ANY_REQUEST_LINE: Final = b"POST / HTTP/1.1\r\n"
# Headers that must not occur twice: two could contradict each other about who requests what.
_SINGLE_IN_REQUESTS: Final = frozenset(
    [b"host", b"content-length", b"authorization", b"x-api-key", b"content-type", b"x-request-id", b"x-request-timeout"]
)
_SINGLE_IN_RESPONSES: Final = frozenset([b"content-length"])
HOP_BY_HOP: Final = frozenset(
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

_NOTES_MAX: Final = 32  # of one head: a request may go to many backends
NOT_KEPT: dict[Any, Any] = {}  # the notes of all heads that are not remembered: always empty
_V = TypeVar("_V")

Headers = list[tuple[bytes, bytes]]  # names in lower case, in the order of arrival


class _Head:
    """The common part of requests and responses; llhttp calls the `on_…` methods."""

    __slots__ = ("_complete", "_twice", "chunked", "content_length", "fields", "headers", "keep_alive", "notes")

    single: frozenset[bytes]

    def __init__(self) -> None:
        self.headers: Headers = []
        self.fields: dict[bytes, bytes] = {}  # repeated headers are joined into one list, as in RFC 9110
        self.content_length: int | None = None
        self.chunked = False
        self.keep_alive = False
        self.notes: dict[Any, Any] = NOT_KEPT  # what others derived from it; heads that differ only in their length share it
        self._complete = False
        self._twice = b""

    def note(self, key: Any, value: _V) -> _V:
        """Keep something that was derived from this head, for all heads like it; return it."""
        notes = self.notes
        if notes is not NOT_KEPT:
            if len(notes) >= _NOTES_MAX:
                notes.clear()
            notes[key] = value
        return value

    def on_header(self, name: bytes, value: bytes) -> None:
        name, value = name.lower(), value.strip(b" \t")
        self.headers.append((name, value))
        if name in self.fields:
            if name in self.single:
                self._twice = name
            value = b"%b, %b" % (self.fields[name], value)
        self.fields[name] = value

    def on_headers_complete(self) -> None:
        self._complete = True

    def _feed(self, parser: Any, *parts: bytes) -> None:
        try:
            for part in parts:
                parser.feed_data(part)
        except httptools.HttpParserUpgrade:
            pass  # llhttp reports an Upgrade request this way; it is not granted here
        except httptools.HttpParserError as error:
            raise WireError(str(error)) from None
        if not self._complete:
            raise WireError("incomplete head")
        if self._twice:
            raise WireError(f"duplicate {self._twice.decode('ascii')} header")
        # The framing of the body; llhttp has checked most of it already.
        length = self.fields.pop(b"content-length", None)  # from here on there is one place for it
        if length is not None:
            if not (length.isdigit() and len(length) < 19):
                raise WireError("invalid Content-Length")
            self.content_length = int(length)
        coding = self.fields.get(b"transfer-encoding")
        if coding is not None:
            if length is not None:
                raise WireError("both Transfer-Encoding and Content-Length")
            _check_codings(coding)
            self.chunked = True

    def connection_options(self) -> frozenset[bytes]:
        """Return the options of the `Connection` header, including the headers that it names."""
        return _options(self.fields.get(b"connection", b""))


class RequestHead(_Head):
    __slots__ = ("http11", "method", "path", "query", "target")

    single = _SINGLE_IN_REQUESTS
    method: str
    path: str
    query: bytes  # with its question mark, or empty

    def __init__(self, head: bytes | None, *, count_max: int = 0, url_bytes_max: int = 0) -> None:
        """Parse a head, including the blank line; raise `WireError` with the status to refuse it with.

        None makes an empty one, for `again`."""
        if head is None:
            return
        super().__init__()
        line = _REQUEST_LINE.match(head)
        if line is None:
            raise _unreadable_line(head, url_bytes_max)
        method, self.target, major, minor = line.groups()
        if len(self.target) > url_bytes_max:
            raise WireError("URL too long", 414)
        if major != b"1":
            raise WireError(f"HTTP/{major.decode()}.{minor.decode()} is not supported", 505)
        self.http11 = minor != b"0"  # a later minor version is treated as the latest that we know
        self._feed(httptools.HttpRequestParser(self), _ANY_REQUEST_LINE, head[line.end() :])
        if len(self.headers) > count_max:
            raise WireError("too many headers", 431)
        if self.chunked and not self.http11:
            raise WireError("Transfer-Encoding in HTTP/1.0")
        host = self.fields.get(b"host")
        if host is None:
            if self.http11:
                raise WireError("missing Host header")
        elif not _is_host(host):
            raise WireError("invalid Host header")
        self.method = method.decode("ascii")
        options = self.connection_options()
        self.keep_alive = b"close" not in options and (self.http11 or b"keep-alive" in options)
        self.path, self.query, authority = _split_target(self.method, self.target)
        if authority:
            self.fields[b"host"] = authority  # the target takes precedence over the header

    def again(self, content_length: int) -> RequestHead:
        """Return the same head for a body of another length."""
        head = RequestHead(None)
        head.headers, head.fields, head.notes = self.headers, self.fields, self.notes
        head.content_length, head.chunked, head.keep_alive = content_length, False, self.keep_alive
        head.http11, head.method, head.path, head.query = self.http11, self.method, self.path, self.query
        head.target = self.target
        return head


class ResponseHead(_Head):
    __slots__ = ("content_type", "is_encoded", "status")

    single = _SINGLE_IN_RESPONSES

    def __init__(self, head: bytes | None) -> None:
        """Parse a head, including the blank line; None makes an empty one, for `again`."""
        if head is None:
            return
        super().__init__()
        parser = httptools.HttpResponseParser(self)
        self._feed(parser, head)
        self.status: int = parser.get_status_code()
        if self.status < 100:  # llhttp reads any three digits; as an informational answer it would be passed over
            raise WireError("bad status")
        self.content_type = self.fields.get(b"content-type", b"").lower()
        encoding = self.fields.get(b"content-encoding")
        self.is_encoded = encoding is not None and encoding.lower() not in (b"identity", b"")  # compressed
        # llhttp's own answer also depends on the message's end; a body that ends with the connection leaves nothing to keep
        # alive.
        delimited = self.chunked or self.content_length is not None
        self.keep_alive = delimited and b"close" not in self.connection_options() and parser.get_http_version() == "1.1"

    def again(self, content_length: int | None) -> ResponseHead:
        """Return the same head for a body of another length."""
        head = ResponseHead(None)
        head.headers, head.fields, head.notes = self.headers, self.fields, self.notes
        head.content_length, head.chunked, head.keep_alive = content_length, self.chunked, self.keep_alive
        head.status, head.content_type, head.is_encoded = self.status, self.content_type, self.is_encoded
        return head

    def without_body(self) -> bool:
        return self.status in (204, 304)


def _unreadable_line(head: bytes, url_bytes_max: int) -> WireError:
    status = status_of_overlong(head, url_bytes_max)
    if status == 501:
        return WireError("the method is longer than any that is supported", status)
    return WireError("request line too long", status) if status == 414 else WireError("malformed request line")


def status_of_overlong(head: bytes, url_bytes_max: int) -> int:
    """Return what is too long in a head, as the status for it: the method (501), the URL (414), or else the fields (431)."""
    in_line = head.find(b"\r\n", 0, url_bytes_max + 32) < 0
    method = _LONG_METHOD.match(head)
    if method is not None and (method[1] or in_line):
        return 501
    return 414 if in_line else 431


@lru_cache(1024)
def _options(value: bytes) -> frozenset[bytes]:
    return frozenset(option.strip(b" \t") for option in value.lower().split(b",")) if value else frozenset()


def _check_codings(value: bytes) -> None:
    """Raise unless the coding is `chunked` alone, with the status that RFC 9112 prescribes."""
    codings = [coding.strip(b" \t").lower() for coding in value.split(b",")]
    if codings == [b"chunked"]:
        return
    if codings[-1] == b"chunked" and codings.count(b"chunked") == 1 and all(codings):
        raise WireError("chunked is the only supported Transfer-Encoding", 501)
    raise WireError("unknown body length: chunked must be the last Transfer-Encoding and appear once")


@lru_cache(1024)
def _is_host(host: bytes) -> bool:
    return _HOST.fullmatch(host) is not None


@lru_cache(1024)
def _split_target(method: str, target: bytes) -> tuple[str, bytes, bytes]:
    """Return the path, the query with its question mark, and the authority if the target has one."""
    if method == "CONNECT":
        raise WireError("CONNECT is not supported", 501)
    authority = b""
    if not target.startswith(b"/"):
        absolute = _ABSOLUTE.fullmatch(target)
        if absolute is not None and _is_host(absolute[1]):
            authority, target = absolute[1], absolute[2] or (b"*" if method == "OPTIONS" else b"/")
            target = target if target[:1] != b"?" else b"/" + target
        elif target != b"*" or method != "OPTIONS":
            raise WireError("the request target must be a path")
    if b"#" in target:
        raise WireError("the request target must not have a fragment")
    path, mark, query = target.partition(b"?")
    if b"%" in path:
        path = _ENCODED.sub(_decoded, path)
    return path.decode("ascii"), mark + query, authority


def _decoded(octet: re.Match[bytes]) -> bytes:
    """Decode unreserved characters. By RFC 3986, 2.3, they mean the same encoded or not, so encoding must not get anybody past
    a rule about paths."""
    byte = bytes([int(octet[1], 16)])
    return byte if byte in _UNRESERVED else octet[0]


def has_bare_lf(data: bytes, start: int = 0) -> bool:
    """Return True if a line ends in LF alone. Checked before the head is complete, because such a head may never become so."""
    return _BARE_LF.search(data, max(start - 1, 0)) is not None


def without_empty_lines(data: bytes) -> bytes:
    """Drop the empty lines before a request line, which mean nothing (RFC 9112, 2.2)."""
    lines = _EMPTY_LINES.match(data)
    return data[lines.end() :] if lines is not None else data
