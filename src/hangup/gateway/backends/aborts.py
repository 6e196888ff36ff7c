"""Sends explicit aborts to engines, outside the data path, and limits both their number and their time."""

from __future__ import annotations

import asyncio
import contextlib

from hangup.errors import EngineFault
from hangup.gateway.backends.adapters import Abort
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.connection import EngineConnection
from hangup.gateway.backends.fetch import fetch
from hangup.tasks import Tasks

IN_FLIGHT_MAX = 256  # beyond this the gateway only cuts the connection: a flood of aborts helps nobody
LINGER_S = 0.25  # how long an abort may keep the call's own connection open
CLOSE_S = 1.0  # how long the end of the process waits for aborts


class Aborts:
    def __init__(self) -> None:
        self.sent = 0
        self.failed = 0
        self.skipped = 0
        self._tasks = Tasks("abort")

    def stop(self, backend: Backend, key: str, connection: EngineConnection | None) -> bool:
        """Stop a call in its engine: cut its connection and, if the engine supports it, send an abort by id. Return True if an
        abort was sent."""
        abort = backend.abort(key)
        first = abort is not None and backend.adapter.abort_first and len(self._tasks) < IN_FLIGHT_MAX
        if connection is not None and first:
            connection.linger()
        elif connection is not None:
            connection.abort()
        return abort is not None and self._start(backend, abort, connection if first else None)

    def send(self, backend: Backend, key: str) -> bool:
        """Send another abort for a call, if the backend supports it. Return True if it was sent."""
        abort = backend.abort(key)
        return abort is not None and self._start(backend, abort, None)

    def _start(self, backend: Backend, abort: Abort, connection: EngineConnection | None) -> bool:
        if len(self._tasks) >= IN_FLIGHT_MAX:
            self.skipped += 1
            return False
        self.sent += 1
        self._tasks.start(self._send(backend, abort, connection))
        return True

    async def _send(self, backend: Backend, abort: Abort, connection: EngineConnection | None) -> None:
        cut = None
        if connection is not None:
            cut = asyncio.get_running_loop().call_later(LINGER_S, connection.abort)
        try:
            await fetch(backend, "POST", abort.path, abort.body, timeout_s=backend.limits.health_timeout_s)
        except EngineFault:
            self.failed += 1
        finally:
            if cut is not None and connection is not None:
                cut.cancel()
                connection.abort()

    async def wait(self) -> None:
        """Give aborts that are under way a moment to reach their engines, which would go on without them; cancel the rest."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._tasks.wait()

    async def close(self) -> None:
        await self.wait()
        await self._tasks.close()
