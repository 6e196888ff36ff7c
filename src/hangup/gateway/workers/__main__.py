"""The entry point of a worker process: `python -m hangup.gateway.workers CHANNEL SOCKET…`, with file descriptors.

Only the supervisor starts it.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from functools import partial

import uvloop

from hangup.errors import HangupError
from hangup.gateway.exit_watch import EXIT_WATCH
from hangup.gateway.workers.channel import Channel, Message, unpacked
from hangup.gateway.workers.link import SupervisorLink
from hangup.gateway.workers.server import WorkerServer, serve


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
    sockets = [socket.socket(fileno=fd) for fd in socket_fds]
    return 0 if await serve(link, partial(_make_server, link, sockets, first)) else 1


def _make_server(link: SupervisorLink, sockets: list[socket.socket], first: Message) -> WorkerServer:
    if link.configuration.settings.shared_state:
        from hangup.gateway.workers.store_worker import StoreWorkerServer  # noqa: PLC0415 (its client is an extra)

        return StoreWorkerServer(link, sockets, first["slot"], successor=first["successor"])
    return WorkerServer(link, sockets)


def main() -> int:
    channel_fd, *socket_fds = map(int, sys.argv[1:])
    EXIT_WATCH.use()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(channel_fd, socket_fds))


if __name__ == "__main__":
    sys.exit(main())
