"""Sends the gateway's own small requests to a backend: health checks, recognition, aborts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from hangup.core import reasons
from hangup.errors import EngineFault, EngineSilent, WireError
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.connection import EngineConnection, body_decoder
from hangup.gateway.http.body import UntilClose
from hangup.gateway.http.head import Headers, ResponseHead

ANSWER_BYTES_MAX = 1024 * 1024


@dataclass(slots=True)
class Fetched:
    head: ResponseHead
    body: bytes


async def fetch(
    backend: Backend,
    method: str,
    path: str,
    body: bytes = b"",
    *,
    timeout_s: float,
    headers: Headers | None = None,
    bytes_max: int = ANSWER_BYTES_MAX,
) -> Fetched:
    """Send one request and return the whole answer; raise `EngineFault` if there is none.

    All these requests may be sent twice. A failed keep-alive connection says nothing about the engine, so a new one is tried.
    """
    request = backend.own_request(method, path, body, headers)
    try:
        async with asyncio.timeout(timeout_s):
            kept = backend.pool.idle_connection()
            if kept is not None:
                with contextlib.suppress(_KeptConnectionFailed):
                    return await _ask(kept, request, bytes_max)
            return await _ask(await backend.pool.connect(), request, bytes_max)
    except TimeoutError:
        raise EngineSilent(reasons.ENGINE_UNREACHABLE, f"{method} {path} timed out after {timeout_s:g} s") from None


async def _ask(connection: EngineConnection, request: tuple[bytes, bytes], bytes_max: int) -> Fetched:
    inquiry = FetchCall(asyncio.get_running_loop(), bytes_max)
    inquiry.connection = connection
    try:
        connection.ask(inquiry, *request)
        return await inquiry.answer
    except EngineFault as fault:
        if connection.reused and not inquiry.answered:
            raise _KeptConnectionFailed from fault
        raise
    finally:
        inquiry.close()


class _KeptConnectionFailed(Exception):
    """A keep-alive connection had been closed while idle, or delivered bytes of an earlier answer."""


class FetchCall:
    """Collects one answer."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bytes_max: int, until: bytes = b"") -> None:
        self._bytes_max = bytes_max
        self._until = until  # the answer is complete as soon as its body contains this
        self.answer: asyncio.Future[Fetched] = loop.create_future()
        self.connection: EngineConnection | None = None
        self.answered = False
        self._body = b""

    def engine_answered(self, connection: EngineConnection, head: ResponseHead, rest: bytes) -> Callable[[bytes], None]:
        self.answered = True
        decoder = body_decoder(head)

        def feed(data: bytes) -> None:
            try:
                self._body += decoder.feed(data)
            except WireError as error:
                self.engine_garbled(connection, error)
                return
            if len(self._body) > self._bytes_max:
                self._fail(f"the answer is larger than {self._bytes_max} bytes")
            elif decoder.done:
                self._done(head, reusable=head.keep_alive and not decoder.rest)
            elif self._until and self._until in self._body:
                self._done(head, reusable=False)

        self._until_close = head if isinstance(decoder, UntilClose) else None
        if decoder.done:
            self._done(head, reusable=head.keep_alive and not rest)
        elif rest:
            feed(rest)
        return feed

    _until_close: ResponseHead | None = None

    def engine_leaving(self) -> None: ...

    def engine_lost(self, connection: EngineConnection, error: Exception | None) -> None:
        self.connection = None
        if self._until_close is not None and error is None:
            self._done(self._until_close, reusable=False)
        else:
            self._fail("the engine closed the connection")

    def engine_garbled(self, connection: EngineConnection, error: WireError) -> None:
        self._fail(str(error))

    def fault(self, error: Exception) -> None:
        self.connection = None
        self._fail(f"cannot read the answer: {error!r}")

    def _done(self, head: ResponseHead, reusable: bool) -> None:
        if not self.answer.done():
            self.answer.set_result(Fetched(head, self._body))
        if self.connection is not None:
            self.connection.release(reusable)
            self.connection = None

    def _fail(self, detail: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(EngineFault(reasons.ENGINE_DIED, detail))

    @classmethod
    def take_over(cls, connection: EngineConnection, bytes_max: int, until: bytes = b"") -> FetchCall:
        """Take the answer to a request from a handler that has gone away; `rest` waits for it."""
        inquiry = cls(asyncio.get_running_loop(), bytes_max, until)
        inquiry.connection = connection
        connection.hand_over(inquiry)
        return inquiry

    async def rest(self, timeout_s: float) -> Fetched:
        try:
            async with asyncio.timeout(timeout_s):
                return await self.answer
        except TimeoutError:
            raise EngineSilent(reasons.ENGINE_UNREACHABLE, f"timed out after {timeout_s:g} s") from None
        finally:
            self.close()

    def close(self) -> None:
        if self.connection is not None:
            self.connection.abort()
            self.connection = None
        if not self.answer.done():
            self.answer.cancel()
        elif not self.answer.cancelled():
            self.answer.exception()  # mark it as retrieved: nobody may be waiting any more
