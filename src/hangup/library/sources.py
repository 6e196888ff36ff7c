"""Turns any stream of an engine or SDK into one async iterator that is closed however it ends.

It accepts: an async iterator (vLLM's `generate`, an SDK's stream), an awaitable that returns one (`create(stream=True)`), an
async context manager that returns one (`client.messages.stream(...)`, `httpx.AsyncClient.stream(...)`), a response of httpx,
aiohttp or requests, a blocking iterator (llama-cpp-python), or a function that takes a `CancelToken` and returns any of these.
A response that is an error raises `UpstreamError`.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from hangup.library.faults import BODY_BYTES_MAX, ApplicationFault, UpstreamError
from hangup.library.formats.raw import whole_events
from hangup.library.threads import ThreadedIterator, start_thread
from hangup.library.token import CancelToken

_LAYERS_MAX = 5  # a function that returns an awaitable that returns a context manager that returns a response, plus one spare


@dataclass(slots=True)
class Opening:
    """How a source is opened, and what is known about it once it is open."""

    token: CancelToken
    in_events: bool = False  # divide a response's bytes into whole events
    on_name: Callable[[str], object] = lambda _: None  # is told the name of the source's thread
    status: int = 200  # of the response, if the source is one
    media_type: str = ""


@asynccontextmanager
async def open_source(source: Any, opening: Opening) -> AsyncIterator[AsyncIterator[Any]]:
    """Open a source in the task that will read it; on exit, close everything, innermost first."""
    async with AsyncExitStack() as stack:
        yield await _unwrap(source, opening, stack)


async def _unwrap(source: Any, opening: Opening, stack: AsyncExitStack) -> AsyncIterator[Any]:
    for _ in range(_LAYERS_MAX):
        source = getattr(source, "http_response", source)  # of an SDK's streaming response
        if hasattr(source, "aiter_bytes") and hasattr(source, "aclose"):  # httpx
            return await _open_response(source, source.aiter_bytes(), source.status_code, opening, stack)
        if _is_of_aiohttp(source):
            return await _open_response(source, _parts(source.content), source.status, opening, stack)
        if isinstance(source, AsyncIterable):
            stack.push_async_callback(close, source)
            return aiter(source)
        if inspect.isawaitable(source):
            source = await source
        elif isinstance(source, AbstractAsyncContextManager):
            source = await stack.enter_async_context(source)
        elif inspect.iscoroutinefunction(source) or inspect.isasyncgenfunction(source):
            source = source(opening.token)
        elif callable(source) or _is_blocking(source):
            chunks = await _in_thread(source, opening.token)
            opening.on_name(chunks.name)
            stack.push_async_callback(chunks.aclose)
            source = await chunks.opened
            if _is_blocking(source):
                return chunks
            chunks.dismiss()
        else:
            break
    raise ApplicationFault(
        f"hangup cannot stream from a {type(source).__name__}; pass an async or blocking iterator (see `hangup docs library`)"
    )


async def _open_response(
    response: Any, chunks: Any, status: int, opening: Opening, stack: AsyncExitStack
) -> AsyncIterator[bytes]:
    """Return a response's body; raise `UpstreamError` if the response is an error."""
    stack.push_async_callback(close, response)
    stack.push_async_callback(chunks.aclose)
    if not 200 <= status <= 299:
        body = b""
        async for chunk in chunks:
            body += chunk
            if len(body) > BODY_BYTES_MAX:
                break
        raise UpstreamError(status, response.headers, body)
    opening.status = status
    opening.media_type = response.headers.get("content-type", "")
    if not opening.in_events or not opening.media_type.startswith("text/event-stream"):
        return chunks  # type: ignore[no-any-return]
    events = whole_events(chunks)
    stack.push_async_callback(events.aclose)  # type: ignore[attr-defined]
    return events


def _is_of_aiohttp(source: Any) -> bool:
    """Look at the attribute without asking for it: in requests it is a property, which downloads the whole answer."""
    return hasattr(inspect.getattr_static(source, "content", None), "iter_any")


async def _parts(content: Any) -> AsyncIterator[bytes]:
    async for part in content.iter_any():
        yield part


def _is_blocking(source: Any) -> bool:
    return isinstance(source, Iterable) and not isinstance(source, (str, bytes, dict, AsyncIterable))


async def _in_thread(source: Any, token: CancelToken) -> ThreadedIterator:
    def open_blocking() -> Any:
        return _checked(source(token) if callable(source) else source)

    try:
        return await start_thread(open_blocking, token, getattr(source, "__qualname__", type(source).__name__))
    except BaseException:
        discard(source)
        raise


def _checked(source: Any) -> Any:
    """Return a blocking source; raise `UpstreamError` if it is a response (of requests) that is an error."""
    status = getattr(source, "status_code", None)
    if isinstance(status, int) and not 200 <= status <= 299:
        raise UpstreamError(status, source.headers, source.content)
    return source


async def close(source: Any) -> None:
    """Close a stream with its `aclose` or `close`, whichever it has."""
    close_method = getattr(source, "aclose", None) or getattr(source, "close", None)
    if close_method is not None:
        result = close_method()
        if inspect.isawaitable(result):
            await result


def discard(source: Any) -> None:
    """Discard a source that will not be opened: a coroutine would otherwise warn that it was never awaited."""
    if inspect.iscoroutine(source) or inspect.isgenerator(source):
        source.close()
