"""`hangup.stream`: a response that streams from an engine and always stops it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from hangup.core import reasons
from hangup.core.call import Tell
from hangup.library.encode import SSE, Encode, error_body
from hangup.library.ended import Ended, OnEnd, log
from hangup.library.faults import ApplicationFault, ErrorAnswer, OnError, answer_of
from hangup.library.formats import RAW_TYPES, ChunkFormat, choose_format
from hangup.library.limits import CLIENT_SILENCE_S, GRACE_S, SILENT_ENGINE_S, WRITE_STALL_S, Limits, check_functions
from hangup.library.sources import Opening, discard, open_source
from hangup.library.tether import Abort, Tether
from hangup.library.token import CancelToken
from hangup.library.watch import ClientWatch

Headers = list[tuple[str, str]]
OnCap = Callable[[], bytes | str]


class StreamClient(Protocol):
    """The framework's side of an answer."""

    async def start(self, status: int, headers: Headers) -> None: ...
    async def write(self, data: Any) -> None: ...
    async def finish(self) -> None: ...
    async def break_off(self) -> None:
        """Close the connection so that no client can mistake the answer for a complete one."""

    async def abandon(self) -> None:
        """End an answer that nobody reads any more."""

    def answers(self, error: Exception) -> bool:
        """Return whether the framework answers this error by itself, if it is raised before the answer began."""


