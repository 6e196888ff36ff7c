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

_ADAPTERS = {
    "starlette": "starlette",
    "fastapi": "starlette",
    "litestar": "litestar",
    "aiohttp": "aiohttp",
    "django": "django",
    "quart": "quart",
    "sanic": "sanic",
}
_REQUESTS = {"Request", "HTTPConnection", "BaseRequest", "ASGIConnection", "ASGIRequest"}
_WEBSOCKETS = {"WebSocket", "WebSocketResponse"}
_WSGI = {"flask", "werkzeug", "bottle", "pyramid", "falcon"}


class FrameworkAdapter(Protocol):
    call_class: type[StreamCall]

    def watch(self, request: Any, limits: Limits) -> ClientWatch: ...
    def descriptor(self, request: Any) -> int | None:
        """Return the file descriptor of the client's socket, if it can be found."""

    def response(self, request: Any, call: StreamCall) -> Any: ...
    def error(self, ended: CallEnded, reason: Reason) -> Exception: ...


def adapter_for(request: Any) -> FrameworkAdapter:
    place = _place(request)
    if place is None:
        raise TypeError(_unsupported(request))
    module, name = place
    adapter: FrameworkAdapter = getattr(import_module(f"hangup.library.frameworks.{module}"), name)
    return adapter


def is_request(value: Any) -> bool:
    return _place(value) is not None


def _place(request: Any) -> tuple[str, str] | None:
    """Return the module and the name of the request's adapter."""
    if isinstance(request, tuple) and len(request) == 2 and isinstance(request[0], dict) and callable(request[1]):
        return None if request[0].get("type") == "websocket" else ("asgi", "ADAPTER")
    for cls in _mro(request):
        package = cls.__module__.partition(".")[0]
        if package in _ADAPTERS and cls.__name__ in _WEBSOCKETS:
            return _ADAPTERS[package], "WEBSOCKET"
        if package in _ADAPTERS and cls.__name__ in _REQUESTS:
            return _ADAPTERS[package], "ADAPTER"
    return None


def _mro(request: Any) -> tuple[type, ...]:
    """Return the classes of a request; a proxy (Quart's `request`) shows those of what it stands for."""
    return getattr(request, "__class__", type(request)).__mro__


def _unsupported(request: Any) -> str:
    packages = {cls.__module__.partition(".")[0] for cls in _mro(request)}
    if packages & _WSGI or type(request).__name__ == "WSGIRequest":
        return (
            f"unsupported request type {type(request).__qualname__}: WSGI tells an application nothing about its client; "
            "see `hangup docs library#flask-and-other-wsgi-applications`"
        )
    if isinstance(request, tuple):
        return "unsupported: a WebSocket of plain ASGI; pass a WebSocket of Starlette, FastAPI, Litestar or aiohttp"
    return (
        f"unsupported request type {type(request).__qualname__}; pass a request or a WebSocket of Starlette, FastAPI, "
        "Litestar or aiohttp, a request of Django, Quart or Sanic, or (scope, receive) of plain ASGI"
    )
