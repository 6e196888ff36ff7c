"""One small adapter per framework: it watches the client of a request and builds the framework's response and error.

The package of a request's class identifies the framework, so no framework has to be imported to find out.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from hangup.core.reasons import Reason
    from hangup.library.ended import CallEnded
    from hangup.library.limits import Limits
    from hangup.library.stream import StreamCall
    from hangup.library.watch import ClientWatch

_ADAPTERS = {"starlette": "starlette", "fastapi": "starlette", "litestar": "litestar", "aiohttp": "aiohttp"}


class FrameworkAdapter(Protocol):
    def watch(self, request: Any, limits: Limits) -> ClientWatch: ...
    def descriptor(self, request: Any) -> int | None:
        """Return the file descriptor of the client's socket, if it can be found."""

    def response(self, request: Any, call: StreamCall) -> Any: ...
    def error(self, ended: CallEnded, reason: Reason) -> Exception: ...


def adapter_for(request: Any) -> FrameworkAdapter:
    name = _adapter_name(request)
    if name is None:
        raise TypeError(
            f"unsupported request type {type(request).__qualname__}; pass a request of Starlette, FastAPI, "
            "Litestar and aiohttp, and (scope, receive) of plain ASGI"
        )
    adapter: FrameworkAdapter = import_module(f"hangup.library.frameworks.{name}").ADAPTER
    return adapter


def is_request(value: Any) -> bool:
    return _adapter_name(value) is not None


def _adapter_name(request: Any) -> str | None:
    if isinstance(request, tuple) and len(request) == 2 and isinstance(request[0], dict) and callable(request[1]):
        return "asgi"
    for cls in type(request).__mro__:
        package = cls.__module__.partition(".")[0]
        if package in _ADAPTERS and cls.__name__ in {"Request", "HTTPConnection", "BaseRequest", "ASGIConnection"}:
            return _ADAPTERS[package]
    return None
