"""What the client is answered: the engine's head passed on, whole answers made here, errors in the API's own shape."""

from __future__ import annotations

from typing import Protocol

import orjson

from hangup.core.call import Call
from hangup.core.reasons import Reason
from hangup.gateway.apis.base import Api
from hangup.gateway.client.client import ResponseSink
from hangup.gateway.http.answer import date, encode_head
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
_CHUNKED = (b"transfer-encoding", b"chunked")


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
    dropped = _NOT_RELAYED_ON_STREAMS if is_stream else _NOT_RELAYED
    if b"connection" in head.fields:
        dropped = dropped | head.connection_options()
    headers = _relayed(head.headers, dropped)
    if is_stream:
        headers += _STREAM_HEADERS
    length = None if is_stream else head.content_length
    if length is not None and status != 204:  # which has none by its nature
        headers.append((b"content-length", b"%d" % length))
    if length is not None or head.without_body():
        _write_head(to, status, headers, chunked=False)
    else:
        _write_open_head(to, status, headers)


def _relayed(headers: Headers, dropped: frozenset[bytes]) -> Headers:
    """Headers that begin with `x-hangup-` are our word alone."""
    return [pair for pair in headers if pair[0] not in dropped and not pair[0].startswith(b"x-hangup-")]


def switched(to: Answered, head: ResponseHead) -> None:
    """Passes on the engine's word that it goes on in WebSocket."""
    headers = _relayed(head.headers, _NOT_RELAYED)
    headers += [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
    headers.append((b"x-request-id", to.call.id.encode("ascii")))
    to.call.client_answer_began(head.status)
    to.client.begin(encode_head(head.status, headers), chunked=False)


def begin_stream(to: Answered) -> None:
    """Begins a stream before the engine does, for a heartbeat."""
    _write_open_head(to, 200, [(b"content-type", b"text/event-stream; charset=utf-8"), *_STREAM_HEADERS])


def whole(to: Answered, status: int, body: bytes, head: ResponseHead) -> None:
    """A complete JSON answer made here, under the engine's own headers, but for those that were meant for us."""
    dropped = _NOT_RELAYED_ON_WHOLE
    if b"connection" in head.fields:
        dropped = dropped | head.connection_options()
    headers = _relayed(head.headers, dropped)
    headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    _write_head(to, status, headers, chunked=False)
    to.client.send(body)
    to.call.client_has_all = True


def made(to: Answered, status: int, content_type: bytes, headers: Headers, body: bytes) -> None:
    """A complete answer of the gateway's own."""
    own = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    _write_head(to, status, own + headers, chunked=False)
    to.client.send(body)
    to.call.client_has_all = True


def begin_made(to: Answered, status: int, content_type: bytes, headers: Headers) -> None:
    """Begins an answer of the gateway's own that is made while it is read."""
    _write_open_head(to, status, [(b"content-type", content_type), *_STREAM_HEADERS, *headers])


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
    headers += more
    _write_head(to, reason.status, headers, chunked=False)
    to.client.send(body)


def error_event(to: Answered, reason: Reason, detail: str) -> None:
    """An error in the midst of a stream."""
    to.client.send(to.api.error_event(reason.status, reason.code, detail or reason.message))


def _write_open_head(to: Answered, status: int, headers: Headers) -> None:
    """A head without a length: chunked, or for HTTP/1.0 delimited by the close."""
    if to.client.http11:
        headers.append(_CHUNKED)
    else:
        to.client.close_after_this()
    _write_head(to, status, headers, chunked=to.client.http11)


def _write_head(to: Answered, status: int, headers: Headers, chunked: bool) -> None:
    call, client = to.call, to.client
    for name, _ in headers:
        if name == b"date":
            break
    else:
        headers.append(date())
    headers.append((b"x-request-id", call.id.encode("ascii")))
    if client.will_close:
        headers.append((b"connection", b"close"))
    elif not client.http11:
        headers.append((b"connection", b"keep-alive"))
    call.client_answer_began(status)
    client.begin(encode_head(status, headers), chunked=chunked)
