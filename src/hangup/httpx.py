"""httpx for calls to engines: `AsyncClient` and `Transport` send the remaining deadline and close every stream."""

from __future__ import annotations

import httpx

from hangup.library.deadline import deadline
from hangup.library.outgoing import make_classes

__all__ = ["AsyncClient", "Transport", "deadline"]

AsyncClient: type[httpx.AsyncClient]
Transport: type[httpx.AsyncBaseTransport]
Transport, AsyncClient = make_classes(httpx)