class StreamCall:
    """One streaming call, independent of the framework. It can run only once."""

    def __init__(
        self,
        source: Any,
        limits: Limits,
        *,
        encode: Encode | None = None,
        count: Callable[[Any], int] | None = None,
        media_type: str | None = None,
        headers: Mapping[str, str] | None = None,
        status: int = 200,
        abort: Abort | None = None,
        token: CancelToken | None = None,
        on_end: OnEnd | None = None,
        on_error: OnError | None = None,
        on_cap: OnCap | None = None,
    ) -> None:
        self.limits = limits
        self.media_type = media_type
        self.status = status
        self.headers = dict(headers or {})
        self._source = source
        self._encode = encode
        self._count = count
        self._abort = abort
        self._token = token
        self._on_end = on_end
        self._on_error = on_error
        self._on_cap = on_cap
        self._format: ChunkFormat | None = None
        self._error_answer: ErrorAnswer | None = None
        self._framework_error: Exception | None = None
        self._head_sent = False
        self._has_run = False

    def __del__(self) -> None:
        if not self._has_run:
            discard(self._source)

    async def run(self, watch: ClientWatch, client: StreamClient) -> Ended:
        assert not self._has_run, "this stream was sent already; a stream can be sent only once"
        self._has_run = True
        tether = Tether(self.limits, self._abort, self._token, self._on_end)
        tether.on_failure = lambda error: self._read_failure(error, client)
        await tether.run(watch, self._pump(tether, client))
        assert tether.ended is not None
        if tether.error is not None and self._error_answer is None and self._framework_error is None:
            whose = "application" if isinstance(tether.error, ApplicationFault) else "engine"
            log.error("call %s: the %s failed", tether.call.id, whose, exc_info=tether.error)
        if self._framework_error is not None and tether.tell is Tell.STATUS:
            raise self._framework_error
        try:
            async with asyncio.timeout(self.limits.grace_s):
                await self._finish_answer(tether, client)
        except TimeoutError:  # a client that does not read cannot be told how the call ended
            await client.break_off()
        return tether.ended

    async def _pump(self, tether: Tether, client: StreamClient) -> None:
        """Copy chunks from engine to client one at a time; never read further ahead than the client does."""
        maximum = self.limits.max_tokens
        opening = Opening(tether.token, in_events=maximum is not None and self._count is None)
        opening.on_name = lambda name: setattr(tether, "engine_name", name)
        async with open_source(self._source, opening) as chunks:
            async for chunk in chunks:
                if tether.call.ended:
                    return
                if self._format is None:
                    self._format = self._begin(chunk, opening)
                data, tokens, has_text = self._read(chunk, tether.call.tokens_out)
                if maximum is not None and has_text and tether.call.tokens_out >= maximum:
                    tether.end(reasons.OUTPUT_TOKENS, f"hangup cut the answer: it has more than {maximum} tokens")
                    return
                tether.progressed(tokens)
                if data:
                    await tether.write(self._send(tether, client, data))
            if self._format is None:
                self._format = self._begin(b"", opening)

    def _begin(self, chunk: Any, opening: Opening) -> ChunkFormat:
        """Take over from the first chunk, and from a response's head, what the answer will be."""
        self.media_type = self.media_type or opening.media_type or SSE
        if self.status == 200:
            self.status = opening.status
        return choose_format(chunk, self.limits.max_tokens is not None)

    def _format_of(self, chunk: Any) -> ChunkFormat:
        """Return the format of a chunk. A stream may have text between its objects; the objects decide which API it is."""
        assert self._format is not None
        if isinstance(chunk, RAW_TYPES) is self._format.is_raw:
            return self._format
        other = choose_format(chunk, self.limits.max_tokens is not None)
        if self._format.is_raw:
            self._format = other
        elif other.ends_stream(chunk):
            self._format.done = b""  # the application has sent it itself
        return other

    def _encoded(self, format: ChunkFormat, chunk: Any) -> bytes | str:
        return format.encode(chunk) if self._encode is None else self._encode(chunk)

    def _read(self, chunk: Any, so_far: int) -> tuple[Any, int, bool]:
        """Return what to send for a chunk, its number of tokens, and whether it carries any of the answer."""
        try:
            format = self._format_of(chunk)
            data = self._encoded(format, chunk)
            if self._count is None:
                tokens, has_text = format.tokens(chunk, so_far)
            else:
                tokens = self._count(chunk)
                has_text = tokens > 0
        except ApplicationFault:
            raise
        except Exception as error:
            raise ApplicationFault(f"a {type(chunk).__name__} cannot be sent: {type(error).__name__}: {error}") from error
        return self._wire(data), tokens, has_text

    def _wire(self, data: bytes | str) -> Any:
        """Return what `StreamClient.write` takes."""
        return data.encode() if isinstance(data, str) else data

    def _read_failure(self, error: Exception, client: StreamClient) -> tuple[int, str]:
        """Find out what the client is to be told of the engine's failure; return the status and the detail for the log."""
        try:
            answer = self._on_error(error) if self._on_error is not None else None
            if answer is not None and not isinstance(answer, ErrorAnswer):
                raise TypeError(f"on_error must return a hangup.ErrorAnswer or None; it returned a {type(answer).__name__}")
        except Exception as raised:
            if not client.answers(raised):
                log.exception("the on_error callback failed")
            else:
                error = raised
            answer = None
        detail = f"{type(error).__name__}: {error}"
        if answer is None and client.answers(error):
            self._framework_error = error
            return int(getattr(error, "status_code", 500)), detail
        self._error_answer = answer if answer is not None else answer_of(error)
        return 0 if self._error_answer is None else self._error_answer.status, detail

    async def _send(self, tether: Tether, client: StreamClient, data: Any) -> None:
        if not self._head_sent:
            await self._send_head(tether, client)
        if data:
            await client.write(data)

    async def _send_head(self, tether: Tether, client: StreamClient) -> None:
        """Send the head, with the first chunk: until then, a failure can still have a status of its own."""
        self._head_sent = True
        tether.call.client_answer_began(self.status)
        given = {name.lower() for name in self.headers}
        defaults = {"content-type": self.media_type or SSE, "cache-control": "no-store", "x-accel-buffering": "no"}
        headers = [(name, value) for name, value in defaults.items() if name not in given]
        await client.start(self.status, [*headers, *((k.lower(), v) for k, v in self.headers.items())])

    # The end of the answer

    async def _finish_answer(self, tether: Tether, client: StreamClient) -> None:
        """Tell the client how the call ended."""
        if tether.tell is Tell.FINISH:
            await self._finish(tether, client)
        elif tether.tell is Tell.STATUS:
            await self._send_error(tether, client)
        elif tether.tell is Tell.ERROR_EVENT:
            if self._is_sse:
                await client.write(self._error_event(tether))
            await client.break_off()
        elif not self._head_sent:
            # Nobody reads this. But middlewares wait for an answer, and raise an error of their own if there is none.
            await self._send_whole(client, tether.call.status, [("content-length", "0")], b"")
        else:
            await client.abandon()

    async def _finish(self, tether: Tether, client: StreamClient) -> None:
        end: bytes | None = b""
        if tether.call.reason is reasons.OUTPUT_TOKENS:
            end = self._end_of_cut(tether)
        elif self._encode is None and self._format is not None:
            end = self._format.done
        if end is None:  # the format has no way to say that the answer is not complete
            await client.break_off()
            return
        await self._send(tether, client, end)
        await client.finish()

    def _end_of_cut(self, tether: Tether) -> bytes | None:
        """Return what tells the client that `max_tokens` cut its answer."""
        if self._on_cap is not None:
            end = self._on_cap()
            return end.encode() if isinstance(end, str) else end
        assert self._format is not None
        events = self._cut_events(tether)
        if events is not None:
            return b"".join(self._format.event(body) for body in events) + self._format.cut_done()
        return self._error_event(tether) if self._is_sse else None

    def _cut_events(self, tether: Tether) -> list[dict[str, Any]] | None:
        if self._format is None or self._encode is not None:
            return None
        return self._format.cut(tether.call.tokens_out)

    async def _send_error(self, tether: Tether, client: StreamClient) -> None:
        reason = tether.call.reason
        assert reason is not None
        answer = self._error_answer or ErrorAnswer(reason.status, error_body(reason, tether.call.id))
        headers, body = answer.encoded()
        await self._send_whole(client, answer.status, [*headers, ("x-hangup-reason", reason.code)], body)

    async def _send_whole(self, client: StreamClient, status: int, headers: Headers, body: bytes) -> None:
        await client.start(status, headers)
        if body:
            await client.write(body)
        await client.finish()

    def _error_event(self, tether: Tether) -> bytes:
        return (self._format or ChunkFormat()).event(self._error_body(tether))

    def _error_body(self, tether: Tether) -> dict[str, Any]:
        """Return the error as the stream's API has it."""
        reason = tether.call.reason
        assert reason is not None
        body = self._error_answer.event_body() if self._error_answer is not None else None
        return (self._format or ChunkFormat()).error(body or error_body(reason, tether.call.id))

    @property
    def _is_sse(self) -> bool:
        return (self.media_type or SSE).startswith(SSE)


