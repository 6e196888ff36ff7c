"""Handles the departures of clients: at once as long as few leave, and in slices when many leave in one instant.

A front proxy that dies takes thousands of clients with it, and the event loop reports all of them in one turn. If that turn
handled them all, every other client would wait for it. So beyond a few, departures wait here: each turn works on them for a
moment only. All engines are stopped first, which is quick; then the calls end one by one.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from hangup.core import reasons
from hangup.core.reasons import Reason
from hangup.gateway.client.handlers import RequestHandler

AT_ONCE_MAX = 32  # in each `_AT_ONCE_S`
SLICE_S = 0.005  # of CPU time, in each turn of the loop
_AT_ONCE_S = 0.01


class Leaving(Protocol):
    """The connection of a client that has left."""

    handler: RequestHandler | None  # None if its call has ended in the meantime
    transport: asyncio.Transport


class Departures:
    def __init__(self, clock: Callable[[], float] = time.monotonic, used_s: Callable[[], float] = time.thread_time) -> None:
        """`used_s` returns the CPU time that this thread has used."""
        self._clock = clock
        self._used_s = used_s
        self._to_stop: deque[tuple[Leaving, Reason]] = deque()  # their engines may be working
        self._to_end: deque[tuple[Leaving, Reason]] = deque()
        self._since = 0.0
        self._handled = 0  # at once, since then
        self._scheduled = False

    def __len__(self) -> int:
        return len(self._to_stop) + len(self._to_end)

    def take(self, connection: Leaving, reason: Reason) -> bool:
        """Return False if the connection is to end its call at once; else that happens in a later turn."""
        if not self._scheduled:
            now = self._clock()
            if now - self._since > _AT_ONCE_S:
                self._since, self._handled = now, 0
            self._handled += 1
            if self._handled <= AT_ONCE_MAX:
                return False
        self._to_stop.append((connection, reason))
        self._schedule()
        if connection.handler is not None:
            connection.handler.pause_engine()  # nobody reads what it still sends
        return True

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        """Work on the departures for a moment. The loop looks at its sockets before the next moment."""
        self._scheduled = False
        until = self._used_s() + SLICE_S
        try:
            while self._to_stop and self._used_s() < until:
                leaving = self._to_stop.popleft()
                self._to_end.append(leaving)
                connection, reason = leaving
                if connection.handler is not None:
                    connection.handler.stop_engine(reason)
            while self._to_end and self._used_s() < until:
                _end(*self._to_end.popleft())
        finally:  # a bug in one departure must not keep the others
            if self._to_stop or self._to_end:
                self._schedule()


def _end(connection: Leaving, reason: Reason) -> None:
    handler, connection.handler = connection.handler, None
    try:
        if handler is not None:
            handler.client_left(reason)
    except Exception as error:
        assert handler is not None
        handler.fault(error)
    finally:
        connection.transport.close()


def why_lost(error: Exception | None) -> Reason:
    """Return how a client left, by the error with which its connection ended."""
    if error is None:
        return reasons.CLIENT_FIN
    return reasons.CLIENT_SILENT if isinstance(error, TimeoutError) else reasons.CLIENT_RESET
