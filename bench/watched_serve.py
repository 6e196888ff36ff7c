"""`hangup serve` that also notes each turn of its event loop that took long: `python -m bench.watched_serve FILE serve …`.

A timer fires each millisecond, at most once a turn, so a gap between two is at least as long as the turn in between. Each line
of the file has the end of a gap (monotonic), its length beyond the millisecond, and the CPU time of the loop's thread in it, in
seconds. On a machine that is busy with other things, only the latter is the gateway's own doing.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from hangup.cli.main import main
from hangup.gateway.server import Server

_TICK_S = 0.001
_SHORT_S = 0.004


def watch(path: str) -> None:
    """Make every server of this process note its long turns."""

    out = Path(path).open("a", buffering=1)

    async def watch_turns(server: Server) -> None:
        last, cpu = time.monotonic(), time.thread_time()
        while True:
            server._stalls.beat()
            await asyncio.sleep(_TICK_S)
            now, used = time.monotonic(), time.thread_time()
            if now - last - _TICK_S > _SHORT_S:
                out.write(f"{now} {now - last - _TICK_S} {used - cpu}\n")
            last, cpu = time.monotonic(), used

    Server._watch_lag = watch_turns  # type: ignore[method-assign,assignment]


def turns(path: str, since: float, until: float) -> list[tuple[float, float]]:
    """Return the long turns that ended in this time, with their CPU times, the longest first."""
    lines = [map(float, line.split()) for line in Path(path).read_text().splitlines()]
    return sorted(((length, cpu) for at, length, cpu in lines if since <= at <= until), reverse=True)


if __name__ == "__main__":
    watch(sys.argv[1])
    raise SystemExit(main(sys.argv[2:]))
