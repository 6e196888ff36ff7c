"""An in-process connection: two protocols joined by one buffer in each direction.

The gateway reaches an engine in its own process through one, so that pools, deadlines, back-pressure and health checks work as
for an engine behind a socket. It saves the cost of a socket, above all the delay of a hang-up: `abort` notifies the other side
before it returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

_P = TypeVar("_P", bound=asyncio.Protocol)

BUFFERED_BYTES_MAX = 64 * 1024  # how far one side may run ahead of the other before it must pause


class MemoryTransport(asyncio.Transport):
    """One side of the connection. Written data reaches the other side's protocol in the next iteration of the event loop."""

    _peer: MemoryTransport

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._arrived: list[bytes] = []  # data for our protocol
        self._size = 0
        self._reading = True
        self._planned = False
        self._closing = False
        self._lost = False
        self._peer_paused = False

    # Towards the other side

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing and data:
            self._peer._arrive(bytes(data))

    def writelines(self, lines: Any) -> None:
        self.write(b"".join(lines))

    def close(self) -> None:
        """Close the connection; data already written still arrives."""
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._lose)
            self._peer._plan()

    def abort(self) -> None:
        """Cut the connection; the other side is notified before this returns."""
        self._closing = True
        if not self._lost:
            self._loop.call_soon(self._lose)
        self._peer._arrived.clear()
        self._peer._lose()

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return self._peer._size

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore the limits: the other side decides when its buffer is full."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("embedded", 0) if name == "peername" else default

    # From the other side

    def _arrive(self, data: bytes) -> None:
        self._arrived.append(data)
        self._size += len(data)
        self._plan()
        if self._size > BUFFERED_BYTES_MAX and not self._peer_paused:
            self._peer_paused = True
            self._peer._protocol.pause_writing()

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._planned = False
        if self._lost or not self._reading:
            return
        arrived, self._arrived, self._size = self._arrived, [], 0
        if arrived:
            self._protocol.data_received(b"".join(arrived))
        if self._peer_paused and not self._size:
            self._peer_paused = False
            if not self._peer._lost:
                self._peer._protocol.resume_writing()
        if self._peer._closing and not self._arrived and not self._lost:
            self._lose()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._plan()

    def is_reading(self) -> bool:
        return self._reading

    def _lose(self) -> None:
        if not self._lost:
            self._lost = self._closing = True
            self._protocol.connection_lost(None)


def connect(loop: asyncio.AbstractEventLoop, ours: Callable[[], _P], theirs: Callable[[], asyncio.Protocol]) -> _P:
    """Join two new protocols and return ours."""
    near_protocol, far_protocol = ours(), theirs()
    near, far = MemoryTransport(loop, near_protocol), MemoryTransport(loop, far_protocol)
    near._peer, far._peer = far, near
    far_protocol.connection_made(far)
    near_protocol.connection_made(near)
    return near_protocol
