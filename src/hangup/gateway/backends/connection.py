"""A connection to an engine: one request at a time, its answer's head parsed, its body handed on as it comes."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections.abc import Callable
from typing import Protocol, cast

from hangup.errors import WireError
from hangup.gateway.http.body import BodyDecoder, Chunked, Counted, UntilClose
from hangup.gateway.http.head import HEAD_END, ResponseHead

_AT_ONCE_S = 0.25  # within which an engine says that it had closed a connection before our request came
_NEWS = select.POLLIN | getattr(select, "POLLRDHUP", 0)


_COPIED_BYTES_MAX = 64 * 1024  # of a body, to go out in one piece with its head


class ResponseHandler(Protocol):
    """Who sent the request and gets the answer."""

    def engine_answered(self, connection: EngineConnection, head: ResponseHead, rest: bytes) -> Callable[[bytes], None]:
        """The head is here, and `rest` of what came with it; returns where the body's further raw bytes go."""

    def engine_lost(self, connection: EngineConnection, error: Exception | None) -> None: ...

    def engine_garbled(self, connection: EngineConnection, error: WireError) -> None: ...

    def fault(self, error: Exception) -> None:
        """A bug of ours came up while the answer was taken; the connection is cut."""


class ConnectionOwner(Protocol):
    """Where a connection goes when its answer is complete, and which wants to know of its end."""

    def put_back(self, connection: EngineConnection) -> None: ...

    def gone(self, connection: EngineConnection) -> None: ...


class EngineConnection(asyncio.Protocol):
    __slots__ = (
        "_asked_at",
        "_buffer",
        "_feed",
        "_handler",
        "_has_body",
        "_head_bytes_max",
        "_home",
        "_may_switch",
        "_paused",
        "_receive_bytes",
        "_refused",
        "_tell_full",
        "idle_since",
        "reused",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, home: ConnectionOwner, head_bytes_max: int, receive_bytes: int = 0) -> None:
        self._home = home
        self._head_bytes_max = head_bytes_max
        self._receive_bytes = receive_bytes
        self._handler: ResponseHandler | None = None
        self._feed: Callable[[bytes], None] | None = None
        self._buffer = b""
        self._paused = False
        self._asked_at = 0.0
        self._has_body = False  # of the request
        self._refused = False  # the request, by the answer's status
        self._may_switch = False
        self._tell_full: Callable[[bool], None] | None = None
        self.idle_since = 0.0
        self.reused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and self._receive_bytes:
            # The kernel would take megabytes of tokens on behalf of a client that has stopped reading.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_bytes)

    def ask(self, handler: ResponseHandler, head: bytes, body: bytes, *, may_switch: bool = False) -> None:
        """`may_switch`: the request is a handshake, and 101 an answer to it."""
        assert self._handler is None, "one request at a time"
        self._handler = handler
        self._asked_at = time.monotonic()
        self._has_body = bool(body)
        self._refused = False
        self._may_switch = may_switch
        self._feed = None
        self._buffer = b""
        if len(body) > _COPIED_BYTES_MAX:
            self.transport.write(head)
            self.transport.write(body)
        else:
            self.transport.write(head + body)

    def data_received(self, data: bytes) -> None:
        try:
            if self._feed is not None:
                self._feed(data)
            elif self._handler is not None:
                self._read_head(self._handler, data)
            else:
                self.abort()  # an idle connection has nothing to say: its framing is off
        except Exception as error:
            # Left to the transport, it would look as if the engine had broken off.
            handler = self._handler
            self.abort()
            if handler is None:
                raise
            handler.fault(error)

    def _read_head(self, handler: ResponseHandler, data: bytes) -> None:
        self._buffer += data
        while True:
            end = self._buffer.find(HEAD_END, 0, self._head_bytes_max)
            if end < 0:
                if len(self._buffer) >= self._head_bytes_max:
                    handler.engine_garbled(self, WireError("response head too large"))
                return
            head_bytes, self._buffer = self._buffer[: end + 4], self._buffer[end + 4 :]
            try:
                head = ResponseHead(head_bytes)
            except WireError as error:
                handler.engine_garbled(self, error)
                return
            if head.status >= 200 or (head.status == 101 and self._may_switch):
                break  # other 1xx are announcements; the answer is behind them
        rest, self._buffer = self._buffer, b""
        self._refused = head.status >= 400
        feed = handler.engine_answered(self, head, rest)
        if self._handler is handler:  # it may be done with us already
            self._feed = feed

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        handler, self._handler, self._feed = self._handler, None, None
        self._tell_full = None
        self._home.gone(self)
        if handler is not None:
            try:
                handler.engine_lost(self, exc)
            except Exception as error:
                handler.fault(error)

    def when_full(self, tell: Callable[[bool], None], bytes_max: int) -> None:
        """Tells when more than so many bytes wait for the engine to read them, and when it has."""
        self._tell_full = tell
        self.transport.set_write_buffer_limits(high=bytes_max)

    def pause_writing(self) -> None:
        if self._tell_full is not None:
            self._tell_full(True)

    def resume_writing(self) -> None:
        if self._tell_full is not None:
            self._tell_full(False)

    def pause(self) -> None:
        """Whoever gets the answer cannot take more of it just now."""
        if not self._paused and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def closed_before(self) -> bool:
        """After its loss: whether it had been closed as it lay idle, so that the engine never read the request."""
        return self.reused and not self._buffer and time.monotonic() - self._asked_at < _AT_ONCE_S

    def is_quiet(self) -> bool:
        """Whether nothing has come that the event loop has not yet told: neither a FIN, nor bytes that nobody asked for."""
        sock = self.transport.get_extra_info("socket")
        if sock is None:
            return True
        news = select.poll()
        news.register(sock.fileno(), _NEWS)
        return not news.poll(0)

    def release(self, reusable: bool) -> None:
        """The answer is complete. The connection is kept if it is as good as new.

        An engine may answer before it has read all of the request. What we have not sent of it stands in the way of the
        next; and some engines, having refused a request, take its unread body for the next one.
        """
        self._handler, self._feed = None, None
        unread = self._has_body and self._refused
        if reusable and not unread and not self.transport.is_closing() and not self.transport.get_write_buffer_size():
            self.resume()  # the last bytes of the answer may have been more than its client could take at once
            self._home.put_back(self)
        else:
            self.abort()

    def hand_over(self, handler: ResponseHandler) -> None:
        """The answer, of which nothing has come yet, is for somebody else now."""
        assert self._handler is not None and self._feed is None
        self._handler = handler

    def linger(self) -> None:
        """Stays open for a moment, but what comes is for nobody: some engines must hear an abort before the end."""
        self._handler, self._feed = None, _ignore

    def abort(self) -> None:
        """Cuts the connection now; on most engines this is what stops the work."""
        self._tell_full = None
        self._handler, self._feed = None, None
        self.transport.abort()


def body_decoder(head: ResponseHead) -> BodyDecoder:
    if head.without_body():
        return Counted(0)
    if head.chunked:
        return Chunked()
    return UntilClose() if head.content_length is None else Counted(head.content_length)


def _ignore(data: bytes) -> None:
    """Nobody waits for it."""
