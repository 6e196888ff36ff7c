"""The entry point of a worker process: `python -m hangup.gateway.workers CHANNEL SOCKET…`, with file descriptors.

Only the supervisor starts it.
"""

from __future__ import annotations

import asyncio
import socket
import sys

import uvloop

from hangup.errors import HangupError
from hangup.gateway.exit_watch import EXIT_WATCH
from hangup.gateway.workers.channel import Channel, unpacked
from hangup.gateway.workers.link import SupervisorLink
from hangup.gateway.workers.server import serve


async def _run(channel_fd: int, socket_fds: list[int]) -> int:
    channel = await Channel.open(socket.socket(fileno=channel_fd))
    first = await channel.receive()
    if first is None:
        return 1
    try:
        configuration = unpacked(first["packed"])
    except HangupError as error:
        channel.send("failed", error=str(error))
        await channel.flush()
        return 1
    link = SupervisorLink(channel, configuration)
    return 0 if await serve(link, [socket.socket(fileno=fd) for fd in socket_fds]) else 1


def main() -> int:
    channel_fd, *socket_fds = map(int, sys.argv[1:])
    EXIT_WATCH.use()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(channel_fd, socket_fds))


if __name__ == "__main__":
    sys.exit(main())
