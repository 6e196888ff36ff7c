"""What the client is answered: the engine's head passed on, whole answers made here, errors in the API's own shape."""

from __future__ import annotations

from typing import Protocol

import orjson

from hangup.core.call import Call
from hangup.core.reasons import Reason
from hangup.gateway.apis.base import Api
from hangup.gateway.client.client import ResponseSink
from hangup.gateway.http.answer import date_line, encode_headers, status_line
from hangup.gateway.http.head import HOP_BY_HOP, Headers, ResponseHead

# Of the engine's headers, what is between it and us, or what we set anew.
_NOT_RELAYED = HOP_BY_HOP | {
    b"content-length",
    b"set-cookie",
    b"set-cookie2",
    b"x-request-id",
    b"alt-svc",
}
_NOT_RELAYED_ON_STREAMS = _NOT_RELAYED | {b"cache-control", b"x-accel-buffering"}
_NOT_RELAYED_ON_WHOLE = _NOT_RELAYED_ON_STREAMS | {b"content-type"}
_STREAM_HEADERS: Headers = [(b"cache-control", b"no-cache, no-transform"), (b"x-accel-buffering", b"no")]
_JSON: Headers = [(b"content-type", b"application/json")]
_NO_HEADERS: Headers = []


class Answered(Protocol):
    """A call whose client gets an answer."""

    api: Api  # whose shape errors have

    @property
    def call(self) -> Call: ...

    @property
    def client(self) -> ResponseSink: ...


def begin(to: Answered, status: int, head: ResponseHead, is_stream: bool) -> None:
    """Passes the engine's head on. A stream gets a framing of ours: it may be ended at its cap, or with an error."""
    if to.call.answering_client:
        return  # a heartbeat was quicker
    if is_stream:
        _write_open_head(to, status, _relayed(head, _NOT_RELAYED_ON_STREAMS, _STREAM_HEADERS))
        return
    length, headers = head.content_length, _relayed(head, _NOT_RELAYED)
    if length is not None and status != 204:  # which has none by its nature
        headers = b"%bcontent-length: %d\r\n" % (headers, length)
    if length is not None or head.without_body():
        _write_head(to, status, headers, chunked=False)
    else:
        _write_open_head(to, status, headers)


def _relayed(head: ResponseHead, dropped: frozenset[bytes], more: Headers = _NO_HEADERS) -> bytes:
    """Encodes the engine's headers for the client: without `dropped`, with `more`, and with a date."""
    return head.notes.get(dropped) or head.note(dropped, _relay_headers(head, dropped, more))


def _relay_headers(head: ResponseHead, dropped: frozenset[bytes], more: Headers) -> bytes:
    if b"connection" in head.fields:
        dropped = dropped | head.connection_options()
    # Headers that begin with `x-hangup-` are our word alone.
    headers = [pair for pair in head.headers if pair[0] not in dropped and not pair[0].startswith(b"x-hangup-")]
    return encode_headers(headers + more)


def switched(to: Answered, head: ResponseHead) -> None:
    """Passes on the engine's word that it goes on in WebSocket."""
    more = b"connection: Upgrade\r\nupgrade: websocket\r\nx-request-id: %b\r\n" % to.call.id.encode("ascii")
    to.call.client_answer_began(head.status)
    to.client.begin(b"%b%b%b\r\n" % (status_line(head.status), _relayed(head, _NOT_RELAYED), more), chunked=False)


def begin_stream(to: Answered) -> None:
    """Begins a stream before the engine does, for a heartbeat."""
    headers = [(b"content-type", b"text/event-stream; charset=utf-8"), *_STREAM_HEADERS]
    _write_open_head(to, 200, encode_headers(headers))


def whole(to: Answered, status: int, body: bytes, head: ResponseHead) -> None:
    """A complete JSON answer made here, under the engine's own headers, but for those that were meant for us."""
    headers = b"%bcontent-length: %d\r\n" % (_relayed(head, _NOT_RELAYED_ON_WHOLE, _JSON), len(body))
    _write_head(to, status, headers, chunked=False)
    to.client.send(body)
    to.call.client_has_all = True


def own_answer(to: Answered, status: int, content_type: bytes, headers: Headers, body: bytes) -> None:
    """A complete answer of the gateway's own."""
    own = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    _write_head(to, status, encode_headers(own + headers), chunked=False)
    to.client.send(body)
    to.call.client_has_all = True


def begin_own_answer(to: Answered, status: int, content_type: bytes, headers: Headers) -> None:
    """Begins an answer of the gateway's own that is made while it is read."""
    _write_open_head(to, status, encode_headers([(b"content-type", content_type), *_STREAM_HEADERS, *headers]))


def error(to: Answered, reason: Reason, detail: str, more: Headers) -> None:
    """A complete error answer; `more` headers say what to do about it."""
    body = orjson.dumps(to.api.error(reason.status, reason.code, detail or reason.message))
    headers: Headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-hangup-reason", reason.code.encode("ascii")),
    ]
    if reason.retry is not None:
        headers.append((b"x-should-retry", b"true" if reason.retry else b"false"))
    _write_head(to, reason.status, encode_headers(headers + more), chunked=False)
    to.client.send(body)


def error_event(to: Answered, reason: Reason, detail: str) -> None:
    """An error in the midst of a stream."""
    to.client.send(to.api.error_event(reason.status, reason.code, detail or reason.message))


def _write_open_head(to: Answered, status: int, headers: bytes) -> None:
    """A head without a length: chunked, or for HTTP/1.0 delimited by the close."""
    if to.client.http11:
        headers += b"transfer-encoding: chunked\r\n"
    else:
        to.client.close_after_this()
    _write_head(to, status, headers, chunked=to.client.http11)


def _write_head(to: Answered, status: int, headers: bytes, chunked: bool) -> None:
    call, client, connection, date = to.call, to.client, b"", b""
    if client.will_close:
        connection = b"connection: close\r\n"
    elif not client.http11:
        connection = b"connection: keep-alive\r\n"
    if b"\r\ndate: " not in headers and not headers.startswith(b"date: "):
        date = date_line()
    call.client_answer_began(status)
    parts = (status_line(status), headers, date, call.id.encode("ascii"), connection)
    client.begin(b"%b%b%bx-request-id: %b\r\n%b\r\n" % parts, chunked=chunked)
