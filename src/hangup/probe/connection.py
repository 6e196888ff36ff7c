"""One client's connection to the endpoint: sends a call, reads its answer, and leaves in any of the ways that clients do."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable
from typing import cast

from hangup.errors import WireError
from hangup.probe.cases import Departure
from hangup.probe.dialects import Dialect, error_of, event_of
from hangup.probe.usage import id_in_event, id_in_headers
from hangup.probe.wire import AnswerParser, LineSplitter

_SO_ATTACH_FILTER = 26  # Linux
_BODY_BYTES_MAX = 4 * 1024 * 1024
TOKENS_PER_EVENT_MAX = 16  # some engines and gateways send several tokens at a time
_TOO_LONG = (400, 413, 422)
CUT = "the connection was closed before the answer's end"
RATE_LIMIT = "HTTP 429"  # how `refused` begins then
CAN_VANISH = sys.platform == "linux"


class ProbeConnection(asyncio.Protocol):
    """A connection with one call at a time. Whoever opens it closes it; `leave` is the departure that is probed."""

    def __init__(self, dialect: Dialect, sock: socket.socket) -> None:
        self._dialect = dialect
        self._socket = sock  # the transport owns it; event loops differ in what they lend of it
        self._transport: asyncio.Transport | None = None
        self._changed: asyncio.Future[None] | None = None
        self._read_at = 0.0
        self.lost = False  # the connection is closed, by the peer or by us
        self.failure = ""  # why the answer cannot be read
        self._expect(stream=True)

    def _expect(self, *, stream: bool) -> None:
        self._parser = AnswerParser()
        self._lines = LineSplitter()
        self._stream = stream
        self.sent_at = time.monotonic()
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.events = 0  # with text: one for each token, mostly
        self.first_events = 0  # of these, the ones that came in one piece with the first
        self.reads = 0  # pieces with text
        self.usage: int | None = None  # tokens of the answer, if it reports them
        self._id = ""
        self.body = b""

    # What came

    @property
    def status(self) -> int:
        return self._parser.status

    @property
    def headers(self) -> dict[str, str]:
        return self._parser.headers

    @property
    def done(self) -> bool:
        return self._parser.done

    def tokens(self, per_event: float) -> float:
        """Return how many tokens came: as the answer reports them, if that can be true, else from its events."""
        if self.usage is not None and self.events <= self.usage <= self.events * TOKENS_PER_EVENT_MAX + 8:
            return self.usage
        return self.events * per_event

    @property
    def record_id(self) -> str:
        """The id under which the API files this call, if it has told one."""
        return id_in_headers(self.headers) or self._id

    @property
    def ended(self) -> bool:
        """The answer is complete, or nothing more will come."""
        return self._parser.done or self.lost or bool(self.failure)

    @property
    def keeps_alive(self) -> bool:
        return self._parser.keeps_alive and not self.lost

    @property
    def may_be_too_long(self) -> bool:
        """Whether the endpoint refused the call as it does if a prompt does not fit its context."""
        return self.status in _TOO_LONG

    @property
    def refused(self) -> str:
        """What an error answer says, or why there is no answer; empty if all is well."""
        if self.failure:
            return self.failure
        if self.status and self.status != 200:
            return f"HTTP {self.status}: {error_of(self.body)}"
        if self.lost and not self.done:
            return CUT
        return ""

    # What to do

    def send(self, head: bytes, body: bytes, *, stream: bool) -> None:
        self._expect(stream=stream)
        self.send_more(head + body)

    def send_more(self, data: bytes) -> None:
        """Send bytes that belong to the call, or come behind it."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def until(self, condition: Callable[[ProbeConnection], object], timeout_s: float) -> bool:
        """Wait for a condition on what came; return whether it became true before the end of the answer and of the time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not condition(self) and not self.ended:
                    self._changed = asyncio.get_running_loop().create_future()
                    await self._changed
        return bool(condition(self))

    async def until_end(self, timeout_s: float) -> bool:
        return await self.until(lambda connection: connection.done, timeout_s)

    async def read_whole(self, stall_s: float) -> bool:
        """Wait for the end as long as tokens come; return whether it came. A slow machine is no stall."""
        while not self.ended:
            if not await self.until(_has_more_than(self.events), stall_s):
                break
        return self.done

    def leave(self, how: Departure) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        match how:
            case Departure.FIN:
                transport.close()
            case Departure.RST:
                self.close()
            case Departure.HALF_CLOSE:
                self._socket.shutdown(socket.SHUT_WR)
            case Departure.STALL:
                transport.pause_reading()
            case Departure.SILENCE:
                self._vanish()

    def close(self) -> None:
        """Close at once, with a reset: nothing lingers."""
        if self._transport is not None and not self.lost:
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()

    def _vanish(self) -> None:
        """Vanish like a host that lost power: from now on the kernel drops all incoming packets, unanswered.

        A classic BPF program on one's own socket needs no privileges.
        """
        program = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # return 0 bytes
        address = struct.pack("HL", 1, ctypes.addressof(program))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, address)

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._read_at = time.monotonic()
        try:
            body = self._parser.feed(data)
        except WireError as error:
            self.failure = self.failure or str(error)
            self._notify()
            return
        if self._stream and self.status == 200:
            for line in self._lines.feed(body):
                self._read(line)
        elif len(self.body) <= _BODY_BYTES_MAX:
            self.body += body
        if self.done:
            self._read_end()
        self._notify()

    def eof_received(self) -> bool:
        self._parser.close()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if isinstance(exc, ssl.SSLError) and not self.done:
            self.failure = self.failure or f"TLS failed: {tls_reason(exc)}"
        self._parser.close()
        self._notify()

    def _read(self, line: bytes) -> None:
        event = event_of(line)
        if event is None:
            return
        self._id = self._id or id_in_event(line, event)
        if event.get("error") and not self.failure:
            self.failure = f"the stream reports an error: {error_of(json.dumps(event).encode())}"
        if self._dialect.text(event):
            self.reads += self.last_token_at != self._read_at
            self.last_token_at = self._read_at
            self.first_token_at = self.first_token_at or self._read_at
            self.events += 1
            self.first_events += self.first_token_at == self._read_at
        reported = self._dialect.tokens(event)
        self.usage = self.usage if reported is None else reported

    def _read_end(self) -> None:
        if self._stream:
            self._read(self._lines.end())
        elif self.status == 200:
            event = event_of(self.body)
            if event is not None:
                self.usage = self._dialect.tokens(event)

    def _notify(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)


def _has_more_than(events: int) -> Callable[[ProbeConnection], bool]:
    return lambda call: call.done or call.events > events


def tls_reason(error: ssl.SSLError) -> str:
    """Return what OpenSSL says, in words."""
    return (error.reason or error.strerror or "the handshake failed").replace("_", " ").lower()
