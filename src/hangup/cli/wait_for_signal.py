"""Lets a serving command wait for a signal to stop."""

from __future__ import annotations

import asyncio
import signal


async def until_stopped() -> None:
    """Wait for SIGTERM or Ctrl-C."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await stopped.wait()
