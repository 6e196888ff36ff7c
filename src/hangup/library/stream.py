"""`hangup.stream`: a response that streams from an engine and always stops it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from hangup.core import reasons
from hangup.core.call import Tell
from hangup.library.encode import SSE, Encode, closing_event, error_body, error_event, to_bytes
from hangup.library.ended import Ended, OnEnd, log
from hangup.library.limits import CLIENT_SILENCE_S, GRACE_S, MAX_TOKENS, WRITE_STALL_S, Limits
from hangup.library.sources import discard, open_source
from hangup.library.tether import Abort, Tether
from hangup.library.token import CancelToken
from hangup.library.watch import ClientWatch

Headers = list[tuple[str, str]]


class StreamClient(Protocol):
    """The framework's side of an answer."""

    async def start(self, status: int, headers: Headers) -> None: ...
    async def write(self, data: bytes) -> None: ...
    async def finish(self) -> None: ...
    async def break_off(self) -> None:
        """Close the connection so that no client can mistake the answer for a complete one."""


class StreamCall:
    """One streaming call, independent of the framework. It can run only once."""

    def __init__(
        self,
        source: Any,
        limits: Limits,
        *,
        encode: Encode | None = None,
        count: Callable[[Any], int] | None = None,
        media_type: str = SSE,
        headers: Mapping[str, str] | None = None,
        status: int = 200,
        abort: Abort | None = None,
        token: CancelToken | None = None,
        on_end: OnEnd | None = None,
    ) -> None:
        self.limits = limits
        self.media_type = media_type
        self.status = status
        self.headers = dict(headers or {})
        self._source = source
        self._encode = encode or to_bytes
        self._count = count
        self._abort = abort
        self._token = token
        self._on_end = on_end
        self._closing_event = b""
        self._head_sent = False
        self._has_run = False

    def __del__(self) -> None:
        if not self._has_run:
            discard(self._source)

    async def run(self, watch: ClientWatch, client: StreamClient) -> Ended:
        assert not self._has_run, "this stream was sent already; a stream can be sent only once"
        self._has_run = True
        tether = Tether(self.limits, self._abort, self._token, self._on_end)
        await tether.run(watch, self._pump(tether, client))
        assert tether.ended is not None
        if tether.error is not None:
            log.error("call %s: the engine failed", tether.call.id, exc_info=tether.error)
        try:
            async with asyncio.timeout(self.limits.grace_s):
                await self._finish_answer(tether, client)
        except TimeoutError:  # a client that does not read cannot be told how the call ended
            await client.break_off()
        return tether.ended

    async def _pump(self, tether: Tether, client: StreamClient) -> None:
        """Copy chunks from engine to client one at a time; never read further ahead than the client does."""
        async with open_source(self._source, tether.token, lambda name: setattr(tether, "engine_name", name)) as chunks:
            async for chunk in chunks:
                if tether.call.ended:
                    return
                tether.progressed(1 if self._count is None else self._count(chunk))
                data = self._encode(chunk)
                await tether.write(self._send(tether, client, data.encode() if isinstance(data, str) else data))
                if self.limits.max_tokens is not None and tether.call.tokens_out >= self.limits.max_tokens:
                    tether.end(reasons.OUTPUT_TOKENS)
                    return
                if not self._closing_event:
                    self._closing_event = closing_event(chunk)

    async def _send(self, tether: Tether, client: StreamClient, data: bytes) -> None:
        if not self._head_sent:
            await self._send_head(tether, client)
        if data:
            await client.write(data)

    async def _send_head(self, tether: Tether, client: StreamClient) -> None:
        """Send the head, with the first chunk: until then, a failure can still have a status of its own."""
        self._head_sent = True
        tether.call.client_answer_began(self.status)
        given = {name.lower() for name in self.headers}
        defaults = {"content-type": self.media_type, "cache-control": "no-store", "x-accel-buffering": "no"}
        headers = [(name, value) for name, value in defaults.items() if name not in given]
        await client.start(self.status, [*headers, *((k.lower(), v) for k, v in self.headers.items())])

    async def _finish_answer(self, tether: Tether, client: StreamClient) -> None:
        """Tell the client how the call ended."""
        reason = tether.call.reason
        assert reason is not None
        if tether.tell is Tell.FINISH:
            if not self._head_sent:
                await self._send_head(tether, client)
            if self._closing_event:
                await client.write(self._closing_event)
            await client.finish()
        elif tether.tell is Tell.STATUS:
            body = json.dumps(error_body(reason, tether.call.id)).encode()
            head = [("content-type", "application/json"), ("content-length", str(len(body))), ("x-hangup-reason", reason.code)]
            await client.start(reason.status, head)
            await client.write(body)
            await client.finish()
        elif tether.tell is Tell.ERROR_EVENT:
            if self.media_type.startswith(SSE):
                await client.write(error_event(reason, tether.call.id))
            await client.break_off()
        else:
            await client.break_off()


def stream(
    request: Any,
    source: Any,
    *,
    first_token_s: float | None = 60.0,
    gap_s: float | None = 60.0,
    total_s: float | None = 600.0,
    max_tokens: int | None = MAX_TOKENS,
    write_stall_s: float | None = WRITE_STALL_S,
    client_silence_s: float | None = CLIENT_SILENCE_S,
    grace_s: float = GRACE_S,
    encode: Encode | None = None,
    count: Callable[[Any], int] | None = None,
    media_type: str = SSE,
    headers: Mapping[str, str] | None = None,
    status: int = 200,
    abort: Abort | None = None,
    token: CancelToken | None = None,
    on_end: OnEnd | None = None,
) -> Any:
    """Return a response, for the framework of `request`, that streams from `source` and always stops it.

    The engine's stream is closed, `abort()` is called (it may be async) and `on_end` is called once, whether the stream
    completes, the client disconnects, a limit passes, the engine fails or the server shuts down.
    """
    from hangup.library.frameworks import adapter_for  # noqa: PLC0415 - adapters import this module

    limits = Limits(first_token_s, gap_s, total_s, max_tokens, write_stall_s, client_silence_s, grace_s)
    call = StreamCall(
        source,
        limits,
        encode=encode,
        count=count,
        media_type=media_type,
        headers=headers,
        status=status,
        abort=abort,
        token=token,
        on_end=on_end,
    )
    return adapter_for(request).response(request, call)
