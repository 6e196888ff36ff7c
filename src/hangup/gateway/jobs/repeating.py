"""Repeats work on the job store until it is closed, whatever happens to a single turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from hangup.gateway.store.worker_thread import StoreFailed


class Repeating:
    """Runs periodic work until `close`, also during a drain: while we hold items, other workers must see our heartbeat, and we
    must see their changes."""

    def __init__(self, on_failed: Callable[[StoreFailed], None], on_fault: Callable[[Exception], None]) -> None:
        self._on_failed, self._on_fault = on_failed, on_fault
        self._closing = asyncio.Event()

    @property
    def closing(self) -> bool:
        return self._closing.is_set()

    def close(self) -> None:
        """End each repetition after its current turn."""
        self._closing.set()

    async def run(self, pause_s: float, work: Callable[[float], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        while not self.closing:
            try:
                await work(loop.time())
            except StoreFailed as failure:
                self._on_failed(failure)
            except Exception as error:  # no bug may stop leases, heartbeats and windows
                self._on_fault(error)
            try:
                async with asyncio.timeout(pause_s):
                    await self._closing.wait()
            except TimeoutError:
                continue
