"""Turns any stream of an engine or SDK into one async iterator that is closed however it ends.

It accepts: an async iterator (vLLM's `generate`, an SDK's stream), an awaitable that returns one (`create(stream=True)`), an
async context manager that returns one (`client.messages.stream(...)`, `httpx.AsyncClient.stream(...)`), an httpx response, a
blocking iterator (llama-cpp-python), or a function that takes a `CancelToken` and returns any of these.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from hangup.library.threads import ThreadedIterator
from hangup.library.token import CancelToken

_LAYERS_MAX = 5  # a function that returns an awaitable that returns a context manager that returns a response, plus one spare


@asynccontextmanager
async def open_source(source: Any, token: CancelToken, on_name: Callable[[str], None]) -> AsyncIterator[AsyncIterator[Any]]:
    """Open a source in the task that will read it; on exit, close everything, innermost first."""
    async with AsyncExitStack() as stack:
        yield await _unwrap(source, token, stack, on_name)


async def _unwrap(source: Any, token: CancelToken, stack: AsyncExitStack, on_name: Callable[[str], None]) -> AsyncIterator[Any]:
    for _ in range(_LAYERS_MAX):
        if hasattr(source, "aiter_bytes") and hasattr(source, "aclose"):  # an httpx response
            stack.push_async_callback(source.aclose)
            chunks = source.aiter_bytes()
            stack.push_async_callback(chunks.aclose)
            return chunks  # type: ignore[no-any-return]
        if isinstance(source, AsyncIterable):
            stack.push_async_callback(close, source)
            return aiter(source)
        if inspect.isawaitable(source):
            source = await source
        elif isinstance(source, AbstractAsyncContextManager):
            source = await stack.enter_async_context(source)
        elif inspect.iscoroutinefunction(source) or inspect.isasyncgenfunction(source):
            source = source(token)
        elif callable(source) or _is_blocking(source):
            chunks = _in_thread(source, token)
            on_name(chunks.name)
            stack.push_async_callback(chunks.aclose)
            source = await chunks.opened
            if _is_blocking(source):
                return chunks
            chunks.dismiss()
        else:
            break
    raise TypeError(
        f"hangup cannot stream from a {type(source).__name__}; pass an async or blocking iterator (see docs/library.md)"
    )


def _is_blocking(source: Any) -> bool:
    return isinstance(source, Iterable) and not isinstance(source, (str, bytes, dict, AsyncIterable))


def _in_thread(source: Any, token: CancelToken) -> ThreadedIterator:
    name = getattr(source, "__qualname__", type(source).__name__)
    return ThreadedIterator((lambda: source(token)) if callable(source) else (lambda: source), token, name)


async def close(source: Any) -> None:
    """Close a stream with its `aclose` or `close`, whichever it has."""
    close_method = getattr(source, "aclose", None) or getattr(source, "close", None)
    if close_method is not None:
        result = close_method()
        if inspect.isawaitable(result):
            await result


def discard(source: Any) -> None:
    """Discard a source that will not be opened; a coroutine would otherwise warn that it was never awaited."""
    if inspect.iscoroutine(source):
        source.close()
