"""A client's connection: reads requests, writes answers, and notices a hang-up in every phase.

    IDLE ──▶ HEAD ──▶ BODY ──▶ BUSY ──▶ IDLE …          one request at a time, keep-alive in between
                                 ├────▶ LINGER          refused: let the client read why, then cut
                                 └────▶ TUNNEL          a WebSocket: pass all data on, until the end

Reading is never paused, because a FIN can only be seen by reading up to it. So bytes behind the running request (pipelining)
are kept up to a limit and dropped beyond it; the connection then closes after the current answer.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final, cast

from hangup.config import ClientLimits
from hangup.core import reasons
from hangup.core.reasons import Reason
from hangup.errors import WireError
from hangup.gateway.client import sockets
from hangup.gateway.client.connection_state import BODY, BUSY, CLOSED, HEAD, IDLE, LINGER, TUNNEL
from hangup.gateway.client.end_queue import why_lost
from hangup.gateway.client.handlers import RequestHandler, RequestRouter
from hangup.gateway.client.stall import StallWatch
from hangup.gateway.client.timed import Timed
from hangup.gateway.client.unreadable import why_head_cannot_end, why_invalid
from hangup.gateway.http.body import LAST_CHUNK, BodyDecoder, Chunked, Counted, chunk
from hangup.gateway.http.head import HEAD_END, RequestHead, without_empty_lines
from hangup.gateway.http.known_heads import read_request_head

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientConnection(Timed):
    __slots__ = (
        "_body",
        "_body_began_at",
        "_body_bytes",
        "_bodyless",
        "_buffer",
        "_chunked_answer",
        "_close_after",
        "_decoder",
        "_held_back",
        "_keep_alive",
        "_linger_bytes",
        "_owner",
        "_scanned",
        "_stall",
        "_tunnel",
        "_unsent",
        "handler",
        "http11",
        "peer",
        "state",
        "transport",
        "write",
    )

    transport: asyncio.Transport
    write: Callable[[bytes], None]

    def __init__(self, owner: RequestRouter[ClientConnection], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._owner = owner
        self.state = IDLE
        self.handler: RequestHandler | None = None
        self.peer = ""
        self.http11 = True
        self._buffer = b""
        self._scanned = 0  # bytes already searched for the end of a head
        self._decoder: BodyDecoder | None = None
        self._body = bytearray()
        self._body_began_at = 0.0
        self._body_bytes = 0
        self._keep_alive = True
        self._close_after = False
        self._chunked_answer = False
        self._bodyless = False  # HEAD request: its answer is sent without a body
        self._unsent = b""
        self._linger_bytes = 0
        self._held_back = False  # not read from, because many clients leave at once
        self._stall: StallWatch | None = None
        self._tunnel: Callable[[bytes], None] | None = None

    def __repr__(self) -> str:
        return f"<client {self.peer} {self.state.name.lower()}>"

    # Callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.write = self.transport.write
        # No slack: once the kernel's buffer is full, the gateway stops reading from the engine. (With TLS, 0 means "always".)
        self.transport.set_write_buffer_limits(high=1, low=0)
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if peer else ""
        if self._owner.connected(self):
            self._set_due_in(self._owner.limits.header_s)
        elif self._owner.keep_to_refuse(self):
            self.state = HEAD
            self._refuse_unreadable(reasons.CONNECTIONS)
        else:
            self.state = CLOSED
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            if self.state is IDLE and self._stall is None:  # a new request
                self._buffer += data
                self._take_head()
            else:
                self._take(data)
        except Exception as error:
            self._fault(error)

    def _take(self, data: bytes) -> None:
        if self.state is BUSY:
            self._keep_pipelined(data)
        elif self.state is BODY:
            self._take_body(data)
        elif self.state is TUNNEL:
            assert self._tunnel is not None
            self._tunnel(data)
        elif self.state is LINGER:
            self._linger_bytes += len(data)
            if self._linger_bytes > self._owner.limits.body_bytes_max:
                self.transport.abort()
        elif self.stalled:
            self._keep_pipelined(data)
        elif self.state is not CLOSED:
            self._buffer += data
            self._take_head()

    def _fault(self, error: Exception) -> None:
        """Handle a bug of ours. The end of the request is no longer known, so the connection ends with its call."""
        self._keep_alive = False
        if self.handler is None:
            self.transport.abort()
            raise error  # the event loop's exception handler logs it
        self.handler.fault(error)

    def eof_received(self) -> bool:
        if self.handler is not None:
            if self.state is BUSY and not self._owner.half_close_is_hangup:
                self._close_after = True
                return True
            if self._owner.ends.client_left(self, reasons.CLIENT_FIN):
                self.state = CLOSED
                # It stays open until its turn has come; with TLS it cannot, and the event loop would warn.
                return self.transport.get_extra_info("sslcontext") is None
            self.handler.client_left(reasons.CLIENT_FIN)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        departing, self.state = self.state is CLOSED, CLOSED
        for watch in (self._timer, self._stall):
            if watch is not None:
                watch.cancel()
        self._timer = self._stall = None
        self._drop_body()
        self.write = _discard  # a call whose departure waits may still have something to say
        if self.handler is not None and not departing and not self._owner.ends.client_left(self, why_lost(exc)):
            self.handler.client_left(why_lost(exc))
            self.handler = None
        self._tunnel = None
        self._owner.disconnected(self)

    def hold_back(self) -> bool:
        """Read nothing from a client that awaits its answer, while many leave at once: all it could say is that it leaves."""
        if self.state is not BUSY or self._held_back or self.transport.get_extra_info("sslcontext") is not None:
            return False
        self.transport.pause_reading()
        self._held_back = True
        return True

    def read_again(self) -> None:
        if self._held_back and not self.transport.is_closing():
            self.transport.resume_reading()
        self._held_back = False

    def pause_writing(self) -> None:
        self._stall = StallWatch(self._loop, self.transport, self._owner.limits, self._give_up)
        if self.handler is not None:
            self.handler.pause_engine()

    @property
    def stalled(self) -> bool:
        """True if the client has not read all that was written."""
        return self._stall is not None

    def resume_writing(self) -> None:
        if self._stall is not None:
            self._stall.end()
            self._stall = None
        if self.handler is not None:
            self.handler.resume_engine()
        elif self._close_after and self.state is IDLE:
            self.transport.close()
        elif self._buffer:
            self._loop.call_soon(self._take_next_head)

    # Requests

    def _take_next_head(self) -> None:
        """Parse a request that arrived before the client had read the previous answer."""
        try:
            self._take_head()
        except Exception as error:
            self._fault(error)

    def _take_head(self) -> None:
        if self._stall is not None or (self.state is not IDLE and self.state is not HEAD):
            return  # start nothing for a client that does not read its answers
        limits = self._owner.limits
        if self._buffer.startswith(b"\r\n"):  # some clients send an empty line after a body
            self._buffer = without_empty_lines(self._buffer)
            self._scanned = 0
        if not self._buffer:
            return
        # Search on from where the last search ended: a head that arrives byte by byte must not be searched again for each byte.
        end = self._buffer.find(HEAD_END, self._scanned - 3 if self._scanned > 3 else 0, limits.header_bytes_max)
        if end < 0:
            self._wait_for_head(limits)
            return
        head_bytes, self._buffer = self._buffer[: end + 4], self._buffer[end + 4 :]
        self._scanned = 0
        try:
            head = read_request_head(head_bytes, count_max=limits.header_count_max, url_bytes_max=limits.url_bytes_max)
        except WireError as error:
            self._refuse_unreadable(*why_invalid(error))
            return
        self.http11 = head.http11
        self._bodyless = head.method == "HEAD"
        self._keep_alive = head.keep_alive
        self.state = BODY if head.chunked or head.content_length else BUSY
        self._due = math.inf
        handler = self._owner.open(self, head)
        if handler is None:
            return
        self.handler = handler
        size = len(self._buffer)
        if size == head.content_length and size <= handler.body_bytes_max and b"expect" not in head.fields:
            body, self._buffer = self._buffer, b""  # the usual case: it all came with the head, and nothing behind it
            self._body_complete(body)
        else:
            self._expect_body(head)

    def _wait_for_head(self, limits: ClientLimits) -> None:
        scanned, self._scanned = self._scanned, len(self._buffer)
        why = why_head_cannot_end(self._buffer, scanned, limits)
        if why is not None:
            self._refuse_unreadable(*why)
        elif self.state is IDLE:
            self.state = HEAD
            self._set_due_in(limits.header_s)

    def _refuse_unreadable(self, reason: Reason, detail: str = "") -> None:
        """Refuse a request so malformed that neither it nor anything behind it can be trusted."""
        self._keep_alive = self._bodyless = False
        self._buffer = b""
        self._owner.refuse_unreadable(self, reason, detail)

    def _expect_body(self, head: RequestHead) -> None:
        assert self.handler is not None
        length = head.content_length
        if length is not None and length > self.handler.body_bytes_max:
            self._refuse_body(reasons.BODY_TOO_LARGE)
            return
        expect = head.fields.get(b"expect")
        if expect is not None and self.http11 and expect.lower() != b"100-continue":
            self._refuse_body(reasons.EXPECTATION_FAILED)
            return
        if self.state is BUSY:
            self._body_complete(b"")
            return
        if length is not None and len(self._buffer) >= length:  # it all came with the head
            body, self._buffer = self._buffer[:length], self._buffer[length:]
            self._body_complete(body)
            return
        self._decoder = Chunked() if head.chunked else Counted(length or 0)
        if expect is not None and not self._buffer and self.http11:
            self.write(_CONTINUE)
        self._body_began_at = self._loop.time()
        self._body_bytes = 0
        data, self._buffer = self._buffer, b""
        if data:
            self._take_body(data)
        else:
            self._set_body_due()

    def _take_body(self, data: bytes) -> None:
        assert self._decoder is not None and self.handler is not None
        try:
            payload = self._decoder.feed(data)
        except WireError as error:
            self._refuse_body(*why_invalid(error))
            return
        self._body_bytes += len(payload)
        if self._body_bytes > self.handler.body_bytes_max:
            self._refuse_body(reasons.BODY_TOO_LARGE)
            return
        if self.handler.body_piece(payload):
            payload = b""
        if self.state is not BODY:
            return  # refused
        if self._decoder.done:
            self._buffer = self._decoder.rest
            self._body_complete(b"".join((self._body, payload)) if self._body else payload)  # one copy, as it may be large
        elif self._owner.body_bytes + len(payload) > self._owner.limits.bodies_bytes_max:
            self._refuse_body(reasons.BODIES_FULL)
        else:
            self._body += payload
            self._owner.body_bytes += len(payload)
            self._set_body_due()

    def _body_complete(self, body: bytes) -> None:
        assert self.handler is not None
        if self._decoder is not None:
            self._drop_body()
        self.state = BUSY
        self._due = math.inf
        if len(self._buffer) > self._owner.limits.pipelined_bytes_max:
            self._buffer, self._close_after = b"", True
        self.handler.body_arrived(body)

    def _refuse_body(self, reason: Reason, detail: str = "") -> None:
        """Refuse the request. The rest of its body will not be read, so this connection cannot carry another one."""
        assert self.handler is not None
        self._keep_alive = False
        self._buffer = b""
        self._drop_body()
        self.handler.refuse(reason, detail)

    def _drop_body(self) -> None:
        """Free the memory of a body that is complete, or never will be."""
        self._decoder = None
        if self._body:
            self._owner.body_bytes -= len(self._body)
            self._body = bytearray()

    def _keep_pipelined(self, data: bytes) -> None:
        if self._close_after:
            return
        self._buffer += data
        if len(self._buffer) > self._owner.limits.pipelined_bytes_max:
            self._buffer, self._close_after = b"", True

    # Answers

    @property
    def will_close(self) -> bool:
        """True if this answer is the last on its connection; its head must say so."""
        return self._close_after or not self._keep_alive or self.state is not BUSY

    def close_after_this(self) -> None:
        self._close_after = True
        if self.state in (IDLE, HEAD):
            self.transport.close()

    def switch(self, take: Callable[[bytes], None]) -> bytes:
        """Leave HTTP behind: from now on all data goes to `take`. Return the data that has arrived already."""
        self.flush()
        self.read_again()
        self.state = TUNNEL
        self._tunnel = take
        early, self._buffer = self._buffer, b""
        return early

    def begin(self, head: bytes, *, chunked: bool) -> None:
        """Start an answer. Its body follows through `send`; from the second read on also, already framed, through `write`."""
        self._chunked_answer = chunked
        self._unsent = head  # sent together with the first part of the body, or by `flush`

    def send(self, payload: bytes) -> None:
        if self._bodyless:
            self.flush()
            return
        if self._chunked_answer:
            payload = chunk(payload)
        if self._unsent:
            payload, self._unsent = self._unsent + payload, b""
        self.write(payload)

    def flush(self) -> None:
        """Send a head that no body has followed yet."""
        if self._unsent:
            unsent, self._unsent = self._unsent, b""
            self.write(unsent)

    def has_left(self) -> bool:
        """Return True if the client has gone away; a last check before work is started for it."""
        if self.state is CLOSED:  # its departure may still wait to be handled, and its socket may be gone
            return True
        return sockets.peer_left(self.transport.get_extra_info("socket"), self._owner.half_close_is_hangup)

    def finish(self) -> None:
        """Complete the answer and go on to the next request."""
        if self._chunked_answer and not self._bodyless:
            self._chunked_answer = False
            self.send(LAST_CHUNK)
        elif self._unsent:
            self.flush()
        self.handler = None
        if self.state is CLOSED:
            return
        if self.state is not BUSY:
            self._linger()
        elif self.will_close:
            self.state = CLOSED
            self._due = math.inf  # no call deadline any more: the client may read slowly, as far as `StallWatch` allows
            self.transport.close()
        else:
            self.state = IDLE
            if self._held_back:
                self.read_again()
            self.set_due(self._loop.time() + self._owner.limits.idle_s)
            if self._buffer:
                # In a later iteration of the loop: a series of pipelined requests must neither recurse nor delay other clients.
                self._loop.call_soon(self._take_next_head)

    def break_off(self) -> None:
        """End an answer that has begun, in such a way that nobody can mistake it for a complete one."""
        self.flush()
        self.handler = None
        if self.state is CLOSED:
            return
        self.state = CLOSED
        if not self.http11:
            sockets.reset_on_close(self.transport.get_extra_info("socket"))
        self._set_due_in(self._owner.limits.linger_s)
        self.transport.close()  # data already written still goes out, within the limit set above

    def drop(self) -> None:
        """Cut the connection of a client that is gone; write nothing more."""
        self.handler = None
        self.state = CLOSED
        self.transport.abort()

    def _linger(self) -> None:
        """Keep the connection open for a while. Closing it with unread bytes of the request would reset it and destroy the
        refusal."""
        self.state = LINGER
        self._linger_bytes = 0
        self._set_due_in(self._owner.limits.linger_s)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    # Deadlines

    def _set_body_due(self) -> None:
        assert self.handler is not None
        self.set_due(min(self._loop.time() + self._owner.limits.body_idle_s, self._body_began_at + self.handler.body_s))

    def _defer(self, end: Callable[[], None]) -> bool:
        return self._owner.ends.defer(end, self._fault)

    def _time_has_come(self) -> None:
        if self.state in (BUSY, TUNNEL) and self.handler is not None:
            self.handler.on_due()
        elif self.state is BODY:
            self._refuse_body(reasons.BODY_TIME)
        elif self.state is HEAD:
            self._refuse_unreadable(reasons.HEADER_TIME)
        elif self.state is IDLE:
            self.transport.close()
        else:
            self.transport.abort()  # it had time to read the end of the answer

    def _give_up(self, reason: Reason) -> None:
        if self.handler is not None:
            self.handler.client_left(reason)
        self.drop()


def _discard(data: bytes) -> None:
    """Write nothing: the client is gone."""
