"""How a command that serves waits for its end."""

from __future__ import annotations

import asyncio
import signal


async def until_stopped() -> None:
    """Until SIGTERM or Ctrl-C."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await stopped.wait()