def stream(
    request: Any,
    source: Any,
    *,
    first_token_s: float | None = SILENT_ENGINE_S,
    gap_s: float | None = SILENT_ENGINE_S,
    total_s: float | None = None,
    max_tokens: int | None = None,
    write_stall_s: float | None = WRITE_STALL_S,
    client_silence_s: float | None = CLIENT_SILENCE_S,
    grace_s: float = GRACE_S,
    encode: Encode | None = None,
    count: Callable[[Any], int] | None = None,
    media_type: str | None = None,
    headers: Mapping[str, str] | None = None,
    status: int = 200,
    abort: Abort | None = None,
    token: CancelToken | None = None,
    on_end: OnEnd | None = None,
    on_error: OnError | None = None,
    on_cap: OnCap | None = None,
) -> Any:
    """Return a response, for the framework of `request`, that streams from `source` and always stops it.

    For a WebSocket, and in Django, Quart and Sanic, it must be awaited.

    The engine's stream is closed, `abort()` is called (it may be async) and `on_end` is called once, whether the stream
    completes, the client disconnects, a limit passes, the engine fails or the server shuts down.
    """
    from hangup.library.frameworks import adapter_for  # noqa: PLC0415 - adapters import this module

    try:
        limits = Limits(first_token_s, gap_s, total_s, max_tokens, write_stall_s, client_silence_s, grace_s)
        check_functions(encode=encode, count=count, abort=abort, on_end=on_end, on_error=on_error, on_cap=on_cap)
        adapter = adapter_for(request)
    except BaseException:
        discard(source)
        raise
    call = adapter.call_class(
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
        on_error=on_error,
        on_cap=on_cap,
    )
    return adapter.response(request, call)
