"""Tells a gateway that died from one that only cannot be heard.

Each gateway listens on a port of its own, and tells everybody who connects its name. A gateway that is cut off from the store,
or whose store is slow, answers there: it lives, and keeps what it holds. Where nothing listens any more, or somebody else does,
its process is gone; a firewall may refuse connections as well, and an address may be wrong, so this counts only for a gateway
that was reached there before. A process that is
stopped, or a host that vanished, does not answer: the time decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Sequence
from enum import Enum

Address = tuple[str, int]
_ANSWER_S = 0.5
_NAME_BYTES_MAX = 512


class Life(Enum):
    LIVES = "lives"
    DEAD = "dead"
    UNKNOWN = "unknown"  # it does not answer
    REFUSED = "refused"  # nothing listens there, or a firewall is in the way


class LifePort:
    """Answers with this gateway's name."""

    def __init__(self, name: str) -> None:
        self._name = name.encode()
        self._server: asyncio.Server | None = None

    async def open(self, host: str, ports: Sequence[int]) -> Address:
        """Listen on the first of these ports that is free: the process that this one replaces may still have the others."""
        for port in ports:
            try:
                self._server = await asyncio.start_server(self._answer, host, port, limit=_NAME_BYTES_MAX)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or port == ports[-1]:
                    raise
            else:
                break
        assert self._server is not None
        address: Address = self._server.sockets[0].getsockname()[:2]
        return address

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(self._name + b"\n")
            writer.close()
            await writer.wait_closed()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


async def ask(address: Address, name: str) -> Life:
    """Ask at a gateway's address whether it lives."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(*address, limit=_NAME_BYTES_MAX)
            try:
                answer = await reader.readline()
            finally:
                writer.close()
    except ConnectionRefusedError:
        return Life.REFUSED
    except (OSError, TimeoutError, ValueError):
        return Life.UNKNOWN
    if answer == name.encode() + b"\n":
        return Life.LIVES
    return Life.DEAD if answer.endswith(b"\n") else Life.UNKNOWN  # another gateway has its port now
