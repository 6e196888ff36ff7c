"""`ComingTransport`: stands for a transport until the event loop has made it, one turn later."""

from __future__ import annotations

import asyncio


class ComingTransport(asyncio.Transport):
    """Keeps what is done with a new connection, for the transport that comes."""

    __slots__ = ("_aborted", "_high", "_unsent")

    def __init__(self) -> None:
        super().__init__()
        self._unsent: list[bytes | bytearray | memoryview] = []
        self._high: int | None = None
        self._aborted = False

    def give_to(self, transport: asyncio.Transport) -> None:
        """Do all of it with the real transport."""
        if self._aborted:
            transport.abort()
            return
        if self._high is not None:
            transport.set_write_buffer_limits(high=self._high)
        for data in self._unsent:
            transport.write(data)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._unsent.append(data)

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self._unsent))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high

    def pause_reading(self) -> None:
        """Do nothing: it reads nothing yet. The connection knows that it is paused."""

    def resume_reading(self) -> None:
        """Do nothing."""

    def abort(self) -> None:
        self._aborted = True

    def is_closing(self) -> bool:
        return self._aborted

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default
