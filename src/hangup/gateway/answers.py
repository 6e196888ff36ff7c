"""Writes answers to clients: the engine's head, the gateway's own answers, and errors in the format of the API."""

from __future__ import annotations

from typing import Final, Protocol

import orjson

from hangup.core.call import Call
from hangup.core.reasons import Reason
from hangup.errors import WireError
from hangup.gateway.apis.base import Api, Json
from hangup.gateway.client.client import ResponseSink
from hangup.gateway.http.answer import date_line, encode_headers, status_line
from hangup.gateway.http.head import HOP_BY_HOP, Headers, ResponseHead

# Headers of the engine that concern only its connection with the gateway, or that the gateway sets itself.
_NOT_RELAYED: Final = HOP_BY_HOP | {
    b"content-length",
    b"set-cookie",
    b"set-cookie2",
    b"x-request-id",
    b"alt-svc",
}
_NOT_RELAYED_ON_STREAMS: Final = _NOT_RELAYED | {b"cache-control", b"x-accel-buffering"}
_NOT_RELAYED_ON_WHOLE: Final = _NOT_RELAYED_ON_STREAMS | {b"content-type"}
_STREAM_HEADERS: Headers = [(b"cache-control", b"no-cache, no-transform"), (b"x-accel-buffering", b"no")]
_JSON: Headers = [(b"content-type", b"application/json")]
_NO_HEADERS: Headers = []


class Answered(Protocol):
    """A call whose client can be answered."""

    api: Api  # decides the format of errors

    @property
    def call(self) -> Call: ...

    @property
    def client(self) -> ResponseSink: ...


def begin(to: Answered, status: int, head: ResponseHead, is_stream: bool) -> None:
    """Pass the engine's head on. A stream gets new framing, because the gateway may end it at a cap or with an error."""
    if to.call.answering_client:
        return  # a heartbeat has begun the answer
    if is_stream:
        _write_open_head(to, status, _relayed(head, _NOT_RELAYED_ON_STREAMS, _STREAM_HEADERS))
        return
    length, headers = head.content_length, _relayed(head, _NOT_RELAYED)
    if length is not None and status != 204:  # 204 never has a length
        headers = b"%bcontent-length: %d\r\n" % (headers, length)
    if length is not None or head.without_body():
        _write_head(to, status, headers, chunked=False)
    else:
        _write_open_head(to, status, headers)


def _relayed(head: ResponseHead, dropped: frozenset[bytes], more: Headers = _NO_HEADERS) -> bytes:
    """Return the engine's headers encoded for the client, without `dropped` and with `more`; the result is cached."""
    return head.notes.get(dropped) or head.note(dropped, _relay_headers(head, dropped, more))


def _relay_headers(head: ResponseHead, dropped: frozenset[bytes], more: Headers) -> bytes:
    if b"connection" in head.fields:
        dropped = dropped | head.connection_options()
    # Only the gateway itself may send headers that begin with `x-hangup-`.
    headers = [pair for pair in head.headers if pair[0] not in dropped and not pair[0].startswith(b"x-hangup-")]
    return encode_headers(headers + more)


def switched(to: Answered, head: ResponseHead) -> None:
    """Pass on the engine's 101, by which it switches to WebSocket."""
    more = b"connection: Upgrade\r\nupgrade: websocket\r\nx-request-id: %b\r\n" % to.call.id.encode("ascii")
    to.call.client_answer_began(head.status)
    to.client.begin(b"%b%b%b\r\n" % (status_line(head.status), _relayed(head, _NOT_RELAYED), more), chunked=False)


def begin_stream(to: Answered) -> None:
    """Begin a stream before the engine does, to send a heartbeat."""
    headers = [(b"content-type", b"text/event-stream; charset=utf-8"), *_STREAM_HEADERS]
    _write_open_head(to, 200, encode_headers(headers))


def whole(to: Answered, status: int, answer: Json, head: ResponseHead) -> None:
    """Send a complete JSON answer that was assembled here, with the headers of the engine's answer."""
    try:
        body = orjson.dumps(answer)
    except TypeError as error:  # orjson reads deeper nesting than it writes
        raise WireError(f"cannot encode it as JSON: {error}") from None
    headers = b"%bcontent-length: %d\r\n" % (_relayed(head, _NOT_RELAYED_ON_WHOLE, _JSON), len(body))
    _write_head(to, status, headers, chunked=False)
    to.client.send(body)
    to.call.client_has_all = True


def own_answer(to: Answered, status: int, content_type: bytes, headers: Headers, body: bytes) -> None:
    """Send a complete answer of the gateway's own."""
    own = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    _write_head(to, status, encode_headers(own + headers), chunked=False)
    to.client.send(body)
    to.call.client_has_all = True


def begin_own_answer(to: Answered, status: int, content_type: bytes, headers: Headers) -> None:
    """Begin an answer of the gateway's own that is produced while it is sent."""
    _write_open_head(to, status, encode_headers([(b"content-type", content_type), *_STREAM_HEADERS, *headers]))


def error(to: Answered, reason: Reason, detail: str, more: Headers) -> None:
    """Send a complete error answer; the `more` headers tell the client what to do about it."""
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
    """Send an error as an event of a running stream."""
    to.client.send(to.api.error_event(reason.status, reason.code, detail or reason.message))


def _write_open_head(to: Answered, status: int, headers: bytes) -> None:
    """Write a head without a length: the body is chunked, or with HTTP/1.0 ends when the connection closes."""
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
