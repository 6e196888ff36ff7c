"""A connection to an engine: sends one request at a time, parses the head of the answer, and passes the body on as it
arrives."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, cast

from hangup.errors import WireError
from hangup.gateway.backends.coming_transport import ComingTransport
from hangup.gateway.backends.loop_beats import BEATS
from hangup.gateway.http.body import BodyDecoder, Chunked, Counted, UntilClose
from hangup.gateway.http.head import HEAD_END, ResponseHead
from hangup.gateway.http.known_heads import read_response_head

# Within which an engine reports that it closed a connection before it read our request: by a FIN, or by an RST, which its
# kernel sends if the request was left unread. So an RST may also come from an engine that got no CPU in between.
_FIN_S, _RST_S = 0.25, 1.0
_NEWS: Final = select.POLLIN | getattr(select, "POLLRDHUP", 0)


_COPIED_BYTES_MAX: Final = 64 * 1024  # of a body, to send in one piece with its head
# A shorter key is a placeholder, such as "none" or "1", which other words and numbers contain, too.
_SECRET_BYTES_MIN: Final = 8


class ResponseHandler(Protocol):
    """The sender of a request, who receives the answer."""

    def engine_answered(self, connection: EngineConnection, head: ResponseHead, rest: bytes) -> Callable[[bytes], None]:
        """Take the answer's head and `rest`, the bytes that came with it. Return the callback for the body's further raw
        bytes."""

    def engine_leaving(self) -> None:
        """Note that the engine has closed or reset the connection; `engine_lost` follows."""

    def engine_lost(self, connection: EngineConnection, error: Exception | None) -> None: ...

    def engine_garbled(self, connection: EngineConnection, error: WireError) -> None: ...

    def fault(self, error: Exception) -> None:
        """Report a bug of ours that was raised while the answer was processed; the connection is cut."""


class ConnectionOwner(Protocol):
    """The owner of a connection: takes it back after a complete answer, and learns when it closes."""

    secret: bytes  # the engine's key, which clients must not see; empty: none of ours

    def put_back(self, connection: EngineConnection) -> None: ...

    def connection_closed(self, connection: EngineConnection) -> None: ...


class EngineConnection(asyncio.Protocol):
    __slots__ = (
        "_asked_at",
        "_buffer",
        "_coming",
        "_feed",
        "_got_bytes",
        "_handler",
        "_has_body",
        "_head_bytes_max",
        "_held_back",
        "_may_switch",
        "_news",
        "_on_full",
        "_owner",
        "_paused",
        "_receive_bytes",
        "_refused",
        "idle_since",
        "reused",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, owner: ConnectionOwner, head_bytes_max: int, receive_bytes: int = 0) -> None:
        self._owner = owner
        self._head_bytes_max = head_bytes_max
        self._receive_bytes = receive_bytes
        self._handler: ResponseHandler | None = None
        self._feed: Callable[[bytes], None] | None = None
        self._buffer = b""
        self._coming: ComingTransport | None = None  # what is there instead of the transport
        self._paused = False
        self._held_back = False  # not read from, because the engine has lost many connections at once
        self._asked_at = 0.0
        self._got_bytes = False  # any byte has arrived since the request was sent
        self._has_body = False  # the request has one
        self._refused = False  # the answer's status refused the request
        self._may_switch = False
        self._news: select.poll | None = None  # for `is_quiet`, before each request
        self._on_full: Callable[[bool], None] | None = None
        self.idle_since = 0.0
        self.reused = False

    def begin(self, sock: socket.socket) -> None:
        """Take requests from now on, although the transport over this socket comes later."""
        self.transport = self._coming = ComingTransport()
        self._look_for_news(sock)

    def _look_for_news(self, sock: socket.socket) -> None:
        self._news = select.poll()
        self._news.register(sock.fileno(), _NEWS)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        coming, self._coming = self._coming, None
        if coming is not None:
            coming.give_to(self.transport)
            if self._paused or self._held_back:
                asyncio.get_running_loop().call_soon(self._read_nothing)  # uvloop starts to read after this
            return
        sock = transport.get_extra_info("socket")
        if sock is None:
            return
        self._look_for_news(sock)
        if self._receive_bytes:
            # Otherwise the kernel would buffer megabytes of tokens for a client that has stopped reading.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_bytes)

    def ask(self, handler: ResponseHandler, head: bytes, body: bytes, *, may_switch: bool = False) -> None:
        """Send a request. `may_switch`: it is a handshake, so 101 is a final answer."""
        assert self._handler is None, "one request at a time"
        self._handler = handler
        self._asked_at = time.monotonic()
        self._got_bytes = False
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
                self.abort()  # bytes on an idle connection mean that its framing is off
        except Exception as error:
            # If the transport handled it, it would look as if the engine had closed the connection.
            handler = self._handler
            self.abort()
            if handler is None:
                raise
            handler.fault(error)

    def _read_head(self, handler: ResponseHandler, data: bytes) -> None:
        self._got_bytes = True
        self._buffer += data
        while True:
            end = self._buffer.find(HEAD_END, 0, self._head_bytes_max)
            if end < 0:
                if len(self._buffer) >= self._head_bytes_max:
                    handler.engine_garbled(self, WireError("response head too large"))
                return
            head_bytes, self._buffer = self._buffer[: end + 4], self._buffer[end + 4 :]
            try:
                head = read_response_head(head_bytes)
            except WireError as error:
                handler.engine_garbled(self, error)
                return
            if head.status >= 200 or (head.status == 101 and self._may_switch):
                break  # other 1xx are informational; the answer follows
        rest, self._buffer = self._buffer, b""
        self._refused = head.status >= 400
        hides = self._refused and len(self._owner.secret) >= _SECRET_BYTES_MIN
        if hides:  # engines quote a key that they refuse, and it is not the client's
            hide = partial(_without, self._owner.secret)
            head, rest = read_response_head(hide(head_bytes)), hide(rest)
        feed = handler.engine_answered(self, head, rest)
        if self._handler is handler:  # it may have released the connection already
            self._feed = (lambda data: feed(hide(data))) if hides else feed

    def eof_received(self) -> bool:
        # When `connection_lost` is called, all other connections were read from: too late to hold them back.
        if self._handler is not None:
            self._handler.engine_leaving()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        handler, self._handler, self._feed = self._handler, None, None
        self._on_full = None
        self._owner.connection_closed(self)
        if handler is not None:
            try:
                if exc is not None:
                    handler.engine_leaving()
                handler.engine_lost(self, exc)
            except Exception as error:
                handler.fault(error)

    def when_full(self, on_full: Callable[[bool], None], bytes_max: int) -> None:
        """Call `on_full(True)` when more than `bytes_max` bytes wait for the engine to read them, and `on_full(False)` when it
        has."""
        self._on_full = on_full
        self.transport.set_write_buffer_limits(high=bytes_max)

    def pause_writing(self) -> None:
        if self._on_full is not None:
            self._on_full(True)

    def resume_writing(self) -> None:
        if self._on_full is not None:
            self._on_full(False)

    def pause(self) -> None:
        """Stop reading: the receiver of the answer cannot take more at the moment."""
        if not self._paused and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def _read_nothing(self) -> None:
        if (self._paused or self._held_back) and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def hold_back(self) -> bool:
        """Read nothing for now; return False if it cannot be held back, or is already."""
        if self._held_back or self._paused or self.transport.is_closing():
            return False
        if self.transport.get_extra_info("sslcontext") is not None:
            return False
        self._held_back = True
        self.transport.pause_reading()
        return True

    def read_again(self) -> None:
        self._held_back = False
        if not self._paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def was_closed_while_idle(self, error: Exception | None) -> bool:
        """After the connection was lost, with `error`: return True if the engine closed it while it was idle, so that it never
        read the request, which may then be sent again (RFC 9110, section 9.2.2).

        An engine that dies at work closes its connection as well, but later. When it did is not known, only when the event loop
        last saw no sign of it: a process that stood still in between reads of the close long after it.
        """
        within_s = _RST_S if isinstance(error, ConnectionError) else _FIN_S
        return self.reused and not self._got_bytes and BEATS.looked_at() - self._asked_at < within_s

    def is_quiet(self) -> bool:
        """Return True if nothing has arrived that the event loop has not yet reported: neither a FIN nor unsolicited bytes."""
        return self._news is None or not self._news.poll(0)

    def release(self, reusable: bool) -> None:
        """End the exchange after a complete answer, and keep the connection if it can be reused.

        An engine may answer before it has read the whole request. The unsent part would block the next request; and some
        engines that refuse a request parse its unread body as the next one.
        """
        self._handler, self._feed = None, None
        unread = self._has_body and self._refused
        if reusable and not unread and not self.transport.is_closing() and not self.transport.get_write_buffer_size():
            self.resume()  # reading may still be paused after the last bytes of the answer
            self._owner.put_back(self)
        else:
            self.abort()

    def hand_over(self, handler: ResponseHandler) -> None:
        """Pass an answer that has not begun to another handler."""
        assert self._handler is not None and self._feed is None
        self._handler = handler

    def linger(self) -> None:
        """Keep the connection open for a moment but ignore its data: some engines must get an abort before the connection
        closes."""
        self._handler, self._feed = None, _ignore

    def abort(self) -> None:
        """Cut the connection now; on most engines this stops the work."""
        self._on_full = None
        self._handler, self._feed = None, None
        self.transport.abort()


def body_decoder(head: ResponseHead) -> BodyDecoder:
    if head.without_body():
        return Counted(0)
    if head.chunked:
        return Chunked()
    return UntilClose() if head.content_length is None else Counted(head.content_length)


def _without(secret: bytes, data: bytes) -> bytes:
    """Cover a secret with as many asterisks, so that lengths stay right. One that is cut in two by a read is not found."""
    return data.replace(secret, b"*" * len(secret))


def _ignore(data: bytes) -> None:
    """Discard the data."""
