"""The messages between the supervisor and a worker: one JSON object per line, over a Unix socket that only these two have."""

from __future__ import annotations

import asyncio
import base64
import pickle
import socket
from typing import Any

import orjson

from hangup import __version__
from hangup.config.load import Configuration, digest_of_names
from hangup.errors import HangupError

_LINE_BYTES_MAX = 256 * 1024 * 1024  # an answer of the admin API may be large; both ends are ours
_UNSENT_BYTES_MAX = 64 * 1024 * 1024  # a worker that does not read them does not get more

Message = dict[str, Any]


class Channel:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, sock: socket.socket) -> Channel:
        """Take over a connected socket."""
        return cls(*await asyncio.open_unix_connection(sock=sock, limit=_LINE_BYTES_MAX))

    def send(self, kind: str, **fields: object) -> bool:
        """Send a message, at once or as soon as the other end reads; return False if it reads no more."""
        transport = self._writer.transport
        if transport.is_closing() or transport.get_write_buffer_size() > _UNSENT_BYTES_MAX:
            return False
        self._writer.write(orjson.dumps({"kind": kind, **fields}) + b"\n")
        return True

    async def receive(self) -> Message | None:
        """Return the next message; None when the other end is gone."""
        try:
            line = await self._reader.readline()
        except OSError:
            return None
        if not line.endswith(b"\n"):  # the other end died in the middle of it
            return None
        message: Message = orjson.loads(line)
        return message

    def close(self) -> None:
        self._writer.close()

    async def flush(self) -> None:
        """Wait until everything was sent, or the other end is gone."""
        try:
            await self._writer.drain()
            self._writer.close()
            await self._writer.wait_closed()
        except OSError:
            pass


def installation() -> str:
    """Return the version and the names of its settings, which differ between two versions under development as well."""
    return f"{__version__}-{digest_of_names()}"


def packed(configuration: Configuration) -> str:
    """Return a configuration as a text; only a process of the same installation can read it."""
    return f"{installation()} {base64.b64encode(pickle.dumps(configuration)).decode()}"


def unpacked(text: str) -> Configuration:
    """Return a configuration; raise `HangupError` if another version of hangup packed it, as after an upgrade."""
    packed_by, _, data = text.partition(" ")
    if packed_by != installation():
        raise HangupError(
            f"hangup was upgraded from {packed_by} to {installation()} while it ran: restart it; its workers cannot be"
            " replaced one by one"
        )
    configuration = pickle.loads(base64.b64decode(data))  # noqa: S301 - from our own parent, over a socket that nobody else has
    assert isinstance(configuration, Configuration)
    return configuration
