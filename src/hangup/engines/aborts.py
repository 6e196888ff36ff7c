"""Explicit aborts, sent beside the data path. Every one is owned here, bounded in number and in time."""

from __future__ import annotations

import asyncio

from hangup.config import Limits
from hangup.engines.backend import Backend
from hangup.engines.fetch import fetch
from hangup.errors import EngineFault

IN_FLIGHT_MAX = 256  # beyond this only the cut connection speaks: a flood of aborts helps nobody


class Aborts:
    def __init__(self, limits: Limits) -> None:
        self.sent = 0
        self.failed = 0
        self.skipped = 0
        self._limits = limits
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, backend: Backend, call_id: str) -> None:
        """Tells the engine to stop a call, if it has a way to be told."""
        abort = backend.adapter.abort(call_id)
        if abort is None:
            return
        if len(self._tasks) >= IN_FLIGHT_MAX:
            self.skipped += 1
            return
        self.sent += 1
        task = asyncio.get_running_loop().create_task(self._send(backend, abort.path, abort.body))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, backend: Backend, path: str, body: bytes) -> None:
        try:
            await fetch(backend, "POST", path, body, timeout_s=self._limits.health_timeout_s)
        except EngineFault:
            self.failed += 1

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
