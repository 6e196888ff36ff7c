"""Calls to an engine over httpx (or httpx2, which the SDKs use) that send the remaining deadline and always close the stream.

Both libraries have the same classes, so `make_classes` builds ours once for either of them.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any

from hangup.library.deadline import remaining_s
from hangup.library.ended import log
from hangup.library.sources import close
from hangup.tasks import TASKS

DEADLINE_HEADER = "X-Request-Timeout"  # the gateway reads the client's deadline from the same header


class Closing:
    """A stream that is closed when it ends, fails, is cancelled or is garbage-collected."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._iterator: AsyncIterator[Any] | None = None
        self._closed = False

    def __aiter__(self) -> Closing:
        return self

    async def __anext__(self) -> Any:
        if self._iterator is None:
            self._iterator = aiter(self._stream)
        try:
            return await anext(self._iterator)
        except BaseException:  # the end, an error or a cancellation: all of them close the stream
            await self.aclose()
            raise

    async def __aenter__(self) -> Closing:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            await close(self._stream)

    def __del__(self) -> None:
        if not self._closed and not self._loop.is_closed():
            self._closed = True
            self._loop.call_soon_threadsafe(_close_later, self._stream)


def closing(stream: Any) -> Closing:
    """Wrap an SDK's stream so that leaving its loop closes it, whether by `break` or by an error.

    `async for chunk in hangup.closing(stream)` closes the stream as soon as the loop drops it; `async with
    hangup.closing(stream) as chunks` closes it before the block ends.
    """
    return Closing(stream)


def _close_later(stream: Any) -> None:
    TASKS.start("library stream", _close_quietly(stream))


async def _close_quietly(stream: Any) -> None:
    try:
        await close(stream)
    except Exception as error:
        log.warning("closing an abandoned stream failed: %r", error)


def make_classes(library: ModuleType) -> tuple[Any, Any]:
    """Return `Transport` and `AsyncClient`, built on the library's own classes."""

    class Stream(library.AsyncByteStream):  # type: ignore[misc,name-defined]
        """A response body that closes its connection as soon as reading ends, for whatever reason."""

        def __init__(self, inner: Any) -> None:
            self._chunks = Closing(inner)

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async with self._chunks:
                async for chunk in self._chunks:
                    yield chunk

        async def aclose(self) -> None:
            await self._chunks.aclose()

    class Transport(library.AsyncBaseTransport):  # type: ignore[misc,name-defined]
        """Tells the engine how long the client will still wait, and applies the same limit to its own timeouts."""

        def __init__(self, inner: Any = None) -> None:
            self._inner = inner or library.AsyncHTTPTransport()

        async def handle_async_request(self, request: Any) -> Any:
            timeout_s = remaining_s()
            if timeout_s is not None:
                if timeout_s <= 0:
                    raise library.ReadTimeout("the call's deadline passed before this request was sent", request=request)
                _apply_deadline(request, timeout_s)
            response = await self._inner.handle_async_request(request)
            response.stream = Stream(response.stream)
            return response

        async def aclose(self) -> None:
            await self._inner.aclose()

    class AsyncClient(library.AsyncClient):  # type: ignore[misc,name-defined]
        """The library's client over `Transport`; takes the same arguments."""

        def __init__(self, *, transport: Any = None, **options: Any) -> None:
            if transport is None:
                accepted = inspect.signature(library.AsyncHTTPTransport).parameters
                transport = library.AsyncHTTPTransport(**{k: options[k] for k in options if k in accepted})
            super().__init__(transport=Transport(transport), **options)

    for cls in (Transport, AsyncClient):
        cls.__module__ = f"hangup.{library.__name__}"
        cls.__qualname__ = cls.__name__
    return Transport, AsyncClient


def _apply_deadline(request: Any, timeout_s: float) -> None:
    request.headers.setdefault(DEADLINE_HEADER, f"{timeout_s:.3f}")
    timeouts = request.extensions.get("timeout", {})
    bounded = {
        name: timeout_s if timeouts.get(name) is None else min(timeouts[name], timeout_s)
        for name in ("connect", "read", "write", "pool")
    }
    request.extensions = {**request.extensions, "timeout": bounded}
