"""httpx2 for calls to engines: `AsyncClient` and `Transport` send the remaining deadline and close every stream."""

from __future__ import annotations

import httpx2

from hangup.library.deadline import deadline
from hangup.library.outgoing import make_classes

__all__ = ["AsyncClient", "Transport", "deadline"]

AsyncClient: type[httpx2.AsyncClient]
Transport: type[httpx2.AsyncBaseTransport]
Transport, AsyncClient = make_classes(httpx2)
